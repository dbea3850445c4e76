"""A simulated population that an analyst can ask, whatever the fidelity."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from demur_proto.arrays import Flags, Integers, Vector
from demur_proto.definition import Defined
from demur_proto.models.definition import ModelDefinition
from demur_proto.release import Release
from demur_proto.round import Feature, Randomiser
from demur_proto.segments import Admission, Segment
from demur_proto.study import Study
from demur_sim.observer import Messages
from demur_sim.sampling import Noise

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

        `demur_server.gradients.mean_gradient` makes a mean of it.

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
