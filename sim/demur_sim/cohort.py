"""Many devices as arrays: a round of values, decisions, noise and sum in a few passes.

People come in fixed blocks of 4,096. Noise is drawn per (seed, round, block) and sums are
integers, so threads, worker processes and their number change nothing in any release.

Gradients are wide, so a block goes through such a round in fixed portions, one after the other: only
one portion is ever in memory, and all that is drawn for it is drawn before the next.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from demur_client.budget import affordable_radius, charge_units, decide
from demur_client.decision import covered
from demur_proto.arrays import Flags, Integers, Values, Words
from demur_proto.definition import Defined, ReportIds
from demur_proto.errors import ParameterError
from demur_proto.gradients import model_of
from demur_proto.mechanisms.base import Mechanism
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.mechanisms.of_round import mechanism_for
from demur_proto.mechanisms.unary import UnaryEncoding
from demur_proto.models.definition import Features, ModelDefinition
from demur_proto.models.examples import Examples
from demur_proto.noise import Sampler
from demur_proto.round import GaussianQuery, Gradient, Histogram, Linear, Query, Round
from demur_proto.study import Policy, Study
from demur_sim.ahead import Draw, drawn_ahead
from demur_sim.labelled_people import LabelledPeople
from demur_sim.populations import Population, side_by_side
from demur_sim.sampling import FastSampler, Noise, summed_noise
from demur_sim.scenario import Refusal
from demur_sim.seeds import Purpose, stream

BLOCK = 4096  #: people in a block; part of what a seed means
PORTION_WORDS = 1 << 17  #: worked on at once in a wide round, so that they fit a cache; likewise


def block_count(devices: int) -> int:
    """How many blocks this many devices make.

    >>> block_count(23_570)
    6
    """
    return -(-devices // BLOCK)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BlockAnswer:
    """What a portion of one block answered to one round; of a narrow round, the whole block."""

    block: int
    people: slice  #: which of the block
    words: Words  #: reports of those who sent [n, w]
    sent: Flags  #: who sent anything [devices of the portion]
    contributed: Integers  #: simulator's truth: see `given_sums`


class Block:
    """Up to 4,096 people: one filter each, as arrays. Same decisions as `demur_client.device`."""

    def __init__(
        self,
        study: Study,
        population: Population,
        *,
        people: slice,
        number: int,
        seed: int,
        refusal: Refusal,
    ) -> None:
        self.number = number
        self._study = study
        self._population = population
        self._people = people
        self._seed = seed
        self._silent = refusal is Refusal.SILENT
        self._mapped: tuple[Features | None, Examples] | None = None
        devices = people.stop - people.start
        self.remaining: Integers = np.full(devices, study.budget_units, dtype=np.int64)
        self.refused: Flags = np.zeros(devices, dtype=np.bool_)

    def answers(
        self, asked: Round, mechanism: Mechanism, model: ModelDefinition | None = None
    ) -> Iterator[BlockAnswer]:
        """Everyone's reports to a round, portion by portion.

        Args:
            asked: the round.
            mechanism: its mechanism.
            model: the one that a gradient round names.
        """
        with self._sampler(asked, mechanism) as sampler:
            for people in portions(asked.query, len(self.refused)):
                contribution, sent = self._contribution(asked, mechanism, model, people, sampler)
                reports = mechanism.randomise(contribution, sampler)
                yield BlockAnswer(
                    block=self.number,
                    people=people,
                    words=reports[sent] if self._silent else reports,
                    sent=sent,
                    contributed=given_sums(asked.query, contribution),
                )

    @contextmanager
    def _sampler(self, asked: Round, mechanism: Mechanism) -> Iterator[Sampler]:
        """This block's randomness in a round; of a wide round it is drawn ahead."""
        sampler = FastSampler(stream(self._seed, Purpose.NOISE, asked.number, self.number))
        if not (isinstance(asked.query, Gradient) and isinstance(mechanism, GaussianLinear)):
            yield sampler
            return
        steps: list[float | None] = [mechanism.noise_steps]
        if self._study.policy is Policy.CLIP or not mechanism.on_grid:
            steps = [None, *steps]
        draws = [
            Draw(reports=people.stop - people.start, dimension=mechanism.dimension, steps=each)
            for people in portions(asked.query, len(self.refused))
            for each in steps
        ]
        with drawn_ahead(sampler, draws) as ahead:
            yield ahead

    def sum(
        self,
        asked: Round,
        mechanism: Mechanism,
        model: ModelDefinition | None = None,
        *,
        noise: Noise = Noise.SHARES,
    ) -> "RoundSum":
        """What `answers` add up to, bit for bit, where nobody needs the reports themselves.

        Without their shares of noise where it is drawn for the sum as a whole.
        """
        return added(self._sums(asked, mechanism, model, noise))

    def _sums(
        self, asked: Round, mechanism: Mechanism, model: ModelDefinition | None, noise: Noise
    ) -> Iterator["RoundSum"]:
        """The sum of each portion."""
        sampler = FastSampler(stream(self._seed, Purpose.NOISE, asked.number, self.number))
        for people in portions(asked.query, len(self.refused)):
            contribution, sent = self._contribution(asked, mechanism, model, people, sampler)
            if noise is Noise.SUMMED:
                sums: Integers = contribution.sum(axis=0)
            elif self._silent:
                sums = mechanism.tally(mechanism.randomise(contribution, sampler)[sent])
            else:
                sums = randomised_tally(mechanism, contribution, sampler)
            yield RoundSum(
                reports=int(np.count_nonzero(sent)),
                sums=sums,
                contributed=given_sums(asked.query, contribution),
            )

    def _contribution(
        self,
        asked: Round,
        mechanism: Mechanism,
        model: ModelDefinition | None,
        people: slice,
        sampler: Sampler,
    ) -> tuple[Words, Flags]:
        """What some of the block put in [n, e], zero for cover; and who of them sends."""
        remaining, refused = self.remaining[people], self.refused[people]  # views: changed in place
        values = self._values(asked.query, model, people)
        largest = mechanism.largest
        if self._study.policy is Policy.CLIP and isinstance(mechanism, GaussianLinear):
            radii = affordable_radius(
                remaining, weight=asked.weight, largest=largest, refused=refused
            )
            words, units, shrunk = mechanism.encode_within(values, sampler, radii=radii)
        else:
            words, units = mechanism.encode(values, sampler)
            shrunk = None
        charge = charge_units(
            units,
            weight=asked.weight,
            budget_units=self._study.budget_units,
            largest=largest,
        )
        given, _, _ = decide(
            charge,
            remaining=remaining,
            refused=refused,
            retire=self._study.policy is not Policy.SKIP,
        )
        if shrunk is not None:
            refused |= shrunk
            given = given & ~(shrunk & (units == 0))  # shrunk to nothing: a refusal
        sent = given if self._silent else np.ones_like(given)
        return words if given.all() else covered(words, given), sent

    def _values(self, query: Query, model: ModelDefinition | None, people: slice) -> Values:
        """Some of the block's values of a query [n, v]."""
        start = self._people.start
        if not isinstance(query, Gradient):
            there = slice(start + people.start, start + people.stop)
            return evaluate_query(query, self._population, there)
        if model is None or not isinstance(self._population, LabelledPeople):
            raise ParameterError("model", model, "that of the round, for people who own examples")
        if self._mapped is None or self._mapped[0] != model.features:
            self._mapped = model.features, self._population.examples(model.features, self._people)
        _, examples = self._mapped
        with np.errstate(all="ignore"):  # as on a device
            return model_of(model).gradients(
                model.theta, examples.of_people(people.start, people.stop)
            )

    def report_ids(self) -> ReportIds:
        """This block's devices' report ids, from secrets that follow from the seed."""
        secrets = stream(self._seed, Purpose.SECRETS, self.number).bytes(32 * len(self.refused))
        return ReportIds(secrets[at : at + 32] for at in range(0, len(secrets), 32))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RoundSum:
    """What a cohort's answers to one round add up to."""

    reports: int
    sums: Integers  #: what the reports add to the round's sums [s]
    contributed: Integers  #: simulator's truth: see `given_sums`


class Cohort:
    """Some or all blocks of a population."""

    def __init__(
        self,
        study: Defined[Study],
        population: Population,
        *,
        seed: int,
        refusal: Refusal,
        first_block: int = 0,
    ) -> None:
        """Set up fresh filters.

        Args:
            study: the contract.
            population: the people of these blocks only.
            seed: of the whole run.
            refusal: what a refused device does.
            first_block: number of the first of these blocks in the whole population.
        """
        self.study = study
        self._seed = seed
        self.blocks = [
            Block(
                study.value,
                population,
                people=slice(start, min(start + BLOCK, population.devices)),
                number=first_block + start // BLOCK,
                seed=seed,
                refusal=refusal,
            )
            for start in range(0, population.devices, BLOCK)
        ]

    def answers(self, asked: Round, model: ModelDefinition | None = None) -> Iterator[BlockAnswer]:
        """Each block's answer to a round, in order."""
        mechanism = mechanism_for(self.study.value, asked)
        for block in self.blocks:
            yield from block.answers(asked, mechanism, model)

    def sum(
        self,
        asked: Round,
        pool: ThreadPoolExecutor,
        *,
        threads: int,
        model: ModelDefinition | None = None,
        noise: Noise = Noise.SHARES,
    ) -> RoundSum:
        """The sum of everyone's answers to a round, blocks dealt to threads.

        Args:
            asked: the round.
            pool: of the threads.
            threads: how many.
            model: the one that a gradient round names.
            noise: how the noise is drawn; a sum of all devices' shares may be drawn at once.

        Raises:
            ParameterError: the noise cannot be drawn that way.
        """
        mechanism = mechanism_for(self.study.value, asked)
        gaussian = mechanism if isinstance(mechanism, GaussianLinear) else None
        if noise is Noise.SUMMED and gaussian is None:
            raise ParameterError("noise", str(noise), f"{Noise.SHARES} where it is not Gaussian")
        share = -(-len(self.blocks) // threads)
        groups = [self.blocks[at : at + share] for at in range(0, len(self.blocks), share)]

        def group_sum(group: Sequence[Block]) -> RoundSum:
            return added(block.sum(asked, mechanism, model, noise=noise) for block in group)

        whole = added(pool.map(group_sum, groups) if threads > 1 else [group_sum(self.blocks)])
        if noise is Noise.SUMMED and gaussian is not None:
            rng = stream(self._seed, Purpose.SUMMED_NOISE, asked.number)
            drawn = summed_noise(rng, gaussian, reports=whole.reports)
            return replace(whole, sums=whole.sums + drawn)
        return whole

    def spent(self) -> Integers:
        """What everyone has spent, budget units, device by device. Simulator's truth."""
        left: Integers = np.concatenate([block.remaining for block in self.blocks])
        return self.study.value.budget_units - left

    def refused(self) -> Flags:
        """Who was ever refused, device by device. Simulator's truth."""
        flags: Flags = np.concatenate([block.refused for block in self.blocks])
        return flags


def portions(query: Query, devices: int) -> list[slice]:
    """How a block of so many devices goes through a round: a whole, or in portions that fit memory.

    What is drawn is drawn portion by portion, so where they begin is part of what a seed means.
    """
    step = devices
    if isinstance(query, Gradient):
        step = max(1, min(BLOCK, PORTION_WORDS // query.dimension))
    return [slice(at, min(at + step, devices)) for at in range(0, devices, step)]


def added(parts: Iterable[RoundSum]) -> RoundSum:
    """Several sums as one; exact. Of the parts only one need be there at a time."""
    reports = 0
    sums: Integers | None = None
    contributed: Integers | None = None
    for part in parts:
        reports += part.reports
        sums = part.sums if sums is None else sums + part.sums
        contributed = part.contributed if contributed is None else contributed + part.contributed
    if sums is None or contributed is None:
        raise ParameterError("parts", "none", "at least one")
    return RoundSum(reports=reports, sums=sums, contributed=contributed)


def given_sums(query: Query, contribution: Words) -> Integers:
    """Simulator's truth: un-noised words added up [d], or how many gave each category [k]."""
    if isinstance(query, GaussianQuery):
        sums: Integers = contribution.sum(axis=0)
        return sums
    symbols: Integers = np.bincount(contribution[:, 0], minlength=query.categories + 1)
    return symbols[1:]  # without those who gave none


def randomised_tally(mechanism: Mechanism, words: Words, sampler: Sampler) -> Integers:
    """`randomise`, then `tally`, without ever spreading the bits of a code over 64-bit words."""
    if isinstance(mechanism, UnaryEncoding):
        return mechanism.tally_codes(mechanism.draw(words[:, 0], sampler))
    return mechanism.tally(mechanism.randomise(words, sampler))


def evaluate_query(query: Linear | Histogram, population: Population, people: slice) -> Values:
    """Everyone's value of a query, features side by side [n, v].

    Raises:
        ParameterError: the features do not give that many numbers.
    """
    values = side_by_side(population, query.features, people)
    length = query.value_length
    if values.shape[1] != length:
        raise ParameterError("dimension", length, f"{values.shape[1]}, what the features give")
    return values
