"""Reports larger than a frame: over real gRPC, on every store, well formed and otherwise."""

import gc
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from access_kit import DEADLINE_S, reached, shown
from demur_client.agent import visit
from demur_client.device import Device
from demur_proto.arrays import Values, Words
from demur_proto.asking import next_round
from demur_proto.chunks import CHUNK_BYTES, frame_messages, report_messages
from demur_proto.credentials import DeviceCredential
from demur_proto.definition import Defined, define_round, define_study
from demur_proto.frames import LARGEST_FRAMED_BYTES, split_frames
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.mechanisms.of_round import mechanism_for
from demur_proto.round import Feature, Round
from demur_proto.study import design_study
from demur_proto.v1 import collector_pb2, collector_pb2_grpc, report_pb2
from demur_proto.words import WordType, encode_words
from demur_server.access import CredentialAccess
from demur_server.assembling import Assembler, AssemblyLimits, Form, Whole
from demur_server.collector import Collector
from demur_server.keys import MemoryKeys
from demur_server.serving import served
from demur_server.store.base import Role
from demur_server.store.memory import MemoryStore
from demur_server.tokens import hash_secret, new_named, new_token
from demur_sim.sampling import FastSampler
from store_kit import (
    ACCEPTED,
    CONFLICT,
    DUPLICATE,
    INVALID,
    ROUND_CLOSED,
    TRY_LATER,
    MemoryPlace,
    Place,
    PostgresPlace,
    PostgresServer,
    SqlitePlace,
)

DIMENSION = 600_001  # of reports of 2,400,004 bytes: two chunks and 302,852 bytes
MEMORY = 8 * DIMENSION
LIMIT = 1000  # every word below lies well within what the round allows

STUDY = define_study(
    design_study(
        name="large",
        epsilon=1.0,
        delta=1e-6,
        answers=3,
        minimum_cohort=2,
        grid_exponent=-7,
        maximum_dimension=1 << 20,
    )
)


def a_round(number: int = 1, *, dimension: int = DIMENSION) -> Defined[Round]:
    return define_round(
        next_round(STUDY, [Feature(name="x")], number=number, dimension=dimension, on_grid=True)
    )


LARGE = a_round()
SIZE = LARGE.value.word_type.report_bytes(DIMENSION)


def words_of(seed: int) -> Words:
    drawn = np.random.default_rng(seed).integers(-LIMIT, LIMIT, size=(1, DIMENSION))
    return drawn.astype(np.int64)


def report(
    seed: int, *, asked: Defined[Round] = LARGE, who: int | None = None
) -> report_pb2.Report:
    return report_pb2.Report(
        round_hash=asked.hash,
        report_id=(seed if who is None else who).to_bytes(16, "big"),
        words=encode_words(words_of(seed), LARGE.value.word_type),
    )


def frame(
    seed: int, *, number: int = 1, maker: DeviceCredential | None = None, **changes: Any
) -> report_pb2.ReportFrame:
    one = report(seed)
    proven = {}
    if maker is not None:  # by the words of the schema, and not by our code
        message = b"demur.report\x00" + one.round_hash + one.report_id
        message += hashlib.sha256(one.words).digest()
        proof = hmac.new(maker.secret, message, hashlib.sha256).digest()[:16]
        proven = {"device_ids": maker.device_id, "proofs": proof}
    [made] = split_frames(
        one.round_hash, one.report_id, one.words, first_number=number, **{**proven, **changes}
    )
    return made


# ---- streams ---------------------------------------------------------------------------------


async def visiting(channel: grpc.aio.Channel, *credentials: Any) -> Any:
    stub: Any = collector_pb2_grpc.CollectorStub(channel)
    call = stub.Visit(metadata=shown(*credentials), timeout=DEADLINE_S)
    hello = collector_pb2.Hello(protocol_version=1, study_hash=STUDY.hash)
    await call.write(collector_pb2.VisitRequest(hello=hello))
    await call.read()
    return call


async def submitting(channel: grpc.aio.Channel, *credentials: Any) -> Any:
    stub: Any = collector_pb2_grpc.CollectorStub(channel)
    call = stub.SubmitFrames(metadata=shown(*credentials), timeout=DEADLINE_S)
    hello = collector_pb2.Hello(protocol_version=1, study_hash=STUDY.hash)
    await call.write(collector_pb2.SubmitFramesRequest(hello=hello))
    await call.read()
    return call


async def receipt(call: Any) -> Any:
    while (message := await call.read()).WhichOneof("message") != "receipt":
        pass
    return message.receipt


async def hand_in(call: Any, one: report_pb2.Report) -> int:
    for message in report_messages(one):
        await call.write(message)
    got = await receipt(call)
    assert got.report_id == one.report_id
    return int(got.disposition)


async def hand_in_frame(call: Any, one: report_pb2.ReportFrame) -> list[int]:
    for message in frame_messages(one):
        await call.write(message)
    got = await receipt(call)
    assert got.frame_number == one.frame_number
    return list(got.dispositions)


async def status(call: Any) -> tuple[grpc.StatusCode, str]:
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  what is waited for rings no bell
            await anyio.sleep(0.002)


# ---- a collector under open access -----------------------------------------------------------


@pytest.fixture
async def collector() -> Collector:
    made = Collector(MemoryStore(), open_access=True)
    await made.create_study(STUDY.definition)
    await made.open_round(LARGE.definition)
    return made


@asynccontextmanager
async def opened(collector: Collector, **limits: Any) -> AsyncIterator[tuple[Any, Assembler]]:
    """A channel to it, and what puts its reports together."""
    assembler = Assembler(AssemblyLimits(**limits))
    async with (
        served(collector, assembler=assembler, drain_s=0.1) as ports,
        reached(ports.collector) as channel,
    ):
        yield channel, assembler


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


# ---- what is not a report in chunks ----------------------------------------------------------


def chunk(at: int, length: int | None = None, *, who: int = 1, **changes: Any) -> Any:
    """Bytes `at` to `at + length` of a report; by default the chunk that starts there."""
    words = report(who).words
    length = CHUNK_BYTES if length is None else length
    return report_pb2.ReportChunk(
        **{
            "round_hash": LARGE.hash,
            "report_id": who.to_bytes(16, "big"),
            "offset": at,
            "words": words[at : at + length],
            **changes,
        }
    )


MIB = CHUNK_BYTES
SMALL = report_pb2.Report(round_hash=LARGE.hash, report_id=bytes(16), words=bytes(4))
BROKEN = {
    "a gap": ([chunk(0), chunk(2 * MIB)], "the next chunk starts at byte 1048576, got 2097152"),
    "an overlap": ([chunk(0), chunk(MIB - 4)], "the next chunk starts at byte 1048576, got 1048572"),
    "twice": ([chunk(0), chunk(0)], "the next chunk starts at byte 1048576, got 0"),
    "not from its start": ([chunk(MIB)], "the next chunk starts at byte 0, got 1048576"),
    "another report in between": (
        [chunk(0), chunk(MIB, who=2)],
        "a report's chunks must all come, and be alike, before another report",
    ),
    "another round in between": (
        [chunk(0), chunk(MIB, round_hash=bytes(32))],
        "a report's chunks must all come, and be alike, before another report",
    ),
    "a whole report in between": (
        [chunk(0), SMALL],
        "a report must be whole before anything else: 1048576 of 2400004 bytes came",
    ),
    "too small": (
        [chunk(0), chunk(MIB, 4)],
        "the chunk at byte 1048576 of 2400004 has 1048576 bytes of words, got 4",
    ),
    "empty": (
        [chunk(0), chunk(MIB, 0)],
        "the chunk at byte 1048576 of 2400004 has 1048576 bytes of words, got 0",
    ),
    "too large": (
        [chunk(0, MIB + 4)],
        "the chunk at byte 0 of 2400004 has 1048576 bytes of words, got 1048580",
    ),
    "too many bytes": (
        [chunk(0), chunk(MIB), chunk(2 * MIB, words=bytes(SIZE - 2 * MIB + 4))],
        "the chunk at byte 2097152 of 2400004 has 302852 bytes of words, got 302856",
    ),
    "too few bytes": (
        [chunk(0), chunk(MIB), chunk(2 * MIB, words=bytes(4))],
        "the chunk at byte 2097152 of 2400004 has 302852 bytes of words, got 4",
    ),
    "a broken id": ([chunk(0, report_id=bytes(15))], "a report id is 16 bytes, got 15"),
    "the end": (
        [chunk(0), chunk(MIB), None],
        "a report must be whole before anything else: 2097152 of 2400004 bytes came",
    ),
}  # fmt: skip


@pytest.mark.parametrize("stream", ["visit", "frames"])
@pytest.mark.parametrize("name", BROKEN)
async def test_chunks_that_are_not_one_report_in_order_end_the_call_and_count_nothing(
    collector: Collector, name: str, stream: str
) -> None:
    messages, text = BROKEN[name]
    async with opened(collector) as (channel, assembler):
        call = await (visiting if stream == "visit" else submitting)(channel)
        for message in messages:
            if message is None:
                await call.done_writing()
            elif isinstance(message, report_pb2.ReportChunk):
                kind = collector_pb2.VisitRequest if stream == "visit" else SUBMIT
                await call.write(kind(chunk=message))
            elif stream == "visit":
                await call.write(collector_pb2.VisitRequest(report=message))
            else:
                await call.write(SUBMIT(frame=report_pb2.ReportFrame()))

        assert await status(call) == (grpc.StatusCode.INVALID_ARGUMENT, text)
        await until(lambda: assembler.space.used == 0)
    assert (await collector.totals(LARGE.hash)).reports == 0


SUBMIT = collector_pb2.SubmitFramesRequest


async def test_a_report_that_fits_one_message_comes_in_no_chunks_and_the_reverse(
    collector: Collector,
) -> None:
    edge = LARGEST_FRAMED_BYTES // 4
    fits = await collector.open_round(a_round(2, dimension=edge).definition)
    just_not = await collector.open_round(a_round(3, dimension=edge + 1).definition)
    one = report_pb2.Report(round_hash=fits.hash, report_id=bytes(16), words=bytes(4 * edge))
    other = report_pb2.Report(
        round_hash=just_not.hash, report_id=bytes(16), words=bytes(4 * edge + 4)
    )

    async with opened(collector) as (channel, _):
        device = await visiting(channel)
        assert await hand_in(device, one) == ACCEPTED
        assert await hand_in(device, other) == ACCEPTED

        await device.write(
            collector_pb2.VisitRequest(
                chunk=report_pb2.ReportChunk(
                    round_hash=fits.hash, report_id=bytes(16), words=one.words
                )
            )
        )
        assert await status(device) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "a report of 1048560 bytes fits one message, and comes in no chunks",
        )
        device = await visiting(channel)
        await device.write(collector_pb2.VisitRequest(report=other))
        assert await status(device) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "a report of 1048564 bytes comes in chunks: one message holds 1048560",
        )


async def test_an_unknown_round_and_a_chunk_with_too_much_in_it_end_the_call_at_once(
    collector: Collector,
) -> None:
    async with opened(collector) as (channel, _):
        device = await visiting(channel)
        await device.write(collector_pb2.VisitRequest(chunk=chunk(0, round_hash=bytes(32))))
        assert (await status(device))[0] is grpc.StatusCode.NOT_FOUND

        device = await visiting(channel)
        await device.write(collector_pb2.VisitRequest(chunk=chunk(0, device_id=bytes(16))))
        assert (await status(device))[0] is grpc.StatusCode.INVALID_ARGUMENT


# ---- reports that need not be looked at ------------------------------------------------------


async def test_reports_to_a_closed_round_take_no_memory_and_are_told_so(
    collector: Collector,
) -> None:
    await collector.close_round(LARGE.hash)
    async with (
        opened(collector, memory_bytes=1) as (channel, assembler),
        assembler.space.taken(1),
    ):
        device, gateway = await visiting(channel), await submitting(channel)

        assert await hand_in(device, report(1)) == ROUND_CLOSED
        assert await hand_in_frame(gateway, frame(1)) == [ROUND_CLOSED]


async def test_a_round_that_closes_while_a_report_is_on_its_way_does_not_count_it(
    collector: Collector,
) -> None:
    async with opened(collector) as (channel, assembler):
        device = await visiting(channel)
        first, *rest = report_messages(report(1))
        await device.write(first)
        await until(lambda: assembler.space.used > 0)

        await collector.close_round(LARGE.hash)
        for message in rest:
            await device.write(message)

        assert (await receipt(device)).disposition == ROUND_CLOSED
    assert (await collector.totals(LARGE.hash)).reports == 0


# ---- memory ----------------------------------------------------------------------------------


async def test_where_memory_is_used_up_a_report_waits_for_it(collector: Collector) -> None:
    async with opened(collector, memory_bytes=MEMORY) as (channel, assembler):
        one, two = await visiting(channel), await visiting(channel)
        first, *rest = report_messages(report(1))
        await one.write(first)
        await until(lambda: assembler.space.used == MEMORY)

        async with anyio.create_task_group() as tasks:

            async def late() -> None:
                assert await hand_in(two, report(2)) == ACCEPTED

            tasks.start_soon(late)
            await until(lambda: assembler.space.waiting == 1)
            for message in rest:
                await one.write(message)
            assert (await receipt(one)).disposition == ACCEPTED

        assert assembler.space.used == 0


async def test_who_waited_too_long_for_memory_is_told_to_come_later(collector: Collector) -> None:
    async with opened(collector, memory_bytes=MEMORY, wait_s=0.02) as (channel, assembler):
        one, two = await visiting(channel), await submitting(channel)
        first, *rest = report_messages(report(1))
        await one.write(first)
        await until(lambda: assembler.space.used == MEMORY)

        assert await hand_in_frame(two, frame(2)) == [TRY_LATER]
        for message in rest:
            await one.write(message)
        assert (await receipt(one)).disposition == ACCEPTED
        assert await hand_in_frame(two, frame(2)) == [ACCEPTED]


async def test_many_reports_at_once_in_little_memory_all_arrive(collector: Collector) -> None:
    async with opened(collector, memory_bytes=2 * MEMORY) as (channel, assembler):

        async def one(who: int) -> None:
            assert await hand_in(await visiting(channel), report(who)) == ACCEPTED

        async with anyio.create_task_group() as tasks:
            for who in range(6):
                tasks.start_soon(one, who)
        assert assembler.space.used == 0

    assert (await collector.totals(LARGE.hash)).reports == 6


async def test_a_sender_that_stalls_is_shown_out_and_its_memory_goes_to_the_next(
    collector: Collector,
) -> None:
    async with opened(collector, memory_bytes=MEMORY, stall_s=0.1) as (channel, assembler):
        stalled, other = await visiting(channel), await visiting(channel)
        await stalled.write(next(report_messages(report(1))))
        await until(lambda: assembler.space.used == MEMORY)

        assert await hand_in(other, report(2)) == ACCEPTED
        assert await status(stalled) == (
            grpc.StatusCode.UNAVAILABLE,
            "the next chunk did not come within 0.1 s; send the report again from its start",
        )
        assert assembler.space.used == 0


@pytest.mark.parametrize("while_waiting", [False, True])
async def test_whoever_leaves_in_the_middle_gives_its_memory_back(
    collector: Collector, while_waiting: bool
) -> None:
    async with opened(collector, memory_bytes=MEMORY) as (channel, assembler):
        one, two = await visiting(channel), await submitting(channel)
        await one.write(next(report_messages(report(1))))
        await until(lambda: assembler.space.used == MEMORY)
        if while_waiting:
            await two.write(next(frame_messages(frame(2))))
            await until(lambda: assembler.space.waiting == 1)
            two.cancel()
            await until(lambda: assembler.space.waiting == 0)
            assert assembler.space.used == MEMORY

        one.cancel()

        await until(lambda: assembler.space.used == 0)
        assert await hand_in(await visiting(channel), report(2)) == ACCEPTED
    assert (await collector.totals(LARGE.hash)).reports == 1


@pytest.fixture
def collected_by_hand() -> Iterator[None]:
    """Cycles of objects stay, as they do until the garbage collector happens to look."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collected_by_hand")
@pytest.mark.parametrize("end", ["stalls", "says something else", "ends", "leaves"])
async def test_a_call_that_fails_keeps_nothing_of_its_report_in_memory(
    collector: Collector, end: str
) -> None:
    async with opened(collector, stall_s=0.2) as (channel, assembler):
        device = await visiting(channel)
        await device.write(next(report_messages(report(1))))
        await until(lambda: assembler.space.used == MEMORY)
        await until(lambda: bool(arrays_of(DIMENSION)))

        if end == "says something else":
            await device.write(collector_pb2.VisitRequest(hello=collector_pb2.Hello()))
        elif end == "ends":
            await device.done_writing()
        elif end == "leaves":
            device.cancel()
        if end != "leaves":
            assert (await status(device))[0] is not grpc.StatusCode.OK

        await until(lambda: assembler.space.used == 0)
        await until(lambda: not arrays_of(DIMENSION))


def arrays_of(length: int) -> list[object]:
    """Objects of the collector that hold an array of this many words."""
    rows = (getattr(each, "_rows", None) for each in gc.get_objects())
    return [each for each in rows if isinstance(each, np.ndarray) and each.size == length]


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
