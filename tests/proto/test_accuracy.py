import json
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from demur_proto.accounting.intervals import (
    supremum_failure,
    supremum_radius,
    supremum_radius_bound,
)
from demur_proto.errors import ParameterError

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "accounting.json").read_text("utf-8")
)["linear_query_accuracy"]
CLOSED_FORM = 1e-12
EXACT_GAUSSIAN = 1e-10


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


dimensions = st.integers(1, 100) | st.integers(1, 10**15)
failures = log_uniform(1e-299, 0.9) | log_uniform(1e-15, 0.5).map(lambda rest: 1 - rest)


@pytest.mark.parametrize("row", GOLDEN)
def test_both_radii_are_just_above_the_reference(row: dict[str, Any]) -> None:
    bound = supremum_radius_bound(row["d"], failure=float(row["delta"]))
    exact = supremum_radius(row["d"], failure=float(row["delta"]))

    assert row["z_paper"] <= bound <= row["z_paper"] * (1 + CLOSED_FORM)
    assert row["z_exact"] <= exact <= row["z_exact"] * (1 + EXACT_GAUSSIAN)


@pytest.mark.parametrize("row", GOLDEN)
def test_the_failure_probability_is_just_above_the_reference(row: dict[str, Any]) -> None:
    radius = math.nextafter(row["z_paper"], 0)  # not above the reference's real radius

    for two_sided, name in ((True, "P_two_sided_max"), (False, "P_one_sided_max")):
        reached = supremum_failure(radius, dimension=row["d"], two_sided=two_sided)

        assert row[name] <= reached <= row[name] * (1 + EXACT_GAUSSIAN)


# Independent oracles.


def normal_tail(x: Decimal) -> Decimal:
    """Φ(−x) for x ≥ 0: the power series near 0, Laplace's continued fraction beyond."""
    pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628")
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


def failure_of(radius: float, dimension: int, *, sides: int) -> Decimal:
    """1 − (1 − sides · Φ(−r))^d; where that is below 1e-15, too large by as small a share of it."""
    outside = sides * normal_tail(Decimal(radius))
    if outside < Decimal("1e-30"):
        return dimension * outside
    kept = (1 - outside).ln() if outside < 1 else Decimal("-Infinity")
    return 1 - max(dimension * kept, Decimal(-10_000)).exp()


@given(radius=st.floats(0.0, 37.0), dimension=dimensions, two_sided=st.booleans())
def test_the_failure_probability_is_its_formula_rounded_up(
    radius: float, dimension: int, two_sided: bool
) -> None:
    reached = supremum_failure(radius, dimension=dimension, two_sided=two_sided)

    with localcontext(prec=70):
        truth = failure_of(radius, dimension, sides=2 if two_sided else 1)
        assert min(truth, 1 - Decimal("1e-60")) <= Decimal(reached)
        assert reached <= min(1.0, float(truth) * (1 + EXACT_GAUSSIAN))


@given(dimension=dimensions, failure=failures)
@example(dimension=949_667_654_103_556, failure=math.exp(-685.0))  # β/d is a subnormal float
def test_the_exact_radius_keeps_its_promise_and_hardly_a_smaller_one_does(
    dimension: int, failure: float
) -> None:
    radius = supremum_radius(dimension, failure=failure)

    with localcontext(prec=70):
        assert failure_of(radius, dimension, sides=2) <= Decimal(failure)
        assert failure_of(radius * (1 - EXACT_GAUSSIAN), dimension, sides=2) > Decimal(failure)


@given(failure=log_uniform(1e-12, 0.999))
def test_one_coordinate_is_the_normal_quantile(failure: float) -> None:
    quantile = -NormalDist().inv_cdf(failure / 2)

    assert supremum_radius(1, failure=failure) == pytest.approx(quantile, rel=1e-9)


@given(rest=log_uniform(1e-15, 0.3))
def test_a_radius_that_hardly_anyone_keeps_is_right_as_well(rest: float) -> None:
    failure = 1 - rest

    radius = supremum_radius(1, failure=failure)

    with localcontext(prec=70):
        inside = 1 - 2 * normal_tail(Decimal(radius))
        kept = 1 - Decimal(failure)
        assert kept <= inside <= kept * (1 + Decimal(CLOSED_FORM))


@given(dimension=dimensions, failure=failures)
def test_the_closed_form_is_never_below_the_exact_radius(dimension: int, failure: float) -> None:
    bound = supremum_radius_bound(dimension, failure=failure)

    assert supremum_radius(dimension, failure=failure) <= bound * (1 + 1e-14)
    assert supremum_failure(bound, dimension=dimension) <= failure * (1 + 1e-14)


@given(dimension=st.integers(1, 10**14), failure=failures, factor=st.integers(1, 10))
def test_the_radius_rises_with_the_dimension_and_falls_with_the_failure(
    dimension: int, failure: float, factor: int
) -> None:
    radius = supremum_radius(dimension, failure=failure)

    assert supremum_radius(dimension * factor, failure=failure) >= radius * (1 - 1e-13)
    stricter = max(failure / factor, 1e-300)
    assert supremum_radius(dimension, failure=stricter) >= radius * (1 - 1e-13)


def test_real_noise_strays_as_often_as_it_should(rng: np.random.Generator) -> None:
    draws, dimension, failure = 20_000, 50, 0.05
    radius = supremum_radius(dimension, failure=failure)

    strayed = np.abs(rng.normal(size=(draws, dimension))).max(axis=1) > radius

    error = math.sqrt(failure * (1 - failure) / draws)
    np.testing.assert_allclose(strayed.mean(), failure, rtol=0, atol=5 * error)  # 5 sigma


def test_no_radius_keeps_nothing_and_a_wide_one_almost_everything() -> None:
    assert supremum_failure(0.0, dimension=1) == 1.0
    assert supremum_failure(0.0, dimension=1, two_sided=False) == pytest.approx(0.5)
    assert supremum_failure(1e-300, dimension=10**15) == 1.0
    assert 0 < supremum_failure(1e15, dimension=10**15) < 1e-300


# Ranges.

VALID_CALLS: list[tuple[Callable[..., object], dict[str, Any]]] = [
    (supremum_radius, {"dimension": 3, "failure": 0.1}),
    (supremum_radius_bound, {"dimension": 3, "failure": 0.1}),
    (supremum_failure, {"radius": 2.0, "dimension": 3}),
]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e-300, -1, True, "1", 1e16])
@pytest.mark.parametrize(("function", "arguments"), VALID_CALLS)
def test_a_number_outside_its_range_is_refused_by_name(
    function: Callable[..., object], arguments: dict[str, Any], bad: Any
) -> None:
    function(**arguments)

    for name in arguments:
        with pytest.raises(ParameterError) as caught:
            function(**{**arguments, name: bad})
        assert caught.value.name == name


@pytest.mark.parametrize("bad", [0, 2.0, 10**15 + 1])
def test_coordinates_are_counted_in_whole_numbers(bad: Any) -> None:
    with pytest.raises(ParameterError, match="dimension must be"):
        supremum_radius(bad, failure=0.1)
