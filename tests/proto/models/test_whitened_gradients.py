import hashlib
import math
from typing import Any

import numpy as np
import pytest

from demur_proto.errors import ParameterError
from demur_proto.models.whitened_gradients import (
    Ink,
    WhitenedGradients,
    _fit,
    fit_whitening,
    straightened,
    strokes,
)

SMALL: dict[str, Any] = {"height": 14, "width": 14, "cells": 3, "bins": 4, "synthetic": 100}
FIT = "c6211046d73b9c15f449f1d10cc9961d09ee485902aecb08e44240317dca4e7c"  # SHA-256
PLAIN = WhitenedGradients(height=28, width=28)


def drawings(number: int, *, side: int = 28, seed: int = 7) -> Ink:
    return np.concatenate(list(strokes(number, side=side, seed=seed)))


# ---- the slow way: pixel by pixel, in Python's own arithmetic ---------------------------------


def slow_straightened(ink: list[list[float]]) -> list[list[float]]:
    side = len(ink)
    unit = side / 28
    mass = 1e-3 + sum(map(sum, ink))

    def mean(power_y: int, power_x: int) -> float:
        places = [(y, x) for y in range(side) for x in range(side)]
        return math.fsum(ink[y][x] * y**power_y * x**power_x for y, x in places) / mass

    row, column = mean(1, 0), mean(0, 1)
    down = max(mean(2, 0) - row**2, unit**2)
    both = mean(1, 1) - row * column
    across = max(mean(0, 2) - column**2 - both**2 / down, 0.3 * unit**2)
    slant = min(max(both / down, -1), 1)
    by_row = min(max((math.sqrt(down) / (5.4 * unit)) ** 0.5, 0.6), 1.6)
    by_column = min(max((math.sqrt(across) / (4.4 * unit)) ** 0.3, 0.6), 1.6)

    def pixel(y: int, x: int) -> float:
        return ink[y][x] if 0 <= y < side and 0 <= x < side else 0.0

    def read(y: float, x: float) -> float:
        top, left = math.floor(y), math.floor(x)
        return sum(
            (1 - abs(y - near_y)) * (1 - abs(x - near_x)) * pixel(near_y, near_x)
            for near_y in (top, top + 1)
            for near_x in (left, left + 1)
        )

    middle = (side - 1) / 2
    return [
        [
            read(
                row + by_row * (y - middle),
                column + by_column * (x - middle) + slant * by_row * (y - middle),
            )
            for x in range(side)
        ]
        for y in range(side)
    ]


def slow_pooled(ink: list[list[float]], *, cells: int, bins: int) -> list[float]:
    side = len(ink)
    bell = {d: math.exp(-(d**2) / 1.28) for d in range(-side, side + 1)}
    whole = sum(math.exp(-(d**2) / 1.28) for d in range(-20, 21))
    lines = [
        [sum(bell[x - other] * line[other] for other in range(side)) / whole for x in range(side)]
        for line in ink
    ]
    smooth = [
        [
            sum(bell[y - other] * lines[other][x] for other in range(side)) / whole
            for x in range(side)
        ]
        for y in range(side)
    ]
    square = side / cells
    pools = []
    for cell in range(cells):
        centre = (cell + 0.5) * square - 0.5
        weights = [math.exp(-((x - centre) ** 2) / (2 * (square / 2) ** 2)) for x in range(side)]
        pools.append([weight / math.hypot(*weights) for weight in weights])
    sums = np.zeros((bins, cells, cells))
    for y in range(side):
        for x in range(side):
            across = smooth[y][x + 1] - smooth[y][x - 1] if 0 < x < side - 1 else 0.0
            down = smooth[y + 1][x] - smooth[y - 1][x] if 0 < y < side - 1 else 0.0
            for number in range(bins):
                apart = math.atan2(down, across) - 2 * math.pi * number / bins
                vote = math.hypot(across, down) * max(math.cos(apart), 0) ** 2
                for i in range(cells):
                    for j in range(cells):
                        sums[number, i, j] += vote * pools[i][y] * pools[j][x]
    roots = np.sqrt(sums).reshape(-1)
    return [float(value) for value in roots / math.hypot(*roots)]


def slow_whitening(rows: Any, *, power: float, floor: float) -> tuple[Any, Any]:
    """By a singular value decomposition, not by that of the covariance."""
    centre = np.mean(rows, axis=0)
    _, lengths, directions = np.linalg.svd(rows - centre)
    shares = (lengths / lengths[0]) ** 2
    return centre, directions.T @ np.diag((shares + floor) ** (-power / 2)) @ directions


def test_the_fast_way_is_the_slow_way() -> None:
    features = WhitenedGradients(**SMALL)
    images = drawings(5, side=14)
    rows = [
        slow_pooled(slow_straightened(drawn.tolist()), cells=3, bins=4)
        for drawn in drawings(100, side=14, seed=1)
    ]
    centre, matrix = slow_whitening(np.array(rows), power=0.6, floor=1e-3)

    found = features.of(images * 255)

    assert found.shape == (5, features.length)
    assert found.dtype == np.float32
    for row, image in zip(found, images, strict=True):
        pooled = np.array(slow_pooled(slow_straightened(image.tolist()), cells=3, bins=4))
        expected = (pooled - centre) @ matrix
        # K is rounded to 2^-14 and gradients are lengthened by 1e-6; the norm is 10.
        np.testing.assert_allclose(row, 10 * expected / math.hypot(*expected), atol=3e-3)


# ---- straightening ---------------------------------------------------------------------------


def test_a_straightened_drawing_is_centred_and_upright() -> None:
    places = np.arange(28)

    for image in straightened(drawings(50)):
        share = image / image.sum()
        row, column = share.sum(axis=1) @ places, share.sum(axis=0) @ places
        slant = (
            (places - row) @ share @ (places - column) / (share.sum(axis=1) @ (places - row) ** 2)
        )
        assert row == pytest.approx(13.5, abs=0.2)
        assert column == pytest.approx(13.5, abs=0.2)
        assert abs(slant) < 0.15  # from at most 1: what reading between pixels leaves


def test_a_drawing_that_was_moved_or_slanted_is_straightened_alike() -> None:
    bar = np.zeros((1, 28, 28))
    bar[0, 6:22, 12:16] = 1.0
    moved = np.roll(bar, (2, -3), axis=(1, 2))
    slanted = np.stack([[np.roll(line, (y - 13) // 2) for y, line in enumerate(bar[0])]])

    plain = straightened(bar)

    np.testing.assert_allclose(straightened(moved), plain, atol=0.01)  # of the mass in _NO_INK
    np.testing.assert_allclose(straightened(slanted), plain, atol=0.5)  # half a pixel at edges
    assert np.abs(straightened(slanted) - plain).mean() < 0.05


# ---- drawings ----------------------------------------------------------------------------------


def test_drawings_follow_from_their_seed_and_not_from_how_many_there_are() -> None:
    some, more, others = drawings(20), drawings(33), drawings(20, seed=8)

    np.testing.assert_array_equal(some, more[:20])
    assert not (some == others).all(axis=(1, 2)).any()
    assert some.min() == 0.0
    assert some.max() == 1.0
    assert all(0.01 < image.mean() < 0.5 for image in some)


def test_the_fit_is_the_same_everywhere() -> None:
    """Pinned, so that another library or processor that fits otherwise is seen."""
    rows = np.random.PCG64(1).random_raw(3)
    assert rows.tolist() == [9441442522235856127, 17532960557476522086, 2659275481604167885]

    fit = _fit(28, 7, 8, 6000, 1, 0.6, 1e-3)
    numbers = fit.centre.tobytes() + fit.matrix.tobytes()
    assert hashlib.sha256(numbers).hexdigest() == FIT


# ---- whitening ---------------------------------------------------------------------------------


def test_whitening_does_what_it_says_to_the_variances(rng: np.random.Generator) -> None:
    mix = rng.normal(size=(5, 5))
    rows = rng.normal(size=(4000, 5)) @ mix + 3.0

    fit = fit_whitening(rows, power=0.5, floor=1e-6)

    before = np.linalg.eigvalsh(np.cov(rows.T))
    after = np.linalg.eigvalsh(np.cov(fit.of(rows).T))
    # λ (λ / λ_max)^-½, as the floor hardly matters: still in the same order.
    np.testing.assert_allclose(after, before * (before / before[-1] + 1e-6) ** -0.5, rtol=2e-3)
    np.testing.assert_allclose(fit.of(rows).mean(axis=0), 0, atol=1e-4)
    np.testing.assert_array_equal(fit.matrix, fit.matrix.T)


def test_a_matrix_does_not_depend_on_which_eigenvectors_are_chosen() -> None:
    rows = np.concatenate([np.eye(4), -np.eye(4)])  # all eigenvalues are equal

    fit = fit_whitening(rows, power=1.0, floor=1.0)

    np.testing.assert_allclose(fit.matrix, np.eye(4) / math.sqrt(2), atol=1e-4)


# ---- the map -----------------------------------------------------------------------------------


def test_features_hardly_change_when_a_drawing_is_moved_by_two_pixels() -> None:
    images = np.pad(drawings(40), ((0, 0), (2, 2), (2, 2)))  # so that nothing leaves the image
    features = WhitenedGradients(height=32, width=32, cells=4, synthetic=1000)
    plain, moved = features.of(images * 255), features.of(np.roll(images, (2, -1), (1, 2)) * 255)

    apart = np.linalg.norm(plain - moved, axis=1)
    between = np.linalg.norm(plain - np.roll(plain, 1, axis=0), axis=1)

    assert apart.max() < 0.1
    assert between.min() > 3.0


def test_features_hardly_change_with_contrast_and_all_have_the_same_norm() -> None:
    images = drawings(40) * 200

    plain, faint = PLAIN.of(images), PLAIN.of(images * 0.4)

    np.testing.assert_allclose(np.linalg.norm(plain, axis=1), 10.0, rtol=1e-6)
    assert np.linalg.norm(plain - faint, axis=1).max() < 0.1


def test_an_image_has_the_same_features_in_any_company(rng: np.random.Generator) -> None:
    images = rng.integers(0, 256, (70, 28, 28)).astype(np.uint8)

    together = PLAIN.of(images)

    for number in (0, 31, 32, 69):
        np.testing.assert_array_equal(PLAIN.of(images[number : number + 1])[0], together[number])


def test_brightness_beyond_black_and_white_is_theirs() -> None:
    images = np.round(drawings(3)) * 255

    np.testing.assert_array_equal(PLAIN.of(np.where(images > 0, 1e30, -1e30)), PLAIN.of(images))


@pytest.mark.parametrize("value", [0, 128, 255])
def test_an_image_of_one_colour_has_finite_features_and_no_warning(value: int) -> None:
    assert np.isfinite(PLAIN.of(np.full((1, 28, 28), value, dtype=np.uint8))).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300])
def test_a_pixel_that_is_no_number_spoils_its_own_image_alone(bad: float) -> None:
    images = drawings(3) * 255
    spoilt = images.copy()
    spoilt[1, 4, 4] = bad

    found = PLAIN.of(spoilt)

    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[[0, 2]], PLAIN.of(images[[0, 2]]))


def test_no_images_have_no_features() -> None:
    assert PLAIN.of(np.zeros((0, 28, 28))).shape == (0, 392)


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"images must be numbers of shape \[n, 28, 28\], got"):
        PLAIN.of(np.zeros((1, 28, 27)))


@pytest.mark.parametrize(
    ("wrong", "about"),
    [
        ({"width": 27}, "width must be the height, 28, got 27"),
        ({"height": 7, "width": 7}, "height must be an integer >= 8"),
        ({"cells": 15}, "cells must be an integer >= 1 and <= 14"),
        ({"cells": 14}, "cells must be such that there are at most 1024 features"),
        ({"synthetic": 99}, "synthetic must be an integer >= 100"),
        ({"power": 1.5}, "power must be at most 1"),
        ({"floor": 0.0}, "floor must be a finite number > 0"),
    ],
)
def test_parameters_that_do_not_fit_each_other_are_refused(
    wrong: dict[str, Any], about: str
) -> None:
    with pytest.raises(ParameterError, match=about):
        WhitenedGradients(**{"height": 28, "width": 28, **wrong})
