"""Several studies of the same people: what they promise together, and how to split one promise."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.accounting.together import added_budget, guarantee_together, split_target
from demur_proto.errors import ParameterError
from demur_proto.guarantee import guarantee_of
from demur_proto.study import Measure, Study, View, design_study


def a_study(name: str = "one", **changes: Any) -> Study:
    options: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "answers": 3, "minimum_cohort": 4}
    return design_study(name=name, **{**options, **changes})


positive = st.floats(1e-3, 1e3)


@given(budgets=st.lists(positive, min_size=1, max_size=5))
def test_budgets_add_as_their_measure_says_and_never_below_the_truth(budgets: list[float]) -> None:
    mu = added_budget(budgets, measure=Measure.GDP)
    rho = added_budget(budgets, measure=Measure.ZCDP)

    assert mu == pytest.approx(math.hypot(*budgets), rel=1e-14)
    assert rho == pytest.approx(math.fsum(budgets), rel=1e-15)
    assert mu >= max(budgets)
    assert rho >= max(budgets)


@given(
    epsilon=st.floats(0.05, 100.0),
    exponent=st.integers(3, 12),
    shares=st.lists(st.floats(0.01, 0.3), min_size=1, max_size=3),
    measure=st.sampled_from([Measure.GDP, Measure.ZCDP]),
    view=st.sampled_from(list(View)),
)
def test_a_promise_that_was_split_is_kept_by_all_studies_together(
    epsilon: float, exponent: int, shares: list[float], measure: Measure, view: View
) -> None:
    target: dict[str, Any] = {"epsilon": epsilon, "delta": 10.0**-exponent}
    shares = [1 - sum(shares) - 1e-9, *shares]
    kind: dict[str, Any] = {"measure": measure, "view": view, "horizon": 50}
    # What all samplers may need, counted much too high: at e^100 even 2^-120 would be too much.
    sampler = target["delta"] / 100
    try:
        epsilons = split_target(shares, **target, measure=measure, sampler=sampler)
        studies = [
            a_study(str(share), epsilon=each, delta=target["delta"], **kind)
            for share, each in zip(shares, epsilons, strict=True)
        ]
        whole = a_study("whole", **target, **kind)
    except ParameterError as error:
        if error.name != "delta":  # too small for a sampler at such an epsilon
            raise
        return
    if sum(study.sampler_delta for study in [*studies, whole]) > sampler / len(studies):
        return

    guarantee = guarantee_together(studies, **target, per_report_mus=[1.0] * len(studies))

    assert guarantee.budget <= whole.budget * (1 + 1e-9)
    assert guarantee.budget >= whole.budget * 0.9  # and hardly anything is given away
    assert (guarantee.epsilon, guarantee.delta) == (epsilon, target["delta"])


def test_studies_that_promise_more_than_was_meant_are_refused() -> None:
    both = [a_study("one"), a_study("two")]

    with pytest.raises(ParameterError, match=r"delta must be at least .* at epsilon 1"):
        guarantee_together(both, epsilon=1.0, delta=1e-6, per_report_mus=[1.0, 1.0])


def test_one_study_alone_promises_what_it_says() -> None:
    study = a_study()

    alone = guarantee_together([study], epsilon=1.0, delta=1e-6, per_report_mus=[2.0])

    assert alone == guarantee_of(study, per_report_mu=2.0)


def test_the_statement_names_unit_neighbour_view_and_every_budget() -> None:
    both = [a_study("one", epsilon=0.4), a_study("two", epsilon=0.4)]

    said = guarantee_together(both, epsilon=1.0, delta=1e-6, per_report_mus=[1.0, 3.25])

    for part in ("Unit: ", "Neighbour: zero-out", "View: aggregate", "(one) and", "(two)"):
        assert part in said.statement
    assert "one report on its own is only 3.3-GDP" in said.statement
    assert "Fewer than 4 reports are never released" in said.statement


def test_studies_of_two_kinds_are_refused() -> None:
    options: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "per_report_mus": [1.0, 1.0]}
    for other in (a_study(view=View.LOCAL), a_study(measure=Measure.ZCDP)):
        with pytest.raises(ParameterError, match="of one view and one measure"):
            guarantee_together([a_study(epsilon=0.4), other], **options)


@pytest.mark.parametrize("shares", [[0.0, 1.0], [0.7, 0.4], [math.nan], [-0.1], [True]])
def test_shares_that_are_none_are_refused(shares: list[float]) -> None:
    with pytest.raises(ParameterError, match="shares"):
        split_target(shares, epsilon=1.0, delta=1e-6, measure=Measure.GDP, sampler=0.0)
