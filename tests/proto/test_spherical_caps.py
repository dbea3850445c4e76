import itertools
import math

import numpy as np
import pytest

from demur_proto.accounting.laws import cap_density, cap_share, gamma_ratio, share_error
from demur_proto.errors import ParameterError

NODES, WEIGHTS = np.polynomial.legendre.leggauss(60)


def integral(height: float, dimension: int, *, moment: int) -> float:
    """∫ t^moment (1 − t²)^((d−3)/2) dt from the height to 1, over the integrand's scale at the height.

    By Gauss-Legendre on panels; with t = sin(x) nothing is singular at 1.
    """
    start, stop = math.asin(height), math.pi / 2
    # The integrand cos(x)^(d−2) falls by e^(−1) over about this length; 60 of them are enough.
    fall = max((dimension - 2) * math.tan(start), math.sqrt(max(dimension - 2, 1)))
    stop = min(stop, start + 60 / fall)
    total = 0.0
    for low, high in itertools.pairwise(np.linspace(start, stop, 41)):
        x = (high - low) / 2 * NODES + (high + low) / 2
        # cos(x)/cos(start), without the digits that two logarithms of near 1 would lose.
        ratio = 1 - np.sin((x - start) / 2) * 2 * np.sin((x + start) / 2) / math.cos(start)
        total += (high - low) / 2 * (WEIGHTS @ (ratio ** (dimension - 2) * np.sin(x) ** moment))
    return total


@pytest.mark.parametrize("dimension", [2, 3, 4, 5, 17, 64, 256, 1000, 20_000])
@pytest.mark.parametrize("height", [1e-9, 1e-3, 0.06, 0.2, 0.5, 0.9])
def test_the_share_of_a_cap_is_that_of_the_integral(dimension: int, height: float) -> None:
    whole = 2 * integral(0.0, dimension, moment=0)
    scale = (dimension - 2) / 2 * math.log1p(-height * height)

    expected = math.exp(scale) * integral(height, dimension, moment=0) / whole

    # Of the integral; its power d − 2 takes part of the digits.
    tolerance = 1e-12 + 4e-16 * dimension
    assert cap_share(height, dimension=dimension) == pytest.approx(expected, rel=tolerance, abs=0)


def test_shares_known_in_closed_form() -> None:
    for height in (0.1, 0.37, 0.8):
        assert cap_share(height, dimension=2) == pytest.approx(
            math.acos(height) / math.pi, rel=1e-14
        )
        assert cap_share(height, dimension=3) == pytest.approx((1 - height) / 2, rel=1e-14)


@pytest.mark.parametrize("dimension", [3, 10, 256])
@pytest.mark.parametrize("height", [0.0, 0.06, 0.5])
def test_the_density_is_the_integral_of_the_coordinate(dimension: int, height: float) -> None:
    whole = 2 * integral(0.0, dimension, moment=0)
    scale = math.exp((dimension - 2) / 2 * math.log1p(-height * height))

    expected = scale * integral(height, dimension, moment=1) / whole

    assert cap_density(height, dimension=dimension) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("a", [0.5, 1.0, 1.5, 7.0, 31.5, 32.0, 127.5, 1e6])
def test_the_ratio_of_gamma_functions_is_their_ratio(a: float) -> None:
    # Γ(a + ½)/Γ(a) times Γ(a + 1)/Γ(a + ½) is a: no logarithms of large numbers needed.
    assert gamma_ratio(a) * gamma_ratio(a + 0.5) == pytest.approx(a, rel=1e-14)


@pytest.mark.parametrize("height", [-0.1, 1.0, math.nan, math.inf, True])
def test_what_is_no_height_is_refused(height: float) -> None:
    with pytest.raises(ParameterError, match=r"^height "):
        cap_share(height, dimension=3)


@pytest.mark.parametrize("dimension", [1, 0, 2.0, True, 1 << 25])
def test_what_is_no_dimension_is_refused(dimension: int) -> None:
    with pytest.raises(ParameterError, match=r"^dimension "):
        cap_share(0.5, dimension=dimension)


@pytest.mark.parametrize("dimension", [344, 9_987, 61_901])
@pytest.mark.parametrize("reach", [1.70, 1.80, 1.83, 1.90, 3.0, 18.0])
def test_the_stated_error_holds_where_the_fraction_cancels_most(
    dimension: int, reach: float
) -> None:
    height = reach / math.sqrt(dimension - 1)
    scale = (dimension - 2) / 2 * math.log1p(-height * height)
    whole = 2 * integral(0.0, dimension, moment=0)
    expected = math.exp(scale) * integral(height, dimension, moment=0) / whole

    error = abs(cap_share(height, dimension=dimension) / expected - 1)

    # The integral's own error is its power's, in digits; both together are half the bound.
    assert error < share_error(dimension) + 4e-16 * dimension
