"""A closed round leaves nothing behind that tells its reports apart, not even in freed pages."""

import logging
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from pathlib import Path

import anyio
import numpy as np
import pytest

from demur_proto.errors import StorageError
from demur_proto.round import Round
from demur_proto.wire.definition import Defined
from demur_server.collector.estimates import make_release
from demur_server.store import worker as clerk
from demur_server.store.base import Batch
from demur_server.store.durable import DurableStore
from store_kit import (
    ACCEPTED,
    STUDY,
    Crash,
    Fuse,
    PostgresPlace,
    PostgresServer,
    SqlitePlace,
    a_round,
    batch,
    random_batch,
    sent,
)

ASKED, OTHER = a_round(STUDY), a_round(STUDY, 2)


@pytest.fixture
def place(quick_path: Path) -> SqlitePlace:
    return SqlitePlace(quick_path)


@pytest.fixture
async def store(place: SqlitePlace) -> AsyncIterator[DurableStore]:
    made = await with_rounds(await place.open())
    yield made
    await made.close()


async def with_rounds(store: DurableStore) -> DurableStore:
    await store.add_study(STUDY)
    for asked in (ASKED, OTHER):
        await store.add_round(asked, sums_length=2)
    return store


async def fill(store: DurableStore, asked: Defined[Round], sizes: Iterable[int]) -> list[bytes]:
    """Count reports in commits of these sizes; their ids, digests and devices."""
    rng = np.random.default_rng(asked.value.number)
    secrets: list[bytes] = []
    for size in sizes:
        reports: Batch = random_batch(rng, size, dimension=2)
        assert await store.admit(asked.hash, reports) == [ACCEPTED] * size
        secrets += [*reports.report_ids, *reports.digests, *reports.devices]
    return secrets


def found(path: Path, secrets: Iterable[bytes]) -> int:
    """How many of the secrets are anywhere in the store's files, at least by half.

    Pages cut some in two.
    """
    content = b"".join(
        each.read_bytes() for each in sorted(path.parent.glob(f"{path.name}*")) if each.is_file()
    )
    return sum(secret[:8] in content or secret[-8:] in content for secret in secrets)


SIZES = (1, 3, 400, 1, 90, 2, 5)  # in one page, over several, and in between


async def test_ids_digests_and_devices_are_gone_from_the_files_of_sqlite(
    store: DurableStore, place: SqlitePlace
) -> None:
    other = await fill(store, OTHER, [7])
    secrets = await fill(store, ASKED, SIZES)
    assert found(place.path, secrets) == len(secrets)

    await store.close_round(ASKED.hash)

    assert found(place.path, secrets) == 0
    assert found(place.path, other) == len(other)  # an open round still needs them


async def test_so_they_are_wherever_a_process_ends_while_it_closes(place: SqlitePlace) -> None:
    interrupted = 0
    for statement in range(20):  # after this many, which is before the next one
        place.clear()
        fuse = Fuse()
        store = await with_rounds(await place.open(fuse=fuse))
        secrets = await fill(store, ASKED, [40, 2])
        fuse.set(statement or 1, after=statement > 0, error=Crash())
        with suppress(StorageError):
            await store.close_round(ASKED.hash)
        fuse.defuse()
        await place.crash(store)
        store = await place.open()
        closed = (await store.counted(ASKED.hash)).closed
        left = found(place.path, secrets)
        totals = await store.close_round(ASKED.hash)
        await store.close()

        assert left == (0 if closed else len(secrets))
        assert (totals.reports, totals.sums.tolist()) == (42, [42, 42])
        assert found(place.path, secrets) == 0
        interrupted += fuse.blown
        if not fuse.blown:
            break
    assert interrupted >= 8  # there is that much to do


async def test_so_they_are_once_a_reader_of_the_file_has_left(
    store: DurableStore,
    place: SqlitePlace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(clerk, "SCRUB_AGAIN_S", 0.0)
    secrets = await fill(store, ASKED, SIZES)
    reader = sqlite3.connect(place.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM commits").fetchall()

    with anyio.fail_after(2):  # counting does not wait for a reader
        await store.close_round(ASKED.hash)
        assert await store.admit(OTHER.hash, batch(sent(1))) == [ACCEPTED]
    during = found(place.path, secrets)
    reader.close()
    await store.counted(ASKED.hash)

    assert during > 0
    assert found(place.path, secrets) == 0
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert told == ["somebody reads the store: what was deleted is overwritten later"]


async def test_sums_that_a_release_withholds_are_nowhere(
    store: DurableStore, place: SqlitePlace
) -> None:
    words = (0x0123456789ABCD, 0x0FEDCBA9876543)
    stored = [word.to_bytes(8, "little") for word in words]
    await store.admit(ASKED.hash, batch(sent(1, words)))
    totals = await store.close_round(ASKED.hash)
    assert found(place.path, stored) == 2

    release = make_release(STUDY, ASKED, totals.sums.tolist(), reports=1)
    await store.add_release(release)

    assert release.sums.tolist() == []
    assert found(place.path, stored) == 0


@pytest.fixture(scope="module")
def postgres_place(postgres: PostgresServer) -> PostgresPlace:
    return PostgresPlace(postgres)


async def test_no_row_of_postgresql_tells_the_reports_of_a_closed_round_apart(
    postgres_place: PostgresPlace,
) -> None:
    store = await with_rounds(await postgres_place.open())
    await fill(store, OTHER, [7])
    await fill(store, ASKED, SIZES)

    totals = await store.close_round(ASKED.hash)
    await store.add_release(make_release(STUDY, ASKED, totals.sums.tolist(), reports=1))
    with postgres_place.admin() as admin:
        commits = admin.execute(
            "SELECT number, count(*) FROM commits JOIN rounds ON rounds.id = round_id GROUP BY 1"
        ).fetchall()
        sums = admin.execute(
            "SELECT sums FROM totals JOIN rounds ON rounds.id = round_id WHERE number = 1"
        ).fetchall()
    await store.close()

    assert commits == [(2, 1)]
    assert sums == [(b"",)]
