"""Labelled data from a pair of IDX files: one with the examples, one with their labels."""

from pathlib import Path

from demur_proto.errors import DataError, ParameterError
from demur_proto.models.base import MOST_CLASSES
from demur_sim.datasets.idx import read_idx
from demur_sim.datasets.labelled import Labelled


def read_labelled_idx(examples: str | Path, labels: str | Path) -> Labelled:
    """Read examples from two IDX files, plain or gzipped, of any names.

    Args:
        examples: the file of flat inputs [m, inputs] or of images [m, height, width].
        labels: the file of their labels [m], integers from 0 to 4095.

    Raises:
        DataError: a file cannot be read, or is not as described. One line that names it and says what
            was expected.
    """
    inputs, answers = read_idx(examples), read_idx(labels)
    if inputs.ndim not in (2, 3):
        expected = "examples of shape [m, inputs] or [m, height, width]"
        raise DataError(f"{examples}: expected {expected}, got the shape {list(inputs.shape)}")
    if answers.ndim != 1 or answers.dtype.kind not in "ui":
        found = f"{answers.dtype} of shape {list(answers.shape)}"
        raise DataError(f"{labels}: expected labels, integers of shape [m], got {found}")
    if len(answers) != len(inputs):
        expected = f"{len(inputs)} labels, one for each example of {examples}"
        raise DataError(f"{labels}: expected {expected}, got {len(answers)}")
    for label in (answers.min(initial=0), answers.max(initial=0)):
        if not 0 <= int(label) < MOST_CLASSES:
            expected = f"labels, integers from 0 to {MOST_CLASSES - 1}"
            raise DataError(f"{labels}: expected {expected}, got {label}")
    try:
        return Labelled.of(inputs, answers)
    except ParameterError as error:
        raise DataError(f"{examples}: {error}") from None
