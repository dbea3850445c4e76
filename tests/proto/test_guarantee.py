import math
import re
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.guarantee import guarantee_of
from demur_proto.study import Measure, Policy, Study, View

STUDY = Study(
    name="x",
    view=View.AGGREGATE,
    measure=Measure.GDP,
    policy=Policy.SKIP,
    budget=0.2,
    epsilon=1.0,
    delta=1e-6,
    base_sigma=16.0,
    base_grid_exponent=-7,
    minimum_cohort=1000,
    dishonest=10,
)
ZCDP = replace(STUDY, measure=Measure.ZCDP, budget=0.0123456789)


@pytest.mark.parametrize("study", [STUDY, ZCDP], ids=["gdp", "zcdp"])
@pytest.mark.parametrize("view", View)
def test_a_statement_names_unit_neighbour_view_and_the_pair(study: Study, view: View) -> None:
    guarantee = guarantee_of(replace(study, view=view), per_report_mu=9.4)

    for words in (
        "(1, 1e-06)-differential privacy",
        "over all rounds of the study",
        "Unit: one device = one person, with everything it reports in the study.",
        "Neighbour: zero-out: the person's data replaced by a public record",
        f"View: {view}:",
        "Between two arbitrary people: (2, 3.72e-06)",
        "total variation 2^-120",
    ):
        assert words in guarantee.statement
    assert guarantee.view is view
    assert guarantee.measure is study.measure


def test_the_aggregate_view_says_that_the_collector_is_trusted_and_with_how_much() -> None:
    aggregate = guarantee_of(STUDY, per_report_mu=9.41).statement
    local = guarantee_of(replace(STUDY, view=View.LOCAL), per_report_mu=0.06).statement

    assert "The collector, its store and its backups are trusted" in aggregate
    assert "one report on its own is only 9.5-GDP" in aggregate
    assert "split over 990 devices; 10 may be dishonest" in aggregate
    assert "Fewer than 1000 reports are never released" in aggregate
    assert "trusted" not in local


def test_the_pair_guarantee_in_the_measure_is_the_chain_through_the_reference() -> None:
    assert "from 0.2-GDP" in guarantee_of(STUDY, per_report_mu=1.0).statement
    assert "from 0.4-GDP" in guarantee_of(STUDY, per_report_mu=1.0).statement  # μ → 2μ
    assert "from 0.0123457-zCDP" in guarantee_of(ZCDP, per_report_mu=1.0).statement
    assert "from 0.0493828-zCDP" in guarantee_of(ZCDP, per_report_mu=1.0).statement  # ρ → 4ρ


@given(
    epsilon=st.floats(0.5, 20.0),
    delta=st.floats(1e-9, 0.2),
    budget=st.floats(0.01, 0.15),
    per_report_mu=st.floats(1e-3, 1e6),
)
def test_no_number_is_printed_smaller_than_it_is(
    epsilon: float, delta: float, budget: float, per_report_mu: float
) -> None:
    try:
        study = replace(STUDY, epsilon=epsilon, delta=delta, budget=budget)
    except ValueError:  # the budget does not keep this (ε, δ)
        return

    guarantee = guarantee_of(study, per_report_mu=per_report_mu)

    number = r"([0-9.]+(?:e[+-]?[0-9]+)?)"
    found = re.match(
        rf"\({number}, {number}\)-.*from {number}-GDP.*\({number}, {number}\), from {number}-GDP.*"
        rf"only {number}-GDP",
        guarantee.statement,
    )
    assert found is not None
    printed = [Fraction(text) for text in found.groups()]
    exact = [
        (epsilon, 1e-5),
        (delta, 1e-5),
        (budget, 1e-5),
        (2 * epsilon, 1e-5),
        ((1 + math.exp(epsilon)) * delta if guarantee.pair_delta < 1 else 1.0, 1e-2),
        (2 * budget, 1e-5),
        (per_report_mu, 1e-1),
    ]
    for shown, (value, coarseness) in zip(printed, exact, strict=True):
        # What a float prints as in full may lie half a unit in its last place below it.
        assert Fraction(value) * (1 - Fraction(2) ** -51) <= shown <= value * (1 + coarseness)


def test_the_numbers_are_those_of_the_study() -> None:
    guarantee = guarantee_of(STUDY, per_report_mu=9.4)

    assert (guarantee.epsilon, guarantee.delta, guarantee.budget) == (1.0, 1e-6, 0.2)
    assert guarantee.pair_epsilon == 2.0
    assert guarantee.pair_delta == pytest.approx((1 + math.e) * 1e-6, rel=1e-12)
    assert guarantee.pair_delta >= (1 + math.e) * 1e-6
    assert guarantee.per_report_mu == 9.4
