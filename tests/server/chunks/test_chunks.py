"""Reports larger than a frame: over real gRPC, on every store, and of devices."""

import hashlib
import secrets
from pathlib import Path
from typing import Any

import anyio
import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from access_kit import DEADLINE_S, reached
from agent_kit import visit
from chunk_kit import (
    DIMENSION,
    LARGE,
    MEMORY,
    SIZE,
    STUDY,
    a_round,
    frame,
    hand_in,
    hand_in_frame,
    opened,
    report,
    status,
    submitting,
    until,
    visiting,
    words_of,
)
from demur_client.device import Device
from demur_proto.arrays import Values, Words
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries import Feature
from demur_proto.queries.registry import mechanism_for
from demur_proto.transport.credentials import DeviceCredential
from demur_proto.v1 import report_pb2
from demur_proto.wire.frames import CHUNK_BYTES, frame_messages, report_messages
from demur_proto.wire.words import WordType, encode_words
from demur_server.collector.chunks import Assembler, Form, Whole
from demur_server.collector.collector import Collector
from demur_server.collector.keys import MemoryKeys
from demur_server.grpc.access import CredentialAccess, hash_secret, new_named, new_token
from demur_server.grpc.serving import served
from demur_server.store.base import Role
from demur_sim.engine.sampling import FastSampler
from store_kit import (
    ACCEPTED,
    CONFLICT,
    DUPLICATE,
    INVALID,
    TRY_LATER,
    MemoryPlace,
    Place,
    PostgresPlace,
    PostgresServer,
    SqlitePlace,
)


async def test_a_large_report_counts_once_and_leaves_no_memory_taken(collector: Collector) -> None:
    async with opened(collector) as (channel, assembler):
        device, gateway = await visiting(channel), await submitting(channel)

        assert await hand_in(device, report(1)) == ACCEPTED
        assert await hand_in(device, report(1)) == DUPLICATE
        assert await hand_in(device, report(2, who=1)) == CONFLICT
        assert await hand_in_frame(gateway, frame(2, number=9)) == [ACCEPTED]
        assert await hand_in_frame(gateway, frame(1, number=10)) == [DUPLICATE]
        assert assembler.space.used == 0

    sums = (await collector.totals(LARGE.hash)).sums
    np.testing.assert_array_equal(sums, (words_of(1) + words_of(2))[0])


async def test_one_word_out_of_range_makes_a_large_report_invalid(collector: Collector) -> None:
    wrong, words = report(1), words_of(1)
    words[0, -1] = 1 << 30
    wrong.words = encode_words(words, LARGE.value.word_type)

    async with opened(collector) as (channel, _):
        device = await visiting(channel)

        assert await hand_in(device, wrong) == INVALID
        assert await hand_in(device, report(1)) == ACCEPTED


async def test_small_and_large_reports_share_a_stream(collector: Collector) -> None:
    small = await collector.open_round(a_round(2, dimension=1).definition)
    one = report_pb2.Report(round_hash=small.hash, report_id=bytes(16), words=bytes(4))

    async with opened(collector) as (channel, _):
        device = await visiting(channel)

        assert await hand_in(device, one) == ACCEPTED
        assert await hand_in(device, report(1)) == ACCEPTED
        assert await hand_in(device, one) == DUPLICATE


# ---- on every store, with credentials --------------------------------------------------------


@pytest.fixture(scope="module")
def databases(postgres: PostgresServer) -> PostgresPlace:
    return PostgresPlace(postgres)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, quick_path: Path) -> Place:
    if request.param == "postgres":
        database: PostgresPlace = request.getfixturevalue("databases")
        return database
    return SqlitePlace(quick_path) if request.param == "sqlite" else MemoryPlace()


async def test_every_store_counts_large_reports_of_devices_and_gateways_once(place: Place) -> None:
    store, keys = await place.open(), MemoryKeys()
    collector = Collector(store, keys=keys)
    await collector.create_study(STUDY.definition)
    await collector.open_round(LARGE.definition)
    access = CredentialAccess(store, master_key=keys.master())
    secret, kept = new_named("gateway", Role.GATEWAY)
    await store.add_credential(kept)

    async def enrolled() -> DeviceCredential:
        token = new_token()
        await store.add_token(hash_secret(token))
        return await access.enrol(token, secrets.token_bytes(16))

    one, two, revoked = [await enrolled() for _ in range(3)]
    await store.revoke_device(revoked.device_id, reason="lost")
    assembler = Assembler()
    async with (
        served(collector, access=access, assembler=assembler, drain_s=0.1) as ports,
        reached(ports.collector) as channel,
    ):
        device, gateway = await visiting(channel, one), await submitting(channel, secret)

        assert await hand_in(device, report(1)) == ACCEPTED
        assert await hand_in(device, report(2)) == CONFLICT  # a second id of one device
        assert await hand_in_frame(gateway, frame(1, maker=one)) == [DUPLICATE]
        assert await hand_in_frame(gateway, frame(2, maker=two, proofs=bytes(16))) == [INVALID]
        assert await hand_in_frame(gateway, frame(2, maker=revoked)) == [INVALID]
        assert await hand_in_frame(gateway, frame(2, maker=two)) == [ACCEPTED]
        assert await hand_in_frame(gateway, frame(2, maker=two)) == [DUPLICATE]
        assert assembler.space.used == 0
        for message in frame_messages(frame(3)):
            await gateway.write(message)
            break
        assert await status(gateway) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "every chunk in a frame needs the id of its device, and a proof",
        )
    release = await collector.close_round(LARGE.hash)
    await store.close()

    assert release.reports == 2
    expected = (words_of(1) + words_of(2))[0]
    np.testing.assert_array_equal(np.asarray(release.sums), expected)
    np.testing.assert_array_equal(np.asarray(release.estimate), expected / 128)


# ---- the assembler alone ---------------------------------------------------------------------


@given(
    word_type=st.sampled_from(list(WordType)),
    extra=st.integers(1, 100),
    chunks=st.integers(1, 2),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=20)
async def test_whatever_the_words_are_they_arrive_as_they_were_sent(
    word_type: WordType, extra: int, chunks: int, seed: int
) -> None:
    length = chunks * CHUNK_BYTES * 8 // word_type.report_bytes(8) + extra
    rng = np.random.default_rng(seed)
    low, high = (0, 2) if word_type is WordType.BIT else (-word_type.limit, word_type.limit)
    words: Words = rng.integers(low, high, size=(1, length))
    encoded = encode_words(words, word_type)
    sent = report_messages(report_pb2.Report(report_id=bytes(16), words=encoded))
    first = next(sent).chunk

    async def next_chunk() -> Any:
        return next(sent).chunk

    form = Form(word_type=word_type, length=length)
    async with Assembler().assembled(first, next_chunk, form=form, from_gateway=False) as whole:
        assert isinstance(whole, Whole)
        assert whole.sound.all()
        assert whole.payload_hash == hashlib.sha256(encoded).digest()
        assert whole.rows.nbytes == form.memory
        np.testing.assert_array_equal(whole.rows, words)


async def test_a_bit_left_over_makes_a_large_report_unsound() -> None:
    length = 8 * CHUNK_BYTES + 1
    encoded = bytes(CHUNK_BYTES) + b"\x02"
    sent = report_messages(report_pb2.Report(report_id=bytes(16), words=encoded))
    first = next(sent).chunk

    async def next_chunk() -> Any:
        return next(sent).chunk

    form = Form(word_type=WordType.BIT, length=length)
    async with Assembler().assembled(first, next_chunk, form=form, from_gateway=False) as whole:
        assert isinstance(whole, Whole)
        assert not whole.sound.any()


# ---- the device ------------------------------------------------------------------------------


class Large:
    """A source with a large vector in which one number counts."""

    def __init__(self, value: float) -> None:
        self._value = value

    def evaluate(self, feature: Feature) -> Values:
        values = np.zeros((1, DIMENSION))
        values[0, 0] = self._value
        return values


class Seen:
    """Notes the sizes of what was sent."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.dispositions: list[int] = []

    def received(self, round_number: int) -> None:
        """Nothing to note."""

    def sent(self, round_number: int, *, size_bytes: int) -> None:
        self.sizes.append(size_bytes)

    def answered(self, round_number: int, *, disposition: int) -> None:
        self.dispositions.append(disposition)


async def test_a_device_sends_the_same_chunks_whatever_it_decided(collector: Collector) -> None:
    mechanism = mechanism_for(STUDY.value, LARGE.value)
    assert isinstance(mechanism, GaussianLinear)
    seen = []
    async with opened(collector) as (channel, _):
        for seed, value in enumerate((0.0, 1.0, 1e9)):  # nothing, something, no valid value
            watcher = Seen()
            device = Device(STUDY, Large(value), FastSampler(np.random.default_rng(seed)))
            with anyio.fail_after(DEADLINE_S):
                await visit(device, channel, last_round=1, watcher=watcher)
            seen.append(watcher)

    assert [each.dispositions for each in seen] == [[ACCEPTED]] * 3
    assert len({tuple(each.sizes) for each in seen}) == 1
    assert len(seen[0].sizes) == 3
    assert sum(seen[0].sizes) == pytest.approx(SIZE, rel=1e-3)
    first = int((await collector.totals(LARGE.hash)).sums[0])
    assert first == pytest.approx(128, abs=5 * mechanism.noise_steps * 3**0.5)  # 5 sigma


async def test_a_device_told_to_come_later_sends_the_whole_report_again(
    collector: Collector,
) -> None:
    async with opened(collector, memory_bytes=MEMORY, wait_s=0.01) as (channel, assembler):
        device = Device(STUDY, Large(1.0), FastSampler(np.random.default_rng(1)))
        watcher = Seen()
        async with anyio.create_task_group() as tasks, assembler.space.taken(MEMORY):
            tasks.start_soon(_visited, device, channel, watcher)
            await until(lambda: watcher.dispositions == [TRY_LATER])

    assert watcher.dispositions == [TRY_LATER, ACCEPTED]
    assert len(watcher.sizes) == 6
    assert watcher.sizes[:3] == watcher.sizes[3:]


async def _visited(device: Device, channel: Any, watcher: Seen) -> None:
    with anyio.fail_after(DEADLINE_S):
        await visit(device, channel, last_round=1, watcher=watcher)
