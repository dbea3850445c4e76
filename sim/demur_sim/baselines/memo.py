"""What a device remembers: answers that were drawn once for each value, and are given ever after."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from demur_proto.errors import DataError, ParameterError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Memo:
    """Small integers that all devices of a simulation keep: secret, and not to be drawn again.

    A device that draws anew after a restart gives two answers where the promise is about one.

    Raises:
        ParameterError: `kept` is no array of bytes with at least one row.
    """

    kept: npt.NDArray[np.uint8] = field(repr=False)  #: [n, ...], read-only

    def __post_init__(self) -> None:
        kept = np.array(self.kept)
        if kept.dtype != np.uint8 or kept.ndim < 2 or not len(kept):
            raise ParameterError("kept", f"{kept.dtype} {kept.shape}", "bytes of shape [n, ...]")
        kept.flags.writeable = False
        object.__setattr__(self, "kept", kept)

    def save(self, path: Path) -> None:
        """Write it; the file is there as a whole or not at all."""
        new = path.with_name(f"{path.name}.new")
        with new.open("wb") as file:
            np.save(file, self.kept, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Memo":
        """Read it again.

        Raises:
            DataError: it is not there, or not what `save` wrote.
        """
        try:
            with path.open("rb") as file:
                kept = np.load(file, allow_pickle=False)
            return cls(kept=kept)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path}: expected a memo as `Memo.save` writes it: {error}") from None

    def check(self, shape: tuple[int, ...], *, below: int) -> None:
        """Refuse a memo of other devices or of another design.

        Args:
            shape: what it must be, [n, ...].
            below: all numbers in it are smaller.

        Raises:
            ParameterError: it is not that.
        """
        if self.kept.shape != shape or self.kept.max() >= below:
            found = f"numbers to {self.kept.max()} of shape {list(self.kept.shape)}"
            raise ParameterError("memo", found, f"numbers below {below} of shape {list(shape)}")
