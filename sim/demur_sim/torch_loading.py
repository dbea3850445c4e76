"""Torch, which comes with the extra of that name and is only loaded on use."""

import importlib
from typing import Any

from demur_proto.errors import UnsupportedError


def load_torch() -> Any:
    """The package torch, set to one thread for each operation.

    What several threads work out together is rounded by their number. Blocks of people are what runs at
    the same time.

    Raises:
        UnsupportedError: it is not installed. One line that says what to install.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UnsupportedError(
            "modules by their path need torch, which is not installed: pip install 'demur[torch]'"
        ) from error
    torch.set_num_threads(1)
    return torch


def best_device(torch: Any) -> str:
    """Where arithmetic is fastest: cuda where torch sees a GPU, else cpu."""
    return "cuda" if torch.cuda.is_available() else "cpu"
