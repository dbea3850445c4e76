"""Several collectors on one PostgreSQL: each counts its shard, and a round closes on all of them."""

import anyio
import pytest

from demur_proto.errors import ParameterError, StateError
from demur_server.store import postgres as postgres_module
from demur_server.store import worker as clerk
from demur_server.store.base import Totals
from demur_server.store.durable import DurableStore
from demur_server.store.postgres import PostgresDatabase
from store_kit import (
    ACCEPTED,
    DUPLICATE,
    INVALID,
    ROUND_CLOSED,
    STUDY,
    TRY_LATER,
    PostgresPlace,
    PostgresServer,
    a_round,
    batch,
    sent,
)

ASKED, OTHER = a_round(STUDY), a_round(STUDY, 2)


@pytest.fixture(scope="module")
def postgres_place(postgres: PostgresServer) -> PostgresPlace:
    return PostgresPlace(postgres)


@pytest.fixture
def place(postgres_place: PostgresPlace) -> PostgresPlace:
    postgres_place.clear()
    return postgres_place


async def with_rounds(store: DurableStore) -> DurableStore:
    await store.add_study(STUDY)
    for asked in (ASKED, OTHER):
        await store.add_round(asked, sums_length=2)
    return store


async def test_shards_count_apart_and_close_together(place: PostgresPlace) -> None:
    stores = [await place.open(shard=shard, shards=2) for shard in (0, 1)]
    await with_rounds(stores[0])

    even = await stores[0].admit(ASKED.hash, batch(sent(2, (1, 2)), sent(4, (10, 20))))
    odd = await stores[1].admit(ASKED.hash, batch(sent(3, (100, 200)), sent(3, digest=2)))
    counted = [await each.counted(ASKED.hash) for each in stores]
    totals = await stores[1].close_round(ASKED.hash)
    late = [await stores[who % 2].admit(ASKED.hash, batch(sent(who))) for who in (2, 3, 4, 5)]
    again = await stores[0].close_round(ASKED.hash)
    mine = [(await each.rounds())[0].mine for each in stores]
    for each in stores:
        await each.close()

    assert len(even) == 2
    assert odd[0] == ACCEPTED
    assert [(each.reports, each.conflicts) for each in counted] == [(3, 1)] * 2
    assert totals.sums.tolist() == again.sums.tolist() == [111, 222]
    assert late == [[ROUND_CLOSED]] * 4
    assert mine == [2, 1]


async def test_a_shard_has_one_writer_at_a_time(place: PostgresPlace) -> None:
    first = await place.open(shard=0, shards=2)
    other = await place.open(shard=1, shards=2)
    with anyio.fail_after(3), pytest.raises(StateError, match=r"shard 0 of .* has another"):
        await place.open(shard=0, shards=2)
    await first.close()
    second = await place.open(shard=0, shards=2)

    await second.close()
    await other.close()


async def test_who_has_lost_the_fence_counts_nothing(
    place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clerk, "FIRST_RETRY_S", 0.0)
    monkeypatch.setattr(clerk, "LAST_RETRY_S", 0.0)
    monkeypatch.setattr(postgres_module, "FENCE_WAIT_S", 0.1)
    first = await with_rounds(await place.open())
    assert await first.admit(ASKED.hash, batch(sent(1))) == [ACCEPTED]

    place.end_sessions()
    second = await place.open()
    told = [await first.admit(ASKED.hash, batch(sent(who))) for who in (1, 2, 3)]
    assert await second.admit(ASKED.hash, batch(sent(2))) == [ACCEPTED]
    await second.close()
    back = await first.admit(ASKED.hash, batch(sent(1), sent(2), sent(3)))
    totals = await first.totals(ASKED.hash)
    await first.close()

    assert told == [[TRY_LATER]] * 3
    assert back == [DUPLICATE, DUPLICATE, ACCEPTED]
    assert totals.sums.tolist() == [3, 3]


async def test_a_report_at_the_wrong_shard_is_refused_and_not_settled(
    place: PostgresPlace,
) -> None:
    store = await with_rounds(await place.open(shard=1, shards=2))

    with pytest.raises(StateError, match="a device of shard 0 reported to shard 1 of 2; send"):
        await store.admit(ASKED.hash, batch(sent(1), sent(2)))
    counted = await store.counted(ASKED.hash)
    await store.close()

    assert counted.reports == 0


async def test_the_number_of_shards_cannot_change_under_an_open_round(
    place: PostgresPlace,
) -> None:
    store = await with_rounds(await place.open(shard=0, shards=2))
    await store.close()

    with pytest.raises(StateError, match="round 1 is open and counts on 2 shards, not 3"):
        await place.open(shard=0, shards=3)
    store = await place.open(shard=0, shards=2)
    for asked in (ASKED, OTHER):
        await store.close_round(asked.hash)
    await store.close()
    store = await place.open(shard=0, shards=3)
    await store.close()


async def test_the_capacity_of_a_round_is_divided_among_its_shards(
    place: PostgresPlace,
) -> None:
    store = await with_rounds(await place.open(shard=0, shards=2))

    told = await store.admit(ASKED.hash, batch(sent(2), sent(4), sent(6), capacity=5))
    await store.close()

    assert told == [ACCEPTED, ACCEPTED, INVALID]


async def test_nothing_is_counted_after_a_close_however_many_shards_count_meanwhile(
    place: PostgresPlace,
) -> None:
    stores = [await place.open(shard=shard, shards=2) for shard in (0, 1)]
    await with_rounds(stores[0])
    accepted: list[int] = []
    totals: list[Totals] = []

    async def hand_in(who: int) -> None:
        await anyio.sleep(who * 0.0005)
        [told] = await stores[who % 2].admit(ASKED.hash, batch(sent(who, (1 << who % 50, 1))))
        if told == ACCEPTED:
            accepted.append(1 << who % 50)
        else:
            assert told == ROUND_CLOSED

    async def close(shard: int) -> None:
        await anyio.sleep(0.03)
        totals.append(await stores[shard].close_round(ASKED.hash))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for who in range(100):
                tasks.start_soon(hand_in, who)
            tasks.start_soon(close, 0)
            tasks.start_soon(close, 1)
    for each in stores:
        await each.close()

    assert 0 < len(accepted) < 100
    assert [each.reports for each in totals] == [len(accepted)] * 2
    assert [each.sums.tolist() for each in totals] == [[sum(accepted), len(accepted)]] * 2


@pytest.mark.parametrize(("shard", "shards"), [(2, 2), (-1, 2), (0, 0), (0, 257), (True, 2)])
def test_a_shard_that_there_is_not_is_refused(shard: int, shards: int) -> None:
    with pytest.raises(ParameterError, match="shard"):
        PostgresDatabase("host=localhost", shard=shard, shards=shards)
