"""What the crash test has found, each as a case of its own."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from demur_server.admin.data_folder import DataFolder, credential_file, read_secret_file
from demur_server.grpc.access import hash_secret
from demur_server.store.memory import MemoryStore
from store_kit import (
    ACCEPTED,
    STUDY,
    Crash,
    Fuse,
    PostgresPlace,
    PostgresServer,
    a_round,
    batch,
    sent,
)

FEW, MANY = 5, 40  #: statements; a start takes about half as many


class Meanwhile(Fuse):
    """Lets something else happen before the n-th statement."""

    def __init__(self, statement: int, happen: Callable[[], None]) -> None:
        super().__init__()
        self._statement = statement
        self._happen = happen
        self.happened = False

    def run(self, statement: Callable[[], Any]) -> Any:
        self._statement -= 1
        if self._statement == 0:
            self.happened = True
            self._happen()
        return statement()


async def test_a_shard_that_starts_while_another_closes_a_round_finds_no_damage(
    postgres: PostgresServer,
) -> None:
    place, loop = PostgresPlace(postgres), asyncio.get_running_loop()
    other = await place.open(shard=0, shards=2)
    await other.add_study(STUDY)
    for number in range(1, MANY):
        asked = a_round(STUDY, number)
        await other.add_round(asked, sums_length=2)
        store = await place.open(shard=1, shards=2)
        assert await store.admit(asked.hash, batch(sent(1))) == [ACCEPTED]
        await store.close()

        def close(round_hash: bytes = asked.hash) -> None:
            asyncio.run_coroutine_threadsafe(other.close_round(round_hash), loop).result(10)

        meanwhile = Meanwhile(number, close)
        store = await place.open(shard=1, shards=2, fuse=meanwhile)
        await store.close()
        if not meanwhile.happened:
            break

    await other.close()
    assert FEW < number < MANY


async def test_a_first_start_that_ends_while_it_writes_the_credential_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = DataFolder(tmp_path / "data"), MemoryStore()
    opened = os.open

    def cut_off(path: Any, *arguments: Any, **options: Any) -> int:
        os.close(opened(path, *arguments, **options))
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", cut_off)
        with pytest.raises(Crash):
            await folder.first_analyst(store)
    made = await folder.first_analyst(store)

    assert made == credential_file(folder.path)
    [kept] = await store.credentials()
    assert kept.credential_hash == hash_secret(read_secret_file(made).secret)
    folder.release()
