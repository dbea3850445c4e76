"""Makes the small handwritten digits that come with demur, from MNIST.

    DEMUR_DATA=folder .venv/bin/python benchmarks/make_digits.py

Needs MNIST's four files; the digits are the same every time, once unzipped.
"""

import gzip
from pathlib import Path

import numpy as np

from demur_sim.datasets import digits
from demur_sim.datasets.digits import TEST_EVERY, TRAIN_EVERY, load_mnist, smaller
from demur_sim.datasets.labelled import idx_bytes


def contents() -> dict[str, bytes]:
    """What each file holds, by its name, not yet zipped."""
    mnist = load_mnist()
    found = {}
    for name, part, every in (
        ("train", mnist.train, TRAIN_EVERY),
        ("test", mnist.test, TEST_EVERY),
    ):
        found[f"digits-{name}-images.idx.gz"] = idx_bytes(smaller(part.examples[::every]))
        found[f"digits-{name}-labels.idx.gz"] = idx_bytes(part.labels[::every].astype(np.uint8))
    return found


def main() -> None:
    """Write the files into the package, and say how large they are."""
    folder = Path(digits.__file__).parent
    for name, content in contents().items():
        (folder / name).write_bytes(gzip.compress(content, mtime=0))
        print(f"{folder / name}: {(folder / name).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
