"""What a training needs in order to go on after it was killed: one file, replaced as a whole."""

import io
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demur_proto.arrays import DAMAGE
from demur_proto.errors import DataError, StateError
from demur_server.training.stopping import Count
from demur_server.training.trainer import TrainingState

FORM = 1  #: of the file; another one is refused
Arrays = Mapping[str, npt.NDArray[np.generic]]

_DAMAGE: tuple[type[Exception], ...] = (*DAMAGE, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """A state, what it belongs to, and whatever else its owner wants back."""

    state: TrainingState
    settings: Mapping[str, str]  #: a run with others may not go on from here
    extra: Arrays = field(default_factory=dict, repr=False)


def save_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint. A reader finds the old one or the new one whole, whenever this is killed.

    Raises:
        DataError: it cannot be written.
    """
    state = checkpoint.state
    about = {
        "form": FORM,
        "settings": dict(checkpoint.settings),
        "number": state.number,
        "weight": state.weight,
        "best_step": state.best_step,
        "ended": state.ended,
        "errors": [asdict(count) for count in state.errors],
        "halts": [asdict(count) for count in state.halts],
    }
    arrays: dict[str, Any] = {
        "about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
        "theta": state.theta,
        "total": state.total,
        **{f"memory.{number}": each for number, each in enumerate(state.memory)},
        **({} if state.best is None else {"best": state.best}),
        **{f"extra.{name}": each for name, each in checkpoint.extra.items()},
    }
    content = io.BytesIO()
    np.savez(content, **arrays)
    aside = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from None


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. Nothing in it is ever run.

    Raises:
        DataError: it cannot be read, or is none.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        about = json.loads(arrays["about"].tobytes())
        if about["form"] != FORM:
            raise DataError(f"{path}: a checkpoint of form {about['form']}, and not {FORM}")
        memory = [name for name in arrays if name.startswith("memory.")]
        state = TrainingState(
            number=int(about["number"]),
            theta=arrays["theta"],
            memory=tuple(arrays[f"memory.{number}"] for number in range(len(memory))),
            total=arrays["total"],
            weight=float(about["weight"]),
            errors=tuple(Count(**each) for each in about["errors"]),
            halts=tuple(Count(**each) for each in about["halts"]),
            best=arrays.get("best"),
            best_step=int(about["best_step"]),
            ended=str(about["ended"]),
        )
        settings = {str(key): str(value) for key, value in about["settings"].items()}
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except _DAMAGE as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: expected a whole checkpoint, found other bytes") from None
    extra = {
        name.removeprefix("extra."): each
        for name, each in arrays.items()
        if name.startswith("extra.")
    }
    return Checkpoint(state=state, settings=settings, extra=extra)


def check_settings(checkpoint: Checkpoint, settings: Mapping[str, str]) -> None:
    """Refuse to go on with other settings.

    Raises:
        StateError: some differ. It names each, with what it was and what it is.

    >>> state = TrainingState(
    ...     number=3, theta=np.zeros(1), memory=(), total=np.zeros(1), weight=0.0)
    >>> check_settings(Checkpoint(state=state, settings={"clip": "1.0"}), {"clip": "0.5"})
    Traceback (most recent call last):
        ...
    demur_proto.errors.StateError: the checkpoint is of a run with other settings: clip was 1.0, is 0.5
    """
    kept = checkpoint.settings
    names = sorted(set(kept) | set(settings))
    changed = [
        f"{name} was {kept.get(name, 'not there')}, is {settings.get(name, 'not there')}"
        for name in names
        if kept.get(name) != settings.get(name)
    ]
    if changed:
        raise StateError(f"the checkpoint is of a run with other settings: {'; '.join(changed)}")
