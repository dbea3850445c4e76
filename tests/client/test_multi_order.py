"""Several Rényi orders at once: every order must fit, and what happens to those who ask for less."""

import copy
import json
import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demur_client.budget.charges import RenyiBudget
from demur_client.budget.filters import RenyiFilter
from demur_conformance.vectors.filters import check_multi_order_traces
from demur_proto.accounting.conversions import curve_epsilon, renyi_budget

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "golden" / "accounting.json").read_text(encoding="utf-8")
)
TRACES: list[dict[str, Any]] = GOLDEN["multi_order_traces"]
WITNESSES: list[dict[str, Any]] = GOLDEN["exists_order_witness"]

Law = np.ndarray[tuple[int], np.dtype[np.float64]]


@pytest.mark.parametrize("trace", TRACES, ids=lambda t: str(t["orders"]))
def test_recorded_traces_are_decided_the_same(trace: dict[str, Any]) -> None:
    bounds = dict(zip(trace["orders"], map(Fraction, trace["budget"]), strict=True))
    budget = RenyiBudget(bounds=bounds)
    mine = RenyiFilter.within(budget)

    decisions = [
        mine.try_charge(budget.charge([Fraction(loss) for loss in charges]))
        for charges in trace["charges"]
    ]

    assert decisions == [word == "CONT" for word in trace["forall"]]
    assert check_multi_order_traces([trace]).holds


def test_the_checker_of_vectors_finds_a_wrong_word_in_any_column() -> None:
    for column in ("forall", "exists_UNSOUND", "fixed_order_2"):
        planted = copy.deepcopy(TRACES[0])
        planted[column][0] = "HALT"

        verdict = check_multi_order_traces([planted])

        assert not verdict.holds
        assert column in verdict.failures[0]


@pytest.mark.parametrize("change", [{"orders": [2, 2, 8]}, {"budget": ["1"]}, {"charges": "none"}])
def test_a_trace_that_is_none_is_named_and_the_others_are_checked(change: dict[str, Any]) -> None:
    verdict = check_multi_order_traces([{**TRACES[0], **change}, TRACES[0]])

    assert (verdict.holds, verdict.cases, len(verdict.unknown)) == (False, 1, 1)


# An adversary in two steps. First a Gaussian, quantised. Then, knowing the likelihood ratio x of
# what came, two outcomes with probabilities p against p·e^(−t): t lies where the conversion of one
# order is tight, and p is as large as the filter lets it be.


def cells_of(witness: dict[str, Any]) -> tuple[Law, Law]:
    """Probabilities of what the first step shows, under N(m, 1) and under N(0, 1)."""
    last = witness["m"] * max(witness["orders"]) + 5
    edges = np.concatenate([[-math.inf], np.linspace(-4, last, witness["bins"] - 1), [math.inf]])

    def law(mean: float) -> Law:
        low, high = edges[:-1] - mean, edges[1:] - mean
        flip = low > 0  # take every difference in the tail where it keeps its digits
        low, high = np.where(flip, -high, low), np.where(flip, -low, high)
        tail = np.vectorize(lambda z: math.erfc(-z / math.sqrt(2)) / 2)
        cells: Law = tail(high) - tail(low)
        return cells

    return law(witness["m"]), law(0.0)


def two_sided(p: Any, q: Any, order: float) -> Any:
    """The larger D_α of two laws on the last axis, of both directions."""

    def one(p: Any, q: Any) -> Any:
        with np.errstate(over="ignore"):  # infinite then, and fits nothing
            powers = np.exp(order * np.log(p) + (1 - order) * np.log(q))
        return np.log(powers.sum(axis=-1)) / (order - 1)

    return np.maximum(one(p, q), one(q, p))


def outcomes(p: Any, t: Any) -> tuple[Any, Any]:
    q = p * np.exp(-t)
    return np.stack([p, 1 - p], axis=-1), np.stack([q, 1 - q], axis=-1)


class Attack:
    """The adversary against one filter."""

    def __init__(self, witness: dict[str, Any]) -> None:
        self.epsilon, self.delta = float(witness["eps"]), float(witness["delta"])
        self.orders = [float(order) for order in witness["orders"]]
        self.first, self.second = cells_of(witness)
        self.ratio = np.log(self.first / self.second)
        self.losses = [float(two_sided(self.first, self.second, a)) for a in self.orders]
        self.bounds = {
            a: renyi_budget(self.epsilon, order=a, delta=self.delta) for a in self.orders
        }
        self.budget = RenyiBudget(bounds=self.bounds)

    def gap(self, order: float) -> Any:
        """t for each cell."""
        return self.epsilon + math.log(order / (order - 1)) - self.ratio

    def largest(self, t: Any, fits: Callable[[list[Any]], Any]) -> Any:
        """For each t the largest p for which the divergences at all orders fit, by bisection."""
        low, high = np.full_like(t, -700.0), np.zeros_like(t)  # of ln p: p may be tiny
        for _ in range(60):
            middle = (low + high) / 2
            good = fits([two_sided(*outcomes(np.exp(middle), t), a) for a in self.orders])
            low, high = np.where(good, middle, low), np.where(good, high, middle)
        return np.exp(low)

    def filter_lets(self, p: float, t: float) -> bool:
        """Whether the real filter gives both answers, one after the other."""
        mine = RenyiFilter.within(self.budget)
        if not mine.try_charge(self.budget.charge(self.losses)):
            return False
        step = [float(two_sided(*outcomes(np.float64(p), t), a)) for a in self.orders]
        return mine.try_charge(self.budget.charge(step))

    def leaked(self, chosen: dict[float, Any]) -> float:
        """Σ max(0, P − e^ε Q) over everything shown, with the p for each order and cell."""
        scale = math.exp(self.epsilon)
        best = np.maximum(self.first - scale * self.second, 0)
        for order, p in chosen.items():
            t = np.maximum(self.gap(order), 0)
            q = p * np.exp(-t)
            shown = np.maximum(self.first * p - scale * self.second * q, 0)
            shown += np.maximum(self.first * (1 - p) - scale * self.second * (1 - q), 0)
            best = np.maximum(best, np.where(self.gap(order) > 0, shown, 0))
        return math.fsum(best)


def fits_one(steps: list[Any], *, at: int, left: float) -> Any:
    return steps[at] <= left


def fit_all(steps: list[Any], *, left: list[float]) -> Any:
    return np.all([step <= rest for step, rest in zip(steps, left, strict=True)], axis=0)


def some_order(charges: Any, *, remaining: Any, refused: Any, retire: bool) -> Any:
    """The unsound rule, in the place of ours: go on while some order fits."""
    given = any(charge <= left for charge, left in zip(charges, remaining, strict=True))
    after = [left - charge * given for charge, left in zip(charges, remaining, strict=True)]
    return given, after, refused or not given


@pytest.mark.parametrize("witness", WITNESSES, ids=lambda w: f"{w['bins']} bins")
def test_going_on_while_some_order_fits_leaks_what_was_recorded(
    witness: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("demur_client.budget.filters.decide_every", some_order)
    attack = Attack(witness)
    chosen = {}
    for at, order in enumerate(attack.orders):
        left = float(attack.bounds[order]) - attack.losses[at]
        t = np.where(attack.gap(order) > 0, attack.gap(order), 1.0)
        chosen[order] = attack.largest(t, partial(fits_one, at=at, left=left))

    leaked = attack.leaked(chosen)

    assert leaked == pytest.approx(float(witness["delta_true"]), rel=1e-6)
    assert leaked / attack.delta == pytest.approx(float(witness["ratio"]), rel=1e-6)
    # The recorded attack is not only arithmetic: that filter would let all of it through.
    for order, p in chosen.items():
        for cell in np.flatnonzero((attack.gap(order) > 0) & (p > 1e-300))[::7]:
            assert attack.filter_lets(float(p[cell]) * (1 - 1e-9), float(attack.gap(order)[cell]))


@pytest.mark.parametrize("witness", WITNESSES, ids=lambda w: f"{w['bins']} bins")
@pytest.mark.parametrize("proving_only", [False, True], ids=["all orders", "orders that prove"])
def test_our_filter_leaks_no_more_than_delta(witness: dict[str, Any], proving_only: bool) -> None:
    attack = Attack(witness)
    if proving_only:  # else an order with no budget stops even the first step
        orders = [a for a in attack.orders if attack.bounds[a] > 2 * two_sided_loss(attack, a)]
        attack = Attack({**witness, "orders": orders})
    left = [attack.bounds[a] - loss for a, loss in zip(attack.orders, attack.losses, strict=True)]
    if not all(rest > 0 for rest in left):
        assert not attack.filter_lets(0.5, 0.1)  # nothing is shown, so nothing leaks
        return

    chosen = {}
    for order in attack.orders:
        t = np.where(attack.gap(order) > 0, attack.gap(order), 1.0)
        chosen[order] = attack.largest(t, partial(fit_all, left=left))
        for cell in np.flatnonzero((attack.gap(order) > 0) & (chosen[order] > 1e-300))[::7]:
            p, gap = float(chosen[order][cell]), float(attack.gap(order)[cell])
            assert attack.filter_lets(p * (1 - 1e-6), gap)
            assert not attack.filter_lets(p * (1 + 1e-6), gap)  # so this is all that it lets

    leaked = attack.leaked({order: p * (1 + 1e-6) for order, p in chosen.items()})

    assert leaked <= attack.delta


def two_sided_loss(attack: Attack, order: float) -> float:
    return attack.losses[attack.orders.index(order)]


def test_some_of_the_recorded_attacks_exceed_delta() -> None:
    assert max(float(witness["ratio"]) for witness in WITNESSES) > 2.5
    assert sum(float(witness["ratio"]) > 1 for witness in WITNESSES) >= 2


def test_an_order_without_a_budget_stops_everything_that_costs_anything() -> None:
    budget = RenyiBudget(bounds={2: 0, 4: 100})
    mine = RenyiFilter.within(budget)

    assert not mine.try_charge(budget.charge_zcdp(1e-9))
    assert mine.try_charge(budget.charge_zcdp(0))
    assert mine.ever_refused


def test_what_several_orders_let_through_keeps_the_best_of_their_guarantees() -> None:
    epsilon, delta, orders = 1.0, 1e-5, [16.0, 24.0, 32.0, 64.0]
    budget = RenyiBudget.of(epsilon, delta=delta, orders=orders)
    mine = RenyiFilter.within(budget)
    rng = np.random.default_rng(3)
    spent = [Fraction(0)] * len(orders)

    for _ in range(500):
        losses = [Fraction(a) * Fraction(float(rng.random())) / 2000 for a in orders]
        if mine.try_charge(budget.charge(losses)):
            spent = [total + loss for total, loss in zip(spent, losses, strict=True)]

    assert mine.ever_refused
    assert all(total <= bound for total, bound in zip(spent, budget.bounds.values(), strict=True))
    curve = [(a, float(total)) for a, total in zip(orders, spent, strict=True)]
    assert curve_epsilon(curve, delta=delta) <= epsilon * (1 + 1e-12)
