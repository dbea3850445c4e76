import numpy as np
import pytest

from demur_proto.models import layers as products
from demur_proto.models.layers import rows_times, sum_of_products

SHAPES = [(1, 1, 2), (5, 3, 2), (64, 7, 3), (65, 784, 10), (130, 784, 32), (9, 784, 300)]


@pytest.mark.parametrize(("m", "k", "c"), [*SHAPES, (3, 32_768, 7), (0, 3, 2), (70, 2, 3000)])
def test_products_in_pieces_are_the_products(
    m: int, k: int, c: int, rng: np.random.Generator
) -> None:
    rows, matrix, other = (rng.normal(size=shape) for shape in ((m, k), (k, c), (m, c)))

    # Rounding: at most 32,768 terms of size about 1, each off by 2^-53.
    np.testing.assert_allclose(rows_times(rows, matrix), rows @ matrix, atol=1e-10)
    np.testing.assert_allclose(sum_of_products(rows, other), rows.T @ other, atol=1e-10)


@pytest.mark.parametrize(("m", "k", "c"), [*SHAPES, (3, 32_768, 7), (70, 2, 3000)])
def test_no_piece_is_large_enough_for_a_second_thread(
    m: int, k: int, c: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    class Watched(np.ndarray):
        def __matmul__(self, other: np.ndarray) -> np.ndarray:  # type: ignore[override]
            sizes.append(self.shape[-2] * self.shape[-1] * other.shape[-1])
            result: np.ndarray = np.asarray(self) @ np.asarray(other)
            return result

    rows, matrix, right = (np.zeros(shape).view(Watched) for shape in ((m, k), (k, c), (m, c)))
    rows_times(rows, matrix)
    sum_of_products(rows, right)

    assert sizes
    assert max(sizes) <= products.MOST_MULTIPLICATIONS


def test_a_row_does_not_depend_on_what_follows_it(rng: np.random.Generator) -> None:
    rows, matrix = rng.normal(size=(100, 50)), rng.normal(size=(50, 6))

    whole = rows_times(rows, matrix)

    for number in (1, 3, 63, 64, 65):
        np.testing.assert_array_equal(rows_times(rows[:number], matrix), whole[:number])
