import json
import math
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.accounting.conversions import zcdp_rho
from demur_proto.accounting.targets import (
    PureLosses,
    basic_fits,
    rogers_fits,
    rounds_that_fit,
    whitehouse_fits,
)
from demur_proto.errors import ParameterError

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "accounting.json").read_text("utf-8")
)["dp_filter_rounds"]


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


rounds = st.lists(log_uniform(1e-6, 3.0), min_size=1, max_size=20)
targets = log_uniform(1e-2, 50.0)
deltas = log_uniform(1e-300, 0.36)


def losses_of(epsilons: list[float]) -> PureLosses:
    losses = PureLosses()
    for epsilon in epsilons:
        losses = losses.plus(epsilon)
    return losses


@pytest.mark.parametrize("row", GOLDEN)
def test_each_filter_allows_as_many_rounds_as_the_reference(row: dict[str, Any]) -> None:
    one, epsilon, delta = Fraction(row["eps"]), float(row["eps_g"]), float(row["delta"])

    def rogers(losses: PureLosses) -> bool:
        return rogers_fits(losses, epsilon=epsilon, delta=delta)

    def rogers_halved(losses: PureLosses) -> bool:
        return rogers_fits(losses, epsilon=epsilon, delta=delta, halve_delta=True)

    def whitehouse(losses: PureLosses) -> bool:
        return whitehouse_fits(losses, epsilon=epsilon, delta=delta)

    def basic(losses: PureLosses) -> bool:
        return basic_fits(losses, epsilon=Fraction(row["eps_g"]))

    assert {
        "basic": rounds_that_fit(one, basic),
        "rogers_printed": rounds_that_fit(one, rogers),
        "rogers_log2": rounds_that_fit(one, rogers_halved),
        "whitehouse": rounds_that_fit(one, whitehouse),
    }.items() <= row.items()


# Independent oracles: the printed formulas, from the single rounds, in 50 digits.


def rogers_epsilon(epsilons: list[float], epsilon: float, delta: float, divide: int) -> Decimal:
    each = [Decimal(one) for one in epsilons]
    level = -Decimal(delta).ln()
    least = Decimal(epsilon) ** 2 / (Decimal("28.04") * level)
    squares = sum((one**2 for one in each), Decimal(0))
    drift = sum((one * (one.exp() - 1) / 2 for one in each), Decimal(0))
    spread = 2 * (squares + least) * (1 + (1 + squares / least).ln() / 2)
    return drift + (spread * (divide / Decimal(delta)).ln()).sqrt()


def whitehouse_epsilon(epsilons: list[float], delta: float) -> Decimal:
    squares = sum((Decimal(one) ** 2 for one in epsilons), Decimal(0))
    return (-2 * Decimal(delta).ln() * squares).sqrt() + squares / 2


@given(epsilons=rounds, epsilon=targets, delta=deltas, halve=st.booleans())
def test_rogers_says_yes_exactly_where_its_formula_does(
    epsilons: list[float], epsilon: float, delta: float, halve: bool
) -> None:
    fits = rogers_fits(losses_of(epsilons), epsilon=epsilon, delta=delta, halve_delta=halve)

    with localcontext(prec=50):
        spent = rogers_epsilon(epsilons, epsilon, delta, 2 if halve else 1)
        assert not fits or spent <= Decimal(epsilon)
        assert fits or spent >= Decimal(epsilon) * Decimal(1 - 1e-13)


@given(epsilons=rounds, epsilon=targets, delta=deltas)
def test_whitehouse_says_yes_exactly_where_its_formula_does(
    epsilons: list[float], epsilon: float, delta: float
) -> None:
    fits = whitehouse_fits(losses_of(epsilons), epsilon=epsilon, delta=delta)

    with localcontext(prec=50):
        spent = whitehouse_epsilon(epsilons, delta)
        assert not fits or spent <= Decimal(epsilon)
        assert fits or spent >= Decimal(epsilon) * Decimal(1 - 1e-13)


@pytest.mark.parametrize("margin", [1 - 1e-9, 1 + 1e-9])
@given(epsilon=targets, delta=deltas)
def test_whitehouse_is_the_simple_zcdp_budget(margin: float, epsilon: float, delta: float) -> None:
    budget = zcdp_rho(epsilon, delta=delta, grade="simple")  # for Σ ½ε²

    losses = PureLosses().plus(math.sqrt(2 * budget) * margin)

    assert whitehouse_fits(losses, epsilon=epsilon, delta=delta) == (margin < 1)


@given(epsilons=rounds)
def test_basic_composition_is_the_exact_sum(epsilons: list[float]) -> None:
    exact = sum(map(Fraction, epsilons))

    assert basic_fits(losses_of(epsilons), epsilon=exact)
    assert not basic_fits(losses_of([*epsilons, 5e-324]), epsilon=exact)


def test_ten_tenths_are_one_where_they_are_exact() -> None:
    assert basic_fits(PureLosses().plus(Fraction(1, 10), rounds=10), epsilon=1)
    assert not basic_fits(PureLosses().plus(0.1, rounds=10), epsilon=1)  # the float is above 1/10


@given(epsilons=rounds, epsilon=targets, delta=deltas, more=log_uniform(1e-6, 3.0))
def test_a_filter_that_refuses_keeps_refusing_whatever_is_added(
    epsilons: list[float], epsilon: float, delta: float, more: float
) -> None:
    losses = losses_of(epsilons)

    assert rogers_fits(losses, epsilon=epsilon, delta=delta) >= rogers_fits(
        losses.plus(more), epsilon=epsilon, delta=delta
    )
    assert whitehouse_fits(losses, epsilon=epsilon, delta=delta) >= whitehouse_fits(
        losses.plus(more), epsilon=epsilon, delta=delta
    )


@given(epsilons=rounds)
def test_rounds_that_cost_nothing_never_matter(epsilons: list[float]) -> None:
    losses = losses_of(epsilons)

    assert losses.plus(0.0, rounds=1000) == losses
    assert losses.plus(0.5, rounds=0) == losses
    for fits in (rogers_fits, whitehouse_fits):
        assert fits(PureLosses().plus(0.0), epsilon=0.0, delta=1e-9)
        assert not fits(PureLosses().plus(1e-300), epsilon=0.0, delta=1e-9)


def test_losses_that_no_float_can_hold_are_refused() -> None:
    losses = PureLosses().plus(700.0, rounds=10**9)

    assert not rogers_fits(losses, epsilon=1e15, delta=1e-9)
    assert whitehouse_fits(losses, epsilon=1e15, delta=1e-9)


def test_a_filter_that_never_refuses_is_not_asked_for_ever() -> None:
    assert rounds_that_fit(0.5, lambda losses: True) == 1 << 40
    assert rounds_that_fit(0.5, lambda losses: False) == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e-300, 701.0, "1"])
def test_a_round_outside_its_range_is_refused(bad: Any) -> None:
    with pytest.raises(ParameterError, match="epsilon must be"):
        PureLosses().plus(bad)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e-300])
def test_a_target_outside_its_range_is_refused(bad: float) -> None:
    losses = PureLosses().plus(0.1)

    for fits in (rogers_fits, whitehouse_fits):
        with pytest.raises(ParameterError, match="epsilon must be"):
            fits(losses, epsilon=bad, delta=1e-9)
        with pytest.raises(ParameterError, match="delta must be"):
            fits(losses, epsilon=1.0, delta=bad)
    with pytest.raises(ParameterError, match="epsilon must be"):
        basic_fits(losses, epsilon=bad)
    with pytest.raises(ParameterError, match="rounds must be"):
        losses.plus(0.1, rounds=-1)


def test_rogers_has_no_proof_for_a_delta_above_one_over_e() -> None:
    assert rogers_fits(PureLosses().plus(0.01), epsilon=1.0, delta=0.3678)
    with pytest.raises(ParameterError, match="delta must be at most 1/e"):
        rogers_fits(PureLosses(), epsilon=1.0, delta=0.368)
