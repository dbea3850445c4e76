"""Wide rows: what the pieces they are worked on in must not change. Narrow ones: test_gaussian.py."""

import math

import numpy as np
import pytest

from demur_proto.mechanisms.gaussian import (
    EXACT_SQUARES,
    FIRST_COLUMNS,
    INSIDE,
    LANES,
    PIECE_WORDS,
    on_grid,
    plain_words,
    rounded,
)

Rng = np.random.Generator

WIDTHS = [FIRST_COLUMNS, LANES - 1, LANES, LANES + 1, 2 * LANES + 3, PIECE_WORDS + 5]


def steps_by_hand(row: list[float], *, exponent: int, radius: int) -> list[float]:
    """Number by number, in Python: the same order of addition, but no array."""
    lanes = [0.0] * min(LANES, len(row))
    for i, value in enumerate(row):
        lanes[i % LANES] += value * value
    while len(lanes) > 1:
        kept = (len(lanes) + 1) // 2
        for i, upper in enumerate(lanes[kept:]):
            lanes[i] += upper
        del lanes[kept:]
    scale = min(2.0**-exponent, math.sqrt(radius) * INSIDE / math.sqrt(lanes[0]))
    return [value * scale for value in row]


def rounded_by_hand(steps: list[float], coins: list[float], radius: int) -> list[int]:
    ends = [math.ceil(step - coin) for step, coin in zip(steps, coins, strict=True)]
    return ends if sum(z * z for z in ends) <= radius else [math.trunc(step) for step in steps]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_row_is_rounded_as_by_hand_however_wide_it_is_and_wherever_it_lies(
    width: int, rng: Rng
) -> None:
    # Norms whose last bit depends on the order of addition decide coins that lie between the two
    # results. Coins that close are rare, so put each on the very edge that its own row has.
    n = 4
    values = rng.normal(size=(n, width)) * 2.0 ** rng.integers(-12, 12, size=(n, 1))
    radii = rng.integers(1 << 20, 1 << 28, size=n)
    steps = [
        steps_by_hand(row, exponent=-14, radius=radius)
        for row, radius in zip(values.tolist(), radii.tolist(), strict=True)
    ]
    edge = np.array(steps) - np.floor(steps)

    for coins in (edge, np.nextafter(edge, 0), np.nextafter(edge, 1)):
        expected = [
            rounded_by_hand(*row) for row in zip(steps, coins.tolist(), radii.tolist(), strict=True)
        ]
        words, squares = rounded(values, coins, exponent=-14, radii=radii)

        assert words.tolist() == expected
        assert squares.tolist() == [sum(z * z for z in row) for row in expected]
        columns, _ = rounded(np.asfortranarray(values), coins, exponent=-14, radii=radii)
        strided, _ = rounded(np.repeat(values, 2, axis=1)[:, ::2], coins, exponent=-14, radii=radii)
        backwards, _ = rounded(values[::-1], coins[::-1], exponent=-14, radii=radii[::-1])
        alone, _ = rounded(values[1:2], coins[1:2], exponent=-14, radii=radii[1:2])
        for other in (columns, strided, backwards[::-1]):
            assert np.array_equal(other, words)
        assert np.array_equal(alone[0], words[1])


def test_more_rows_than_fit_a_piece_are_rounded_like_each_on_its_own(rng: Rng) -> None:
    n, d = 3 * (PIECE_WORDS // 1000) + 1, 1000
    values, coins = rng.normal(size=(n, d)), rng.random((n, d))
    radii = rng.integers(0, 1 << 28, size=n)

    words, squares = rounded(values, coins, exponent=-14, radii=radii)

    for i in range(0, n, 7):
        row = slice(i, i + 1)
        alone, square = rounded(values[row], coins[row], exponent=-14, radii=radii[row])
        assert np.array_equal(alone[0], words[i])
        assert square[0] == squares[i]


@pytest.mark.parametrize("radius", [EXACT_SQUARES - 1, EXACT_SQUARES, (1 << 61) - 1])
def test_squared_norms_are_exact_beyond_what_a_float_holds(radius: int, rng: Rng) -> None:
    values, coins = rng.normal(size=(3, LANES + 9)), rng.random((3, LANES + 9))

    words, squares = rounded(values, coins, exponent=-31, radii=np.full(3, radius))
    narrow, _ = rounded(values, coins, exponent=-31, radii=np.full(3, radius), widen=False)

    assert squares.tolist() == [sum(z * z for z in row) for row in words.tolist()]
    assert np.array_equal(narrow, words)
    assert (narrow.dtype == np.int32) == (radius < EXACT_SQUARES)
    assert 0.999 * radius < squares.min() <= squares.max() <= radius


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e-140, 1e150, 1e200, 1.7e308])
def test_rows_whose_squares_no_float_holds_keep_their_direction(scale: float, rng: Rng) -> None:
    directions = np.append(rng.uniform(-1, 1, size=(1, LANES)), [[1.0]], axis=1)
    half = np.full(directions.shape, 0.5)
    exponent = math.frexp(scale)[1] - 20 if scale > 1e-260 else -900
    values = np.concatenate([directions * scale, directions])

    words, squares = rounded(
        values, half[[0, 0]], exponent=max(-900, min(900, exponent)), radii=np.full(2, 1 << 28)
    )

    # Half a step from rounding, and a relative 2^-50 of at most 2^14 steps.
    length = math.sqrt(sum(x * x for x in directions[0]))
    target = directions[0] * (2**14 * INSIDE / length)
    if scale > 1e-260:
        assert np.abs(words[0] - target).max() <= 0.5 + 1e-9
        assert squares[0] == sum(z * z for z in words[0].tolist())
    else:
        steps = values[0] * 2.0**900
        assert np.abs(words[0] - steps).max() <= 0.5 + 1e-9


def test_rows_with_a_number_that_is_not_finite_become_zero_and_disturb_no_other() -> None:
    values = np.array([[math.nan, 1.0], [1.0, math.inf], [0.6, 0.8], [-math.inf, math.nan]])
    coins = np.full((4, 2), 0.5)

    words, squares = rounded(values, coins, exponent=-2, radii=np.full(4, 16))

    assert words.tolist() == [[0, 0], [0, 0], [2, 3], [0, 0]]
    assert squares.tolist() == [0, 0, 13, 0]


@pytest.mark.parametrize("at", [0, FIRST_COLUMNS - 1, FIRST_COLUMNS, LANES, PIECE_WORDS + 100])
@pytest.mark.parametrize("rest", ["zero", "on the grid"])
def test_one_number_off_the_grid_makes_a_row_rough_wherever_it_is(
    at: int, rest: str, rng: Rng
) -> None:
    n, d = 3, PIECE_WORDS + 200
    steps = np.zeros((n, d), dtype=np.int64)
    if rest == "on the grid":
        steps[:] = rng.integers(-5, 6, size=(n, d))
    values = np.ldexp(steps, -14)
    values[1, at] += 2.0**-15

    words, squares, plain = plain_words(
        values, on_grid(values, exponent=-14), exponent=-14, radius=1 << 28
    )

    assert plain.tolist() == [True, False, True]
    assert np.array_equal(words[[0, 2]], steps[[0, 2]])
    assert not words[1].any()
    assert squares.tolist() == [int((steps[0] ** 2).sum()), 0, int((steps[2] ** 2).sum())]
