"""Small handwritten digits that come along, for first steps and for tests."""

import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import numpy as np

from demur_proto.errors import DataError
from demur_sim.datasets.labelled import Array, Labelled, LabelledData, read_idx

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


# MNIST: 70,000 handwritten digits, which are too large to come along.

FOLDER = "DEMUR_DATA"  #: the environment variable that names the folder
FILES: Mapping[str, str] = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""The published files, and the SHA-256 of each, unzipped."""


def load_mnist(folder: str | Path | None = None) -> LabelledData:
    """Load 60,000 digits to learn from and 10,000 to test on, 28 × 28 pixels from 0 to 255, white on black.

    Args:
        folder: where the four files are, gzipped or not, or a folder above one called `mnist`;
            None for the one that the environment variable DEMUR_DATA names.

    Raises:
        DataError: a file is not there, or is not the published one. One line.

    Source: LeCun, Cortes & Burges, The MNIST database of handwritten digits, CC BY-SA 3.0.
    """
    named = folder if folder is not None else os.environ.get(FOLDER)
    if not named:
        raise DataError(f"MNIST is not here: {_ADVICE}")
    found = [_find(Path(named), name) for name in FILES]
    images, labels, test_images, test_labels = (
        read_idx(path, sha256=FILES[path.name.removesuffix(".gz")]) for path in found
    )
    return LabelledData(
        name="mnist",
        train=Labelled.of(images, labels),
        test=Labelled.of(test_images, test_labels),
        classes=10,
    )


_ADVICE = (
    f"put {', '.join(f'{name}.gz' for name in FILES)} (for example from "
    "https://ossci-datasets.s3.amazonaws.com/mnist/) into a folder, and name it by its path or in the "
    f"environment variable {FOLDER}"
)


def _find(folder: Path, name: str) -> Path:
    for place in (folder, folder / "mnist"):
        for path in (place / f"{name}.gz", place / name):
            if path.is_file():
                return path
    raise DataError(f"{folder}: {name}.gz is not there; {_ADVICE}")
