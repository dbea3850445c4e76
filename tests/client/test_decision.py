import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from demur_client.device import covered

words = st.integers(-(1 << 31), 1 << 31)


@given(st.integers(1, 5), st.data())
def test_refused_rows_become_the_reference_and_given_ones_stay(
    dimension: int, data: st.DataObject
) -> None:
    row = st.lists(words, min_size=dimension, max_size=dimension)
    rows = data.draw(st.lists(row, min_size=1, max_size=6))
    given_ = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    before = np.array(rows, dtype=np.int64)

    after = covered(before, np.array(given_))

    nothing = [0] * dimension
    assert after.tolist() == [z if ok else nothing for z, ok in zip(rows, given_, strict=True)]
    assert after.shape == before.shape
    assert after.dtype == np.int64
    assert before.tolist() == rows


def test_one_device_is_a_cohort_of_one() -> None:
    assert covered(np.array([[5, 6]]), np.array([True])).tolist() == [[5, 6]]
    assert covered(np.array([[5, 6]]), np.array([False])).tolist() == [[0, 0]]
