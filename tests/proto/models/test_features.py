import math
from typing import Any

import numpy as np
import pytest

from demur_proto.errors import ParameterError
from demur_proto.models.features import OrientedGradients, Pixels

EDGE = np.zeros((1, 8, 8))
EDGE[:, :, 4:] = 255.0


def slow(image: Any, hog: OrientedGradients) -> list[float]:
    """The definition, pixel by pixel and vote by vote."""
    height, width, cell = hog.height, hog.width, hog.cell
    rows, columns = height // cell, width // cell
    turn = 2 * math.pi if hog.signed else math.pi
    cells = np.zeros((rows, columns, hog.bins))
    for y in range(height):
        for x in range(width):
            right, left = image[y][min(x + 1, width - 1)], image[y][max(x - 1, 0)]
            below, above = image[min(y + 1, height - 1)][x], image[max(y - 1, 0)][x]
            across, down = (right - left) / hog.white, (below - above) / hog.white
            length = math.hypot(across, down)
            place = math.atan2(down, across) % turn / turn * hog.bins - 0.5
            low = math.floor(place)
            for number, share in ((low, 1 - (place - low)), (low + 1, place - low)):
                for row, by_row in near(y, cell, rows):
                    for column, by_column in near(x, cell, columns):
                        vote = length * share * by_row * by_column
                        cells[row, column, number % hog.bins] += vote
    out: list[float] = []
    for row in range(rows - hog.block + 1):
        for column in range(columns - hog.block + 1):
            block = cells[row : row + hog.block, column : column + hog.block].reshape(-1)
            block = np.minimum(block / math.sqrt(block @ block + 1e-6), hog.cap)
            out += (block / math.sqrt(block @ block + 1e-6)).tolist()
    return out


def near(pixel: int, cell: int, cells: int) -> list[tuple[int, float]]:
    place = (pixel + 0.5) / cell - 0.5
    low = math.floor(place)
    if low < 0:
        return [(0, 1.0)]
    if low >= cells - 1:
        return [(cells - 1, 1.0)]
    return [(low, 1 - (place - low)), (low + 1, place - low)]


@pytest.mark.parametrize(
    "hog",
    [
        OrientedGradients(height=12, width=8),
        OrientedGradients(height=12, width=8, signed=True, bins=6, cap=1.0),
        OrientedGradients(height=12, width=8, cell=2, block=3, bins=2),
        OrientedGradients(height=12, width=8, cell=1, block=1, bins=5),
        OrientedGradients(height=12, width=8, white=3.0),
    ],
)
def test_the_fast_way_is_the_slow_way(hog: OrientedGradients, rng: np.random.Generator) -> None:
    images = rng.integers(0, 256, (40, 12, 8)).astype(np.uint8)  # more than one chunk
    images[1] = 0

    found = hog.of(images)

    assert found.shape == (40, hog.length)
    assert found.dtype == np.float32
    expected = [slow(image.astype(float).tolist(), hog) for image in images[:4]]
    np.testing.assert_allclose(found[:4], expected, atol=2e-5)  # single precision, summed
    np.testing.assert_allclose(found[39], slow(images[39].astype(float).tolist(), hog), atol=2e-5)


def test_a_vertical_edge_votes_for_the_horizontal_direction_alone() -> None:
    hog = OrientedGradients(height=8, width=8, cell=8, block=1, bins=9, cap=1.0)

    [votes] = hog.of(EDGE)

    # Its direction is 0, the border of bins 0 and 8, whose centres are half a bin away.
    np.testing.assert_allclose(votes[[0, 8]], math.sqrt(0.5), rtol=1e-6)
    assert not votes[1:8].any()


def test_a_horizontal_edge_votes_for_the_middle_bin_alone() -> None:
    hog = OrientedGradients(height=8, width=8, cell=8, block=1, bins=9, cap=1.0)

    [votes] = hog.of(EDGE.transpose(0, 2, 1))

    assert votes[4] == pytest.approx(1.0, rel=1e-6)  # π/2, the centre of bin 4
    assert votes.sum() == pytest.approx(1.0, abs=1e-5)


def test_only_signed_features_tell_an_edge_from_its_negative() -> None:
    for signed in (False, True):
        hog = OrientedGradients(height=8, width=8, signed=signed)

        one, other = hog.of(EDGE), hog.of(255 - EDGE)

        assert np.allclose(one, other, atol=1e-6) is not signed


def test_added_brightness_changes_nothing_and_contrast_hardly_anything(
    rng: np.random.Generator,
) -> None:
    images = rng.integers(0, 100, (5, 28, 28)).astype(np.float64)
    hog = OrientedGradients(height=28, width=28)

    plain = hog.of(images)

    np.testing.assert_allclose(hog.of(images + 50), plain, atol=1e-5)
    # Divisions see the squared norm of a block, here above 1, beside 1e-6.
    np.testing.assert_allclose(hog.of(images * 2.5), plain, atol=1e-5)


def test_an_image_without_edges_has_no_features_and_no_warning() -> None:
    grey = np.full((2, 28, 28), 77, dtype=np.uint8)

    assert not OrientedGradients(height=28, width=28).of(grey).any()


@pytest.mark.parametrize(
    "features", [Pixels(height=8, width=8), OrientedGradients(height=8, width=8)]
)
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300])
def test_a_pixel_that_is_no_number_spoils_its_own_image_alone(features: Any, bad: float) -> None:
    images = np.repeat(EDGE, 3, axis=0)
    images[1, 4, 4] = bad

    found = features.of(images)

    assert not np.isfinite(found[1]).all()
    np.testing.assert_array_equal(found[[0, 2]], features.of(images[[0, 2]]))


def test_an_image_has_the_same_features_in_any_company(rng: np.random.Generator) -> None:
    images = rng.integers(0, 256, (70, 28, 28)).astype(np.uint8)
    hog = OrientedGradients(height=28, width=28)

    together = hog.of(images)

    for number in (0, 31, 69):
        np.testing.assert_array_equal(hog.of(images[number : number + 1])[0], together[number])


def test_no_images_have_no_features() -> None:
    for features in (Pixels(height=8, width=8), OrientedGradients(height=8, width=8)):
        assert features.of(np.zeros((0, 8, 8))).shape == (0, features.length)


@pytest.mark.parametrize(
    "features", [Pixels(height=8, width=8), OrientedGradients(height=8, width=8)]
)
@pytest.mark.parametrize(
    "images",
    [np.zeros((1, 8, 9)), np.zeros((8, 8)), np.zeros((1, 8, 8), dtype=bool), np.array("x")],
)
def test_images_of_another_size_or_kind_are_refused(features: Any, images: Any) -> None:
    with pytest.raises(ParameterError, match=r"images must be numbers of shape \[n, 8, 8\], got"):
        features.of(images)


def test_parameters_say_all_that_a_map_was_made_with() -> None:
    hog = OrientedGradients(height=28, width=56, cell=7, signed=True)

    assert hog.name == "oriented_gradients"
    assert dict(hog.parameters) == {
        "height": 28.0,
        "width": 56.0,
        "white": 255.0,
        "cell": 7.0,
        "bins": 9.0,
        "block": 2.0,
        "cap": 0.2,
        "signed": 1.0,
    }
    assert Pixels(height=2, width=3).parameters == {"height": 2.0, "width": 3.0, "white": 255.0}


@pytest.mark.parametrize(
    ("wrong", "about"),
    [
        ({"cell": 3}, "height must be a multiple of cell, 3"),
        ({"block": 8}, "block must be an integer >= 1 and <= 7"),
        ({"cap": 1.5}, "cap must be at most 1"),
        ({"signed": 1}, "signed must be true or false"),
        ({"height": 1024, "width": 1024}, "at most 32768 features"),
    ],
)
def test_parameters_that_do_not_fit_each_other_are_refused(
    wrong: dict[str, Any], about: str
) -> None:
    with pytest.raises(ParameterError, match=about):
        OrientedGradients(**{"height": 28, "width": 28, **wrong})
