"""The public model that a plan rests on: whose value is 1 in which round."""

from dataclasses import dataclass, field, replace
from typing import final

import numpy as np
import numpy.typing as npt

from demur_client.budget.running_counts import commit
from demur_proto.accounting.numerics import check_amount
from demur_proto.arrays import Flags, Integers, Vector
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.running.factorisations import Factors
from demur_proto.study import Policy, Study
from demur_sim.datasets.activity import Activity, Counted, read_activity
from demur_sim.engine.sampling import Purpose, stream
from demur_sim.people.opening import population_of
from demur_sim.people.populations import MOST_DEVICES, Population
from demur_sim.run import question
from demur_sim.scenario import Kind, Scenario

MOST_CELLS = 1 << 25  #: people times rounds that are looked at; of more people a part
MOST_DRAWN = 1 << 15  #: people drawn from a law

Table = npt.NDArray[np.bool_]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """Who has the value 1 when, in data or a law that everybody may know.

    Raises:
        ParameterError: the table is not one of flags, or empty.
    """

    values: Table = field(repr=False)  #: [T, m], round after round
    people: int  #: how many the data or the law are about
    drawn: bool = False  #: whether those looked at were drawn from a law
    law: Activity | None = None  #: what the table was drawn from, where sums can do without it

    def __post_init__(self) -> None:
        values = self.values
        if values.ndim != 2 or values.dtype != np.bool_ or not values.size:
            found = f"{values.dtype} {values.shape}"
            raise ParameterError("values", found, "flags of shape [rounds, people], not empty")
        values.flags.writeable = False
        check_integer("people", self.people, 1)

    @property
    def rounds(self) -> int:
        """T."""
        return len(self.values)

    @property
    def modelled(self) -> int:
        """How many people are looked at, m."""
        return int(self.values.shape[1])


def check_kind(scenario: Scenario) -> None:
    """Refuse a scenario of what cannot be planned.

    Raises:
        ParameterError: it asks neither sums nor a running count.
    """
    if scenario.kind not in (Kind.LINEAR, Kind.PREFIX):
        raise ParameterError("kind", str(scenario.kind), "linear or prefix, to be planned")


def model_of(scenario: Scenario, population: Population | None = None) -> Model:
    """The model that a scenario's people are.

    Of more than 2^25 values a random part of the people is looked at; of a law that makes people up, as
    many as that or 2^15 are drawn, however many there are to be.

    Args:
        scenario: of sums or of a running count.
        population: public data of one's own; by default the scenario's.

    Raises:
        DataError: the people's data cannot be read.
        ParameterError: the scenario asks something else, a value is neither 0 nor 1, or there are not
            so many periods.
    """
    check_kind(scenario)
    law, data, drawn = None, scenario.data, 0
    people = data.devices if population is None else 0
    if population is None and data.histogram is not None:
        law = read_activity(data.histogram)
        people = people or law.devices
    if population is None and (data.devices or law):
        drawn = min(MOST_DRAWN, max(1, MOST_CELLS // (scenario.rounds or data.periods)))
        population = population_of(replace(scenario, data=replace(data, devices=drawn)))
    elif population is None:
        population = population_of(scenario)
    check_integer("rounds", scenario.rounds, 0, population.periods)
    rounds = scenario.rounds or population.periods
    people = people or population.devices
    part = _part(population, most=max(1, MOST_CELLS // rounds))
    values = np.zeros((rounds, part.devices), dtype=np.bool_)
    for number, row in enumerate(values, start=1):
        row[:] = _flags(part, scenario, number)
    evenly = law is not None and law.counted is Counted.ACTIVE and rounds == population.periods
    return Model(values=values, people=people, drawn=drawn > 0, law=law if evenly else None)


def _part(population: Population, *, most: int) -> Population:
    """At most so many people, whoever they are."""
    if population.devices <= most:
        return population
    return population.shuffled(stream(0, Purpose.DEALING)).part(slice(0, most))


def _flags(people: Population, scenario: Scenario, number: int) -> npt.NDArray[np.bool_]:
    values = people.evaluate(question(scenario, number), slice(0, people.devices))
    if values.shape[1:] != (1,) or not np.isin(values, (0.0, 1.0)).all():
        expected = "one whose values are 0 or 1 for everybody, to be planned"
        raise ParameterError("feature", scenario.feature, expected)
    flags: npt.NDArray[np.bool_] = values[:, 0] != 0
    return flags


# How far a count is off because budgets do not hold everything: exactly, for every budget at once.

Chances = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

SLACK = 1e-9  #: for the rounding of sums
LARGEST_WORK = 1 << 31  #: rounds times rounds of activity, over all lines of a histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """What of a person's value is missing in a count, on average over rounds; d is −1, 0 or 1.

    Raises:
        ParameterError: a field is outside its range.
    """

    mean_square: float  #: of the mean of d over people, over rounds: (1/T) Σ_t d̄_t²
    wrong: float  #: of d², over people and rounds
    modelled: int | None  #: how many people were looked at, m; None for all that a law could make

    def __post_init__(self) -> None:
        if self.modelled is not None:
            check_integer("modelled", self.modelled, 1, MOST_DEVICES)
        if not check_amount("wrong", self.wrong) <= 1 + SLACK:
            raise ParameterError("wrong", self.wrong, "at most 1")
        if not check_amount("mean_square", self.mean_square) <= self.wrong * (1 + SLACK):
            raise ParameterError("mean_square", self.mean_square, f"at most wrong, {self.wrong}")

    def mean_squared_bias(self, people: int) -> float:
        """The expected square of what is missing in a count of n people, mean over rounds.

            n² d̄² + n s² max(0, 1 − n/m),    s² = (wrong − d̄²) m/(m − 1)

        Exact for n = m, and on average over n of the m people, drawn without replacement. More people
        than that are taken for n/m copies of these. Where those in turn were drawn from a law, that is
        n² s²/m too much on average: an error on the safe side, which does not favour small budgets.

        Source: Cochran 1977, "Sampling Techniques", Theorem 2.2.

        >>> Truncation(mean_square=0.01, wrong=0.1, modelled=10).mean_squared_bias(20)
        4.0
        """
        check_integer("people", people, 1, MOST_DEVICES)
        spread, m = self.wrong - self.mean_square, self.modelled
        if m is None:
            return people**2 * self.mean_square + people * spread
        rest = people * spread * (m - people) / (m - 1) if people < m else 0.0
        return people**2 * self.mean_square + rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncations:
    """The same for every budget n = 1 … k of answers; with more than k nothing is missing."""

    mean_square: Vector = field(repr=False)  #: [k]
    wrong: Vector = field(repr=False)  #: [k]
    modelled: int | None

    @property
    def most(self) -> int:
        """The budget from which nothing is missing, at least 1."""
        return len(self.wrong) + 1

    def of(self, budget: int) -> Truncation:
        """With room for so many answers."""
        check_integer("budget", budget, 1)
        if budget >= self.most:
            return Truncation(mean_square=0.0, wrong=0.0, modelled=self.modelled)
        return Truncation(
            mean_square=float(self.mean_square[budget - 1]),
            wrong=float(self.wrong[budget - 1]),
            modelled=self.modelled,
        )


def answer_truncations(values: Table) -> Truncations:
    """What is missing if everybody answers so many rounds in which their value is 1, and then no more.

    In round t these are the people whose value is 1 and was 1 in n earlier rounds already. One pass over
    the rounds counts them for all n together.

    Args:
        values: [T, m] flags, round after round.

    Two people who are active in both of two rounds, with room for one answer: the second is missed.

    >>> found = answer_truncations(np.ones((2, 2), dtype=np.bool_))
    >>> found.of(1).mean_squared_bias(2), found.of(2).mean_squared_bias(2)
    (2.0, 0.0)
    """
    rounds, people = values.shape
    most = int(values.sum(axis=0, dtype=np.int64).max(initial=0))
    used: Integers = np.zeros(people, dtype=np.int64)
    squares, sums = np.zeros((2, max(0, most - 1)))
    for active in values:
        before = np.bincount(used[active], minlength=most)[1:]
        missing = before[::-1].cumsum()[::-1] / people  # of n = 1 … most − 1
        squares += missing**2
        sums += missing
        used[active] += 1
    return Truncations(mean_square=squares / rounds, wrong=sums / rounds, modelled=people)


def spread_truncations(law: Activity, *, rounds: int) -> Truncations:
    """The same for people who are made up: whoever is active in K rounds, is so in any K of the T.

    Whoever is active in round t has been so in J of the t − 1 rounds before, a number that is
    hypergeometric, so that of all people this share is missing in round t with room for n answers:

        Σ_K p_K · K/T · P(J ≥ n),    P(J = j) = C(t−1, j) C(T−t, K−1−j) / C(T−1, K−1)

    Args:
        law: of active rounds; p_K is the share of people who have K of them.
        rounds: T.

    Raises:
        ParameterError: somebody has more rounds than that, or the histogram is too much work.

    One person active in both of two rounds, with room for one answer: never missing, then always.

    >>> from demur_sim.datasets.activity import Counted
    >>> always = Activity(counted=Counted.ACTIVE, rounds=np.array([2]), people=np.array([1]))
    >>> spread_truncations(always, rounds=2).wrong.tolist()
    [0.5]
    """
    law.check_periods(rounds)
    work = rounds * int(law.rounds[law.people > 0].sum())
    if work > LARGEST_WORK:
        expected = f"few enough for {LARGEST_WORK} steps: put neighbouring numbers into one line"
        raise ParameterError("rounds of the histogram", work, expected)
    missing = np.zeros((rounds, max(0, law.most - 1)))
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, rounds + 1)))])  # of factorials
    for often, share in zip(law.rounds.tolist(), law.shares.tolist(), strict=True):
        if often > 1 and share:
            beyond = _beyond(often, rounds, logs)
            missing[:, : often - 1] += share * often / rounds * beyond
    return Truncations(
        mean_square=(missing**2).mean(axis=0), wrong=missing.mean(axis=0), modelled=None
    )


def _beyond(often: int, rounds: int, logs: Vector) -> Chances:
    """P(J ≥ n) in round t = 1 … T, for n = 1 … K − 1 [T, K − 1]."""
    before = np.arange(rounds)[:, None]  # t − 1
    after = rounds - 1 - before
    hits = np.arange(often)[None, :]  # j
    rest = often - 1 - hits
    possible = (hits <= before) & (rest <= after)

    def choose(of: Places, some: Places) -> Chances:
        some = np.minimum(of, some)  # where it is above, the outcome is impossible
        chosen: Chances = logs[of] - logs[some] - logs[of - some]
        return chosen

    total = logs[rounds - 1] - logs[often - 1] - logs[rounds - often]
    chances = possible * np.exp(choose(before, hits) + choose(after, rest) - total)
    beyond: Chances = chances[:, :0:-1].cumsum(axis=1)[:, ::-1]
    return beyond


# Which changes of a state are told under admission `commit`, and what a running count misses.


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What changes share, worked out once for all budgets; public."""

    shared: tuple[Integers, ...] = field(repr=False)  #: of each position t, `Factors.shared` [t]

    @classmethod
    def of(cls, factors: Factors, *, horizon: int) -> "Weights":
        """Those of a segment."""
        shared = (factors.shared(position) for position in range(1, horizon + 1))
        return cls(shared=tuple(shared))


def change_truncation(values: Table, weights: Weights, study: Study) -> Truncation:
    """What is missing in the running count of a state, if everybody tells what their budget holds.

    Whoever has told another state than theirs tries again in every round, as devices do. Every decision
    is that of `commit`; only, what has been sent already stays in its sum: both sides of its comparison
    are larger by the energy of that, and no word has to be worked out.

    Args:
        values: [T, m] flags, the states round after round; before the first they are 0.
        weights: of a segment of T rounds.
        study: whose rounds all have its base noise.
    """
    told = _Told(values.shape[1], study)
    bias, wrong = 0.0, 0.0
    people = values.shape[1]
    for state, shared in zip(values, weights.shared, strict=True):
        told.turn(state, shared)
        missing = np.count_nonzero(state & ~told.state) / people
        extra = np.count_nonzero(told.state & ~state) / people
        bias += (extra - missing) ** 2
        wrong += extra + missing
    rounds = len(values)
    return Truncation(mean_square=bias / rounds, wrong=wrong / rounds, modelled=people)


@final
class _Told:
    """The states that people have told, and at which positions they changed them."""

    def __init__(self, people: int, study: Study) -> None:
        self.state: Flags = np.zeros(people, dtype=np.bool_)
        self._units, self._weight = study.budget_units, study.base_weight
        self._retire = study.policy is Policy.RETIRE
        self._changes: Integers = np.zeros(people, dtype=np.int64)  # how many were told
        self._where: npt.NDArray[np.int32] = np.zeros((people, 1), dtype=np.int32)
        self._energy: Integers = np.zeros(
            people, dtype=np.int64
        )  # of all that was told, to the horizon
        self._remaining: Integers = np.full(people, self._units, dtype=np.int64)
        self._refused: Flags = np.zeros(people, dtype=np.bool_)

    def turn(self, state: Flags, shared: Integers) -> None:
        """One round: whoever is not in the state that they told tries to tell theirs."""
        who = np.flatnonzero(state != self.state)
        if not who.size:
            return
        change: Integers = np.where(state[who], 1, -1)
        most = int(self._changes[who].max())
        where = self._where[who, :most]
        # A state is 0 or 1, so the changes that a person has told alternate, and begin with +1.
        signs = 1 - 2 * (np.arange(most) % 2)
        by_position = np.concatenate([[0], shared])  # position 0 is none
        cross: Integers = by_position[where] @ signs
        taken, self._energy[who], self._remaining[who], self._refused[who] = commit(
            change,
            planned=self._energy[who],
            cross=cross,
            alone=int(shared[-1]),
            weight=self._weight,
            budget_units=self._units,
            remaining=self._remaining[who],
            refused=self._refused[who],
            retire=self._retire,
        )
        self._take(who[taken], position=len(shared))

    def _take(self, who: Integers, *, position: int) -> None:
        if who.size and self._changes[who].max() == self._where.shape[1]:
            self._where = np.hstack([self._where, np.zeros_like(self._where)])
        self._where[who, self._changes[who]] = position
        self._changes[who] += 1
        self.state[who] = ~self.state[who]
