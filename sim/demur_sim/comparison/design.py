"""What every design here has: a guarantee in the words of this project, and estimates with errors."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

import numpy as np

from demur_proto.accounting.conversions import zcdp_epsilon, zcdp_rho
from demur_proto.accounting.divergences import Level, levels_zcdp
from demur_proto.accounting.numerics import ceil_float, check_amount, check_delta, text_up, up
from demur_proto.arrays import Flags, Vector, fixed_floats
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.guarantee import NEIGHBOUR, UNIT, VIEWS
from demur_proto.mechanisms.thresholds import check_epsilon, exp_below
from demur_proto.study import View

GRID = 1 << 53  #: probabilities are multiples of 1/GRID, of which a uniform double knows all
MOST_ROUNDS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """What a design promises in view `local`, over all its rounds; ε in nats, rounded up.

    The neighbour is zero-out. An ε may be infinite: then nothing is promised.
    """

    rounds: int
    epsilon: float  #: for anybody, whatever their states do
    delta: float
    pair_epsilon: float  #: between two arbitrary people
    pair_delta: float
    report_epsilon: float  #: of one report on its own
    steady_epsilon: float | None = None  #: for people whose state never changes, if that is less
    steady_pair_epsilon: float | None = None  #: between two such people
    reference: str  #: what the record without data looks like

    @property
    def statement(self) -> str:
        """All of it in plain words."""
        steady = ""
        if self.steady_epsilon is not None and self.steady_pair_epsilon is not None:
            steady = (
                " For people whose state never changes: "
                f"{_pure(self.steady_epsilon)} however many rounds there are, and "
                f"{_pure(self.steady_pair_epsilon)} between two of them. "
                "When a state changes is protected by the first figure only."
            )
        return (
            f"{_promise(self.epsilon, self.delta)} over {self.rounds} rounds, for anybody. "
            f"Unit: {UNIT}. Neighbour: {NEIGHBOUR}; here {self.reference}. "
            f"View: {VIEWS[View.LOCAL]}. Between two arbitrary people: "
            f"{_promise(self.pair_epsilon, self.pair_delta)}.{steady} One report on its own: "
            f"{_pure(self.report_epsilon)}. This is of the design: as it is simulated, with a "
            "generator that has a seed, it protects nobody."
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimates:
    """The fraction of people whose state is yes, round by round: arrays [T], read-only."""

    fraction: Vector = field(repr=False)
    standard_error: Vector = field(repr=False)

    def __post_init__(self) -> None:
        for name in self.__slots__:
            object.__setattr__(self, name, fixed_floats(getattr(self, name)))


class Baseline(Protocol):
    """A design for the running fraction of a Boolean state."""

    @property
    def horizon(self) -> int:
        """How many rounds it is made for, T."""

    @property
    def guarantee(self) -> Protection:
        """What it promises over these rounds."""

    def estimates(self, states: Iterable[Flags], *, rng: np.random.Generator) -> Estimates:
        """Run it.

        Args:
            states: everybody's state [n], round after round, T of them; before the first it is no.
            rng: of all noise.

        Raises:
            ParameterError: these are not T arrays of n flags, or n is 0.
        """


def checked_rounds(states: Iterable[Flags], *, horizon: int) -> Iterator[Flags]:
    """The states of so many rounds, each one checked when it comes.

    Raises:
        ParameterError: one is no array of flags [n], n changes or is 0, or they end too soon.

    >>> len(list(checked_rounds(np.zeros((3, 2), dtype=bool), horizon=3)))
    3
    """
    rounds, people = iter(states), 0
    for number in range(1, horizon + 1):
        state = next(rounds, None)
        if state is None:
            raise ParameterError("states", f"{number - 1} rounds", f"of {horizon} rounds")
        shape, kind = np.shape(state), getattr(state, "dtype", None)
        people = people or (len(state) if len(shape) == 1 else 0)
        if kind != np.bool_ or shape != (people,) or not people:
            expected = f"flags of shape [{people}]" if people else "flags of shape [n], not empty"
            raise ParameterError("states", f"{kind} {shape} in round {number}", expected)
        yield state


def check_horizon(horizon: int) -> None:
    """Refuse a horizon that is no integer from 1 to 2^20."""
    check_integer("horizon", horizon, 1, MOST_ROUNDS)


def odds_of(epsilon: float) -> Fraction:
    """A rational below e^ε by so little, 2^-44 of ε, that its logarithm rounded up is at most ε.

    >>> 0.9999999999999 < math.log(odds_of(1.0)) < 1.0
    True
    """
    return exp_below(epsilon * (1 - 2.0**-44))


def largest_probability(fits: Callable[[int], bool]) -> float:
    """The largest multiple p = m/2^53 below 1 for which m fits, if all below fit too; 0 at least.

    >>> largest_probability(lambda m: 3 * m <= 2**53) * 3 <= 1
    True
    """
    low, high = 0, GRID
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low / GRID


def _promise(epsilon: float, delta: float) -> str:
    if delta == 0 or epsilon == math.inf:
        return _pure(epsilon)
    return f"({text_up(epsilon)}, {text_up(delta, digits=3)})-differential privacy"


def _pure(epsilon: float) -> str:
    if epsilon == math.inf:
        return "no differential privacy at all"
    return f"{text_up(epsilon)}-differential privacy"


# Randomised response in every round: what one does who knows nothing better.


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedResponse:
    """Say each round whether one's state is yes, the truth with probability (1 + c)/2.

    Without data a person answers by a fair coin, so that yes and no are equally near to nothing and
    cost the same: with "no" for the reference c would have to be the same and the error twice that.
    One round costs ρ(c), the supremum over all orders, and T of them compose:

        T ρ(c) ≤ the ρ whose zCDP gives (ε, δ),    ρ(c) ≥ −½ ln(1 − c²), its term of order 1

    The standard error of the fraction is √(1 − c²)/(2c√n) in every round, whatever the states are.

    Raises:
        ParameterError: a field is outside its range.

    Source: Warner 1965 (J. Am. Stat. Assoc. 60, 63-69), composed by Bun & Steinke 2016,
    arXiv:1605.02065. The supremum is certified from above; for small c it is near c²/2:

    >>> round(response_rho(0.001) * 1e6, 5)
    0.5
    """

    horizon: int  #: T; from 1 to 2^20
    epsilon: float  #: ε over all rounds, nats; from 1e-9 to 50
    delta: float  #: δ; at least 1e-300 and below 1
    lean: float = field(init=False)  #: c

    def __post_init__(self) -> None:
        check_horizon(self.horizon)
        check_epsilon(self.epsilon)
        check_delta("delta", self.delta)
        budget = Fraction(zcdp_rho(self.epsilon, delta=self.delta))

        def fits(m: int) -> bool:
            rho = response_rho(_on_grid(m / GRID))
            return self.horizon * Fraction(rho) <= budget

        lean = _on_grid(largest_probability(fits))
        if not lean > 0:
            raise ParameterError("epsilon", self.epsilon, "larger: nothing is left for a round")
        object.__setattr__(self, "lean", lean)

    @property
    def guarantee(self) -> Protection:
        """Exact for each round; two people differ most where one says yes and the other no."""
        pair = ceil_float(self.horizon * Fraction(levels_zcdp(_pair_levels(self.lean))))
        return Protection(
            rounds=self.horizon,
            epsilon=self.epsilon,
            delta=self.delta,
            pair_epsilon=zcdp_epsilon(pair, delta=self.delta),
            pair_delta=self.delta,
            report_epsilon=up(-math.log1p(-self.lean)),
            reference="every answer is a fair coin",
        )

    @property
    def deviation(self) -> float:
        """The standard error of one person's state, √(1 − c²)/(2c)."""
        return math.sqrt((1 - self.lean) * (1 + self.lean)) / (2 * self.lean)

    def estimates(self, states: Iterable[Flags], *, rng: np.random.Generator) -> Estimates:
        """Run it; see `Baseline`."""
        fractions, people = [], 0
        for state in checked_rounds(states, horizon=self.horizon):
            people = len(state)
            yes = self.answers(state, rng=rng)
            fractions.append(0.5 + (np.count_nonzero(yes) / people - 0.5) / self.lean)
        errors = np.full(self.horizon, self.deviation / math.sqrt(people))
        return Estimates(fraction=np.array(fractions), standard_error=errors)

    def answers(self, state: Flags, *, rng: np.random.Generator) -> Flags:
        """Device half: states [n] to answers [n] of one round."""
        truth: Flags = rng.random(len(state)) < (1 + self.lean) / 2
        answers: Flags = truth == state
        return answers


def response_rho(lean: float) -> float:
    """The least ρ for which an answer that leans by c is ρ-zCDP against a fair coin; rounded up.

    Raises:
        ParameterError: c is not at least 0 and below 1.
    """
    lean = check_amount("lean", lean)
    if not lean < 1:
        raise ParameterError("lean", lean, "at least 0 and below 1")
    if lean == 0:
        return 0.0
    levels = (
        Level(mass=0.5, log_ratio=math.log1p(lean)),
        Level(mass=0.5, log_ratio=math.log1p(-lean)),
    )
    return levels_zcdp(levels)


def _on_grid(lean: float) -> float:
    """A lean rounded down so that (1 ± c)/2 are multiples of 2^-53."""
    return math.floor(lean * (GRID // 2)) / (GRID // 2)


def _pair_levels(lean: float) -> tuple[Level, Level]:
    ratio = math.log1p(lean) - math.log1p(-lean)
    return (
        Level(mass=(1 - lean) / 2, log_ratio=ratio),
        Level(mass=(1 + lean) / 2, log_ratio=-ratio),
    )
