"""What every store promises: in memory, on SQLite, and on a real PostgreSQL."""

import pickle
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from demur_proto.errors import NotFoundError, StateError
from demur_server.collector.estimates import make_release
from demur_server.store.base import (
    Batch,
    Counted,
    DeviceState,
    KeptRound,
    NamedCredential,
    Role,
    Store,
    Totals,
)
from demur_server.store.memory import MemoryStore
from store_kit import (
    ACCEPTED,
    CONFLICT,
    DUPLICATE,
    INVALID,
    ROUND_CLOSED,
    STUDY,
    MemoryPlace,
    Place,
    PostgresPlace,
    PostgresServer,
    SqlitePlace,
    a_round,
    a_study,
    add_up,
    batch,
    sent,
)

ASKED = a_round(STUDY)
KINDS = ("memory", "sqlite", "postgres")


@pytest.fixture(scope="module")
def databases(postgres: PostgresServer) -> PostgresPlace:
    """One database for all tests of this module, emptied between them."""
    return PostgresPlace(postgres)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, quick_path: Path) -> Place:
    if request.param == "postgres":
        database: PostgresPlace = request.getfixturevalue("databases")
        database.clear()
        return database
    return SqlitePlace(quick_path) if request.param == "sqlite" else MemoryPlace()


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Store]:
    made = await place.open()
    await made.add_study(STUDY)
    await made.add_round(ASKED, sums_length=2)
    yield made
    await made.close()


async def reopened(place: Place, store: Store) -> Store:
    """The store after a restart; the one in memory just goes on."""
    if not place.durable:
        return store
    await store.close()
    return await place.open()


# ---- counting --------------------------------------------------------------------------------


async def test_the_same_report_twice_in_one_batch_counts_once(store: Store) -> None:
    one = sent(1, (5, 6))
    other_bytes, other_device = sent(1, (9, 9), digest=2), (1, 1, 9, (5, 6))

    dispositions = await store.admit(
        ASKED.hash, batch(one, one, other_bytes, other_device, sent(2))
    )

    assert dispositions == [ACCEPTED, DUPLICATE, CONFLICT, CONFLICT, ACCEPTED]
    assert (await store.totals(ASKED.hash)).sums.tolist() == [6, 7]


async def test_a_report_sent_again_counts_once_however_long_after(
    store: Store, place: Place
) -> None:
    first = await store.admit(ASKED.hash, batch(sent(1, (5, 6))))
    again = await store.admit(ASKED.hash, batch(sent(1, (5, 6))))
    store = await reopened(place, store)
    late = await store.admit(ASKED.hash, batch(sent(1, (5, 6)), sent(1, (7, 7), digest=2)))

    assert [first, again, late] == [[ACCEPTED], [DUPLICATE], [DUPLICATE, CONFLICT]]
    assert (await store.totals(ASKED.hash)).sums.tolist() == [5, 6]
    await store.close()


async def test_a_second_id_of_one_device_is_a_conflict(store: Store, place: Place) -> None:
    await store.admit(ASKED.hash, batch((1, 1, 7, (5, 6))))

    together = await store.admit(ASKED.hash, batch((2, 1, 8, (1, 1)), (3, 1, 8, (1, 1))))
    store = await reopened(place, store)
    later = await store.admit(ASKED.hash, batch((4, 1, 7, (1, 1)), (1, 1, 7, (5, 6))))

    assert together == [ACCEPTED, CONFLICT]
    assert later == [CONFLICT, DUPLICATE]
    assert (await store.totals(ASKED.hash)).sums.tolist() == [6, 7]
    await store.close()


async def test_a_device_may_answer_every_round(store: Store) -> None:
    other = a_round(STUDY, number=2)
    await store.add_round(other, sums_length=2)

    assert await store.admit(ASKED.hash, batch(sent(1, (3, 4)))) == [ACCEPTED]
    assert await store.admit(other.hash, batch(sent(1, (5, 6), digest=2))) == [ACCEPTED]
    assert (await store.totals(ASKED.hash)).sums.tolist() == [3, 4]
    assert (await store.totals(other.hash)).sums.tolist() == [5, 6]


async def test_digests_are_compared_by_value_whoever_made_the_bytes(store: Store) -> None:
    twice = Batch(
        report_ids=[bytes(16), bytes(16)],
        digests=[bytes(16), bytes(bytearray(16))],
        devices=[bytes(16), bytes(bytearray(16))],
        words=np.ones((2, 2), np.int64),
        tally=add_up,
        capacity=9,
    )

    assert await store.admit(ASKED.hash, twice) == [ACCEPTED, DUPLICATE]
    assert (await store.totals(ASKED.hash)).reports == 1


async def test_conflicts_are_counted_and_outlive_a_restart(store: Store, place: Place) -> None:
    await store.admit(ASKED.hash, batch(sent(1), sent(1, digest=2)))
    await store.admit(ASKED.hash, batch(sent(1, digest=3), sent(1, digest=4), sent(1)))
    store = await reopened(place, store)

    expected = Counted(reports=1, conflicts=3, closed=False)
    assert await store.counted(ASKED.hash) == expected
    await store.close_round(ASKED.hash)
    await store.admit(ASKED.hash, batch(sent(1, digest=5)))
    assert await store.counted(ASKED.hash) == Counted(reports=1, conflicts=3, closed=True)
    await store.close()


async def test_a_full_round_takes_no_more_and_still_knows_what_it_has(
    store: Store, place: Place
) -> None:
    dispositions = await store.admit(
        ASKED.hash, batch(sent(1), sent(1), sent(2), sent(3), capacity=2)
    )
    store = await reopened(place, store)
    later = await store.admit(ASKED.hash, batch(sent(4), sent(2), sent(2, digest=9), capacity=2))

    assert dispositions == [ACCEPTED, DUPLICATE, ACCEPTED, INVALID]
    assert later == [INVALID, DUPLICATE, CONFLICT]
    assert (await store.totals(ASKED.hash)).reports == 2
    await store.close()


async def test_sums_are_exact_up_to_the_last_bit_of_64(store: Store, place: Place) -> None:
    largest = (1 << 62) - 1

    await store.admit(ASKED.hash, batch(sent(1, (largest, -largest)), sent(2, (largest, -largest))))
    store = await reopened(place, store)
    await store.admit(ASKED.hash, batch(sent(3, (1, -1))))

    totals = await store.totals(ASKED.hash)
    assert totals.sums.tolist() == [2 * largest + 1, -2 * largest - 1]
    assert totals.sums.dtype == np.int64
    await store.close()


async def test_a_round_may_have_other_sums_than_its_reports_have_words(
    store: Store, place: Place
) -> None:
    other = a_round(STUDY, number=2)
    await store.add_round(other, sums_length=3)
    counts = Batch(
        report_ids=[bytes(16)],
        digests=[bytes(16)],
        devices=[bytes(16)],
        words=np.array([[1, 0]]),
        tally=lambda rows: np.bincount(rows[:, 0], minlength=3),
        capacity=9,
    )

    assert await store.admit(other.hash, counts) == [ACCEPTED]
    store = await reopened(place, store)
    assert (await store.totals(other.hash)).sums.tolist() == [0, 1, 0]
    await store.close()


async def test_many_batches_at_once_are_told_apart(store: Store) -> None:
    told: dict[int, list[int]] = {}

    async def hand_in(who: int) -> None:
        reports = [sent(who), sent(who), sent(100 + who % 10, digest=1 + who)]
        told[who] = await store.admit(ASKED.hash, batch(*reports))

    async with anyio.create_task_group() as tasks:
        for who in range(1, 61):
            tasks.start_soon(hand_in, who)

    assert all(each[:2] == [ACCEPTED, DUPLICATE] for each in told.values())
    assert sorted(each[2] for each in told.values()) == [ACCEPTED] * 10 + [CONFLICT] * 50
    assert (await store.totals(ASKED.hash)).reports == 70


async def test_a_caller_who_leaves_keeps_nobody_else_from_being_told(store: Store) -> None:
    with anyio.move_on_after(0):
        await store.admit(ASKED.hash, batch(sent(1)))

    assert await store.admit(ASKED.hash, batch(sent(2))) == [ACCEPTED]
    again = await store.admit(ASKED.hash, batch(sent(1)))
    assert again in ([ACCEPTED], [DUPLICATE])
    assert (await store.totals(ASKED.hash)).reports == 2


async def test_every_report_accepted_before_a_concurrent_close_is_in_its_totals(
    store: Store,
) -> None:
    accepted: list[int] = []

    async def hand_in(who: int) -> None:
        for _ in range(who % 4):
            await anyio.lowlevel.checkpoint()
        [disposition] = await store.admit(ASKED.hash, batch(sent(who, (1 << who % 40, -who))))
        if disposition == ACCEPTED:
            accepted.append(who)

    async def close() -> None:
        await anyio.lowlevel.checkpoint()
        totals.append(await store.close_round(ASKED.hash))

    totals: list[Totals] = []
    async with anyio.create_task_group() as tasks:
        for who in range(40):
            tasks.start_soon(hand_in, who)
        tasks.start_soon(close)
    after = await store.totals(ASKED.hash)

    assert 0 < len(accepted) < 40
    assert after.sums.tolist() == [sum(1 << who for who in accepted), -sum(accepted)]
    assert after.reports == len(accepted)
    assert (totals[0].reports, totals[0].closed) == (after.reports, True)
    assert totals[0].sums.tolist() == after.sums.tolist()


async def test_totals_are_a_snapshot_and_not_a_view(store: Store) -> None:
    totals = await store.totals(ASKED.hash)
    totals.sums[0] = 99

    await store.admit(ASKED.hash, batch(sent(1, (3, 4))))
    closed = await store.close_round(ASKED.hash)
    closed.sums[1] = 99

    assert totals.sums.tolist() == [99, 0]
    assert (await store.totals(ASKED.hash)).sums.tolist() == [3, 4]


# ---- studies and rounds ----------------------------------------------------------------------


async def test_studies_and_rounds_come_back_as_they_were_and_in_order(
    store: Store, place: Place
) -> None:
    strangers = [a_study("zebra"), a_study("another")]
    for stranger in strangers:
        await store.add_study(stranger)
    asked = [a_round(strangers[0]), a_round(STUDY, 2), a_round(STUDY, 3)]
    for each in reversed(asked):
        await store.add_round(each, sums_length=2, open_access=each is asked[1])
    await store.admit(asked[1].hash, batch(sent(1), sent(2)))
    await store.close_round(asked[2].hash)
    totals = await store.close_round(ASKED.hash)
    await store.add_release(make_release(STUDY, ASKED, totals.sums.tolist(), reports=2))
    store = await reopened(place, store)

    assert await store.studies() == [each.definition for each in (STUDY, *strangers)]
    kept = await store.rounds()
    await store.close()

    def expected(each: int, *, mine: int, closed: bool, released: bool) -> KeptRound:
        asked_then = [ASKED, *asked[1:], asked[0]][each]
        return KeptRound(
            study_hash=asked_then.value.study_hash,
            round_hash=asked_then.hash,
            definition=asked_then.definition,
            open_access=each == 1,
            shards=1,
            mine=mine,
            closed=closed,
            released=released,
        )

    assert kept == [
        expected(0, mine=0, closed=True, released=True),
        expected(1, mine=2, closed=False, released=False),
        expected(2, mine=0, closed=True, released=False),
        expected(3, mine=0, closed=False, released=False),
    ]


async def test_adding_a_study_or_a_round_again_changes_nothing(store: Store) -> None:
    await store.admit(ASKED.hash, batch(sent(1, (3, 4))))

    await store.add_study(STUDY)
    await store.add_round(ASKED, sums_length=2)
    await store.close_round(ASKED.hash)
    await store.add_round(ASKED, sums_length=2)

    assert await store.studies() == [STUDY.definition]
    assert (await store.counted(ASKED.hash)) == Counted(reports=1, conflicts=0, closed=True)


async def test_of_two_rounds_with_one_number_the_first_is_kept(store: Store) -> None:
    with pytest.raises(StateError, match="round 1 cannot open: the study has another one"):
        await store.add_round(a_round(STUDY, clip=0.5), sums_length=2)

    assert [each.round_hash for each in await store.rounds()] == [ASKED.hash]


async def test_a_round_needs_its_study(store: Store) -> None:
    with pytest.raises(NotFoundError, match="there is no study"):
        await store.add_round(a_round(a_study("unknown")), sums_length=2)


async def test_an_unknown_round_is_not_found(store: Store) -> None:
    stranger = a_round(STUDY, 7)
    with pytest.raises(NotFoundError, match="there is no round"):
        await store.admit(stranger.hash, batch())
    with pytest.raises(NotFoundError):
        await store.totals(stranger.hash)
    with pytest.raises(NotFoundError):
        await store.counted(stranger.hash)
    with pytest.raises(NotFoundError):
        await store.close_round(stranger.hash)
    with pytest.raises(NotFoundError):
        await store.add_release(make_release(STUDY, stranger, [0, 0], reports=2))

    assert await store.release(stranger.hash) is None
    assert await store.releases(stranger.hash) == []


# ---- closing and releases --------------------------------------------------------------------


async def test_closing_is_for_ever(store: Store, place: Place) -> None:
    await store.admit(ASKED.hash, batch(sent(1, (3, 4))))

    first = await store.close_round(ASKED.hash)
    late = [sent(1, (3, 4)), sent(1, (3, 4), digest=9), sent(2)]
    at_once = await store.admit(ASKED.hash, batch(*late))
    store = await reopened(place, store)
    later = await store.admit(ASKED.hash, batch(*late))
    second = await store.close_round(ASKED.hash)

    assert at_once == later == [ROUND_CLOSED] * 3
    assert first.sums.tolist() == second.sums.tolist() == [3, 4]
    assert first.reports == second.reports == 1
    await store.close()


async def test_the_first_release_of_a_round_is_kept_whatever_comes_later(
    store: Store, place: Place
) -> None:
    await store.close_round(ASKED.hash)
    first = make_release(STUDY, ASKED, [3, 4], reports=2)
    other = make_release(STUDY, ASKED, [5, 6], reports=3)

    kept = [await store.add_release(first), await store.add_release(other)]
    store = await reopened(place, store)
    kept += [await store.add_release(other), *await store.releases(STUDY.hash)]

    assert kept == [first, first, first, first]
    assert await store.release(ASKED.hash) == first
    await store.close()


async def test_an_open_round_has_no_release(store: Store) -> None:
    with pytest.raises(StateError, match="round 1 is still open"):
        await store.add_release(make_release(STUDY, ASKED, [3, 4], reports=2))

    assert await store.release(ASKED.hash) is None
    assert await store.admit(ASKED.hash, batch(sent(1))) == [ACCEPTED]


async def test_sums_are_forgotten_once_the_release_is_kept_and_numbers_are_not(
    store: Store, place: Place
) -> None:
    await store.admit(ASKED.hash, batch(sent(1, (3, 4))))
    totals = await store.close_round(ASKED.hash)
    await store.add_release(make_release(STUDY, ASKED, totals.sums.tolist(), reports=1))
    store = await reopened(place, store)

    for after in (await store.totals(ASKED.hash), await store.close_round(ASKED.hash)):
        assert (after.reports, after.closed, after.sums.tolist()) == (1, True, [])
    await store.close()


async def test_releases_come_by_number_and_by_study(store: Store) -> None:
    stranger = a_study("another")
    await store.add_study(stranger)
    for owner, number in [(STUDY, 3), (stranger, 1), (STUDY, 1), (STUDY, 2)]:
        asked = a_round(owner, number)
        await store.add_round(asked, sums_length=2)
        await store.close_round(asked.hash)
        await store.add_release(make_release(owner, asked, [0, 0], reports=2))

    mine = await store.releases(STUDY.hash)
    late = await store.releases(STUDY.hash, from_number=2)

    assert [release.number for release in mine] == [1, 2, 3]
    assert [release.number for release in late] == [2, 3]
    assert {release.study_hash for release in mine} == {STUDY.hash}


async def test_the_memory_store_forgets_ids_and_digests_when_a_round_closes() -> None:
    store = MemoryStore()
    await store.add_study(STUDY)
    await store.add_round(ASKED, sums_length=2)
    await store.admit(ASKED.hash, batch((0xAB, 0xCD, 0xEF, (3, 4))))
    secrets = [b"\xab" * 16, b"\xcd" * 16, b"\xef" * 16]
    counting = store._rounds[ASKED.hash].counting
    assert counting is not None
    assert all(secret in pickle.dumps((counting._digests, counting._ids)) for secret in secrets)

    await store.close_round(ASKED.hash)

    assert store._rounds[ASKED.hash].counting is None


# ---- who may do what -------------------------------------------------------------------------

TOKEN, NONCE, DEVICE = b"t" * 32, b"n" * 32, b"d" * 16


async def test_a_token_enrols_one_device_and_a_lost_response_costs_nothing(
    store: Store, place: Place
) -> None:
    await store.add_token(TOKEN)
    await store.add_token(TOKEN)

    assert await store.redeem_token(TOKEN, nonce_hash=NONCE, device_id=DEVICE)
    store = await reopened(place, store)
    await store.add_token(TOKEN)  # it stays used
    assert await store.redeem_token(TOKEN, nonce_hash=NONCE, device_id=DEVICE)
    assert not await store.redeem_token(TOKEN, nonce_hash=b"m" * 32, device_id=DEVICE)
    assert not await store.redeem_token(TOKEN, nonce_hash=NONCE, device_id=b"e" * 16)
    assert not await store.redeem_token(b"u" * 32, nonce_hash=NONCE, device_id=DEVICE)
    assert await store.device_state(DEVICE) is DeviceState.ENROLLED
    assert await store.device_state(b"e" * 16) is None
    await store.close()


async def test_of_many_who_redeem_a_token_at_once_one_does(store: Store) -> None:
    await store.add_token(TOKEN)
    redeemed: list[bool] = []

    async def redeem(device: int) -> None:
        device_id = bytes([device]) * 16
        redeemed.append(
            await store.redeem_token(TOKEN, nonce_hash=bytes([device]) * 32, device_id=device_id)
        )

    async with anyio.create_task_group() as tasks:
        for device in range(8):
            tasks.start_soon(redeem, device)

    assert sorted(redeemed) == [False] * 7 + [True]


async def test_a_revoked_device_stays_revoked_for_its_first_reason(
    store: Store, place: Place
) -> None:
    await store.add_token(TOKEN)
    await store.redeem_token(TOKEN, nonce_hash=NONCE, device_id=DEVICE)

    await store.revoke_device(DEVICE, reason="lost")
    await store.revoke_device(DEVICE, reason="stolen")
    store = await reopened(place, store)
    await store.redeem_token(TOKEN, nonce_hash=NONCE, device_id=DEVICE)

    assert await store.device_state(DEVICE) is DeviceState.REVOKED
    assert await store.revoked_devices() == {DEVICE: "lost"}
    with pytest.raises(NotFoundError, match="there is no device"):
        await store.revoke_device(b"e" * 16, reason="lost")
    await store.close()


async def test_named_credentials_are_kept_by_name(store: Store, place: Place) -> None:
    made = [
        NamedCredential(name=name, role=role, credential_hash=name.encode() * 8)
        for name, role in [("zoë", Role.ANALYST), ("Anna", Role.GATEWAY), ("bob", Role.ANALYST)]
    ]
    for each in made:
        await store.add_credential(each)
    with pytest.raises(StateError, match="there is a credential 'bob' already"):
        await store.add_credential(
            NamedCredential(name="bob", role=Role.GATEWAY, credential_hash=b"x" * 32)
        )
    await store.remove_credential("zoë")
    store = await reopened(place, store)

    assert await store.credentials() == [made[1], made[2]]
    with pytest.raises(NotFoundError, match="there is no credential 'zoë'"):
        await store.remove_credential("zoë")
    await store.close()
