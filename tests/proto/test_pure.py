import json
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.accounting.divergences import randomized_response_renyi
from demur_proto.accounting.pure import (
    PureCharge,
    pure_budget,
    pure_delta,
    pure_epsilon,
    pure_of_rho,
    pure_rho,
)
from demur_proto.errors import ParameterError

GOLDEN: list[dict[str, float]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "accounting.json").read_text("utf-8")
)["pure_to_zcdp"]
CHARGES: list[PureCharge] = ["quadratic", "tight"]
CLOSED_FORM = 1e-12  # what the conversions promise, relative


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


pures = log_uniform(1e-9, 1e3)
deltas = log_uniform(1e-299, 0.9) | log_uniform(1e-15, 0.5).map(lambda rest: 1 - rest)
charges = st.sampled_from(CHARGES)


@pytest.mark.parametrize("row", GOLDEN)
def test_a_charge_is_just_above_the_reference(row: dict[str, float]) -> None:
    quadratic, tight = pure_rho(row["eps"], charge="quadratic"), pure_rho(row["eps"])

    assert row["zcdp_BS"] <= quadratic <= row["zcdp_BS"] * (1 + CLOSED_FORM)
    assert row["zcdp_tight"] <= tight <= row["zcdp_tight"] * (1 + CLOSED_FORM)


@given(pure=pures)
def test_the_tight_charge_is_its_formula_rounded_up(pure: float) -> None:
    with localcontext(prec=60):
        odds = Decimal(pure).exp()
        truth = Decimal(pure) * (odds - 1) / (odds + 1)

        assert truth <= Decimal(pure_rho(pure)) <= truth * (1 + Decimal(CLOSED_FORM))


@given(pure=pures)
def test_the_quadratic_charge_is_the_least_float_not_below_it(pure: float) -> None:
    value = pure_rho(pure, charge="quadratic")

    assert Fraction(math.nextafter(value, 0)) < Fraction(pure) ** 2 / 2 <= Fraction(value)
    assert pure_rho(pure) <= value


@given(pure=log_uniform(1e-9, 100.0), beta=log_uniform(1e-9, 1e9), charge=charges)
def test_a_charge_covers_the_worst_mechanism_at_every_order(
    pure: float, beta: float, charge: PureCharge
) -> None:
    worst = randomized_response_renyi(pure, options=2, order=1 + beta)

    assert worst <= (1 + beta) * pure_rho(pure, charge=charge) * (1 + 1e-14)


@given(
    rho=log_uniform(1e-9, 1e15) | st.just(1e15) | st.floats(0.0, 1e-300),
    charge=charges,
)
def test_a_round_made_for_a_charge_never_costs_more(rho: float, charge: PureCharge) -> None:
    pure = pure_of_rho(rho, charge=charge)

    assert pure_rho(pure, charge=charge) <= rho
    if 1e-9 <= rho <= 1e14:
        assert pure_rho(pure * (1 + CLOSED_FORM), charge=charge) >= rho


# Randomized response is the worst case: everything about it can be enumerated.


@given(pure=pures, share=st.floats(0.0, 1.0))
def test_delta_is_the_hockey_stick_divergence_of_randomized_response(
    pure: float, share: float
) -> None:
    epsilon = share * pure

    delta = pure_delta(pure, epsilon=epsilon)

    with localcontext(prec=60):
        odds = Decimal(pure).exp()
        laws = [(odds / (1 + odds), 1 / (1 + odds)), (1 / (1 + odds), odds / (1 + odds))]
        factor = Decimal(epsilon).exp()
        truth = sum((max(p - factor * q, Decimal(0)) for p, q in laws), Decimal(0))
        assert min(truth, Decimal(1)) <= Decimal(delta) + Decimal("1e-55")  # of 60 digits
        assert delta <= min(1.0, float(truth) * (1 + CLOSED_FORM) + 1e-320)


@given(pure=pures, delta=deltas)
def test_epsilon_is_its_formula_rounded_up(pure: float, delta: float) -> None:
    epsilon = pure_epsilon(pure, delta=delta)

    with localcontext(prec=340):  # δ may be 1e-300
        lost, d = (-Decimal(pure)).exp(), Decimal(delta)
        kept = 1 - d * (1 + lost)
        truth = max(Decimal(pure) + kept.ln(), Decimal(0)) if kept > 0 else Decimal(0)
        assert truth <= Decimal(epsilon) <= Decimal(pure)
        if truth > 0:  # a difference of ε₀ and a logarithm, whose argument may be one as well
            size = Decimal(pure) - kept.ln() + (lost + (1 if delta < 0.5 else 0)) / kept
            assert Decimal(epsilon) <= truth + size * Decimal("1e-14")


@given(pure=log_uniform(1e-3, 50.0), delta=log_uniform(1e-15, 0.4))
def test_epsilon_and_delta_are_inverses(pure: float, delta: float) -> None:
    epsilon = pure_epsilon(pure, delta=delta)

    if epsilon > 1e-3:
        assert pure_delta(pure, epsilon=epsilon) == pytest.approx(
            delta, rel=1e-9, abs=1e-14 * (1 + pure)
        )


@given(epsilon=log_uniform(1e-9, 1e3), delta=deltas)
def test_a_budget_is_the_largest_that_keeps_the_target(epsilon: float, delta: float) -> None:
    pure = pure_budget(epsilon, delta=delta)

    with localcontext(prec=340):
        odds, d = Decimal(epsilon).exp(), Decimal(delta)
        truth = ((odds + d) / (1 - d)).ln()
        assert truth * (1 - Decimal(CLOSED_FORM)) <= Decimal(pure) <= truth
    assert pure >= epsilon


def test_nothing_spent_costs_nothing() -> None:
    assert [pure_rho(0.0, charge=charge) for charge in CHARGES] == [0.0, 0.0]
    assert [pure_of_rho(0.0, charge=charge) for charge in CHARGES] == [0.0, 0.0]
    assert pure_delta(0.0, epsilon=0.0) == 0.0
    assert pure_epsilon(0.0, delta=1e-300) == 0.0


def test_pure_privacy_needs_no_delta_at_its_own_epsilon() -> None:
    assert pure_delta(1.0, epsilon=1.0) == 0.0
    assert pure_epsilon(1.0, delta=0.5) == 0.0
    assert pure_delta(1e15, epsilon=0.0) == 1.0


# Ranges.

VALID_CALLS: list[tuple[Callable[..., object], dict[str, float]]] = [
    (pure_rho, {"pure": 1.0}),
    (pure_of_rho, {"rho": 1.0}),
    (pure_delta, {"pure": 1.0, "epsilon": 0.5}),
    (pure_epsilon, {"pure": 1.0, "delta": 1e-5}),
    (pure_budget, {"epsilon": 1.0, "delta": 1e-5}),
]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e-300, 1e300, True, "1"])
@pytest.mark.parametrize(("function", "arguments"), VALID_CALLS)
def test_a_number_outside_its_range_is_refused_by_name(
    function: Callable[..., object], arguments: dict[str, float], bad: Any
) -> None:
    function(**arguments)

    for name in arguments:
        with pytest.raises(ParameterError) as caught:
            function(**{**arguments, name: bad})
        assert caught.value.name == name


def test_an_unknown_charge_is_refused() -> None:
    unknown: Any = "improved"

    for function in (pure_rho, pure_of_rho):
        for value in (0.0, 1.0):
            with pytest.raises(ParameterError, match="charge must be"):
                function(value, charge=unknown)
