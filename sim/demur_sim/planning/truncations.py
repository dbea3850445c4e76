"""How far a count is off because budgets do not hold everything: exactly, for every budget at once."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from demur_proto.arrays import Integers, Vector
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.ranges import check_amount
from demur_sim.datasets.activity import Activity
from demur_sim.planning.model import Table
from demur_sim.populations import MOST_DEVICES

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
