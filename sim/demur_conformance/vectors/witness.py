"""An adversary against "go on while some order still fits", computed from its definition.

Two steps. Step 1 releases a Gaussian, quantised. Step 2 looks at the likelihood ratio so far, picks
the order that serves it best, and spends all of that order's budget on two outcomes whose ratio
lands just where the (ε, δ) conversion of that order is tight. A filter that goes on while *some*
order fits pays for each branch with another order, and no order bounds them all: what leaks exceeds
δ. A filter that wants *every* order to fit never does.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from demur_conformance.vectors.case import Case, Check, Tally, Verdict, examine, relative_error
from demur_conformance.vectors.conversions import EXACT_GAUSSIAN
from demur_proto.accounting.conversions import renyi_budget
from demur_proto.accounting.numerics import check_amount, check_delta, check_order
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError

Law = np.ndarray[tuple[int], np.dtype[np.float64]]  # probabilities of the cells
FARTHEST_EDGE = 37.0  #: standard deviations; beyond, a tail is hardly a float
PRINTED_RATIO = 1e-9  #: the ratio comes with ten digits only


def check_exists_order_witness(cases: list[dict[str, Any]]) -> Verdict:
    """What the adversary attains under either rule."""
    return examine("exists_order_witness", cases, _exists_order_witness)


FAMILIES: dict[str, Check] = {"exists_order_witness": check_exists_order_witness}


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """The adversary's settings."""

    epsilon: float  #: ε of the guarantee, nats
    delta: float  #: δ of the guarantee
    orders: tuple[float, ...]  #: those that the filter keeps, each with its own budget B(α)
    shift: float  #: m, the distance of the two means in step 1, standard deviations
    bins: int  #: cells of step 1; at least 3

    def __post_init__(self) -> None:
        if not check_amount("epsilon", self.epsilon) <= 700:
            raise ParameterError("epsilon", self.epsilon, "at least 0 and at most 700")
        check_delta("delta", self.delta)
        if not self.orders:
            raise ParameterError("orders", self.orders, "at least one")
        for order in self.orders:
            check_order("orders", order)
        reach = self.shift * max(self.orders) + 5
        if not (check_amount("shift", self.shift) > 0 and reach <= FARTHEST_EDGE):
            expected = f"above 0, and {FARTHEST_EDGE - 5:g} at most times the largest order"
            raise ParameterError("shift", self.shift, expected)
        check_integer("bins", self.bins, 3, 10_000)


def leaked_delta(witness: Witness, *, every_order: bool) -> float:
    """The hockey-stick divergence at ε that the adversary attains.

        δ_true = Σ over cells c and outcomes o of max(0, P(c) P(o|c) − e^ε Q(c) Q(o|c))

    Args:
        witness: the adversary.
        every_order: whether the filter goes on only if every order fits, rather than some order.

    Returns:
        δ_true, a probability; within 1e-12 or so.
    """
    budgets = {
        order: renyi_budget(witness.epsilon, order=order, delta=witness.delta)
        for order in witness.orders
    }
    if every_order:  # an order without any budget would refuse everything: such a filter is no use
        budgets = {order: budget for order, budget in budgets.items() if budget > 0}
    if not budgets:
        return 0.0
    cells, reference = _first_step(witness)
    orders = np.array(list(budgets))[:, None]  # [k, 1]; cells run along the other axis
    spent = np.maximum(_divergence(cells, reference, orders), _divergence(reference, cells, orders))
    remaining = np.array(list(budgets.values()))[:, None] - spent
    admitted = (remaining >= 0).all() if every_order else (remaining >= 0).any()
    if not admitted:
        return 0.0
    gap = witness.epsilon - np.log1p(-1 / orders) - np.log(cells / reference)  # t [k, bins]
    if every_order:
        fits = [
            _largest_first(gap, order, np.full_like(gap, left))
            for order, left in zip(budgets, remaining[:, 0], strict=True)
        ]
        first = np.min(fits, axis=0)
    else:
        first = _largest_first(gap, orders, np.broadcast_to(remaining, gap.shape))
    factor = math.exp(witness.epsilon)
    second = first * np.exp(-np.maximum(gap, 0))
    kept = np.maximum(cells - factor * reference, 0)  # without a second step
    gained = np.maximum(cells * first - factor * reference * second, 0) + np.maximum(
        cells * (1 - first) - factor * reference * (1 - second), 0
    )
    best = np.maximum(kept, np.where(gap > 0, gained, 0).max(axis=0))
    return math.fsum(best)


def _exists_order_witness(case: Case, tally: Tally) -> None:
    delta = case.number("delta")
    witness = Witness(
        epsilon=case.number("eps"),
        delta=delta,
        orders=tuple(case.numbers("orders")),
        shift=case.number("m"),
        bins=case.integer("bins"),
    )
    leaked = leaked_delta(witness, every_order=False)
    tally.near("delta_true", leaked, case.number("delta_true"), within=EXACT_GAUSSIAN)
    if relative_error(leaked / delta, case.number("ratio")) > PRINTED_RATIO:
        tally.fail(f"ratio {leaked / delta!r} is not {case.number('ratio')!r}")
    sound = leaked_delta(witness, every_order=True)
    if not sound <= delta * (1 + EXACT_GAUSSIAN):
        tally.fail(f"delta_true {sound!r} exceeds delta {delta!r} although every order fits")


def _first_step(witness: Witness) -> tuple[Law, Law]:
    """Probabilities of the cells under N(m, 1) and under N(0, 1)."""
    last = witness.shift * max(witness.orders) + 5
    edges = [-math.inf, *np.linspace(-4.0, last, witness.bins - 1), math.inf]

    def cells(mean: float) -> Law:
        return np.array(
            [_interval(low - mean, high - mean) for low, high in itertools.pairwise(edges)]
        )

    return cells(witness.shift), cells(0.0)


def _interval(low: float, high: float) -> float:
    """Probability that N(0, 1) falls between, from the tail in which both ends lie."""
    if low > 0:
        low, high = -high, -low
    return (math.erfc(-high / math.sqrt(2)) - math.erfc(-low / math.sqrt(2))) / 2


def _divergence(p: Law, q: Law, orders: Any) -> Any:
    """D_α(p ‖ q) of two laws on the last axis, for a column of orders."""
    exponents = np.log(p) + (orders - 1) * (np.log(p) - np.log(q))
    largest = exponents.max(axis=-1, keepdims=True)
    total = np.exp(exponents - largest).sum(axis=-1, keepdims=True)
    return (largest + np.log(total)) / (orders - 1)


def _largest_first(gap: Any, orders: Any, remaining: Any) -> Any:
    """The largest p for which p against p·e^(−gap) fits an order, both ways; 0 if none does."""
    low, high = np.zeros_like(gap), np.ones_like(gap)
    positive = np.where(gap > 0, gap, 1.0)
    for _ in range(100):
        middle = (low + high) / 2
        with np.errstate(divide="ignore", invalid="ignore"):  # where p is 1, nothing fits
            fits = _two_outcomes(middle, positive, orders) <= remaining
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return low


def _two_outcomes(first: Any, gap: Any, orders: Any) -> Any:
    """The larger of the two divergences of (p, 1−p) and (q, 1−q) with q = p·e^(−gap)."""
    log_p, log_q = np.log(first), np.log(first) - gap
    rest_p, rest_q = np.log1p(-first), np.log1p(-np.exp(log_q))

    def divergence(one: Any, other: Any, rest_one: Any, rest_other: Any) -> Any:
        return np.logaddexp(
            one + (orders - 1) * (one - other),
            rest_one + (orders - 1) * (rest_one - rest_other),
        ) / (orders - 1)

    return np.maximum(
        divergence(log_p, log_q, rest_p, rest_q), divergence(log_q, log_p, rest_q, rest_p)
    )
