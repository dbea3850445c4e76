import json
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.accounting.conversions import (
    Grade,
    gdp_delta,
    gdp_epsilon,
    gdp_mu,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_rho,
)
from demur_proto.errors import ParameterError

GOLDEN: dict[str, list[dict[str, float]]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "accounting.json").read_text("utf-8")
)
GRADES: list[Grade] = ["simple", "improved"]
GOLDEN_NAME: dict[Grade, str] = {"simple": "simple", "improved": "cks"}

CLOSED_FORM = 1e-12  # what the conversions promise, relative
EXACT_GAUSSIAN = 1e-10
NOISE = 2.0**-47  # two answers, each moved outward by 2^-48, may differ by as much


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


mus = log_uniform(1e-9, 1e3)
rhos = log_uniform(1e-9, 1e3)
epsilons = log_uniform(1e-9, 1e3)
deltas = log_uniform(1e-299, 0.9) | log_uniform(1e-15, 0.5).map(lambda rest: 1 - rest)
grades = st.sampled_from(GRADES)


# Golden vectors. A reference is the double nearest to the truth, so an answer on the safe side of
# the truth is on the safe side of the reference too: no tolerance is needed on that side.


def assert_just_above(value: float, reference: float, *, within: float) -> None:
    assert reference <= value <= reference * (1 + within)


def assert_just_below(value: float, reference: float, *, within: float) -> None:
    assert reference * (1 - within) <= value <= reference


@pytest.mark.parametrize("grade", GRADES)
@pytest.mark.parametrize("row", GOLDEN["zcdp_to_dp"])
def test_zcdp_epsilon_is_just_above_the_reference(row: dict[str, float], grade: Grade) -> None:
    epsilon = zcdp_epsilon(row["rho"], delta=row["delta"], grade=grade)

    assert_just_above(epsilon, row[f"eps_{GOLDEN_NAME[grade]}"], within=CLOSED_FORM)


@pytest.mark.parametrize("row", GOLDEN["zcdp_to_delta"])
def test_zcdp_delta_is_just_above_the_reference(row: dict[str, float]) -> None:
    delta = zcdp_delta(row["rho"], epsilon=row["eps"])

    if row["delta_cks"] == 0.0:  # the truth is below the least float
        assert 0 < delta < 1e-320
    else:
        assert_just_above(delta, row["delta_cks"], within=CLOSED_FORM)


@pytest.mark.parametrize("grade", GRADES)
@pytest.mark.parametrize("row", GOLDEN["dp_to_zcdp_budget"])
def test_zcdp_budget_is_just_below_the_reference(row: dict[str, float], grade: Grade) -> None:
    rho = zcdp_rho(row["eps"], delta=row["delta"], grade=grade)

    assert_just_below(rho, row[f"B_{GOLDEN_NAME[grade]}"], within=CLOSED_FORM)


@pytest.mark.parametrize("row", GOLDEN["dp_to_zcdp_budget"])
def test_gdp_budget_is_just_below_the_reference(row: dict[str, float]) -> None:
    mu = gdp_mu(row["eps"], delta=row["delta"])

    assert_just_below(mu, row["mu_gdp"], within=EXACT_GAUSSIAN)
    assert_just_below(mu**2 / 2, row["B_gaussian_exact"], within=2 * EXACT_GAUSSIAN)


@pytest.mark.parametrize("row", GOLDEN["zcdp_to_dp"])
def test_gdp_epsilon_is_just_above_the_reference(row: dict[str, float]) -> None:
    mu = math.nextafter(math.sqrt(2 * row["rho"]), math.inf)  # not below the reference's real √(2ρ)

    epsilon = gdp_epsilon(mu, delta=row["delta"])

    assert_just_above(epsilon, row["eps_gaussian_exact"], within=EXACT_GAUSSIAN)
    assert gdp_epsilon(row["mu"], delta=row["delta"]) == pytest.approx(epsilon, rel=1e-14)


@pytest.mark.parametrize("row", GOLDEN["zcdp_to_delta"])
def test_gdp_delta_is_just_above_the_reference(row: dict[str, float]) -> None:
    mu = math.nextafter(math.sqrt(2 * row["rho"]), math.inf)

    delta = gdp_delta(mu, epsilon=row["eps"])

    if row["delta_gaussian_exact"] == 0.0:
        assert 0 < delta < 1e-320
    else:
        assert_just_above(delta, row["delta_gaussian_exact"], within=EXACT_GAUSSIAN)


def test_budgets_at_one_and_1e_5_are_those_of_the_design() -> None:
    simple = zcdp_rho(1.0, delta=1e-5, grade="simple")
    improved = zcdp_rho(1.0, delta=1e-5)
    exact = gdp_mu(1.0, delta=1e-5) ** 2 / 2

    assert [round(budget, 5) for budget in (simple, improved, exact)] == [0.02082, 0.03056, 0.03593]


# Independent oracles.


def normal_tail(x: Decimal) -> Decimal:
    """Φ(−x): the power series near 0, Laplace's continued fraction beyond."""
    if x < 0:
        return 1 - normal_tail(-x)
    pi = Decimal(
        "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899"
    )
    density = (-x * x / 2).exp() / (2 * pi).sqrt()
    if x < 6:
        term = total = x
        for k in range(1, 250):
            term *= x * x / (2 * k + 1)
            total += term
        return Decimal("0.5") - density * total
    fraction = x
    for k in range(300, 0, -1):
        fraction = x + k / fraction
    return density / fraction


def textbook_delta(mu: float, epsilon: float) -> tuple[Decimal, Decimal]:
    """δ and 1 − δ of the Gaussian trade-off as printed, in 80 digits."""
    m, e = Decimal(mu), Decimal(epsilon)
    delta = normal_tail(e / m - m / 2) - e.exp() * normal_tail(e / m + m / 2)
    return delta, 1 - delta


@pytest.mark.parametrize("mu", [1e-9, 1e-5, 0.01, 0.3, 1.0, 2.0, 7.0, 40.0, 1e3])
@pytest.mark.parametrize("a", [-8.0, -3.0, -0.9, -0.6, -0.1, 0.0, 0.3, 1.0, 3.0, 9.0, 20.0, 36.5])
def test_gdp_delta_is_the_textbook_formula_rounded_up(mu: float, a: float) -> None:
    epsilon = mu * (max(a, -mu / 2) + mu / 2)  # a = ε/μ − μ/2

    delta = gdp_delta(mu, epsilon=epsilon)

    with localcontext(prec=80):
        truth, rest = textbook_delta(mu, epsilon)
        assert truth <= Decimal(delta) <= min(truth * (1 + Decimal("1e-14")), 1 - rest / 2)


QUADRATURE = np.polynomial.legendre.leggauss(200)


@given(mu=log_uniform(0.05, 5.0), epsilon=st.floats(0.0, 10.0))
def test_gdp_delta_is_the_hockey_stick_divergence_of_two_gaussians(
    mu: float, epsilon: float
) -> None:
    nodes, weights = QUADRATURE
    start = epsilon / mu + mu / 2  # where the likelihood ratio passes e^ε
    x = start + 20 * (nodes + 1)
    excess = np.exp(-((x - mu) ** 2) / 2) - np.exp(epsilon - x**2 / 2)
    integral = float(20 * weights @ excess) / math.sqrt(2 * math.pi)

    assert gdp_delta(mu, epsilon=epsilon) == pytest.approx(integral, rel=1e-9, abs=1e-15)


ALPHAS = 1 + np.geomspace(1e-8, 1e8, 160_001)  # neighbours differ by 1e-4, so a minimum by 1e-8


def divergence_bound(alphas: Any, delta: float, grade: Grade) -> Any:
    """What a conversion adds to the Rényi divergence, as its paper prints it."""
    if grade == "simple":
        return math.log(1 / delta) / (alphas - 1)
    return np.log(1 / (alphas * delta)) / (alphas - 1) + np.log1p(-1 / alphas)


@pytest.mark.parametrize("grade", GRADES)
@pytest.mark.parametrize("rho", [1e-6, 1e-3, 0.1, 2.0, 50.0])
@pytest.mark.parametrize("delta", [1e-15, 1e-5, 0.2])
def test_no_order_on_a_fine_grid_beats_the_best_real_order(
    rho: float, delta: float, grade: Grade
) -> None:
    best = float(np.min(ALPHAS * rho + divergence_bound(ALPHAS, delta, grade)))

    epsilon = zcdp_epsilon(rho, delta=delta, grade=grade)

    assert epsilon <= max(best, 0.0) * (1 + 1e-12)
    assert epsilon == pytest.approx(max(best, 0.0), rel=1e-6)
    if epsilon > 0:
        budgets = (epsilon - divergence_bound(ALPHAS, delta, grade)) / ALPHAS
        assert zcdp_rho(epsilon, delta=delta, grade=grade) == pytest.approx(np.max(budgets))
        assert zcdp_delta(rho, epsilon=epsilon, grade=grade) == pytest.approx(delta)


# Promises.


@given(mu=mus, delta=deltas)
def test_gdp_epsilon_always_reaches_delta_and_wastes_next_to_nothing(
    mu: float, delta: float
) -> None:
    epsilon = gdp_epsilon(mu, delta=delta)

    reached = gdp_delta(mu, epsilon=epsilon)
    assert reached <= delta
    if epsilon > 0:
        assert reached == pytest.approx(delta, rel=EXACT_GAUSSIAN)


@given(epsilon=epsilons | st.just(0.0), delta=deltas)
def test_gdp_mu_always_reaches_delta_and_wastes_next_to_nothing(
    epsilon: float, delta: float
) -> None:
    mu = gdp_mu(epsilon, delta=delta)

    reached = gdp_delta(mu, epsilon=epsilon)
    assert reached <= delta
    assert reached == pytest.approx(delta, rel=EXACT_GAUSSIAN)


@given(mu=mus, rest=log_uniform(1e-12, 0.4))
def test_gdp_epsilon_is_tight_where_delta_is_almost_one(mu: float, rest: float) -> None:
    epsilon = gdp_epsilon(mu, delta=1 - rest)

    less = epsilon * (1 - 1e-9) - 1e-9
    assert less < 0 or gdp_delta(mu, epsilon=less) >= 1 - rest


@given(epsilon=epsilons, delta=deltas, grade=grades)
def test_a_zcdp_budget_costs_the_epsilon_it_was_made_for(
    epsilon: float, delta: float, grade: Grade
) -> None:
    rho = zcdp_rho(epsilon, delta=delta, grade=grade)

    assert zcdp_epsilon(rho, delta=delta, grade=grade) == pytest.approx(
        epsilon, rel=1e-11, abs=1e-12
    )
    assert zcdp_delta(rho, epsilon=epsilon, grade=grade) == pytest.approx(delta, rel=1e-10)


@given(mu=mus, epsilon=epsilons, factor=st.floats(1.0, 10.0))
def test_gdp_delta_falls_with_epsilon_and_rises_with_mu(
    mu: float, epsilon: float, factor: float
) -> None:
    delta = gdp_delta(mu, epsilon=epsilon)

    assert gdp_delta(mu, epsilon=epsilon * factor) <= delta * (1 + NOISE)
    assert gdp_delta(mu * factor, epsilon=epsilon) >= delta * (1 - NOISE)


@given(rho=rhos, epsilon=epsilons, delta=deltas, factor=st.floats(1.0, 10.0), grade=grades)
def test_zcdp_conversions_are_monotone_in_every_argument(
    rho: float, epsilon: float, delta: float, factor: float, grade: Grade
) -> None:
    stricter = max(delta / factor, 1e-300)
    wide = 1e-12  # ε and ρ may be small differences of larger terms

    assert zcdp_delta(rho, epsilon=epsilon * factor, grade=grade) <= (1 + NOISE) * zcdp_delta(
        rho, epsilon=epsilon, grade=grade
    )
    assert zcdp_delta(rho * factor, epsilon=epsilon, grade=grade) >= (1 - NOISE) * zcdp_delta(
        rho, epsilon=epsilon, grade=grade
    )
    cost = zcdp_epsilon(rho, delta=delta, grade=grade)
    assert zcdp_epsilon(rho, delta=stricter, grade=grade) >= cost * (1 - wide) - wide
    assert zcdp_epsilon(rho * factor, delta=delta, grade=grade) >= cost * (1 - wide) - wide
    budget = zcdp_rho(epsilon, delta=delta, grade=grade)
    assert zcdp_rho(epsilon, delta=stricter, grade=grade) <= budget * (1 + wide) + wide
    assert zcdp_rho(epsilon * factor, delta=delta, grade=grade) >= budget * (1 - wide) - wide


@given(mu=log_uniform(1e-6, 1e3), delta=deltas)
def test_the_exact_conversion_beats_the_improved_one_and_that_the_simple_one(
    mu: float, delta: float
) -> None:
    rho = mu**2 / 2

    exact = gdp_epsilon(mu, delta=delta)
    improved = zcdp_epsilon(rho, delta=delta)
    simple = zcdp_epsilon(rho, delta=delta, grade="simple")

    assert exact <= improved * (1 + CLOSED_FORM) + 1e-12
    assert improved <= simple * (1 + CLOSED_FORM)


def test_no_budget_spent_is_perfect_privacy() -> None:
    assert gdp_delta(0.0, epsilon=0.0) == 0.0
    assert gdp_epsilon(0.0, delta=1e-300) == 0.0
    for grade in GRADES:
        assert zcdp_delta(0.0, epsilon=0.0, grade=grade) == 0.0
        assert zcdp_epsilon(0.0, delta=1e-300, grade=grade) == 0.0


def test_a_generous_delta_makes_epsilon_zero() -> None:
    assert gdp_epsilon(0.1, delta=0.04) == 0.0  # 2Φ(0.05) − 1 = 0.0399
    assert gdp_epsilon(0.1, delta=0.0398) > 0.0
    assert zcdp_epsilon(0.005, delta=0.9) == 0.0


@pytest.mark.parametrize("grade", GRADES)
def test_a_delta_too_small_for_a_float_is_not_reported_as_zero(grade: Grade) -> None:
    assert gdp_delta(1e-9, epsilon=1e3) > 0.0
    assert zcdp_delta(1e-9, epsilon=1e3, grade=grade) > 0.0


def test_a_budget_far_above_epsilon_promises_nothing() -> None:
    assert gdp_delta(1e3, epsilon=1e-9) == 1.0
    assert zcdp_delta(1e3, epsilon=1e-9) == 1.0
    assert zcdp_delta(1.0, epsilon=1.0, grade="simple") == 1.0


# Ranges.


VALID_CALLS: list[tuple[Callable[..., object], dict[str, float]]] = [
    (gdp_delta, {"mu": 1.0, "epsilon": 1.0}),
    (gdp_epsilon, {"mu": 1.0, "delta": 1e-5}),
    (gdp_mu, {"epsilon": 1.0, "delta": 1e-5}),
    (zcdp_epsilon, {"rho": 1.0, "delta": 1e-5}),
    (zcdp_delta, {"rho": 1.0, "epsilon": 1.0}),
    (zcdp_rho, {"epsilon": 1.0, "delta": 1e-5}),
]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e-300])
@pytest.mark.parametrize(("function", "arguments"), VALID_CALLS)
def test_a_number_outside_its_range_is_refused_by_name(
    function: Callable[..., object], arguments: dict[str, float], bad: float
) -> None:
    function(**arguments)

    for name in arguments:
        with pytest.raises(ParameterError) as caught:
            function(**{**arguments, name: bad})
        assert caught.value.name == name


@pytest.mark.parametrize("bad", [0.0, 1e-301, 1.0])
@pytest.mark.parametrize("convert", [gdp_epsilon, gdp_mu, zcdp_epsilon, zcdp_rho])
def test_a_target_delta_that_no_conversion_can_meet_is_refused(
    convert: Callable[..., float], bad: float
) -> None:
    with pytest.raises(ParameterError, match="delta must be"):
        convert(1.0, delta=bad)


def test_an_unknown_grade_is_refused() -> None:
    unknown: Any = "gaussian"  # this grade belongs to GDP only

    with pytest.raises(ParameterError, match="grade must be"):
        zcdp_epsilon(1.0, delta=1e-5, grade=unknown)
    with pytest.raises(ParameterError, match="grade must be"):
        zcdp_delta(1.0, epsilon=1.0, grade=unknown)
    with pytest.raises(ParameterError, match="grade must be"):
        zcdp_rho(1.0, delta=1e-5, grade=unknown)
