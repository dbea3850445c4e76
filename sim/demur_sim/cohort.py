"""Many devices as arrays: a round of values, decisions, noise and sum in a few passes.

People come in fixed blocks of 4,096. Noise is drawn per (seed, round, block) and sums are
integers, so threads, worker processes and their number change nothing in any release.

Gradients are wide, so a block goes through such a round in fixed portions, one after the other: only
one portion is ever in memory, and all that is drawn for it is drawn before the next.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from demur_client.budget import affordable_radius, charge_units, decide
from demur_client.decision import covered
from demur_proto.arrays import Flags, Integers, Values, Words
from demur_proto.definition import Defined, ReportIds
from demur_proto.errors import ParameterError
from demur_proto.gradients import error_shares
from demur_proto.mechanisms.base import Mechanism
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.mechanisms.of_round import mechanism_for
from demur_proto.models.definition import Features, ModelDefinition
from demur_proto.models.examples import Examples
from demur_proto.noise import Sampler
from demur_proto.round import Gradient, Histogram, Linear, Prefix, Query, Round
from demur_proto.study import Policy, Study
from demur_sim.counting_rounds import Counting, CountingRounds, Flagged
from demur_sim.labelled_people import LabelledPeople
from demur_sim.learners import Learners
from demur_sim.populations import Population
from demur_sim.portions import BLOCK, portions
from demur_sim.round_sums import RoundSum, added, evaluate_query, given_sums, randomised_tally
from demur_sim.running_block import RunningBlock
from demur_sim.sampling import FastSampler, Noise, summed_noise
from demur_sim.scenario import Refusal
from demur_sim.seeds import Purpose, stream


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
        learners: Learners,
    ) -> None:
        self.number = number
        self._learners = learners
        self._study = study
        self._population = population
        self._people = people
        self._seed = seed
        self._silent = refusal is Refusal.SILENT
        self._mapped: tuple[Features | None, Examples] | None = None
        devices = people.stop - people.start
        self.remaining: Integers = np.full(devices, study.budget_units, dtype=np.int64)
        self.refused: Flags = np.zeros(devices, dtype=np.bool_)
        self.covered: Flags = np.zeros(devices, dtype=np.bool_)  # see `Device.ever_covered`
        self.running: dict[int, RunningBlock] = {}  # by the first round of a count

    def answers(
        self,
        asked: Round,
        mechanism: Mechanism,
        model: ModelDefinition | None = None,
        counting: Counting | None = None,
    ) -> Iterator[BlockAnswer]:
        """Everyone's reports to a round, portion by portion.

        Args:
            asked: the round.
            mechanism: its mechanism.
            model: the one that the round names, if it names one.
            counting: what a running count needs besides.
        """
        sampler = FastSampler(stream(self._seed, Purpose.NOISE, asked.number, self.number))
        for people in portions(asked.query, len(self.refused)):
            contribution, sent = self._contribution(
                asked, mechanism, model, counting, people, sampler
            )
            reports = mechanism.randomise(contribution, sampler)
            yield BlockAnswer(
                block=self.number,
                people=people,
                words=reports[sent] if self._silent else reports,
                sent=sent,
                contributed=given_sums(asked.query, contribution),
            )

    def sum(
        self,
        asked: Round,
        mechanism: Mechanism,
        model: ModelDefinition | None = None,
        counting: Counting | None = None,
        *,
        noise: Noise = Noise.SHARES,
    ) -> RoundSum:
        """What `answers` add up to, bit for bit, where nobody needs the reports themselves.

        Without their shares of noise where it is drawn for the sum as a whole.
        """
        return added(self._sums(asked, mechanism, model, counting, noise))

    def _sums(
        self,
        asked: Round,
        mechanism: Mechanism,
        model: ModelDefinition | None,
        counting: Counting | None,
        noise: Noise,
    ) -> Iterator[RoundSum]:
        """The sum of each portion."""
        sampler = FastSampler(stream(self._seed, Purpose.NOISE, asked.number, self.number))
        for people in portions(asked.query, len(self.refused)):
            contribution, sent = self._contribution(
                asked, mechanism, model, counting, people, sampler
            )
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
        counting: Counting | None,
        people: slice,
        sampler: Sampler,
    ) -> tuple[Words, Flags]:
        """What some of the block put in [n, e], zero for cover; and who of them sends."""
        if counting is not None:
            return self._running_contribution(counting)
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
        self.covered[people] |= ~given | without_value(mechanism, values, units)
        if shrunk is not None:
            refused |= shrunk
            self.covered[people] |= shrunk
            given = given & ~(shrunk & (units == 0))  # shrunk to nothing: a refusal
        sent = given if self._silent else np.ones_like(given)
        return words if given.all() else covered(words, given), sent

    def _running_contribution(self, counting: Counting) -> tuple[Words, Flags]:
        """The same for a running count, of which a block is never divided."""
        query, segment = counting.step.query, counting.step.query.segment
        if isinstance(query, Prefix):
            values = evaluate_query(query, self._population, self._people)
        else:
            values = counting.flags[self._people].astype(np.float64)[:, None]
        if segment.count not in self.running:
            self.running[segment.count] = RunningBlock(len(self.refused))
        running = self.running[segment.count]
        words, given, whole = running.answer(
            counting.step,
            values,
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

    def _values(self, query: Query, model: ModelDefinition | None, people: slice) -> Values:
        """Some of the block's values of a query [n, v]."""
        start = self._people.start
        if isinstance(query, Linear | Histogram):
            there = slice(start + people.start, start + people.stop)
            return evaluate_query(query, self._population, there)
        if model is None or not isinstance(self._population, LabelledPeople):
            raise ParameterError("model", model, "that of the round, for people who own examples")
        if self._mapped is None or self._mapped[0] != model.features:
            self._mapped = model.features, self._population.examples(model.features, self._people)
        _, examples = self._mapped
        learner = self._learners.of(model)
        some = examples.of_people(people.start, people.stop)
        with np.errstate(all="ignore"):  # as on a device
            if isinstance(query, Gradient):
                return learner.gradients(model.theta, some)
            return error_shares(learner, model.theta, some)

    def held(self, weights: Mapping[int, int]) -> Integers:
        """What is held for words to come, budget units; weights by the first round of a count."""
        held: Integers = np.zeros_like(self.remaining)
        for count, running in self.running.items():
            held += weights[count] * running.planned
        return held

    def report_ids(self) -> ReportIds:
        """This block's devices' report ids, from secrets that follow from the seed."""
        secrets = stream(self._seed, Purpose.SECRETS, self.number).bytes(32 * len(self.refused))
        return ReportIds(secrets[at : at + 32] for at in range(0, len(secrets), 32))


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
        beside: Mapping[bytes, Flagged] | None = None,
    ) -> None:
        """Set up fresh filters.

        Args:
            study: the contract.
            population: the people of these blocks only.
            seed: of the whole run.
            refusal: what a refused device does.
            first_block: number of the first of these blocks in the whole population.
            beside: of other studies of the same people, by their hash, who halted in them.
        """
        self.study = study
        self.counting = CountingRounds(
            beside or {}, devices=population.devices, budget_units=study.value.budget_units
        )
        self._seed = seed
        learners = Learners()
        self.blocks = [
            Block(
                study.value,
                population,
                people=slice(start, min(start + BLOCK, population.devices)),
                number=first_block + start // BLOCK,
                seed=seed,
                refusal=refusal,
                learners=learners,
            )
            for start in range(0, population.devices, BLOCK)
        ]

    def answers(self, asked: Round, model: ModelDefinition | None = None) -> Iterator[BlockAnswer]:
        """Each block's answer to a round, in order."""
        mechanism = mechanism_for(self.study.value, asked)
        counting = self.counting.of(asked)
        for block in self.blocks:
            yield from block.answers(asked, mechanism, model, counting)

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
            model: the one that the round names, if it names one.
            noise: how the noise is drawn; a sum of all devices' shares may be drawn at once.

        Raises:
            ParameterError: the noise cannot be drawn that way.
        """
        mechanism = mechanism_for(self.study.value, asked)
        counting = self.counting.of(asked)
        gaussian = mechanism if isinstance(mechanism, GaussianLinear) else None
        if noise is Noise.SUMMED and gaussian is None:
            raise ParameterError("noise", str(noise), f"{Noise.SHARES} where it is not Gaussian")
        share = -(-len(self.blocks) // threads)
        groups = [self.blocks[at : at + share] for at in range(0, len(self.blocks), share)]

        def group_sum(group: Sequence[Block]) -> RoundSum:
            return added(
                block.sum(asked, mechanism, model, counting, noise=noise) for block in group
            )

        whole = added(pool.map(group_sum, groups) if threads > 1 else [group_sum(self.blocks)])
        if noise is Noise.SUMMED and gaussian is not None:
            rng = stream(self._seed, Purpose.SUMMED_NOISE, asked.number)
            drawn = summed_noise(rng, gaussian, reports=whole.reports)
            return replace(whole, sums=whole.sums + drawn)
        return whole

    def spent(self) -> Integers:
        """What everyone has spent, budget units, device by device. Simulator's truth.

        With what is held for the words that running counts have still to send.
        """
        left: Integers = np.concatenate([block.remaining for block in self.blocks])
        return self.study.value.budget_units - left

    def held(self) -> Integers:
        """How much of that is held for words to come, budget units, device by device."""
        weights = self.counting.weights()
        return np.concatenate([block.held(weights) for block in self.blocks])

    def refused(self) -> Flags:
        """Who was ever refused, device by device. Simulator's truth."""
        flags: Flags = np.concatenate([block.refused for block in self.blocks])
        return flags

    def covered(self) -> Flags:
        """Who ever answered with less than their value, device by device. Simulator's truth."""
        flags: Flags = np.concatenate([block.covered for block in self.blocks])
        return flags


def without_value(mechanism: Mechanism, values: Values, units: Integers) -> Flags:
    """Which rows of values [n, d] are no values, so that `encode` made them the reference [n].

    Args:
        mechanism: of the round.
        values: everyone's.
        units: what they cost, as `encode` gives it [n]; whatever is no value costs nothing.
    """
    suspect: Flags = units == 0
    if suspect.any():  # nothing may be a value as well: look at the others only
        other = values != 0
        suspect &= other[:, 0] if values.shape[1] == 1 else np.any(other, axis=1)
    if suspect.any():
        suspect[suspect] = ~mechanism.sound(values[suspect])
    return suspect
