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
from demur_proto.models.gradients import inputs_of, model_of
from demur_proto.queries import Feature, GaussianQuery, ModelQuery, Query, Reads
from demur_proto.release import Release
from demur_proto.round import check_query
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

    async def ask(self, query: Query) -> Release:
        """Put a question to every device, and return the release.

        Of a model, the query has the model with it, as `Gradient.about(model)` has. The next position of
        a running count is `query.segment.following(release.number)`.

        Args:
            query: what is asked.

        Raises:
            ParameterError: the study does not allow the query, the people have no such feature, category,
                state or examples, or `on_grid` is not true of them; or it is a running count and does not
                go on with its segment. Nobody was asked; another question may follow.
            UnsupportedError: this version computes no gradients of the model.
            StateError: the study has ended, or an earlier question was broken off.
            ConnectionLost: a process of the simulation stopped.
        """

    def watch(self, *, from_number: int = 1) -> AsyncGenerator[Release, None]:
        """Every release from a round's number on, in order, then each new one, without end."""

    async def finish(self) -> Aftermath:
        """End the study and tell what only a simulator knows. No question can follow."""


# What may be asked of a simulated population, found out before anybody is asked.


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Checks questions against the people they are for. Only a simulator could do that."""

    population: Population
    grid_exponent: int

    def checked(self, query: Query, study: Study) -> Query:
        """The question in full: with as many coordinates as these people's features give numbers.

        Raises:
            ParameterError: it is no query, or not one of the study; a feature is unknown, or does not give what the query is for; the people own no
                examples that fit the model; or `on_grid` is promised of values that are not multiples of
                the grid step within the clip: on a device such a value would silently count as nothing.
            UnsupportedError: this version computes no gradients of the model.
        """
        check_query(query)
        query.check_kind(study)
        if query.reads is Reads.HALTS:
            return query
        if isinstance(query, ModelQuery):
            self._check_model(query)
            return query
        first = side_by_side(
            self.population, query.features, slice(0, min(1, self.population.devices))
        )
        full = query.fitted(first.shape[1])
        full.weighted(first)
        if isinstance(full, GaussianQuery) and full.reads is Reads.FEATURES and full.on_grid:
            self._check_promise(full)
        return full

    def _check_model(self, query: ModelQuery) -> None:
        if query.model is None:
            raise ParameterError("model", None, "the model itself, as Gradient.about(model) has it")
        learner = model_of(query.model.value)
        people = self.population
        if not isinstance(people, LabelledPeople):
            raise ParameterError("population", people, "people who own labelled examples")
        first = inputs_of(query.model.value.features, people.data[:1])
        if first.shape[1:] != (learner.inputs,):
            raise ParameterError("model", first.shape[1:], f"one of {learner.inputs} inputs each")
        if not query.on_grid:
            return
        for size in np.unique(np.diff(people.people)).tolist():
            if size and Fraction(1, size) % grid_step(self.grid_exponent):
                expected = (
                    f"false, as somebody has {size} examples, and shares of them are not all "
                    f"multiples of 2^{self.grid_exponent}"
                )
                raise ParameterError("on_grid", True, expected)

    def _check_promise(self, query: GaussianQuery) -> None:
        exponent = self.grid_exponent if query.grid_exponent is None else query.grid_exponent
        radius = squared_radius(query.clip, exponent)
        for given in blocks(self.population, query.features):
            values = query.weighted(given)
            with np.errstate(over="ignore"):
                steps = np.ldexp(values, -exponent)
                squares = np.einsum("nd,nd->n", steps, steps)
            if not (np.rint(steps) == steps).all() or not (squares <= radius).all():
                expected = (
                    f"false, as not all values are multiples of 2^{exponent} within the clip "
                    f"{query.clip:g}"
                )
                raise ParameterError("on_grid", True, expected)


def blocks(population: Population, features: Sequence[Feature]) -> Iterator[Values]:
    """Everyone's values of some features side by side, block by block [n, d]."""
    for at in range(0, population.devices, BLOCK):
        yield side_by_side(population, features, slice(at, min(at + BLOCK, population.devices)))
