"""Labelled data from a NumPy archive."""

from pathlib import Path

import numpy as np

from demur_proto.arrays import DAMAGE
from demur_proto.errors import DataError, ParameterError
from demur_proto.models.base import MOST_CLASSES
from demur_sim.datasets.labelled import Array, Labelled, LabelledData


def read_labelled_npz(
    path: str | Path,
    *,
    train_inputs: str = "x_train",
    train_labels: str = "y_train",
    test_inputs: str = "x_test",
    test_labels: str = "y_test",
) -> LabelledData:
    """Read examples from an NPZ file with four arrays. Nothing in it is ever run.

    Args:
        path: the file.
        train_inputs: its array of flat inputs [m, inputs] or images [m, height, width].
        train_labels: its array of their labels, integers from 0 to 4095.
        test_inputs: likewise, to test on.
        test_labels: likewise.

    Raises:
        DataError: the file cannot be read, or is not as described. One line that names file, array
            and what was expected.
    """
    keys = (train_inputs, train_labels, test_inputs, test_labels)
    try:
        with Path(path).open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"{path}: expected a NumPy archive, found a single array")
            found = ", ".join(map(repr, archive.files)) or "none"
            for key in keys:
                if key not in archive.files:
                    raise DataError(f"{path}: expected an array {key!r}, found {found}")
            arrays = [_array(path, archive, key) for key in keys]
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except DAMAGE as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: expected a whole NumPy archive, found other bytes") from None
    parts = []
    for at in (0, 2):
        (examples, labels), key = arrays[at : at + 2], keys[at + 1]
        if labels.dtype.kind not in "ui" or labels.ndim != 1:
            shown = f"{labels.dtype} of shape {list(labels.shape)}"
            raise DataError(f"{path}: {key}: expected integers of shape [m], got {shown}")
        numbers = labels.astype(np.int64)  # what is beyond becomes negative
        wrong = np.flatnonzero((numbers < 0) | (numbers >= MOST_CLASSES))
        if len(wrong):
            raise DataError(
                f"{path}: {key}[{wrong[0]}]: expected a label, an integer from 0 to "
                f"{MOST_CLASSES - 1}, got {labels[wrong[0]]}"
            )
        try:
            parts.append(Labelled.of(examples, labels))
        except ParameterError as error:
            where = keys[at] if error.name == "examples" else key
            raise DataError(f"{path}: {where}: {error}") from None
    try:
        return LabelledData.of(Path(path).stem, *parts)
    except ParameterError as error:
        raise DataError(f"{path}: {error}") from None


def _array(path: str | Path, archive: "np.lib.npyio.NpzFile", key: str) -> Array:
    try:
        array: Array = archive[key]
    except ValueError:
        raise DataError(f"{path}: {key}: expected an array of numbers, found other bytes") from None
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError(f"{path}: {key}: expected finite numbers, found others")
    return array
