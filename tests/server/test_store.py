"""What every store promises. A new store joins by adding itself to STORES."""

import pickle
from collections.abc import Callable

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_proto.arrays import Integers, Words
from demur_proto.asking import next_round
from demur_proto.definition import Defined, define_round, define_study
from demur_proto.errors import NotFoundError
from demur_proto.round import Feature, Round
from demur_proto.study import Study, design_study
from demur_proto.v1 import report_pb2
from demur_server.estimates import make_release
from demur_server.store.base import Batch, Store, Totals
from demur_server.store.memory import MemoryStore

ACCEPTED = report_pb2.DISPOSITION_ACCEPTED
DUPLICATE = report_pb2.DISPOSITION_DUPLICATE
CONFLICT = report_pb2.DISPOSITION_CONFLICT
ROUND_CLOSED = report_pb2.DISPOSITION_ROUND_CLOSED

STORES: dict[str, Callable[[], Store]] = {"memory": MemoryStore}

Sent = tuple[int, int, tuple[int, int]]  # who, digest, words


def a_study(name: str = "store") -> Defined[Study]:
    return define_study(
        design_study(
            name=name,
            epsilon=1.0,
            delta=1e-6,
            answers=3,
            minimum_cohort=2,
            grid_exponent=-7,
            maximum_dimension=2,
        )
    )


def a_round(study: Defined[Study], number: int = 1) -> Defined[Round]:
    return define_round(
        next_round(study, [Feature(name="x")], number=number, dimension=2, on_grid=True)
    )


STUDY = a_study()
ASKED = a_round(STUDY)


def column_sums(rows: Words) -> Integers:
    sums: Integers = rows.sum(axis=0)
    return sums


def batch(*reports: Sent) -> Batch:
    return Batch(
        report_ids=[bytes([who]) * 16 for who, _, _ in reports],
        digests=[bytes([digest]) * 16 for _, digest, _ in reports],
        words=np.array([words for _, _, words in reports], dtype=np.int64).reshape(-1, 2),
        tally=column_sums,
    )


class Model:
    """The specification of a round, in ten lines."""

    def __init__(self) -> None:
        self.digests: dict[int, int] = {}
        self.sums = [0, 0]
        self.closed = False

    def admit(self, who: int, digest: int, words: tuple[int, int]) -> int:
        if self.closed:
            return ROUND_CLOSED
        if who in self.digests:
            return DUPLICATE if self.digests[who] == digest else CONFLICT
        self.digests[who] = digest
        self.sums = [self.sums[0] + words[0], self.sums[1] + words[1]]
        return ACCEPTED


@pytest.fixture(params=sorted(STORES))
async def store(request: pytest.FixtureRequest) -> Store:
    made = STORES[request.param]()
    await made.add_study(STUDY)
    await made.add_round(ASKED, sums_length=2)
    return made


word = st.integers(-(1 << 55), 1 << 55)
reports = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1), st.tuples(word, word)))


@pytest.mark.parametrize("kind", sorted(STORES))
@settings(max_examples=150)
@given(steps=st.lists(reports | st.just("close"), max_size=6))
def test_a_store_counts_what_the_model_counts(kind: str, steps: list[list[Sent] | str]) -> None:
    async def compare() -> None:
        store, model = STORES[kind](), Model()
        await store.add_round(ASKED, sums_length=2)
        for step in steps:
            if isinstance(step, str):
                totals = await store.close_round(ASKED.hash)
                model.closed = True
            else:
                dispositions = await store.admit(ASKED.hash, batch(*step))
                totals = await store.totals(ASKED.hash)

                assert dispositions == [model.admit(*report) for report in step]
            assert totals.sums.tolist() == model.sums
            assert (totals.reports, totals.closed) == (len(model.digests), model.closed)

    anyio.run(compare)


async def test_the_same_id_twice_in_one_batch_counts_once(store: Store) -> None:
    one = (1, 1, (5, 6))

    dispositions = await store.admit(ASKED.hash, batch(one, one, (1, 2, (9, 9)), (2, 1, (1, 1))))

    assert dispositions == [ACCEPTED, DUPLICATE, CONFLICT, ACCEPTED]
    assert (await store.totals(ASKED.hash)).sums.tolist() == [6, 7]


async def test_digests_are_compared_by_value_whoever_made_the_bytes(store: Store) -> None:
    shared = bytes(16)
    twice = Batch(
        report_ids=[bytes(16), bytes(16)],
        digests=[shared, shared],
        words=np.ones((2, 2), np.int64),
        tally=column_sums,
    )

    assert await store.admit(ASKED.hash, twice) == [ACCEPTED, DUPLICATE]
    assert (await store.totals(ASKED.hash)).reports == 1


async def test_every_report_accepted_before_a_concurrent_close_is_in_its_totals(
    store: Store,
) -> None:
    accepted: list[int] = []

    async def hand_in(who: int) -> None:
        for _ in range(who % 4):
            await anyio.lowlevel.checkpoint()
        (disposition,) = await store.admit(ASKED.hash, batch((who, 1, (1 << who % 40, -who))))
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


async def test_closing_again_gives_the_same_totals(store: Store) -> None:
    await store.admit(ASKED.hash, batch((1, 1, (3, 4))))

    first = await store.close_round(ASKED.hash)
    await store.admit(ASKED.hash, batch((2, 1, (3, 4))))
    second = await store.close_round(ASKED.hash)

    assert first.sums.tolist() == second.sums.tolist() == [3, 4]
    assert first.reports == second.reports == 1


async def test_totals_are_a_snapshot_and_not_a_view(store: Store) -> None:
    totals = await store.totals(ASKED.hash)
    totals.sums[0] = 99

    await store.admit(ASKED.hash, batch((1, 1, (3, 4))))

    assert totals.sums.tolist() == [99, 0]
    assert (await store.totals(ASKED.hash)).sums.tolist() == [3, 4]


async def test_adding_a_round_again_keeps_what_it_counted(store: Store) -> None:
    await store.admit(ASKED.hash, batch((1, 1, (3, 4))))

    await store.add_round(ASKED, sums_length=2)

    assert (await store.totals(ASKED.hash)).reports == 1


async def test_rounds_count_apart(store: Store) -> None:
    other = a_round(STUDY, number=2)
    await store.add_round(other, sums_length=2)
    await store.admit(ASKED.hash, batch((1, 1, (3, 4))))

    assert await store.admit(other.hash, batch((1, 2, (5, 6)))) == [ACCEPTED]
    assert (await store.totals(other.hash)).sums.tolist() == [5, 6]


async def test_an_unknown_round_is_not_found(store: Store) -> None:
    with pytest.raises(NotFoundError, match="there is no round"):
        await store.admit(bytes(32), batch())
    with pytest.raises(NotFoundError):
        await store.totals(bytes(32))
    with pytest.raises(NotFoundError):
        await store.close_round(bytes(32))


async def test_the_first_release_of_a_round_is_kept_whatever_comes_later(store: Store) -> None:
    first = make_release(STUDY, ASKED, [3, 4], reports=2)
    other = make_release(STUDY, ASKED, [5, 6], reports=3)

    kept = [await store.add_release(first), await store.add_release(other)]

    assert kept == [first, first]
    assert await store.releases(STUDY.hash) == [first]


async def test_releases_come_by_number_and_by_study(store: Store) -> None:
    stranger = a_study("another")
    for owner, number in [(STUDY, 3), (stranger, 1), (STUDY, 1), (STUDY, 2)]:
        asked = a_round(owner, number)
        await store.add_round(asked, sums_length=2)
        await store.add_release(make_release(owner, asked, [0, 0], reports=2))

    mine = await store.releases(STUDY.hash)
    late = await store.releases(STUDY.hash, from_number=2)

    assert [release.number for release in mine] == [1, 2, 3]
    assert [release.number for release in late] == [2, 3]
    assert {release.study_hash for release in mine} == {STUDY.hash}


async def test_the_memory_store_forgets_ids_and_digests_when_a_round_closes() -> None:
    store = MemoryStore()
    await store.add_round(ASKED, sums_length=2)
    await store.admit(ASKED.hash, batch((0xAB, 0xCD, (3, 4))))
    secrets = [b"\xab" * 16, b"\xcd" * 16]

    before = pickle.dumps(store)
    await store.close_round(ASKED.hash)
    after = pickle.dumps(store)

    assert all(secret in before for secret in secrets)
    assert not any(secret in after for secret in secrets)
