"""Small handwritten digits that come along, for first steps and for tests."""

from importlib import resources

import numpy as np

from demur_sim.datasets.idx import read_idx
from demur_sim.datasets.labelled import Array, Labelled, LabelledData

LEVELS = 16  #: of grey
TRAIN_EVERY = 8  #: which of MNIST's: numbers 0, 8, 16…
TEST_EVERY = 5


def load_digits() -> LabelledData:
    """Load 7,500 digits to learn from and 2,000 to test on, 14 × 14 pixels from 0 to 255, white on black.

    They are MNIST's training images 0, 8, 16… and its test images 0, 5, 10…; every pixel is the mean
    of 2 × 2 of theirs, rounded to one of 16 levels of grey, 17 apart. `benchmarks/make_digits.py`
    made them.

    Source: LeCun, Cortes & Burges, The MNIST database of handwritten digits, CC BY-SA 3.0, under
    which these come as well.
    """
    parts = []
    for part in ("train", "test"):
        images, labels = (_read(f"digits-{part}-{what}.idx.gz") for what in ("images", "labels"))
        grey = images.astype(np.uint8) * np.uint8(255 // (LEVELS - 1))
        parts.append(Labelled.of(grey, labels))
    return LabelledData(name="digits", train=parts[0], test=parts[1], classes=10)


def smaller(images: Array) -> Array:
    """Images [n, 28, 28] of bytes to levels of grey [n, 14, 14], 0 to 15; halves round to even.

    >>> smaller(np.full((1, 28, 28), 255, dtype=np.uint8))[0, 0, 0]
    np.uint8(15)
    """
    number, height, width = images.shape
    squares = images.reshape(number, height // 2, 2, width // 2, 2).astype(np.int64)
    sums = squares.sum(axis=(2, 4))  # of four pixels, 0 to 1,020
    levels: Array = np.rint(sums * (LEVELS - 1) / 1020).astype(np.uint8)
    return levels


def _read(name: str) -> Array:
    with resources.as_file(resources.files("demur_sim.datasets") / name) as path:
        return read_idx(path)
