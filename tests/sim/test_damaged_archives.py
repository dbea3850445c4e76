"""Archives of NumPy with other bytes than were written: one line, whatever they claim."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demur_proto.errors import DataError
from demur_server.training.trainer import (
    Checkpoint,
    TrainingState,
    load_checkpoint,
    save_checkpoint,
)
from demur_sim.datasets.labelled import read_labelled_npz


def an_archive(path: Path) -> Path:
    some, labels = np.zeros((2, 3)), np.array([0, 1])
    np.savez(path, x_train=some, y_train=labels, x_test=some, y_test=labels)
    return path


def a_checkpoint(path: Path) -> Path:
    state = TrainingState(
        number=1, theta=np.ones(3), memory=(np.ones(3),), total=np.ones(3), weight=1.0
    )
    save_checkpoint(Checkpoint(state=state, settings={"seed": "1"}), path)
    return path


BOTH = pytest.mark.parametrize(
    ("written", "read"), [(an_archive, read_labelled_npz), (a_checkpoint, load_checkpoint)]
)


CLAIMS = pytest.mark.parametrize(
    ("place", "value"),
    [(6, 99), (8, 1), (8, 32), (8, 64), (10, 77)],
    ids=["a later zip", "encrypted", "patched", "strongly encrypted", "otherwise compressed"],
)


@BOTH
@CLAIMS
def test_a_byte_that_claims_what_nobody_wrote_is_one_line(
    written: Callable[[Path], Path],
    read: Callable[[Path], Any],
    place: int,
    value: int,
    tmp_path: Path,
) -> None:
    file = written(tmp_path / "x.npz")
    content = bytearray(file.read_bytes())
    content[content.index(b"PK\1\2") + place] = value  # of the first entry of the directory
    content[content.index(b"PK\3\4") + place - 2] = value  # and what stands before its bytes
    file.write_bytes(content)

    with pytest.raises(DataError, match=r"x\.npz: .*expected .*, found other bytes"):
        read(file)


@BOTH
@pytest.mark.parametrize("rows", [10**15, 10**30])
def test_an_array_larger_than_any_memory_is_refused(
    written: Callable[[Path], Path], read: Callable[[Path], Any], rows: int, tmp_path: Path
) -> None:
    file = written(tmp_path / "x.npz")
    names = zipfile.ZipFile(file).namelist()
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({rows},), }}".ljust(117) + "\n"
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, b"\x93NUMPY\1\0v\0" + header.encode())

    with pytest.raises(DataError, match=r"x\.npz: .*expected .*, found other bytes"):
        read(file)
