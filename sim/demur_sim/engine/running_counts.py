"""What a cohort's answers to one round add up to."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
import numpy.typing as npt

from demur_client.budget.decide import charge_units, decide
from demur_client.budget.running_counts import commit
from demur_client.device import covered
from demur_proto.arrays import Flags, Integers, Values, Vector, Words
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import Mechanism
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.mechanisms.unary import UnaryEncoding
from demur_proto.queries import (
    CountingQuery,
    HaltCount,
    Histogram,
    Query,
    RunningCount,
)
from demur_proto.round import Round
from demur_proto.running.factorisations import factors_of
from demur_proto.running.following import changes_wanted, check_follows, counting_of
from demur_proto.running.segments import Admission
from demur_proto.samplers.base import Sampler
from demur_proto.study import Policy, Study
from demur_sim.people.populations import Population, side_by_side
from demur_sim.people.presence import BLOCK, BlockTurnout
from demur_sim.scenario import Refusal

SUM_DIGITS, PEOPLE_DIGITS = 53, 24  #: of a float, and of how many people's sums are exact


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RoundSum:
    """What a cohort's answers to one round add up to."""

    reports: int
    sums: Integers  #: what the reports add to the round's sums [s]
    contributed: Vector  #: simulator's truth: see `given_sums` and `clipped_sums`


def added(parts: Iterable[RoundSum]) -> RoundSum:
    """Several sums as one; exact. Of the parts only one need be there at a time."""
    reports = 0
    sums: Integers | None = None
    contributed: Vector | None = None
    for part in parts:
        reports += part.reports
        sums = part.sums if sums is None else sums + part.sums
        contributed = part.contributed if contributed is None else contributed + part.contributed
    if sums is None or contributed is None:
        raise ParameterError("parts", "none", "at least one")
    return RoundSum(reports=reports, sums=sums, contributed=contributed)


def given_sums(query: Query, contribution: Words) -> Vector:
    """Simulator's truth: un-noised words added up [d], or how many gave each category [k].

    Of values that lie on the grid, of changes and of categories that is what was contributed; of
    gradients and error counts it is that as shrunk and rounded.
    """
    if not isinstance(query, Histogram):
        sums: Vector = contribution.sum(axis=0).astype(np.float64)
        return sums
    symbols: Vector = np.bincount(contribution[:, 0], minlength=query.categories + 1).astype(
        np.float64
    )
    return symbols[1:]  # without those who gave none


def clipped_sums(mechanism: GaussianLinear, values: Values) -> Vector:
    """Simulator's truth: values clipped, neither shrunk nor rounded, added up [d], grid steps: S_active.

    Each is taken to a fraction of a step so fine that sums of up to 2²⁴ people are exact in any order, and
    so the same at every fidelity.

    Args:
        mechanism: of the round.
        values: of the people whose devices answered with data [n, d], data units.
    """
    digits = math.isqrt(mechanism.squared_radius).bit_length()
    fine = max(0, SUM_DIGITS - PEOPLE_DIGITS - digits)
    steps = np.rint(np.ldexp(mechanism.clipped(values), fine))
    sums: Vector = np.ldexp(steps.sum(axis=0), -fine)
    return sums


def randomised_tally(mechanism: Mechanism, words: Words, sampler: Sampler) -> Integers:
    """`randomise`, then `tally`, without ever spreading the bits of a code over 64-bit words."""
    if isinstance(mechanism, UnaryEncoding):
        return mechanism.tally_codes(mechanism.draw(words[:, 0], sampler))
    return mechanism.tally(mechanism.randomise(words, sampler))


def evaluate_query(query: Query, population: Population, people: slice) -> Values:
    """Everyone's value of a query, features side by side, weighted where it has weights [n, v].

    Raises:
        ParameterError: the features do not give that many numbers.
    """
    values = query.weighted(side_by_side(population, query.features, people))
    length = query.value_length
    if values.shape[1] != length:
        raise ParameterError("dimension", length, f"{values.shape[1]}, what the features give")
    return values


# A block of people in one running count, as arrays. Same decisions as `RunningState`.

EVERYBODY = slice(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one position means for everybody: worked out once for all blocks. Public."""

    query: CountingQuery
    weight: int  #: of its round
    row: Vector = field(repr=False)  #: [H + 1]: C[t, s] at s; 0 at 0 and beyond t
    shared: Integers = field(repr=False)  #: [H + 1]: as `Factors.shared`, likewise
    alone: int  #: energy of a change by 1 at t, up to the horizon
    in_doubles: bool  #: whatever a person's changes share with one now, doubles add it up exactly

    @classmethod
    def of(cls, query: CountingQuery, *, weight: int) -> "Step":
        """The step of a round."""
        position, horizon = query.segment.position, query.segment.horizon
        factors = factors_of(
            query.segment.factorisation, horizon=horizon, exponent=query.noise.grid_exponent
        )
        row, shared = np.zeros((2, horizon + 1), dtype=np.int64)
        row[1 : position + 1] = factors.row(position)
        shared[1 : position + 1] = factors.shared(position)
        alone = int(shared[position])
        return cls(
            query=query,
            weight=weight,
            row=row.astype(np.float64),
            shared=shared,
            alone=alone,
            in_doubles=horizon * query.bound**2 << -2 * query.noise.grid_exponent < 1 << 53,
        )


@final
class RunningBlock:
    """Everybody's changes of a segment in one list: whose, at which position, by how much.

    Args:
        devices: how many people.
    """

    def __init__(self, devices: int) -> None:
        self._list: npt.NDArray[np.int32] = np.zeros((3, 0), dtype=np.int32)
        self._changes = 0  # in use of it
        self.told: Integers = np.zeros(devices, dtype=np.int64)  #: the states as told
        self.planned: Integers = np.zeros(devices, dtype=np.int64)  #: see `commitment`

    @property
    def changes(self) -> npt.NDArray[np.int64]:
        """Who, position and amount of every change [3, k]: wide, since NumPy widens each index anyway."""
        return self._list[:, : self._changes].astype(np.int64)

    @property
    def room(self) -> npt.NDArray[np.int32]:
        """That list with the room that it has for more [3, m]."""
        return self._list

    def begin(self) -> None:
        """Go on in another segment: what was told stays told, and nothing more is sent of it."""
        self._list, self._changes = self._list[:, :0].copy(), 0
        self.planned[:] = 0  # so it is already, once all positions were asked

    def take(self, who: Integers, amounts: Integers, position: int | Integers) -> None:
        """Take up changes of some people [k]; nobody is named twice."""
        end = self._changes + len(who)
        while end > self._list.shape[1]:
            more = max(len(self.told), self._list.shape[1])
            self._list = np.hstack([self._list, np.zeros((3, more), dtype=np.int32)])
        place = self._list[:, self._changes : end]
        place[0], place[1], place[2] = who, position, amounts
        self._changes = end
        self.told[who] += amounts

    def answer(
        self,
        step: Step,
        values: Values,
        here: slice | Integers = EVERYBODY,
        *,
        remaining: Integers,
        refused: Flags,
        budget_units: int,
        retire: bool,
    ) -> tuple[Words, Flags, Flags]:
        """Everybody's words, charged.

        Args:
            step: of the round.
            values: [n, 1], the states now; NaN for none.
            here: who takes part. The others take up nothing; what is held for their word stays spent.
            remaining: of everybody's budget; changed in place.
            refused: who was ever refused; changed in place.
            budget_units: T.
            retire: policy `retire`.

        Returns:
            words [n, 1], grid steps; whose word was sent and not covered [n]; who told their state as
            it is [n]. Simulator's truth.
        """
        wanted, whole = changes_wanted(values, told=self.told, bound=step.query.bound)
        moved = wanted != 0
        away = None if isinstance(here, slice) else np.ones_like(whole)
        if away is not None:
            away[here] = False
            moved &= ~away
            whole |= away
        who = np.flatnonzero(moved)  # for all others nothing is to be decided
        change = wanted[who]
        if step.query.admission is Admission.COMMIT and who.size:
            taken, self.planned[who], remaining[who], refused[who] = commit(
                change,
                planned=self.planned[who],
                cross=self._shared(step, moved)[who],
                alone=step.alone,
                weight=step.weight,
                budget_units=budget_units,
                remaining=remaining[who],
                refused=refused[who],
                retire=retire,
            )
            whole[who[~taken]] = False
            who, change = who[taken], change[taken]
        self.take(who, change, step.query.segment.position)
        words = self._words(step)
        squares = words * words
        if step.query.admission is Admission.COMMIT:
            self.planned -= squares
            return words[:, None], np.ones_like(whole), whole
        if away is not None:
            squares[away] = 0
        given, _, _ = decide(
            charge_units(squares, weight=step.weight, budget_units=budget_units),
            remaining=remaining,
            refused=refused,
            retire=retire,
        )
        return words[:, None], given, whole & given

    def _words(self, step: Step) -> Integers:
        """Everybody's changes by their weights in the row [n].

        Added up in doubles, which is exact: a word is below 2^30, and no sum on the way above 2^45.
        """
        who, where, amounts = self.changes
        sums = np.bincount(who, weights=step.row[where] * amounts, minlength=len(self.told))
        return sums.astype(np.int64)

    def _shared(self, step: Step, moved: Flags) -> Integers:
        """For whoever wants to change, their changes by what those share with one now [n]."""
        who, where, amounts = self.changes
        theirs = np.flatnonzero(moved[who])
        who, where, amounts = who[theirs], where[theirs], amounts[theirs]
        parts = step.shared[where] * amounts
        if step.in_doubles:  # what any of their words could share is below the energy of them all
            return np.bincount(who, weights=parts, minlength=len(moved)).astype(np.int64)
        sums: Integers = np.zeros_like(self.told)
        np.add.at(sums, who, parts)
        return sums


# Rounds of running counts as a cohort sees them: each goes on with its count.

Flagged = Callable[[], Flags]
"""Who of a cohort's people ever answered some study with less than their value [devices]."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Counting:
    """What all blocks need of a round of a running count."""

    step: Step
    budget_units: int  #: T, worked out once: it takes exact fractions
    flags: Flags  #: who halted in the other study, of a halt count [devices]; else of nobody


@final
class CountingRounds:
    """What has been asked in each running count so far.

    Args:
        beside: of other studies of the same people, by their hash, who halted in them.
        devices: how many people.
        budget_units: T of their study.
    """

    def __init__(self, beside: Mapping[bytes, Flagged], *, devices: int, budget_units: int) -> None:
        self._beside = beside
        self._devices = devices
        self._budget_units = budget_units
        self._last: dict[int, Round] = {}  # of each count, by its first round

    def of(self, asked: Round) -> Counting | None:
        """What a round needs if it asks for a running count, after checking it as a device does.

        Raises:
            ParameterError: it does not go on with its count, or these people are not in the study
                of which it counts halts; or it passes over a position, which a collector never does.
        """
        query = counting_of(asked)
        if query is None:
            return None
        count = query.segment.count
        if count in self._last:
            check_follows(asked, self._last[count])
        _check_no_gap(query, self._last.get(count))
        flags: Flags = np.zeros(self._devices, dtype=np.bool_)
        if isinstance(query, HaltCount):
            if query.halted_study not in self._beside:
                name = query.halted_study.hex()[:16]
                raise ParameterError("halted_study", name, "a study that these people are in")
            flags = self._beside[query.halted_study]()
        self._last[count] = asked
        step = Step.of(query, weight=asked.weight)
        return Counting(step=step, budget_units=self._budget_units, flags=flags)

    def go_on(self, last: Round) -> None:
        """Go on after this round, as if it had been asked here."""
        query = counting_of(last)
        if query is not None:
            self._last[query.segment.count] = last

    def weights(self) -> dict[int, int]:
        """The weight of each count's rounds, by its first round."""
        return {first: asked.weight for first, asked in self._last.items()}


def _check_no_gap(query: CountingQuery, last: Round | None) -> None:
    """Refuse a round that does not follow at once: arrays keep no account of words never asked for."""
    before = None if last is None else counting_of(last)
    if query.segment.place != (1 if before is None else before.segment.place + 1):
        due = 1 if before is None else before.segment.following().position
        expected = f"{due}: a cohort is asked at every one"
        raise ParameterError("position", query.segment.position, expected)


# Neighbouring blocks that decide about running counts together, in fewer and longer steps.
#
# What is drawn is drawn block by block, as everywhere, so that no release depends on it.

BUNCH = 16 * BLOCK  #: people in a bunch


@final
class Bunch:
    """The filters of several blocks side by side, and their running counts.

    Args:
        study: the contract.
        population: everybody.
        people: which of them; whole blocks, and the last one may be smaller.
        refusal: what a refused device does.
        turnouts: of each of the blocks; None where everybody takes part.
    """

    def __init__(
        self,
        study: Study,
        population: Population,
        *,
        people: slice,
        refusal: Refusal,
        turnouts: Sequence[BlockTurnout | None],
    ) -> None:
        self._study = study
        self._population = population
        self._people = people
        self._silent = refusal is Refusal.SILENT
        self._turnouts = [turnout for turnout in turnouts if turnout is not None]
        devices = people.stop - people.start
        self.remaining: Integers = np.full(devices, study.budget_units, dtype=np.int64)
        self.refused: Flags = np.zeros(devices, dtype=np.bool_)
        self.covered: Flags = np.zeros(devices, dtype=np.bool_)  # see `Device.ever_covered`
        self.running: dict[int, RunningBlock] = {}  # by the first round of a count
        self._answered: tuple[Counting, Words, Flags] | None = None

    def places(self) -> list[slice]:
        """Where each of the blocks is in these arrays."""
        devices = len(self.refused)
        return [slice(at, min(at + BLOCK, devices)) for at in range(0, devices, BLOCK)]

    def contribution(self, counting: Counting, place: slice, *, number: int) -> tuple[Words, Flags]:
        """What one of the blocks put in [n, 1], zero for cover; and who of it sends [n].

        Of people who do not take part it means nothing.

        The first one that is asked decides for all of them, and what is left is kept until the last
        one has asked.

        Args:
            counting: of the round, one object for all blocks.
            place: of the block, as `places` has it.
            number: of the round.
        """
        if self._answered is None or self._answered[0] is not counting:
            self._answered = (counting, *self._answer(counting, number))
        _, words, sent = self._answered
        if place.stop == len(self.refused):
            self._answered = None
        return words[place], sent[place]

    def _answer(self, counting: Counting, number: int) -> tuple[Words, Flags]:
        query, segment = counting.step.query, counting.step.query.segment
        if isinstance(query, RunningCount):
            values = evaluate_query(query, self._population, self._people)
        else:
            values = counting.flags[self._people].astype(np.float64)[:, None]
        here: slice | Integers = EVERYBODY
        if self._turnouts:
            here = np.flatnonzero(np.concatenate([each.of(number)[0] for each in self._turnouts]))
        if segment.count not in self.running:
            self.running[segment.count] = RunningBlock(len(self.refused))
        running = self.running[segment.count]
        words, given, whole = running.answer(
            counting.step,
            values,
            here,
            remaining=self.remaining,
            refused=self.refused,
            budget_units=counting.budget_units,
            retire=self._study.policy is not Policy.SKIP,
        )
        self.covered |= ~whole
        if segment.over:
            running.begin()
        sent = given if self._silent else np.ones_like(given)
        return words if given.all() else covered(words, given), sent

    def held(self, weights: Mapping[int, int]) -> Integers:
        """What is held for words to come, budget units; weights by the first round of a count."""
        held: Integers = np.zeros_like(self.remaining)
        for count, running in self.running.items():
            held += weights[count] * running.planned
        return held
