"""The loop of a training: ask for a gradient, step, count where a count was paid for, stop."""

import io
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from demur_proto.arrays import DAMAGE, Vector
from demur_proto.checks import check_integer
from demur_proto.errors import DataError, ParameterError, StateError
from demur_proto.models.definition import (
    Architecture,
    DefinedModel,
    Features,
    ModelDefinition,
    define_model,
)
from demur_server.collector.estimates import MOST_PEOPLE
from demur_server.training.optimisers import (
    MOST_STEPS,
    Averaging,
    Count,
    HaltThreshold,
    Last,
    Optimiser,
    Plateau,
    State,
)


class GradientSource(Protocol):
    """Whoever can ask people for their gradients."""

    async def gradient(self, model: DefinedModel, *, number: int) -> Vector:
        """The noisy sum over people of their clipped gradients [d], data units.

        Asked again with a number that was asked before, and the same model, it tells what it told
        then, and nobody pays twice.

        Args:
            model: at its parameters; it becomes public.
            number: of the step, from 1 on.
        """


class ErrorSource(Protocol):
    """Whoever can count, on a budget of its own, for how many people a model is wrong."""

    async def errors(self, model: DefinedModel, *, number: int, step: int) -> Count:
        """A noisy count; asked again with a number, it tells what it told then.

        Args:
            model: whose errors to count; it becomes public.
            number: of the count, from 1 on.
            step: after which step it is asked.
        """


class HaltSource(Protocol):
    """Whoever can count, on a budget of its own, how many people have run out."""

    async def halts(self, *, number: int, step: int) -> Count:
        """A noisy running count; asked again with a number, it tells what it told then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a training depends on, besides the people and what it starts from.

    Raises:
        ParameterError: a field is outside its range, or a rule has no counts to go by.
    """

    architecture: Architecture
    features: Features | None
    cohort: int  #: n: every sum is divided by it, however many contributed
    steps: int  #: k_max, the most there may be
    optimiser: Optimiser
    averaging: Averaging = field(default_factory=Last)
    every: int = 0  #: counts are asked after each so many steps, and after the last; 0: never
    plateau: Plateau | None = None
    halt: HaltThreshold | None = None

    def __post_init__(self) -> None:
        check_integer("cohort", self.cohort, 1, MOST_PEOPLE)
        check_integer("steps", self.steps, 1, MOST_STEPS)
        check_integer("every", self.every, 0, MOST_STEPS)
        if not self.every and (self.plateau or self.halt):
            raise ParameterError("every", self.every, "at least 1, for a rule that needs counts")

    @property
    def counts(self) -> int:
        """How many counts of each kind there are at most."""
        return -(-self.steps // self.every) if self.every else 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingState:
    """Where a training stands after a step. All of it is public."""

    number: int  #: steps taken so far
    theta: Vector = field(repr=False)  #: the last iterate [d]
    memory: State = field(repr=False)  #: of the optimiser
    total: Vector = field(repr=False)  #: of the average [d]
    weight: float  #: of the average; 0: there is none yet
    errors: tuple[Count, ...] = ()
    halts: tuple[Count, ...] = ()
    best: Vector | None = field(default=None, repr=False)  #: with the fewest errors counted [d]
    best_step: int = 0  #: after which it was
    ended: str = ""  #: why it is over; empty while it is not

    @property
    def candidate(self) -> Vector:
        """What stands for the model at this step: the average, or the last iterate [d]."""
        return self.total / self.weight if self.weight else self.theta

    @property
    def final(self) -> Vector:
        """The best released candidate by the counts of errors; without counts, the latest [d]."""
        return self.candidate if self.best is None else self.best

    @property
    def final_step(self) -> int:
        """After which step `final` was there."""
        return self.number if self.best is None else self.best_step


def start(settings: Settings, theta: Vector) -> TrainingState:
    """Before the first step, from parameters [d] that are public."""
    return TrainingState(
        number=0,
        theta=theta,
        memory=settings.optimiser.start(len(theta)),
        total=np.zeros_like(theta),
        weight=0.0,
    )


async def train(
    settings: Settings,
    state: TrainingState,
    source: GradientSource,
    *,
    errors: ErrorSource | None = None,
    halts: HaltSource | None = None,
    after: Callable[[TrainingState], None] | None = None,
) -> TrainingState:
    """Go on from a state until it is over.

        θ ← step(θ, Ŝ/n),  with n the public cohort

    A state that was kept after any step leads to the same end, bit for bit, and sources that keep
    their promise charge nobody twice, wherever in a step the training broke off.

    Args:
        settings: what to do.
        state: from `start`, or from a checkpoint.
        source: of gradients.
        errors: of counts of errors; the final model is then the best by them.
        halts: of counts of people who ran out.
        after: told after every step.

    Raises:
        ParameterError: a rule has no source of its counts.
        StateError: θ is not finite any more, or a source gave no numbers.
        DemurError: as the sources.
    """
    if settings.plateau and errors is None:
        raise ParameterError("errors", errors, "given, for the rule that goes by them")
    if settings.halt and halts is None:
        raise ParameterError("halts", halts, "given, for the rule that goes by them")
    while not state.ended:
        model = _defined(settings, state.theta)
        sums = await source.gradient(model, number=state.number + 1)
        state = stepped(settings, state, sums)
        if not np.isfinite([state.theta, state.candidate]).all():
            raise StateError(
                f"after step {state.number} the parameters are not finite any more; lower the "
                "learning rate"
            )
        if settings.every and (
            state.number % settings.every == 0 or state.number == settings.steps
        ):
            state = await _counted(settings, state, errors, halts)
        state = replace(state, ended=_reason(settings, state))
        if after is not None:
            after(state)
    return state


def stepped(settings: Settings, state: TrainingState, sums: Vector) -> TrainingState:
    """After one more step along a noisy sum of gradients [d].

    Raises:
        ParameterError: it has another length than θ.
    """
    if sums.shape != state.theta.shape:
        raise ParameterError("sums", sums.shape, f"of shape {state.theta.shape}")
    number = state.number + 1
    with np.errstate(all="ignore"):  # what is not finite is found before it is published
        theta, memory = settings.optimiser.step(
            state.theta, state.memory, sums / settings.cohort, number=number
        )
        total, weight = settings.averaging.take(state.total, state.weight, theta, number=number)
    return replace(state, number=number, theta=theta, memory=memory, total=total, weight=weight)


async def _counted(
    settings: Settings,
    state: TrainingState,
    errors: ErrorSource | None,
    halts: HaltSource | None,
) -> TrainingState:
    step = state.number
    if errors is not None:
        model = _defined(settings, state.candidate)
        number = len(state.errors) + 1
        count = await errors.errors(model, number=number, step=step)
        if all(count.value < earlier.value for earlier in state.errors):
            state = replace(state, best=state.candidate, best_step=step)
        state = replace(state, errors=(*state.errors, count))
    if halts is not None:
        count = await halts.halts(number=len(state.halts) + 1, step=step)
        state = replace(state, halts=(*state.halts, count))
    return state


def _reason(settings: Settings, state: TrainingState) -> str:
    """Why it is over; empty while it is not. The rules look again only at new counts."""
    counted = bool(settings.every) and state.number % settings.every == 0
    if state.number >= settings.steps:
        return "all steps taken"
    if counted and settings.plateau and settings.plateau.has_come(state.errors):
        return "errors have not become fewer"
    if counted and settings.halt and settings.halt.has_come(state.halts, cohort=settings.cohort):
        return "too many have run out"
    return ""


def _defined(settings: Settings, theta: Vector) -> DefinedModel:
    return define_model(
        ModelDefinition(architecture=settings.architecture, features=settings.features, theta=theta)
    )


# What a training needs in order to go on after it was killed: one file, replaced as a whole.

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
