"""When the power fails, what was acknowledged is on the disk: with synchronous=FULL, not NORMAL.

The commits of the store run on a SQLite whose files are kept by a layer of our own. It remembers
what has been synced; when the power fails, of everything else some sectors have reached the disk
and some have not. The same statements and pragmas as in the store, with one pragma changed, show
that the layer does lose what was not synced.
"""

import contextlib
import itertools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest

from demur_server.store.base import Counted
from demur_server.store.durable import DurableStore
from demur_server.store.link import Change, pack_records
from demur_server.store.sqlite import PRAGMAS, SqliteDatabase, keep
from store_kit import DUPLICATE, STUDY, SqlitePlace, a_round, batch, sent

ASKED = a_round(STUDY)
SECTOR = 512
COMMITS = 8


class PowerCut(Exception):
    """There is no more power."""


@dataclass
class File:
    """A file: what is surely on the disk, and what was written since."""

    synced: bytearray
    since: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: cut off there

    def after_the_cut(self, kept: Callable[[], bool]) -> bytes:
        """What is on the disk if of everything not synced only some sectors got there."""
        content = bytearray(self.synced)
        for offset, data in self.since:
            if data is None:
                if kept():
                    del content[offset:]
                continue
            for at in range(0, len(data), SECTOR):
                if kept():
                    write(content, offset + at, data[at : at + SECTOR])
        return bytes(content)


def write(content: bytearray, offset: int, data: bytes) -> None:
    content.extend(bytes(max(0, offset + len(data) - len(content))))
    content[offset : offset + len(data)] = data


class Disk(apsw.VFS):
    """Files that remember what was synced, on a machine that loses its power after some writes."""

    def __init__(self, name: str, *, operations: int) -> None:
        self.name = name
        self.files: dict[str, File] = {}
        self._left = operations
        super().__init__(name, "")

    def xOpen(self, name: Any, flags: list[int]) -> "OpenFile":
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        if path not in self.files:
            there = Path(path).read_bytes() if Path(path).exists() else b""
            self.files[path] = File(bytearray(there))
        return OpenFile(self, self.files[path], name, flags)

    def use(self) -> None:
        """One more operation, if there is power."""
        self._left -= 1
        if self._left < 0:
            raise PowerCut


class OpenFile(apsw.VFSFile):
    """A file on such a disk. Reads and writes are real; only the cut looks at what was synced."""

    def __init__(self, disk: Disk, file: File, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._file = file
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.use()
        self._file.since.append((offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._disk.use()
        self._file.since.append((newsize, None))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        self._disk.use()  # nothing else: this machine's power stays on
        self._file.synced = bytearray(self._file.after_the_cut(lambda: True))
        self._file.since.clear()


class Raw:
    """An apsw connection, as the hot path of the store wants one."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        found = self._connection.execute(sql, parameters).fetchall()
        return Answer(found, self._connection.changes())


@dataclass
class Answer:
    rows: list[Any]
    rowcount: int


def changes() -> Iterator[Change]:
    """One commit after the other: each counts one report."""
    for seq in range(1, COMMITS + 1):
        one = bytes([seq]) * 16
        yield Change(
            round_id=1,
            seq=seq,
            records=pack_records([one], [bytes([1]) * 16], [one]),
            reports=seq,
            conflicts=0,
            sums=np.array([seq, seq], dtype="<i8").tobytes(),
        )


def acknowledged(
    path: Path, disk: Disk, pragmas: Sequence[str], *, checkpoint_pages: int = 4
) -> int:
    """Commit until the power fails; how many commits returned."""
    done = 0
    connection = apsw.Connection(str(path), vfs=disk.name)
    with contextlib.suppress(PowerCut, apsw.Error):
        # A layer of one's own has no shared memory; then the log needs the file for itself.
        for pragma in ("PRAGMA locking_mode = EXCLUSIVE", *pragmas):
            connection.execute(pragma).fetchall()
        connection.execute(f"PRAGMA wal_autocheckpoint = {checkpoint_pages}").fetchall()
        for change in changes():
            keep(Raw(connection), [change])
            done += 1
    with contextlib.suppress(PowerCut, apsw.Error):
        connection.close()
    return done


@pytest.fixture
async def blank(tmp_path: Path) -> bytes:
    """A store with an open round."""
    place = SqlitePlace(tmp_path / "blank")
    (tmp_path / "blank").mkdir()
    store = await place.open()
    await store.add_study(STUDY)
    await store.add_round(ASKED, sums_length=2)
    await store.close()
    return place.path.read_bytes()


class Trial:
    """Commits on a machine that loses its power after so many operations, and what is left."""

    def __init__(self, blank: bytes, folder: Path, *, synchronous: str, operations: int) -> None:
        self._folder = folder
        self._path = folder / "running.sqlite"
        for leftover in folder.glob("running*"):
            leftover.unlink()
        self._path.write_bytes(blank)
        pragmas = [
            f"PRAGMA synchronous = {synchronous}" if "synchronous" in pragma else pragma
            for pragma in PRAGMAS
        ]
        self._disk = Disk(f"disk-{next(NAMES)}", operations=operations)
        try:
            self.acknowledged = acknowledged(self._path, self._disk, pragmas)
        finally:
            self._disk.unregister()

    def left(self, kept: Callable[[], bool]) -> Path:
        """The files as the next start finds them."""
        path = self._folder / "after.sqlite"
        for leftover in self._folder.glob("after*"):
            leftover.unlink()
        for name, file in self._disk.files.items():
            suffix = name.removeprefix(str(self._path))
            path.with_name(path.name + suffix).write_bytes(file.after_the_cut(kept))
        return path


NAMES = itertools.count()


def counted(path: Path) -> int:
    """How many commits there are; they are a beginning of what was committed, and nothing else."""
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        [(seq, reports)] = connection.execute("SELECT seq, reports FROM totals").fetchall()
        found = [row[0] for row in connection.execute("SELECT seq FROM commits ORDER BY seq")]
    finally:
        connection.close()
    assert found == list(range(1, seq + 1))
    assert reports == seq
    return int(seq)


def losses(blank: bytes, folder: Path, *, synchronous: str, seed: int) -> Iterator[int]:
    """How much of what was acknowledged is gone, for a cut after each operation."""
    rng = np.random.default_rng(seed)
    for operations in itertools.count(1):
        trial = Trial(blank, folder, synchronous=synchronous, operations=operations)
        for kept in (lambda: False, lambda: bool(rng.integers(2)), lambda: rng.random() < 0.9):
            yield trial.acknowledged - counted(trial.left(kept))
        if trial.acknowledged == COMMITS:
            return


def test_nothing_that_was_acknowledged_is_lost_wherever_the_power_fails(
    blank: bytes, tmp_path: Path
) -> None:
    lost = list(losses(blank, tmp_path, synchronous="FULL", seed=1))

    assert len(lost) > 3 * 50  # there are that many places
    assert max(lost) <= 0
    assert min(lost) < 0  # what nobody was told of may be there; a resend is a duplicate


def test_without_a_sync_at_every_commit_acknowledged_reports_are_lost(
    blank: bytes, tmp_path: Path
) -> None:
    assert any(lost > 0 for lost in losses(blank, tmp_path, synchronous="NORMAL", seed=1))


async def test_a_store_goes_on_where_the_power_failed(blank: bytes, tmp_path: Path) -> None:
    for operations in range(20, 70, 10):
        trial = Trial(blank, tmp_path, synchronous="FULL", operations=operations)
        store = await DurableStore.open(SqliteDatabase(trial.left(lambda: False)))
        known = [
            (await store.admit(ASKED.hash, batch(sent(who))))[0]
            for who in range(1, trial.acknowledged + 1)
        ]
        told = await store.admit(ASKED.hash, batch(*map(sent, range(1, COMMITS + 1))))
        after = await store.counted(ASKED.hash)
        await store.close()

        assert known == [DUPLICATE] * trial.acknowledged
        assert len(told) == COMMITS
        assert after == Counted(reports=COMMITS, conflicts=0, closed=False)
