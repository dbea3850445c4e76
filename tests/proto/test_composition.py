"""Exact composition against sums in exact rationals, whole transcripts, and vectors of 80 digits."""

import math
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_conformance.vectors.checker import check_file
from demur_proto.accounting.conversions import zcdp_rho
from demur_proto.accounting.pure import (
    composition_answers,
    composition_delta,
    composition_each,
    composition_epsilon,
    pure_budget,
    pure_delta,
    pure_epsilon,
    pure_rho,
)
from demur_proto.errors import ParameterError

GOLDEN = Path(__file__).parents[1] / "golden" / "composition.json"

counts = st.integers(1, 60)
shares = st.floats(1e-3, 3.0)
targets = st.floats(0.05, 8.0)
deltas = st.floats(1e-12, 1e-2)


def test_all_published_vectors_hold() -> None:
    findings = check_file(GOLDEN)

    assert {finding.family for finding in findings} == {
        "composition_delta",
        "composition_each",
        "composition_answers",
        "pure_charges",
    }
    assert all(finding.holds for finding in findings), findings


@pytest.mark.parametrize(("odds", "known"), [(3, 1), (3, 2), (Fraction(3, 2), Fraction(5, 4))])
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_delta_is_what_the_worst_event_over_all_transcripts_has(
    n: int, odds: Fraction, known: Fraction
) -> None:
    truth = Fraction(odds) / (1 + Fraction(odds))
    exact = Fraction(0)
    for bits in product((True, False), repeat=n):
        first = math.prod((truth if bit else 1 - truth for bit in bits), start=Fraction(1))
        second = math.prod((1 - truth if bit else truth for bit in bits), start=Fraction(1))
        exact += max(Fraction(0), first - known * second)

    delta = composition_delta(n, each=math.log(odds), epsilon=math.log(known))

    assert delta == pytest.approx(float(exact), rel=1e-12, abs=1e-15)


@given(each=shares, epsilon=targets)
def test_one_answer_is_worth_what_pure_privacy_is(each: float, epsilon: float) -> None:
    assert composition_delta(1, each=each, epsilon=epsilon) == pytest.approx(
        pure_delta(each, epsilon=epsilon), rel=1e-12
    )
    assert composition_each(1, epsilon=epsilon, delta=1e-6) == pytest.approx(
        pure_budget(epsilon, delta=1e-6), rel=1e-12
    )


@given(each=shares, delta=deltas)
def test_one_answer_has_the_epsilon_of_pure_privacy(each: float, delta: float) -> None:
    exact = pure_epsilon(each, delta=delta)

    assert composition_epsilon(1, each=each, delta=delta) == pytest.approx(
        exact, rel=1e-9, abs=1e-9
    )


@settings(max_examples=50)
@given(n=counts, epsilon=targets, delta=deltas)
def test_what_is_calibrated_keeps_its_promise_and_uses_it_up(
    n: int, epsilon: float, delta: float
) -> None:
    each = composition_each(n, epsilon=epsilon, delta=delta)

    assert composition_delta(n, each=each, epsilon=epsilon) <= delta
    assert composition_answers(each, epsilon=epsilon, delta=delta) >= n
    assert composition_epsilon(n, each=each, delta=delta) <= epsilon * (1 + 1e-12)
    if each < 50:
        assert composition_delta(n, each=each * (1 + 1e-9), epsilon=epsilon) > delta


@settings(max_examples=50)
@given(n=counts, epsilon=targets, delta=deltas)
def test_no_other_accounting_allows_more(n: int, epsilon: float, delta: float) -> None:
    each = composition_each(n, epsilon=epsilon, delta=delta)

    assert each >= epsilon / n * (1 - 1e-12)
    if each < 50:
        dearer = each * (1 + 1e-9)
        assert n * Fraction(pure_rho(dearer)) > Fraction(zcdp_rho(epsilon, delta=delta))
        assert n * Fraction(dearer) > Fraction(epsilon)


@given(n=st.integers(2, 40), each=shares, epsilon=targets)
def test_delta_falls_with_epsilon_and_grows_with_answers(
    n: int, each: float, epsilon: float
) -> None:
    here = composition_delta(n, each=each, epsilon=epsilon)

    assert composition_delta(n, each=each, epsilon=epsilon * 1.01) <= here
    assert composition_delta(n + 1, each=each, epsilon=epsilon) >= here * (1 - 1e-12)
    assert here <= 1
    assert (here == 0) == (n * Fraction(each) <= Fraction(epsilon))


def test_many_answers_come_near_the_gaussian_limit_and_stay_quick() -> None:
    each = composition_each(1 << 16, epsilon=1.0, delta=1e-6)

    # √n ε₀ tends to μ, of which (1, 1e-6) allows .23670 (`gdp_mu`).
    assert each * 256 == pytest.approx(0.23670, rel=1e-3)


def test_twenty_six_answers_of_a_twentieth_fit_where_zcdp_allows_nineteen() -> None:
    assert composition_answers(0.05, epsilon=1.0, delta=1e-6) == 26
    assert zcdp_rho(1.0, delta=1e-6) // pure_rho(0.05) == 19


@pytest.mark.parametrize(
    ("call", "arguments", "name"),
    [
        (composition_delta, {"answers": -1, "each": 0.1, "epsilon": 1.0}, "answers"),
        (composition_delta, {"answers": 1 << 21, "each": 0.1, "epsilon": 1.0}, "answers"),
        (composition_delta, {"answers": 2, "each": 51.0, "epsilon": 1.0}, "each"),
        (composition_delta, {"answers": 2, "each": math.nan, "epsilon": 1.0}, "each"),
        (composition_delta, {"answers": 2, "each": 0.1, "epsilon": -1.0}, "epsilon"),
        (composition_epsilon, {"answers": 2, "each": 0.1, "delta": 0.0}, "delta"),
        (composition_each, {"answers": 0, "epsilon": 1.0, "delta": 1e-6}, "answers"),
        (composition_each, {"answers": 1, "epsilon": 0.0, "delta": 1e-6}, "epsilon"),
        (composition_answers, {"each": 0.0, "epsilon": 1.0, "delta": 1e-6}, "each"),
        (composition_answers, {"each": 0.1, "epsilon": 1.0, "delta": 1.0}, "delta"),
    ],
)
def test_arguments_outside_their_range_are_refused(
    call: Any, arguments: dict[str, Any], name: str
) -> None:
    with pytest.raises(ParameterError, match=f"{name} must be "):
        call(**arguments)
