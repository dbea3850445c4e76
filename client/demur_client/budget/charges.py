"""From what an answer loses to what it costs: integers, for every measure.

A budget is a bound B in its measure, kept as an integer T of units. A loss ρ costs ⌈T·ρ/B⌉ of them,
or T + 1 where it exceeds B; losses are taken as the exact rationals that they are. Thus what a
filter of T units lets through never exceeds B, and n losses of B/n fit exactly where n divides T.

Linear questions with Gaussian noise need none of this: a study derives T from its base round, and
`charge_units` multiplies a squared norm by the round's weight.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from demur_proto.accounting.calibration import GRAIN, UNITS_LIMIT, base_units
from demur_proto.accounting.conversions import Grade, renyi_budget, zcdp_rho
from demur_proto.accounting.numerics import LARGEST, ceil_float, check_order
from demur_proto.accounting.pure import MOST_ANSWERS, PureCharge, pure_rho
from demur_proto.arrays import Integers
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError

HIDDEN = "something else"  #: in errors in place of a value that depends on a person's data

Amount = int | float | Fraction
"""A loss or a bound, exactly: a float is the rational number that it holds."""


class Budget(Protocol):
    """What a filter needs to know of any budget here."""

    @property
    def budget_units(self) -> int:
        """T, the integer budget: 1 to 2^62 − 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZcdpBudget:
    """A budget in the measure `zcdp`: ρ adds up over answers, whatever their mechanism.

    Source: Bun & Steinke 2016, arXiv:1605.02065, Lemma 1.7; under full adaptivity Feldman & Zrnic
    2021, arXiv:2008.11193, Theorem "rdp-at-stopping-times", at every order at once.

    >>> budget = ZcdpBudget(rho=0.5, budget_units=1000)
    >>> budget.charge(0.25), budget.charge(Fraction(1, 6)), budget.charge(math.inf)
    (500, 334, 1001)
    """

    rho: Amount  #: B, nats; finite, >= 0
    budget_units: int = GRAIN  #: T; 1 to 2^62 - 1

    def __post_init__(self) -> None:
        _check_bound("rho", self.rho)
        _check_units(self.budget_units)

    def charge(self, rho: Amount) -> int:
        """What an answer that is ρ-zCDP for this person costs, in units. Secret.

        Args:
            rho: nats; >= 0, or infinite.

        Raises:
            ParameterError: it is NaN or negative.
        """
        return _units(_loss("rho", rho), self.rho, self.budget_units)


@dataclass(frozen=True, slots=True, kw_only=True)
class GdpBudget:
    """A budget in the measure `gdp`, for answers with Gaussian noise only: μ² adds up.

    Source: arXiv:2210.17520, Theorem 3, and arXiv:2209.15596: under full adaptivity.

    >>> budget = GdpBudget(mu=1.0, budget_units=1000)
    >>> budget.charge(0.5), budget.charge_square(Fraction(1, 4))
    (250, 250)
    """

    mu: Amount  #: μ_B, standard deviations; finite, >= 0
    budget_units: int = GRAIN  #: T; 1 to 2^62 - 1

    def __post_init__(self) -> None:
        _check_bound("mu", self.mu)
        _check_units(self.budget_units)

    def charge(self, mu: Amount) -> int:
        """What a Gaussian answer costs whose mean this person moves by μ. Secret.

        Args:
            mu: ‖q‖/σ, standard deviations; >= 0, or infinite.

        Raises:
            ParameterError: it is NaN or negative.
        """
        loss = _loss("mu", mu)
        return _units(loss if loss == math.inf else loss**2, self._square, self.budget_units)

    def charge_square(self, square: Amount) -> int:
        """The same for μ², which is rational where μ is not: ‖q‖²/σ². Secret.

        Args:
            square: μ², >= 0, or infinite.

        Raises:
            ParameterError: it is NaN or negative.
        """
        return _units(_loss("square", square), self._square, self.budget_units)

    @property
    def _square(self) -> Fraction:
        return Fraction(self.mu) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RenyiBudget:
    """A budget in the measure `renyi`: at each of its orders a bound of its own.

    One order is enough for a guarantee; several give the best of theirs. An answer is given only
    if it fits at every order, so an order with too small a bound stops everything.

    Source: Feldman & Zrnic 2021, arXiv:2008.11193, Theorem "rdp-at-stopping-times".

    >>> budget = RenyiBudget(bounds={2: 1, 4: 2}, budget_units=1000)
    >>> budget.charge([0.5, 0.75]), budget.charge_zcdp(0.25)
    ((500, 375), (500, 500))
    """

    bounds: Mapping[float, Amount]  #: B(α) by the order α: nats, finite, >= 0; at least one
    budget_units: int = GRAIN  #: T, the same for every order; 1 to 2^62 - 1

    def __post_init__(self) -> None:
        if not isinstance(self.bounds, Mapping) or not self.bounds:
            raise ParameterError("bounds", self.bounds, "a mapping of at least one order")
        frozen = {check_order("order", order): bound for order, bound in self.bounds.items()}
        for order, bound in frozen.items():
            _check_bound(f"bounds[{order:g}]", bound)
        object.__setattr__(self, "bounds", MappingProxyType(frozen))
        _check_units(self.budget_units)

    @classmethod
    def of(
        cls,
        epsilon: float,
        *,
        delta: float,
        orders: Iterable[float],
        grade: Grade = "improved",
        budget_units: int = GRAIN,
    ) -> "RenyiBudget":
        """The largest bounds that keep (ε, δ) at each of these orders.

        Args:
            epsilon: target ε, nats.
            delta: target δ.
            orders: Rényi orders α > 1.
            grade: which conversion.
            budget_units: T.

        Raises:
            ParameterError: an argument is outside its range, or an order proves nothing at this
                ε and δ, so that it would refuse every answer.

        >>> RenyiBudget.of(3 - math.log(2), delta=1 / (2 * math.e), orders=[2]).bounds[2] > 1.9999
        True
        """
        bounds: dict[float, Amount] = {}
        for order in orders:
            bounds[order] = renyi_budget(epsilon, order=order, delta=delta, grade=grade)
            if not bounds[order]:
                raise ParameterError(
                    "orders", order, f"large enough to prove anything at ({epsilon}, {delta})"
                )
        return cls(bounds=bounds, budget_units=budget_units)

    @property
    def orders(self) -> tuple[float, ...]:
        """The orders, in the order of the charges."""
        return tuple(self.bounds)

    def charge(self, losses: Sequence[Amount]) -> tuple[int, ...]:
        """What an answer with these divergences costs, order by order. Secret.

        Args:
            losses: ρ(α) in nats at each of `orders`; >= 0, or infinite.

        Raises:
            ParameterError: there are more or fewer of them, or one is NaN or negative.
        """
        if len(losses) != len(self.bounds):
            raise ParameterError("losses", f"{len(losses)} of them", f"{len(self.bounds)} losses")
        return tuple(
            _units(_loss("losses", loss), bound, self.budget_units)
            for loss, bound in zip(losses, self.bounds.values(), strict=True)
        )

    def charge_curve(self, curve: Callable[[float], Amount]) -> tuple[int, ...]:
        """`charge` for a divergence given as a function of the order. Secret.

        >>> RenyiBudget(bounds={2: 1.0}, budget_units=8).charge_curve(lambda order: order / 8)
        (2,)
        """
        return self.charge([curve(order) for order in self.bounds])

    def charge_zcdp(self, rho: Amount) -> tuple[int, ...]:
        """`charge` for an answer that is ρ-zCDP: αρ at order α; exact for Gaussians. Secret.

        Args:
            rho: nats; >= 0, or infinite.

        Raises:
            ParameterError: it is NaN or negative.
        """
        loss = _loss("rho", rho)
        if loss in (0, math.inf):  # an infinite order times nothing is nothing
            return self.charge([loss] * len(self.bounds))
        return self.charge_curve(
            lambda order: math.inf if order == math.inf else loss * Fraction(order)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproxDpBudget:
    """A budget in the measure `approx_dp`: rounds that are each ε_t-DP for this person.

        Σ ρ(ε_t) ≤ B*,  ρ(ε) = ½ε² or ε tanh(ε/2),  B* the largest ρ that gives (ε, δ)

    There is no exact Gaussian grade: against it pure-DP charges leak up to 1.3 δ.

    Source: Feldman & Zrnic 2021, arXiv:2008.11193, Theorem "dp-filter-general", for the simple
    grade with ½ε²; see `zcdp_rho` and `pure_rho` for the others.

    >>> budget = ApproxDpBudget(epsilon=1.0, delta=1e-5)
    >>> round(budget.rho, 5), budget.budget_units // budget.charge(0.01)
    (0.03056, 611)
    """

    epsilon: float  #: ε of the guarantee, nats; >= 0
    delta: float  #: δ of the guarantee, in (0, 1)
    grade: Grade = "improved"  #: which proof gives B*
    charging: PureCharge = "tight"  #: which ρ(ε)
    budget_units: int = GRAIN  #: T; 1 to 2^62 - 1
    rho: float = field(init=False)  #: B*, nats; rounded down

    def __post_init__(self) -> None:
        rho = zcdp_rho(self.epsilon, delta=self.delta, grade=self.grade)
        pure_rho(0.0, charge=self.charging)
        _check_units(self.budget_units)
        object.__setattr__(self, "rho", rho)

    def charge(self, epsilon: Amount) -> int:
        """What a round costs that is ε-DP for this person, in units. Secret.

        Args:
            epsilon: ε_t, nats; >= 0, or infinite.

        Raises:
            ParameterError: it is NaN or negative.
        """
        loss = _loss("epsilon", epsilon)
        if loss > LARGEST:  # it costs more than any budget there is
            return self.budget_units + 1
        cost = Fraction(loss) ** 2 / 2
        if self.charging == "tight":
            cost = min(cost, Fraction(pure_rho(ceil_float(Fraction(loss)))))
        return _units(cost, self.rho, self.budget_units)


@dataclass(frozen=True, slots=True, kw_only=True)
class PureBudget:
    """A budget in the measure `pure`: ε adds up, and together it is ε-DP with no δ.

    Source: Rogers, Roth, Ullman & Vadhan 2016, arXiv:1605.08294: the filter of basic composition.

    >>> budget = PureBudget(epsilon=1, budget_units=1000)
    >>> budget.charge(0.25), budget.charge(Fraction(1, 3)), budget.charge(1.5)
    (250, 334, 1001)
    """

    epsilon: Amount  #: ε of the guarantee, nats; finite, >= 0
    budget_units: int = GRAIN  #: T; 1 to 2^62 - 1

    def __post_init__(self) -> None:
        _check_bound("epsilon", self.epsilon)
        _check_units(self.budget_units)

    def charge(self, epsilon: Amount) -> int:
        """What an answer costs that is ε-DP for this person, in units. Secret.

        Args:
            epsilon: ε_t, nats; >= 0, or infinite.

        Raises:
            ParameterError: it is NaN or negative.
        """
        return _units(_loss("epsilon", epsilon), self.epsilon, self.budget_units)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositionBudget:
    """A budget in the measure `answers`: n answers that each cost at most ε₀, whatever less they cost.

        an answer costs 1 unit, n + 1 if its ε_t exceeds ε₀, and 0 if it loses nothing

    Source: `composition_delta`; under full adaptivity docs/privacy.md, "Exact composition".

    >>> budget = CompositionBudget(answers=26, each=0.05)
    >>> budget.charge(0), budget.charge(0.01), budget.charge(0.05), budget.charge(0.06)
    (0, 1, 1, 27)
    """

    answers: int  #: n; 1 to 2^20
    each: Amount  #: ε₀, nats; finite, >= 0

    def __post_init__(self) -> None:
        check_integer("answers", self.answers, 1, MOST_ANSWERS)
        _check_bound("each", self.each)

    @property
    def budget_units(self) -> int:
        """T = n."""
        return self.answers

    def charge(self, epsilon: Amount) -> int:
        """What an answer costs that is ε-DP for this person, in units. Secret.

        Args:
            epsilon: ε_t, nats; >= 0, or infinite.

        Raises:
            ParameterError: it is NaN or negative.
        """
        loss = _loss("epsilon", epsilon)
        if not loss:
            return 0
        return 1 if loss <= Fraction(self.each) else self.answers + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersBudget:
    """A budget of n answers that lose as much as each other, in any measure.

        T = n·W, an answer costs W

    >>> budget = AnswersBudget(answers=45)
    >>> budget.charge() * 45 == budget.budget_units, budget.charge(0.5) * 90 == budget.budget_units
    (True, True)
    """

    answers: int  #: n; 1 to 2^62 - 1
    budget_units: int = field(init=False)  #: T = n·W, W the largest power of two that fits

    def __post_init__(self) -> None:
        check_integer("answers", self.answers, 1, UNITS_LIMIT - 1)
        object.__setattr__(self, "budget_units", base_units(Fraction(self.answers), 0)[0])

    def charge(self, answers: Amount = 1) -> int:
        """What so many answers, or such a part of one, cost in units. Secret.

        Args:
            answers: >= 0, or infinite.

        Raises:
            ParameterError: it is NaN or negative.
        """
        return _units(_loss("answers", answers), self.answers, self.budget_units)


def charge_each(charge: Callable[[int], int | Sequence[int]], values: Integers) -> Integers:
    """The charges of many people [n], or [n, k] where one is k integers.

    Exact rationals do not fit arrays, so each value that occurs is charged once, by the same
    function as on a device.

    Args:
        charge: from a value to its charge, or to one for each order.
        values: what each person's charge follows from, such as squared norms [n].

    >>> charge_each(lambda z: (z, 2 * z), np.array([3, 0, 3])).tolist()
    [[3, 6], [0, 0], [3, 6]]
    """
    distinct, where = np.unique(values, return_inverse=True)
    table: Any = np.array([charge(value) for value in distinct.tolist()], dtype=np.int64)
    charges: Integers = table[where.reshape(-1)]
    return charges


def _units(loss: Fraction | float, bound: Amount, budget_units: int) -> int:
    """⌈T·ρ/B⌉, or T + 1 where ρ > B; zero costs zero, whatever B."""
    exact = Fraction(bound)
    if loss > exact:
        return budget_units + 1
    return math.ceil(budget_units * Fraction(loss) / exact) if loss else 0


def _loss(name: str, value: Amount) -> Fraction | float:
    """A loss as an exact rational, or infinite; refuse NaN, what is negative, and no number."""
    if isinstance(value, int | float | Fraction) and not isinstance(value, bool) and value >= 0:
        return math.inf if value == math.inf else Fraction(value)
    raise ParameterError(name, HIDDEN, "a number >= 0, infinity included")


def _check_bound(name: str, value: Amount) -> None:
    number = isinstance(value, int | float | Fraction) and not isinstance(value, bool)
    if not (number and 0 <= value < math.inf):
        raise ParameterError(name, value, "a finite number >= 0")


def _check_units(value: int) -> None:
    check_integer("budget_units", value, 1, UNITS_LIMIT - 1)
