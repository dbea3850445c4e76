"""What the disk and the databases cost by themselves."""

import contextlib
import os
import sqlite3
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg

from demur_server.store.durable import DurableStore
from demur_server.store.link import RECORD_BYTES
from demur_server.store.postgres import COUNT_REPORTS, SETTINGS, PostgresDatabase
from demur_server.store.sqlite import (
    INSERT_COMMIT,
    PRAGMAS,
    UPDATE_TOTALS,
    SqliteDatabase,
    connect,
)
from figures import Figure
from premade import question

PAGE = 8192
IN_MEMORY = ("tmpfs", "ramfs", "overlay over tmpfs")
HONEST_MS = 0.05  #: no disk and no controller is quicker than this; whoever is has not written


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """What a folder is on, and how long it takes to sync a page there."""

    kind: str  #: of file system
    per_s: float  #: writes of a page at the end of a file, each synced, one after the other
    median_ms: float
    slow_ms: float  #: one in a hundred takes longer

    @property
    def verdict(self) -> str:
        """How far to believe the figures."""
        told = (
            f"{self.kind}: a page and its fsync take {self.median_ms:.2f} ms "
            f"(one in a hundred more than {self.slow_ms:.1f} ms)"
        )
        if self.kind in IN_MEMORY:
            return (
                f"{told}; THIS IS MEMORY: nothing here is durable, and no figure below means much"
            )
        if self.median_ms < HONEST_MS:
            return f"{told}; TOO QUICK TO BE TRUE: this disk confirms what it has not written"
        if self.median_ms < 1.0:
            return (
                f"{told}; as quick as a disk with a protected cache. What a virtual disk's host does "
                "with it cannot be seen from here"
            )
        return told


def measure_disk(folder: Path, *, writes: int) -> Disk:
    """Write a page and sync it, again and again."""
    path, times = folder / "synced", []
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for number in range(writes):
            started = time.perf_counter()
            os.pwrite(handle, bytes([number % 251 + 1]) * PAGE, number * PAGE)
            os.fsync(handle)
            times.append(time.perf_counter() - started)
    finally:
        os.close(handle)
        path.unlink()
    times.sort()
    return Disk(
        kind=_file_system(folder),
        per_s=writes / sum(times),
        median_ms=1000 * statistics.median(times),
        slow_ms=1000 * times[int(0.99 * writes)],
    )


def fsync_figure(disk: Disk) -> Figure:
    """As a row of the table."""
    return Figure(
        name=f"fsync of a page of 8 KiB, {disk.kind}",
        value=disk.per_s,
        unit="fsync/s, one after the other",
        better="higher",
    )


async def bare_sqlite(folder: Path, *, reports: int, commits: int) -> float:
    """Commits a second of the store's own two statements, and nothing around them."""
    path = folder / "bare.sqlite"
    await _make_round(SqliteDatabase(path))
    with contextlib.closing(connect(path)) as raw:
        for pragma in PRAGMAS:
            raw.execute(pragma).fetchall()
        records = os.urandom(RECORD_BYTES * reports)
        started = time.perf_counter()
        for seq in range(1, commits + 1):
            _keep(raw, seq, records)
        seconds = time.perf_counter() - started
    _remove(path)
    return commits / seconds


def _remove(store: Path) -> None:
    for suffix in ("", "-wal", "-shm", ".lock"):
        Path(f"{store}{suffix}").unlink(missing_ok=True)


def _keep(raw: sqlite3.Connection, seq: int, records: bytes) -> None:
    raw.execute("BEGIN IMMEDIATE")
    raw.execute(INSERT_COMMIT, (1, seq, records, 0))
    assert raw.execute(UPDATE_TOTALS, (seq, seq, 0, bytes(8), 0, 1, seq - 1)).rowcount == 1
    raw.execute("COMMIT")


async def bare_postgres(conninfo: str, *, reports: int, commits: int) -> float:
    """The same on PostgreSQL: one statement, which is a transaction."""
    await _make_round(PostgresDatabase(conninfo))
    options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    with psycopg.connect(conninfo, autocommit=True, options=options) as raw:
        records = os.urandom(RECORD_BYTES * reports)
        started = time.perf_counter()
        for seq in range(1, commits + 1):
            values = {
                "round": 1,
                "shard": 0,
                "seq": seq,
                "before": seq - 1,
                "reports": seq,
                "conflicts": 0,
                "sums": bytes(8),
                "totals_check": 0,
                "records": records,
                "check": 0,
            }
            assert raw.execute(COUNT_REPORTS, values).rowcount == 1
        return commits / (time.perf_counter() - started)


async def _make_round(database: SqliteDatabase | PostgresDatabase) -> None:
    """A store with one study and its first round; both get the number 1."""
    asked = question()
    store = await DurableStore.open(database)
    await store.add_study(asked.study)
    await store.add_round(asked.rounds[0], sums_length=1)
    await store.close()


def _file_system(folder: Path) -> str:
    """What kind a folder is on, as the kernel says."""
    best, kind = "", "an unknown file system"
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
            _, place, named, *_ = line.split()
            inside = folder.resolve().is_relative_to(place)
            if inside and len(place) >= len(best):
                best, kind = place, named
    return kind
