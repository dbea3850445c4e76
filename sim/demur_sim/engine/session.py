"""A simulated population that an analyst can ask, whatever the fidelity."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Protocol

import numpy as np

from demur_proto.accounting.calibration import grid_step, squared_radius
from demur_proto.arrays import Flags, Integers, Values, Vector
from demur_proto.errors import ParameterError
from demur_proto.models.definition import ModelDefinition
from demur_proto.models.gradients import inputs_of, model_of
from demur_proto.release import Release
from demur_proto.round import Feature, Randomiser, Weights
from demur_proto.running.segments import Admission, Segment
from demur_proto.study import Study
from demur_proto.wire.definition import Defined
from demur_sim.engine.observer import Messages
from demur_sim.engine.sampling import Noise
from demur_sim.people.labelled import LabelledPeople
from demur_sim.people.populations import Population, side_by_side
from demur_sim.people.presence import BLOCK

ENDED = "the study has ended; open another session to ask more"
UNSETTLED = (
    "an earlier question was broken off, and devices may still answer it; open another session"
)


class Fidelity(StrEnum):
    """How real a simulation is. The first two release the same, bit for bit, for the same seed.

    A deployed device takes no seed: with the third, charges and decisions are the same where values
    lie on the grid, and noise is drawn from the same law.
    """

    COHORT = "cohort"  #: arrays in this process
    PROCESSES = "processes"  #: worker processes and a real collector, over gRPC
    DEVICE = "device"  #: a process for each device, with its ledger; for small populations


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Aftermath:
    """What only a simulator knows, and how the run went."""

    contributed: tuple[Vector, ...]  #: per round, un-noised sums of what was given: steps, people
    refused: Flags  #: who was refused at least once [devices]
    spent: Integers  #: of everyone's budget, in its units [devices]
    noise: Noise  #: how it was drawn
    messages: Messages | None  #: what a watcher saw, where it was recorded
    answering_s: float  #: first to last report
    peak_rss_mb: float  #: largest process, MiB


class Session(Protocol):
    """One study, one population, any number of adaptively chosen questions."""

    @property
    def study(self) -> Defined[Study]:
        """The contract."""

    @property
    def devices(self) -> int:
        """How many people there are."""

    @property
    def companions(self) -> "Mapping[bytes, Session]":
        """The same people in other studies, by their hash; these may count who halted in this one."""

    async def ask(
        self,
        *features: Feature,
        weights: Sequence[Sequence[float]] | None = None,
        clip: float | None = None,
        on_grid: bool | None = None,
    ) -> Release:
        """Put a question to every device, and return the release.

        Args:
            features: what to add up over people, one after the other.
            weights: [d, v], of the v numbers that the features give; None for the numbers themselves.
            clip: ℓ₂ radius of one person's value, data units; by default the scenario's.
            on_grid: every possible value is a multiple of the study's grid step and within the
                clip, so that nothing is lost to rounding; by default the scenario's.

        Raises:
            ParameterError: an argument is outside its range, the people have no such feature, or
                `on_grid` is not true of them. Nobody was asked; another question may follow.
            StateError: the study has ended, or an earlier question was broken off.
            ConnectionLost: a process of the simulation stopped.
        """

    async def ask_histogram(
        self, feature: Feature, *, categories: int, mechanism: Randomiser, epsilon: float
    ) -> Release:
        """Ask every device for its category of a feature, and return the counts.

        Args:
            feature: gives one number for each person, 0 to categories − 1; a person with another
                value counts as nothing.
            categories: k, how many there are; >= 1: see `Histogram`.
            mechanism: how devices randomise their category.
            epsilon: ε of this answer, nats; > 0. Not the study's, which pays for all of them:
                `histograms.epsilon_for_answers` says which is the largest for so many answers.

        Raises:
            ParameterError: as `ask`, or the study's mechanisms are Gaussian only, or no device
                could afford a single answer.
            StateError: as `ask`.
            ConnectionLost: as `ask`.
        """

    async def ask_gradient(self, model: ModelDefinition, *, clip: float | None = None) -> Release:
        """Ask every device for its gradient of a model, and return the release with their noisy sum.

        `demur_server.collector.estimates.mean_gradient` makes a mean of it.

        Args:
            model: at its parameters; it becomes public.
            clip: ℓ₂ radius of one person's gradient, data units; by default the scenario's.

        Raises:
            ParameterError: as `ask`, or the people own no examples that fit the model.
            UnsupportedError: this version computes no gradients of it.
            StateError: as `ask`.
            ConnectionLost: as `ask`.
        """

    async def ask_error_count(
        self, model: ModelDefinition, *, on_grid: bool | None = None
    ) -> Release:
        """Ask every device for its owner's share of a model's errors, and return how many they are.

        Args:
            model: at its parameters; it becomes public.
            on_grid: every possible share is a multiple of the study's grid step, as where nobody has
                more than one example; by default the scenario's.

        Raises:
            ParameterError: as `ask_gradient`, or `on_grid` is not true of these people.
            UnsupportedError: as `ask_gradient`.
            StateError: as `ask`.
            ConnectionLost: as `ask`.
        """

    async def ask_prefix(
        self,
        feature: Feature,
        segment: Segment,
        *,
        bound: int = 1,
        admission: Admission = Admission.COMMIT,
    ) -> Release:
        """Ask every device what changed, and return the running count of a state.

        The next position is `segment.after(release.number)`.

        Args:
            feature: the state now: an integer from 0 to `bound`; whoever has another value is taken
                to be as they were.
            segment: which of the segment's rounds this is.
            bound: the largest state; 1 for a Boolean.
            admission: what a device does with a change that does not fit.

        Raises:
            ParameterError: as `ask`, or the round does not go on with its segment.
            StateError: as `ask`.
            ConnectionLost: as `ask`.
        """

    async def ask_halt_count(self, halted_study: bytes, segment: Segment) -> Release:
        """Ask every device whether it ever gave another study less than its value; a running count.

        Args:
            halted_study: hash of the other study, which must be one that these people are in.
            segment: which of the segment's rounds this is.

        Raises:
            ParameterError: as `ask_prefix`, or they are in no such study.
            StateError: as `ask`.
            ConnectionLost: as `ask`.
        """

    def watch(self, *, from_number: int = 1) -> AsyncGenerator[Release, None]:
        """Every release from a round's number on, in order, then each new one, without end."""

    async def finish(self) -> Aftermath:
        """End the study and tell what only a simulator knows. No question can follow."""


# What may be asked of a simulated population, found out before anybody is asked.


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question that this population can answer."""

    features: tuple[Feature, ...]
    weights: Weights | None
    dimension: int
    clip: float
    on_grid: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Checks questions against the people they are for. Only a simulator could do that."""

    population: Population
    clip: float  #: where a question names none, data units
    on_grid: bool  #: where a question does not say
    grid_exponent: int

    def checked(
        self,
        features: Sequence[Feature],
        *,
        weights: Sequence[Sequence[float]] | None = None,
        clip: float | None,
        on_grid: bool | None,
    ) -> Question:
        """The question in full.

        Raises:
            ParameterError: there is no feature, one is unknown, weights do not fit, or `on_grid` is promised of
                values that are not multiples of the grid step within the clip; on a device such
                a value would silently count as nothing.
        """
        for feature in features:
            if not isinstance(feature, Feature):
                raise ParameterError("features", feature, "Feature(name=…, parameters=…) each")
        if not features:
            raise ParameterError("features", features, "at least one feature")
        first = side_by_side(self.population, features, slice(0, min(1, self.population.devices)))
        matrix = None if weights is None else Weights.of(weights)
        question = Question(
            features=tuple(features),
            weights=matrix,
            dimension=(first if matrix is None else matrix.apply(first)).shape[1],
            clip=self.clip if clip is None else clip,
            on_grid=self.on_grid if on_grid is None else on_grid,
        )
        if question.on_grid:
            self._check_promise(question)
        return question

    def check_category(self, feature: Feature) -> None:
        """Refuse what gives these people no category: one number each.

        Which numbers they are is not looked at: one that is no category counts as nothing.

        Raises:
            ParameterError: the feature is unknown, or gives several numbers.
        """
        self._check_number(feature, "the category")

    def check_state(self, feature: Feature) -> None:
        """Refuse what gives these people no state: one number each, likewise.

        Raises:
            ParameterError: the feature is unknown, or gives several numbers.
        """
        self._check_number(feature, "the state")

    def _check_number(self, feature: Feature, what: str) -> None:
        if not isinstance(feature, Feature):
            raise ParameterError("feature", feature, "Feature(name=…, parameters=…)")
        first = side_by_side(self.population, [feature], slice(0, min(1, self.population.devices)))
        if first.shape[1] != 1:
            raise ParameterError("feature", feature.name, f"one that gives one number, {what}")

    def check_model(self, model: ModelDefinition) -> None:
        """Refuse a model that these people's examples do not fit.

        Raises:
            ParameterError: it is none, or they own none that fit.
            UnsupportedError: this version computes no gradients of it.
        """
        if not isinstance(model, ModelDefinition):
            raise ParameterError("model", type(model).__name__, "a ModelDefinition")
        learner = model_of(model)
        people = self.population
        if not isinstance(people, LabelledPeople):
            raise ParameterError("population", people, "people who own labelled examples")
        first = inputs_of(model.features, people.data[:1])
        if first.shape[1:] != (learner.inputs,):
            raise ParameterError("model", first.shape[1:], f"one of {learner.inputs} inputs each")

    def checked_error_count(self, model: ModelDefinition, *, on_grid: bool | None) -> bool:
        """Whether an error count is on the grid, once these people can be asked for it.

        Raises:
            ParameterError: as `check_model`, or `on_grid` is promised of shares that are not
                multiples of the grid step.
            UnsupportedError: as `check_model`.
        """
        self.check_model(model)
        promised = self.on_grid if on_grid is None else on_grid
        people = self.population
        if promised and isinstance(people, LabelledPeople):
            for size in np.unique(np.diff(people.people)).tolist():
                if size and Fraction(1, size) % grid_step(self.grid_exponent):
                    expected = (
                        f"false, as somebody has {size} examples, and shares of them are not all "
                        f"multiples of 2^{self.grid_exponent}"
                    )
                    raise ParameterError("on_grid", True, expected)
        return promised

    def _check_promise(self, question: Question) -> None:
        exponent = self.grid_exponent
        radius = squared_radius(question.clip, exponent)
        for given in blocks(self.population, question.features):
            values = given if question.weights is None else question.weights.apply(given)
            with np.errstate(over="ignore"):
                steps = np.ldexp(values, -exponent)
                squares = np.einsum("nd,nd->n", steps, steps)
            if not (np.rint(steps) == steps).all() or not (squares <= radius).all():
                expected = (
                    f"false, as not all values are multiples of 2^{exponent} within the clip "
                    f"{question.clip:g}"
                )
                raise ParameterError("on_grid", True, expected)


def blocks(population: Population, features: Sequence[Feature]) -> Iterator[Values]:
    """Everyone's values of some features side by side, block by block [n, d]."""
    for at in range(0, population.devices, BLOCK):
        yield side_by_side(population, features, slice(at, min(at + BLOCK, population.devices)))
