import json
import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.accounting.calibration import (
    answers_that_fit,
    answers_that_fit_zcdp,
    mu_of_answers,
    rho_of_answers,
    sigma_for_answers,
    sigma_for_answers_zcdp,
)
from demur_proto.accounting.targets import (
    TargetGrade,
    answers_for_target,
    epsilon_of_answers,
    pure_rounds_for_target,
    sigma_for_target,
)
from demur_proto.errors import ParameterError

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "accounting.json").read_text("utf-8")
)["mnist"]
GRADES: list[TargetGrade] = ["simple", "improved", "exact"]
GOLDEN_NAME: dict[TargetGrade, str] = {"simple": "simple", "improved": "cks", "exact": "gdp"}


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


rhos = log_uniform(1e-9, 1e3)
answers_counts = st.integers(1, 10**12) | st.fractions(
    Fraction(1, 1000), 1000, max_denominator=10**6
)
scales = log_uniform(1e-30, 1e30) | st.floats(1e-300, 1e-200)


@given(answers=answers_counts, clip=scales, mu=log_uniform(1e-9, 1e3))
def test_sigma_is_the_least_float_that_keeps_so_many_answers_within_mu(
    answers: int | Fraction, clip: float, mu: float
) -> None:
    sigma = sigma_for_answers(answers, clip=clip, mu=mu)

    def fits(noise: float) -> bool:
        return Fraction(noise) ** 2 * Fraction(mu) ** 2 >= answers * Fraction(clip) ** 2

    assert fits(sigma)
    assert not fits(math.nextafter(sigma, 0))


@given(answers=answers_counts, clip=scales, rho=rhos)
def test_sigma_is_the_least_float_that_keeps_so_many_answers_within_rho(
    answers: int | Fraction, clip: float, rho: float
) -> None:
    sigma = sigma_for_answers_zcdp(answers, clip=clip, rho=rho)

    def fits(noise: float) -> bool:
        return 2 * Fraction(noise) ** 2 * Fraction(rho) >= answers * Fraction(clip) ** 2

    assert fits(sigma)
    assert not fits(math.nextafter(sigma, 0))


def test_sigma_that_no_float_can_hold_is_refused() -> None:
    with pytest.raises(ParameterError, match="mu must be large enough"):
        sigma_for_answers(1, clip=1e308, mu=1e-3)
    with pytest.raises(ParameterError, match="rho must be large enough"):
        sigma_for_answers_zcdp(10**700, clip=1.0, rho=1.0)


@pytest.mark.parametrize("answers", [0, -1, Fraction(-1, 2), 1.5, math.nan, "4"])
def test_answers_that_are_not_a_positive_exact_number_are_refused(answers: Any) -> None:
    with pytest.raises(ParameterError, match="answers must be"):
        sigma_for_answers(answers, clip=1.0, mu=1.0)
    with pytest.raises(ParameterError, match="answers must be"):
        sigma_for_answers_zcdp(answers, clip=1.0, rho=1.0)


@given(answers=st.integers(1, 10**9), clip=log_uniform(1e-6, 1e6), mu=log_uniform(1e-6, 1e3))
def test_as_many_answers_fit_as_the_noise_was_made_for(
    answers: int, clip: float, mu: float
) -> None:
    sigma = sigma_for_answers(answers, clip=clip, mu=mu)

    fit = answers_that_fit(sigma=sigma, clip=clip, mu=mu)

    assert answers <= fit <= answers * (1 + 1e-15) + 1
    assert mu_of_answers(answers, clip=clip, sigma=sigma) <= mu


@given(answers=st.integers(1, 10**9), clip=log_uniform(1e-6, 1e6), rho=log_uniform(1e-6, 1e3))
def test_as_many_answers_fit_as_the_noise_was_made_for_in_zcdp(
    answers: int, clip: float, rho: float
) -> None:
    sigma = sigma_for_answers_zcdp(answers, clip=clip, rho=rho)

    fit = answers_that_fit_zcdp(sigma=sigma, clip=clip, rho=rho)

    assert answers <= fit <= answers * (1 + 1e-15) + 1
    assert rho_of_answers(answers, clip=clip, sigma=sigma) <= rho


@given(sigma=scales, clip=scales, mu=log_uniform(1e-9, 1e3))
def test_one_more_answer_than_fits_would_be_too_much(sigma: float, clip: float, mu: float) -> None:
    fit = answers_that_fit(sigma=sigma, clip=clip, mu=mu)

    budget = Fraction(sigma) ** 2 * Fraction(mu) ** 2
    assert fit * Fraction(clip) ** 2 <= budget < (fit + 1) * Fraction(clip) ** 2


@given(answers=answers_counts, clip=log_uniform(1e-30, 1e30), sigma=log_uniform(1e-30, 1e30))
def test_what_answers_cost_is_the_least_float_not_below_it(
    answers: int | Fraction, clip: float, sigma: float
) -> None:
    mu = mu_of_answers(answers, clip=clip, sigma=sigma)
    rho = rho_of_answers(answers, clip=clip, sigma=sigma)

    square = answers * Fraction(clip) ** 2 / Fraction(sigma) ** 2
    assert Fraction(math.nextafter(mu, 0)) ** 2 < square <= Fraction(mu) ** 2
    assert Fraction(math.nextafter(rho, 0)) < square / 2 <= Fraction(rho)


def test_a_cost_that_no_float_can_hold_is_refused() -> None:
    with pytest.raises(ParameterError, match="sigma must be large enough"):
        mu_of_answers(1, clip=1e300, sigma=1e-300)
    with pytest.raises(ParameterError, match="sigma must be large enough"):
        rho_of_answers(1, clip=1e300, sigma=1e-300)


# From a target.


@pytest.mark.parametrize("grade", GRADES)
@pytest.mark.parametrize("row", GOLDEN)
def test_the_steps_of_a_gradient_descent_that_fit_are_those_of_the_reference(
    row: dict[str, Any], grade: TargetGrade
) -> None:
    target = {"epsilon": row["target_eps"], "delta": row["delta"]}

    fit = answers_for_target(sigma=row["sigma"], clip=1.0, **target, grade=grade)

    assert fit == row[f"k_max_{GOLDEN_NAME[grade]}"]


@given(
    answers=st.integers(1, 10**6),
    clip=log_uniform(1e-3, 1e3),
    epsilon=log_uniform(1e-3, 20.0),
    delta=log_uniform(1e-20, 0.1),
    grade=st.sampled_from(GRADES),
)
def test_sigma_rounds_and_epsilon_agree(
    answers: int, clip: float, epsilon: float, delta: float, grade: TargetGrade
) -> None:
    sigma = sigma_for_target(answers, clip=clip, epsilon=epsilon, delta=delta, grade=grade)

    again = epsilon_of_answers(answers, clip=clip, sigma=sigma, delta=delta, grade=grade)
    assert again == pytest.approx(epsilon, rel=1e-9)
    for noise in (sigma, sigma * 1.1):
        fit = answers_for_target(sigma=noise, clip=clip, epsilon=epsilon, delta=delta, grade=grade)
        assert fit >= answers
        spent = epsilon_of_answers(fit, clip=clip, sigma=noise, delta=delta, grade=grade)
        assert spent <= epsilon * (1 + 1e-11)


def test_a_better_proof_needs_less_noise_and_lets_more_answers_fit() -> None:
    target = {"clip": 1.0, "epsilon": 1.0, "delta": 1e-6}

    noise = [sigma_for_target(15, **target, grade=grade) for grade in GRADES]
    fit = [answers_for_target(sigma=16.4, **target, grade=grade) for grade in GRADES]

    assert [round(sigma, 1) for sigma in noise] == [20.7, 17.5, 16.4]
    assert fit == [9, 13, 15]


def test_a_target_that_leaves_nothing_is_refused_or_fits_no_answer() -> None:
    target = {"clip": 1.0, "epsilon": 0.0, "delta": 1e-9}

    assert answers_for_target(sigma=1e6, **target, grade="simple") == 0
    with pytest.raises(ParameterError, match="rho must be above 0"):
        sigma_for_target(1, **target, grade="simple")
    assert sigma_for_target(1, **target, grade="exact") > 1e8


def test_rounds_of_pure_privacy_are_counted_exactly() -> None:
    fit = partial(pure_rounds_for_target, epsilon=1.0, delta=1e-5)

    assert fit(0.01) == fit(Fraction(1, 100), charge="quadratic") == 611
    assert fit(0.01, grade="simple") == 416
    assert fit(50.0) == 0
    assert fit(0.0) == 1 << 40


VALID_CALLS: list[tuple[Callable[..., object], dict[str, float]]] = [
    (sigma_for_answers, {"answers": 1, "clip": 1.0, "mu": 1.0}),
    (sigma_for_answers_zcdp, {"answers": 1, "clip": 1.0, "rho": 1.0}),
    (answers_that_fit, {"sigma": 1.0, "clip": 1.0, "mu": 1.0}),
    (answers_that_fit_zcdp, {"sigma": 1.0, "clip": 1.0, "rho": 1.0}),
    (mu_of_answers, {"answers": 1, "clip": 1.0, "sigma": 1.0}),
    (rho_of_answers, {"answers": 1, "clip": 1.0, "sigma": 1.0}),
    (sigma_for_target, {"answers": 1, "clip": 1.0, "epsilon": 1.0, "delta": 1e-5}),
    (answers_for_target, {"sigma": 1.0, "clip": 1.0, "epsilon": 1.0, "delta": 1e-5}),
    (epsilon_of_answers, {"answers": 1, "clip": 1.0, "sigma": 1.0, "delta": 1e-5}),
    (pure_rounds_for_target, {"round_epsilon": 1.0, "epsilon": 1.0, "delta": 1e-5}),
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


def test_an_unknown_grade_is_refused() -> None:
    unknown: Any = "gaussian"
    target = {"clip": 1.0, "epsilon": 1.0, "delta": 1e-5}

    with pytest.raises(ParameterError, match="grade must be"):
        sigma_for_target(1, **target, grade=unknown)
    with pytest.raises(ParameterError, match="grade must be"):
        answers_for_target(sigma=1.0, **target, grade=unknown)
    with pytest.raises(ParameterError, match="grade must be"):
        epsilon_of_answers(1, clip=1.0, sigma=1.0, delta=1e-5, grade=unknown)
