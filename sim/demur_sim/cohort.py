"""Many devices as arrays: a round of values, decisions, noise and sum in a few passes.

People come in fixed blocks of 4,096. Noise is drawn per (seed, round, block) and sums are
integers, so threads, worker processes and their number change nothing in any release.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from demur_client.budget import affordable_radius, charge_units, decide
from demur_client.decision import covered
from demur_proto.arrays import Flags, Integers, Values, Words
from demur_proto.definition import Defined, ReportIds
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import Mechanism
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.mechanisms.of_round import mechanism_for
from demur_proto.mechanisms.unary import UnaryEncoding
from demur_proto.noise import Sampler
from demur_proto.round import Linear, Query, Round
from demur_proto.study import Policy, Study
from demur_sim.populations import Population, side_by_side
from demur_sim.sampling import FastSampler
from demur_sim.scenario import Refusal
from demur_sim.seeds import Purpose, stream

BLOCK = 4096  #: people in a block; part of what a seed means


def block_count(devices: int) -> int:
    """How many blocks this many devices make.

    >>> block_count(23_570)
    6
    """
    return -(-devices // BLOCK)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BlockAnswer:
    """What one block answered to one round."""

    block: int
    words: Words  #: reports of those who sent [n, w]
    sent: Flags  #: who sent anything [devices of the block]
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
        devices = people.stop - people.start
        self.remaining: Integers = np.full(devices, study.budget_units, dtype=np.int64)
        self.refused: Flags = np.zeros(devices, dtype=np.bool_)

    def answer(self, asked: Round, mechanism: Mechanism) -> BlockAnswer:
        """Everyone's reports to a round."""
        contribution, sent, sampler = self._contribution(asked, mechanism)
        reports = mechanism.randomise(contribution, sampler)
        return BlockAnswer(
            block=self.number,
            words=reports[sent] if self._silent else reports,
            sent=sent,
            contributed=given_sums(asked.query, contribution),
        )

    def sum(self, asked: Round, mechanism: Mechanism) -> "RoundSum":
        """What `answer` adds up to, bit for bit, where nobody needs the reports themselves."""
        if self._silent:
            answer = self.answer(asked, mechanism)
            return RoundSum(
                reports=len(answer.words),
                sums=mechanism.tally(answer.words),
                contributed=answer.contributed,
            )
        contribution, _, sampler = self._contribution(asked, mechanism)
        return RoundSum(
            reports=len(contribution),
            sums=randomised_tally(mechanism, contribution, sampler),
            contributed=given_sums(asked.query, contribution),
        )

    def _contribution(self, asked: Round, mechanism: Mechanism) -> tuple[Words, Flags, FastSampler]:
        """What everyone puts in [n, e], zero for cover; who sends; and where noise comes from."""
        sampler = FastSampler(stream(self._seed, Purpose.NOISE, asked.number, self.number))
        values = evaluate_query(asked.query, self._population, self._people)
        largest = mechanism.largest
        if self._study.policy is Policy.CLIP and isinstance(mechanism, GaussianLinear):
            radii = affordable_radius(
                self.remaining, weight=asked.weight, largest=largest, refused=self.refused
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
        given, self.remaining, self.refused = decide(
            charge,
            remaining=self.remaining,
            refused=self.refused,
            retire=self._study.policy is not Policy.SKIP,
        )
        if shrunk is not None:
            self.refused |= shrunk
            given = given & ~(shrunk & (units == 0))  # shrunk to nothing: a refusal
        sent = given if self._silent else np.ones_like(given)
        return covered(words, given), sent, sampler

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

    def answers(self, asked: Round) -> Iterator[BlockAnswer]:
        """Each block's answer to a round, in order."""
        mechanism = mechanism_for(self.study.value, asked)
        for block in self.blocks:
            yield block.answer(asked, mechanism)

    def sum(self, asked: Round, pool: ThreadPoolExecutor, *, threads: int) -> RoundSum:
        """The sum of everyone's answers to a round, blocks dealt to threads."""
        mechanism = mechanism_for(self.study.value, asked)
        share = -(-len(self.blocks) // threads)
        groups = [self.blocks[at : at + share] for at in range(0, len(self.blocks), share)]

        def group_sum(group: Sequence[Block]) -> RoundSum:
            return added([block.sum(asked, mechanism) for block in group])

        return added(list(pool.map(group_sum, groups)) if threads > 1 else [group_sum(self.blocks)])

    def refused(self) -> Flags:
        """Who was ever refused, device by device. Simulator's truth."""
        flags: Flags = np.concatenate([block.refused for block in self.blocks])
        return flags


def added(parts: Sequence[RoundSum]) -> RoundSum:
    """Several sums as one; exact."""
    return RoundSum(
        reports=sum(part.reports for part in parts),
        sums=np.sum([part.sums for part in parts], axis=0, dtype=np.int64),
        contributed=np.sum([part.contributed for part in parts], axis=0, dtype=np.int64),
    )


def given_sums(query: Query, contribution: Words) -> Integers:
    """Simulator's truth: un-noised words added up [d], or how many gave each category [k]."""
    if isinstance(query, Linear):
        sums: Integers = contribution.sum(axis=0)
        return sums
    symbols: Integers = np.bincount(contribution[:, 0], minlength=query.categories + 1)
    return symbols[1:]  # without those who gave none


def randomised_tally(mechanism: Mechanism, words: Words, sampler: Sampler) -> Integers:
    """`randomise`, then `tally`, without ever spreading the bits of a code over 64-bit words."""
    if isinstance(mechanism, UnaryEncoding):
        return mechanism.tally_codes(mechanism.draw(words[:, 0], sampler))
    return mechanism.tally(mechanism.randomise(words, sampler))


def evaluate_query(query: Query, population: Population, people: slice) -> Values:
    """Everyone's value of a query, features side by side [n, v].

    Raises:
        ParameterError: the features do not give that many numbers.
    """
    values = side_by_side(population, query.features, people)
    length = query.value_length
    if values.shape[1] != length:
        raise ParameterError("dimension", length, f"{values.shape[1]}, what the features give")
    return values
