"""A counter in a file: it only moves on, and outlasts torn writes."""

import hashlib
from pathlib import Path

import pytest

from demur_client.ledger.counter import FileCounter, Mark
from demur_proto.errors import StorageError


def mark(number: int) -> Mark:
    return Mark(number=number, digest=hashlib.sha256(bytes([number])).digest())


def test_a_counter_only_moves_on_and_outlasts_a_restart(tmp_path: Path) -> None:
    counter = FileCounter(tmp_path / "counter")
    assert counter.read() is None

    for number in (1, 2, 3, 7, 9):
        counter.advance(mark(number))
        assert FileCounter(tmp_path / "counter").read() == mark(number)

    for number in (1, 8, 9):
        with pytest.raises(StorageError, match="cannot go back"):
            counter.advance(mark(number))
    assert counter.read() == mark(9)


@pytest.mark.parametrize("last", [5, 6])
def test_a_torn_write_leaves_the_mark_before(tmp_path: Path, last: int) -> None:
    path = tmp_path / "counter"
    counter = FileCounter(path)
    for number in range(1, last):
        counter.advance(mark(number))
    before = path.read_bytes()
    counter.advance(mark(last))
    after = path.read_bytes()

    seen = set()
    differing = [at for at in range(len(after)) if after[at] != before[at]]
    for cut in range(differing[0], differing[-1] + 2):
        path.write_bytes(after[:cut] + before[cut:])
        read = counter.read()
        assert read is not None
        seen.add(read.number)

    assert seen == {last - 1, last}


def test_a_counter_without_a_whole_mark_says_so(tmp_path: Path) -> None:
    path = tmp_path / "counter"
    path.write_bytes(bytes(8192))

    with pytest.raises(StorageError, match="damaged"):
        FileCounter(path).read()
