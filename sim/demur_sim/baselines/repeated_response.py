"""Randomised response in every round: what one does who knows nothing better."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from demur_proto.arrays import Flags
from demur_proto.conversions import zcdp_epsilon, zcdp_rho
from demur_proto.errors import ParameterError
from demur_proto.finite_pairs import Level, levels_zcdp
from demur_proto.mechanisms.thresholds import check_epsilon
from demur_proto.outward import ceil_float, up
from demur_proto.ranges import check_amount, check_delta
from demur_sim.baselines.design import (
    GRID,
    Estimates,
    Protection,
    check_horizon,
    checked_rounds,
    largest_probability,
)


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
