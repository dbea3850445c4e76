"""What a store says and does when its disk is full, or not its own: nothing is lost."""

import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import numpy as np
import pytest

from demur_proto.errors import StorageError
from demur_server.store.base import Batch
from demur_server.store.durable import DurableStore
from demur_server.store.sqlite import SqliteDatabase, connect
from fault_kit import ASKED, alarms, is_one_clear_line, settle, with_round
from store_kit import (
    ACCEPTED,
    DUPLICATE,
    STUDY,
    TRY_LATER,
    SqlitePlace,
    a_round,
    batch,
    random_batch,
    sent,
)


async def fill_and_recover(
    store: DurableStore, make_room: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Hand in reports until the disk is full; then make room, and send the rest again."""
    rng = np.random.default_rng(1)
    accepted: list[Batch] = []
    later: list[Batch] = []
    while len(later) < 3:
        reports = random_batch(rng, 500, dimension=2)
        told = await store.admit(ASKED.hash, reports)
        assert told in ([ACCEPTED] * 500, [TRY_LATER] * 500)
        (accepted if told[0] == ACCEPTED else later).append(reports)
        await anyio.sleep(0.02)  # time for another attempt to get it back
    assert accepted
    with pytest.raises(StorageError):
        await store.add_round(a_round(STUDY, 2, dimension=1 << 15), sums_length=1 << 15)

    make_room()
    for reports in accepted:
        assert await settle(store, reports) == [DUPLICATE] * 500
    for reports in later:
        assert await settle(store, reports) == [ACCEPTED] * 500

    counted = 500 * (len(accepted) + len(later))
    assert (await store.totals(ASKED.hash)).sums.tolist() == [counted, counted]
    lines = alarms(caplog)
    assert lines[0].startswith("the store is in trouble: ")
    assert lines[-1].startswith("the store is back: ")
    assert all("\n" not in line for line in lines)


async def test_a_database_that_may_not_grow_is_a_try_later_and_loses_nothing(
    sqlite_place: SqlitePlace, caplog: pytest.LogCaptureFixture
) -> None:
    pages = [60]

    def limited(path: Path) -> sqlite3.Connection:
        made = connect(path)
        made.execute(f"PRAGMA max_page_count = {pages[0]}")
        return made

    await (await sqlite_place.open()).close()
    store = await DurableStore.open(SqliteDatabase(sqlite_place.path, connection=limited))
    await with_round(store)

    def make_room() -> None:
        pages[0] = 100_000

    await fill_and_recover(store, make_room, caplog)

    # An attempt that fails like the one before is not worth a line, and reading proves nothing.
    assert [line.split(":")[0] for line in alarms(caplog)] == [
        "the store is in trouble",
        "the store is back",
    ]
    assert "full" in alarms(caplog)[0]
    await store.close()


async def test_a_file_that_the_system_lets_grow_no_more_is_a_try_later_and_loses_nothing(
    store: DurableStore, caplog: pytest.LogCaptureFixture
) -> None:
    resource = pytest.importorskip("resource")  # Windows has none
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    try:
        await fill_and_recover(
            store, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)), caplog
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def as_nobody(folder: Path) -> Iterator[None]:
    """Without the rights of root, whom no permission stops; the folder is nobody's own."""
    if os.geteuid() != 0:
        yield
        return
    nobody = 65534
    for each in [folder, *folder.rglob("*")]:
        os.chown(each, nobody, nobody)
    for parent in folder.parents:
        if parent.stat().st_uid == 0 and parent != parent.parent and not parent.stat().st_mode & 1:
            parent.chmod(parent.stat().st_mode | 0o011)
    os.seteuid(nobody)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(sys.platform == "win32", reason="folders there are not read-only")
async def test_a_read_only_folder_is_said_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    folder.chmod(0o500)

    with as_nobody(folder):
        for path in (folder / "store.sqlite", folder / "deeper" / "store.sqlite"):
            with pytest.raises(StorageError, match=r"no store can be kept in .*: Permission") as at:
                await DurableStore.open(SqliteDatabase(path))
            assert is_one_clear_line(at.value)


@pytest.mark.skipif(sys.platform == "win32", reason="files there are owned otherwise")
async def test_a_read_only_file_is_said_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    path = folder / "store.sqlite"
    await (await DurableStore.open(SqliteDatabase(path))).close()
    path.chmod(0o400)

    with as_nobody(folder), pytest.raises(StorageError, match=r"Permission denied|readonly") as at:
        await DurableStore.open(SqliteDatabase(path))

    assert is_one_clear_line(at.value)


@pytest.mark.skipif(sys.platform == "win32", reason="no modes there")
async def test_nobody_else_can_read_the_store(tmp_path: Path) -> None:
    path = tmp_path / "made" / "store.sqlite"
    store = await with_round(await DurableStore.open(SqliteDatabase(path)))
    await store.admit(ASKED.hash, batch(sent(1)))

    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o077 for each in path.parent.iterdir()} == {0}
    await store.close()
