"""B·C is all prefix sums, exactly; and what a device projects is what it will send."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from demur_proto.errors import ParameterError
from demur_proto.running.factorisations import Factors, change_norm, factors_of
from demur_proto.running.segments import Factorisation

KINDS = list(Factorisation)
HORIZONS = (1, 2, 3, 8, 21, 64)


def rows_of(factors: Factors, horizon: int) -> list[list[int]]:
    """C as a dense matrix, rows padded with zeros."""
    rows = [factors.row(position).tolist() for position in range(1, horizon + 1)]
    return [row + [0] * (horizon - len(row)) for row in rows]


def inverse_of(rows: list[list[int]]) -> list[list[Fraction]]:
    """A·C⁻¹ by forward substitution in rationals: the only B with B·C = A."""
    size = len(rows)
    solved = []
    for t in range(size):
        left = [Fraction(int(s <= t)) for s in range(size)]  # the row of A that is still to be met
        solution = [Fraction(0)] * size
        for s in reversed(range(t + 1)):
            solution[s] = left[s] / rows[s][s]
            left = [a - solution[s] * c for a, c in zip(left, rows[s], strict=True)]
        assert not any(left)
        solved.append(solution)
    return solved


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("horizon", HORIZONS)
def test_the_servers_weights_undo_the_devices_rows(kind: Factorisation, horizon: int) -> None:
    factors = factors_of(kind, horizon=horizon, exponent=-14)

    exact = inverse_of(rows_of(factors, horizon))

    for position in range(1, horizon + 1):
        wanted = [float(each) for each in exact[position - 1][:position]]
        given = factors.solution(position)
        np.testing.assert_allclose(given, wanted, rtol=1e-13, atol=1e-13 * 2.0**-14)


@pytest.mark.parametrize("kind", [Factorisation.TREE, Factorisation.IDENTITY])
@pytest.mark.parametrize("horizon", HORIZONS)
def test_where_weights_are_whole_they_undo_the_rows_exactly(
    kind: Factorisation, horizon: int
) -> None:
    factors = factors_of(kind, horizon=horizon, exponent=0)
    rows = np.array(rows_of(factors, horizon))

    for position in range(1, horizon + 1):
        whole = np.zeros(horizon)
        whole[:position] = factors.solution(position)
        assert (whole @ rows).tolist() == [1] * position + [0] * (horizon - position)


@pytest.mark.parametrize("horizon", [1, 2, 100, 1024])
def test_the_square_root_is_rounded_to_the_nearest_grid_step(horizon: int) -> None:
    steps = factors_of(Factorisation.SQUARE_ROOT, horizon=horizon, exponent=-14).row(horizon)

    for lag, given in enumerate(steps[::-1].tolist()):
        exact = Fraction(math.comb(2 * lag, lag), 4**lag) * 2**14
        assert abs(given - exact) <= Fraction(1, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("horizon", HORIZONS)
def test_shared_energy_is_that_of_the_dense_matrix(kind: Factorisation, horizon: int) -> None:
    factors = factors_of(kind, horizon=horizon, exponent=-14)
    dense = np.array(rows_of(factors, horizon))

    for position in range(1, horizon + 1):
        future = dense[position - 1 :]
        wanted = future.T @ future[:, position - 1]
        assert factors.shared(position).tolist() == wanted[:position].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_no_word_ever_exceeds_the_bound_whatever_the_states_are(kind: Factorisation) -> None:
    bound, horizon, unit = 2, 5, 2**14
    dense = np.array(rows_of(factors_of(kind, horizon=horizon, exponent=-14), horizon))

    reached = 0
    for states in product(range(bound + 1), repeat=horizon):
        words = dense @ np.diff([0, *states])
        reached = max(reached, int(np.abs(words).max()))

    assert reached == bound * unit


def test_the_grid_costs_the_square_root_next_to_nothing() -> None:
    """Error of the last count times the norm of one change, as a share of the square root's own."""
    horizon = 1024
    factors = factors_of(Factorisation.SQUARE_ROOT, horizon=horizon, exponent=-14)
    ideal = sum(float(Fraction(math.comb(2 * k, k), 4**k)) ** 2 for k in range(horizon))

    norm = math.sqrt(float(factors.shared(1)[-1]))
    error = norm * math.sqrt(float(np.sum(factors.solution(horizon) ** 2)))

    assert 1 <= error / ideal < 1 + 2.0**-13


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [{"horizon": 0}, {"horizon": 1 << 15}, {"exponent": -21}])
def test_what_no_factors_exist_for_is_refused(kind: Factorisation, bad: dict[str, int]) -> None:
    with pytest.raises(ParameterError):
        factors_of(kind, **{"horizon": 4, "exponent": -14, **bad})


@pytest.mark.parametrize("kind", KINDS)
def test_positions_outside_the_horizon_are_refused(kind: Factorisation) -> None:
    factors = factors_of(kind, horizon=4, exponent=-14)

    for position in (0, 5):
        for ask in (factors.row, factors.shared, factors.solution):
            with pytest.raises(ParameterError, match="position"):
                ask(position)


@pytest.mark.parametrize(
    ("kind", "at_64", "at_1024"),
    [
        (Factorisation.SQUARE_ROOT, 2.2, 3.1),
        (Factorisation.TREE, 4.6, 7.4),
        (Factorisation.IDENTITY, 5.7, 22.6),
    ],
)
def test_the_figures_of_the_documentation_are_those_of_the_factors(
    kind: Factorisation, at_64: float, at_1024: float
) -> None:
    for horizon, figure in ((64, at_64), (1024, at_1024)):
        factors = factors_of(kind, horizon=horizon, exponent=-14)
        variances = [np.sum(factors.solution(t) ** 2) for t in range(1, horizon + 1)]
        norm = change_norm(kind, horizon=horizon, exponent=-14)

        assert round(norm * math.sqrt(np.mean(variances)) * 2.0**14, 1) == figure


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("horizon", HORIZONS)
def test_no_change_weighs_more_than_the_norm_says(kind: Factorisation, horizon: int) -> None:
    norm = change_norm(kind, horizon=horizon, exponent=-14)
    factors = factors_of(kind, horizon=horizon, exponent=-14)

    heaviest = max(int(factors.shared(t)[-1]) for t in range(1, horizon + 1))

    assert Fraction(norm) ** 2 * 4**14 >= heaviest
    assert norm == pytest.approx(math.sqrt(heaviest) / 2**14, rel=1e-15)
