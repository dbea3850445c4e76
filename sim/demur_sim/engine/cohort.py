"""What some people of a block answered to a round: what leaves them, and what only a simulator knows."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from demur_client.budget.decide import affordable_radius, charge_units, decide
from demur_client.device import covered
from demur_proto.arrays import Flags, Integers, Values, Vector, Words
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import Mechanism
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.models.base import Examples
from demur_proto.models.definition import Features, ModelDefinition
from demur_proto.models.gradients import error_shares
from demur_proto.queries import CountingQuery, Gradient, Histogram, Linear, Query
from demur_proto.queries.registry import mechanism_for
from demur_proto.round import Round
from demur_proto.samplers.base import Sampler
from demur_proto.study import Policy, Study
from demur_proto.wire.definition import Defined, ReportIds
from demur_sim.engine.running_counts import (
    BUNCH,
    Bunch,
    Counting,
    CountingRounds,
    Flagged,
    RoundSum,
    added,
    clipped_sums,
    evaluate_query,
    given_sums,
    randomised_tally,
)
from demur_sim.engine.sampling import FastSampler, Noise, Purpose, stream, summed_noise
from demur_sim.people.labelled import LabelledPeople, Learners
from demur_sim.people.populations import Population
from demur_sim.people.presence import BLOCK, BlockTurnout, Turnout, portions
from demur_sim.scenario import Refusal


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BlockAnswer:
    """What a portion of one block answered to one round; of a narrow round, the whole block."""

    block: int
    people: slice  #: which of the block
    words: Words  #: reports of those who sent in time [n, w]
    sent: Flags  #: who did [devices of the portion]
    late_words: Words  #: reports of those who send once the round is closed [m, w]
    late: Flags  #: who does [devices of the portion]
    contributed: Vector  #: simulator's truth: see `Answered.contributed`


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answered:
    """What those people of a portion who take part in a round put in. Secret, but for who is there."""

    words: Words  #: zero for cover [n, e]
    sent: Flags  #: who sends anything [n]
    late: Flags  #: whose report is late [n]
    portion: slice  #: which of the block
    who: slice | Integers  #: those of the block who take part
    rough: Values | None = None
    """Where words may be other than values: those of who answers with data, zero for others [n, v]."""

    @property
    def in_time(self) -> Flags:
        """Whose report is counted [n]."""
        return self.sent & ~self.late

    def placed(self, flags: Flags) -> Flags:
        """Flags of those who take part [n], as flags of the whole portion."""
        if isinstance(self.who, slice):
            return flags
        whole: Flags = np.zeros(self.portion.stop - self.portion.start, dtype=np.bool_)
        whole[self.who - self.portion.start] = flags
        return whole

    def contributed(self, query: Query, mechanism: Mechanism) -> Vector:
        """Simulator's truth: see `given_sums` and `clipped_sums`. Of a sum or histogram, what was counted.

        Of a running count all that was taken up: what is told once is told, whether its word is late
        or not.
        """
        whole = isinstance(query, CountingQuery) or not self.late.any()
        if self.rough is not None and isinstance(mechanism, GaussianLinear):
            return clipped_sums(mechanism, self.rough if whole else self.rough[self.in_time])
        return given_sums(query, self.words if whole else self.words[self.in_time])


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


# Many devices as arrays: a round of values, decisions, noise and sum in a few passes.
#
# People come in fixed blocks of 4,096. Noise is drawn per (seed, round, block) and sums are
# integers, so threads, worker processes and their number change nothing in any release.
#
# Gradients are wide, so a block goes through such a round in fixed portions, one after the other: only
# one portion is ever in memory, and all that is drawn for it is drawn before the next.


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
        bunch: Bunch,
        place: slice,
        turnout: BlockTurnout | None = None,
    ) -> None:
        self.number = number
        self._turnout = turnout  # None: everybody takes part, in time
        self._bunch = bunch
        self._place = place  # in its arrays, of which these are views: changed in place only
        self.remaining = bunch.remaining[place]
        self.refused = bunch.refused[place]
        self.covered = bunch.covered[place]
        self._learners = learners
        self._study = study
        self._budget_units = study.budget_units  # worked out in fractions, for every portion
        self._population = population
        self._people = people
        self._seed = seed
        self._silent = refusal is Refusal.SILENT
        self._mapped: tuple[Features | None, Examples] | None = None

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
        sampler = self._sampler(asked)
        for mine in self._answered(asked, mechanism, model, counting, sampler):
            reports = mechanism.randomise(mine.words, sampler)
            in_time, late = mine.in_time, mine.sent & mine.late
            yield BlockAnswer(
                block=self.number,
                people=mine.portion,
                words=reports if in_time.all() else reports[in_time],
                sent=mine.placed(in_time),
                late_words=reports[late],
                late=mine.placed(late),
                contributed=mine.contributed(asked.query, mechanism),
            )

    def _sampler(self, asked: Round) -> FastSampler:
        """Of a round's coins and noise; noise of narrow words where `encode_within` gives such."""
        rng = stream(self._seed, Purpose.NOISE, asked.number, self.number)
        return FastSampler(rng, widen=self._study.policy is not Policy.CLIP)

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
        sampler = self._sampler(asked)
        for mine in self._answered(asked, mechanism, model, counting, sampler):
            in_time = mine.in_time
            if noise is Noise.SUMMED:
                sums: Integers = mine.words[in_time].sum(axis=0)
            elif in_time.all():
                sums = randomised_tally(mechanism, mine.words, sampler)
            else:
                sums = mechanism.tally(mechanism.randomise(mine.words, sampler)[in_time])
            yield RoundSum(
                reports=int(np.count_nonzero(in_time)),
                sums=sums,
                contributed=mine.contributed(asked.query, mechanism),
            )

    def _answered(
        self,
        asked: Round,
        mechanism: Mechanism,
        model: ModelDefinition | None,
        counting: Counting | None,
        sampler: Sampler,
    ) -> Iterator[Answered]:
        """What people put in, portion by portion; only those who take part are asked, and pay."""
        here: Flags = np.ones(0, dtype=np.bool_)
        late: Flags = np.zeros(len(self.refused), dtype=np.bool_)
        if self._turnout is not None:
            here, late = self._turnout.of(asked.number)
        for portion in portions(asked.query, len(self.refused)):
            who: slice | Integers = portion
            if self._turnout is not None:
                who = portion.start + np.flatnonzero(here[portion])
            rough: Values | None = None
            if counting is not None:
                words, sent = self._bunch.contribution(counting, self._place, number=asked.number)
                words, sent = words[who], sent[who]
            else:
                words, sent, rough = self._contribution(
                    asked, mechanism, model, portion, who, sampler
                )
            yield Answered(
                words=words, sent=sent, late=late[who], portion=portion, who=who, rough=rough
            )

    def _contribution(
        self,
        asked: Round,
        mechanism: Mechanism,
        model: ModelDefinition | None,
        portion: slice,
        who: slice | Integers,
        sampler: Sampler,
    ) -> tuple[Words, Flags, Values | None]:
        """What some of a portion put in [n, e], zero for cover; who of them sends; `Answered.rough`."""
        remaining, refused = self.remaining[who], self.refused[who]
        values = self._values(asked.query, model, portion)
        if not isinstance(who, slice):
            values = values[who - portion.start]
        largest = mechanism.largest
        if self._study.policy is Policy.CLIP and isinstance(mechanism, GaussianLinear):
            radii = affordable_radius(
                remaining, weight=asked.weight, largest=largest, refused=refused
            )
            words, units, shrunk = mechanism.encode_within(
                values, sampler, radii=radii, widen=False
            )
        else:
            words, units = mechanism.encode(values, sampler)
            shrunk = None
        charge = charge_units(
            units,
            weight=asked.weight,
            budget_units=self._budget_units,
            largest=largest,
        )
        given, _, _ = decide(
            charge,
            remaining=remaining,
            refused=refused,
            retire=self._study.policy is not Policy.SKIP,
        )
        self.covered[who] |= ~given | without_value(mechanism, values, units)
        if shrunk is not None:
            refused |= shrunk
            self.covered[who] |= shrunk
            given = given & ~(shrunk & (units == 0))  # shrunk to nothing: a refusal
        self.remaining[who], self.refused[who] = remaining, refused
        sent = given if self._silent else np.ones_like(given)
        exact = not isinstance(mechanism, GaussianLinear) or mechanism.on_grid
        linear = isinstance(asked.query, Linear)
        rough = values if linear and not exact else None
        if given.all():
            return words, sent, rough
        if rough is not None:
            rough = np.where(given[:, None], values, 0.0)
        return covered(words, given), sent, rough

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
        turnout: Turnout | None = None,
    ) -> None:
        """Set up fresh filters.

        Args:
            study: the contract.
            population: the people of these blocks only.
            seed: of the whole run.
            refusal: what a refused device does.
            first_block: number of the first of these blocks in the whole population.
            beside: of other studies of the same people, by their hash, who halted in them.
            turnout: who is there; by default everybody.
        """
        self.study = study
        self.counting = CountingRounds(
            beside or {}, devices=population.devices, budget_units=study.value.budget_units
        )
        self._seed = seed
        learners = Learners()
        turnouts = [
            None if turnout is None else turnout.block(first_block + index, devices=size)
            for index, size in enumerate(
                min(BLOCK, population.devices - start)
                for start in range(0, population.devices, BLOCK)
            )
        ]
        self.bunches = [
            Bunch(
                study.value,
                population,
                people=slice(start, min(start + BUNCH, population.devices)),
                refusal=refusal,
                turnouts=turnouts[start // BLOCK : (start + BUNCH) // BLOCK],
            )
            for start in range(0, population.devices, BUNCH)
        ]
        places = ((bunch, place) for bunch in self.bunches for place in bunch.places())
        self.blocks = [
            Block(
                study.value,
                population,
                people=slice(index * BLOCK, index * BLOCK + place.stop - place.start),
                number=first_block + index,
                seed=seed,
                refusal=refusal,
                learners=learners,
                bunch=bunch,
                place=place,
                turnout=turnouts[index],
            )
            for index, (bunch, place) in enumerate(places)
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
            threads: how many; a running count is added up on one, whatever is told.
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
        if (
            counting is not None
        ):  # so many short steps that two would wait for each other, not compute
            threads = 1
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
        return np.concatenate([bunch.held(weights) for bunch in self.bunches])

    def refused(self) -> Flags:
        """Who was ever refused, device by device. Simulator's truth."""
        flags: Flags = np.concatenate([block.refused for block in self.blocks])
        return flags

    def covered(self) -> Flags:
        """Who ever answered with less than their value, device by device. Simulator's truth."""
        flags: Flags = np.concatenate([block.covered for block in self.blocks])
        return flags
