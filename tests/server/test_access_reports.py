"""Who made a report: enrolment, visits, and proofs in the frames of gateways."""

import hashlib
import hmac
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from access_kit import DEADLINE_S, OK, House, Outcome, opened, reached, shown
from agent_kit import visit
from demur_client.agent import fetch_study
from demur_client.device import Device
from demur_client.enrolment import enrol, new_nonce
from demur_proto.arrays import Values
from demur_proto.errors import AccessError, ParameterError, StateError, StorageError
from demur_proto.queries import Feature, Linear
from demur_proto.release import Withheld
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.transport.credentials import DeviceCredential, NamedSecret
from demur_proto.v1 import collector_pb2, collector_pb2_grpc, report_pb2
from demur_proto.wire.definition import Defined
from demur_proto.wire.frames import MAXIMUM_FRAME_REPORTS
from demur_proto.wire.hmacs import prepare_key
from demur_proto.wire.words import encode_words
from demur_server.analyst import Analyst
from demur_server.collector.collector import Collector
from demur_server.grpc.access import Enrolment, check_senders, device_secrets, hash_secret
from demur_server.grpc.serving import served
from demur_server.store.base import DeviceState, Role
from demur_server.store.memory import MemoryStore
from demur_sim.engine.sampling import FastSampler

ACCEPTED = report_pb2.DISPOSITION_ACCEPTED
DUPLICATE = report_pb2.DISPOSITION_DUPLICATE
CONFLICT = report_pb2.DISPOSITION_CONFLICT
ROUND_CLOSED = report_pb2.DISPOSITION_ROUND_CLOSED
INVALID = report_pb2.DISPOSITION_INVALID

Ask = Callable[..., Defined[Round]]


@pytest.fixture
async def house(study: Defined[Study]) -> AsyncIterator[House]:
    async with opened(study) as made:
        yield made


@pytest.fixture
async def channel(house: House) -> AsyncIterator[grpc.aio.Channel]:
    async with reached(house.ports.collector) as made:
        yield made


# ---- enrolment -------------------------------------------------------------------------------


async def test_a_device_enrols_once_with_a_token_and_fetches_the_study(
    house: House, channel: grpc.aio.Channel, study: Defined[Study]
) -> None:
    token = await house.token()

    credential = await enrol(channel, token)

    assert await house.store.device_state(credential.device_id) is DeviceState.ENROLLED
    assert await fetch_study(channel, credential=credential) == study
    with pytest.raises(AccessError, match="not let in"):
        await enrol(channel, token)
    with pytest.raises(AccessError, match="not let in"):
        await fetch_study(channel)


async def test_a_lost_answer_is_asked_for_again_with_the_same_nonce(
    house: House, channel: grpc.aio.Channel
) -> None:
    token, nonce = await house.token(), new_nonce()

    answers = [await enrol(channel, token, nonce=nonce) for _ in range(3)]

    assert answers[0] == answers[1] == answers[2]


async def test_many_who_use_one_token_at_once_make_one_device(
    house: House, channel: grpc.aio.Channel
) -> None:
    token = await house.token()
    got: list[DeviceCredential] = []
    refused: list[AccessError] = []

    async def try_it() -> None:
        try:
            got.append(await enrol(channel, token))
        except AccessError as error:
            refused.append(error)

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(try_it)

    assert len(got) == 1
    assert len(refused) == 19


async def test_what_is_given_at_enrolment_follows_from_the_master_key() -> None:
    master, token, nonce = bytes(range(32)), bytes(range(50, 82)), bytes(range(16))
    store = MemoryStore()
    await store.add_token(hashlib.sha256(token).digest())

    credential = await Enrolment(store, master_key=master).enrol(token, nonce)

    whole = hmac.digest(master, b"demur.enrol\x00" + token + nonce, "sha256")
    secret = hmac.digest(master, b"demur.device\x00" + whole[:16], "sha256")
    assert (credential.device_id, credential.secret) == (whole[:16], secret)


async def test_a_store_in_trouble_is_no_refusal_and_the_same_nonce_works_later(
    study: Defined[Study],
) -> None:
    class Full(MemoryStore):
        full = True

        async def redeem_token(
            self, token_hash: bytes, *, nonce_hash: bytes, device_id: bytes
        ) -> bool:
            if self.full:
                raise StorageError("the disk is full")
            return await super().redeem_token(
                token_hash, nonce_hash=nonce_hash, device_id=device_id
            )

    store = Full()
    await store.add_token(hash_secret(bytes(32)))
    enrolment = Enrolment(store, master_key=bytes(32))

    with pytest.raises(StorageError):
        await enrolment.enrol(bytes(32), bytes(16))
    store.full = False

    assert await enrolment.enrol(bytes(32), bytes(16))


@pytest.mark.parametrize(("token", "nonce"), [(31, 16), (0, 16), (32, 15), (32, 17)])
async def test_what_cannot_be_a_token_or_nonce_is_not_sent(
    channel: grpc.aio.Channel, token: int, nonce: int
) -> None:
    with pytest.raises(ParameterError, match=r"(token|nonce) must be \d\d bytes"):
        await enrol(channel, bytes(token), nonce=bytes(nonce))


async def test_under_open_access_nobody_enrols() -> None:
    async with (
        served(Collector(MemoryStore(), open_access=True)) as ports,
        reached(ports.collector) as channel,
    ):
        with pytest.raises(StateError, match="there is nothing to enrol for"):
            await enrol(channel, bytes(32))


# ---- visits ----------------------------------------------------------------------------------


def report(asked: Defined[Round], report_id: bytes, *words: int) -> report_pb2.Report:
    return report_pb2.Report(
        round_hash=asked.hash,
        report_id=report_id,
        words=encode_words(np.array([words]), asked.value.word_type),
    )


def numbered(number: int) -> bytes:
    return number.to_bytes(16, "big")


async def visiting(
    channel: grpc.aio.Channel, study: Defined[Study], credential: DeviceCredential
) -> Any:
    stub: Any = collector_pb2_grpc.CollectorStub(channel)
    call = stub.Visit(metadata=shown(credential), timeout=DEADLINE_S)
    hello = collector_pb2.Hello(protocol_version=1, study_hash=study.hash)
    await call.write(collector_pb2.VisitRequest(hello=hello))
    await call.read()
    return call


async def hand_in(call: Any, one: report_pb2.Report) -> int:
    await call.write(collector_pb2.VisitRequest(report=one))
    while (message := await call.read()).WhichOneof("message") != "receipt":
        pass
    return int(message.receipt.disposition)


async def test_one_device_has_one_report_in_a_round_however_often_it_visits(
    house: House, channel: grpc.aio.Channel, study: Defined[Study], ask: Ask
) -> None:
    asked = await house.collector.open_round(ask(1).definition)
    one, other = await house.device(), await house.device()

    first = await visiting(channel, study, one)
    assert await hand_in(first, report(asked, numbered(1), 5)) == ACCEPTED
    assert await hand_in(first, report(asked, numbered(2), 6)) == CONFLICT
    again = await visiting(channel, study, one)
    assert await hand_in(again, report(asked, numbered(3), 5)) == CONFLICT
    assert await hand_in(again, report(asked, numbered(1), 5)) == DUPLICATE
    # Nor does it help to take somebody else's id, known or guessed.
    stranger = await visiting(channel, study, other)
    assert await hand_in(stranger, report(asked, numbered(1), 5)) == CONFLICT

    release = await house.collector.close_round(asked.hash)
    assert release.reports == 1
    assert release.withheld is Withheld.BELOW_MINIMUM_COHORT  # two devices, of which one counted


async def test_in_another_round_the_same_device_counts_again(
    house: House, channel: grpc.aio.Channel, study: Defined[Study], ask: Ask
) -> None:
    asked = [await house.collector.open_round(ask(number).definition) for number in (1, 2)]
    call = await visiting(channel, study, await house.device())

    got = [await hand_in(call, report(each, numbered(7), 1)) for each in asked]

    assert got == [ACCEPTED, ACCEPTED]


class Ones:
    """A source whose every feature is 1."""

    def evaluate(self, feature: object) -> Values:
        return np.ones((1, 1))


async def test_real_devices_with_real_credentials_make_a_release(
    house: House, channel: grpc.aio.Channel, study: Defined[Study], ask: Ask
) -> None:
    analyst = await house.named("analyst", Role.ANALYST)
    credentials = [await enrol(channel, await house.token()) for _ in range(3)]
    rng = np.random.default_rng(7)

    async with (
        reached(house.ports.analyst),
        Analyst.create(
            f"127.0.0.1:{house.ports.analyst}", study.value, credential=analyst, answer_after_ms=0
        ) as asking,
        anyio.create_task_group() as tasks,
    ):
        for credential in credentials:
            device = Device(study, Ones(), FastSampler(rng.spawn(1)[0]))
            work = visit(device, channel, last_round=1, credential=credential)
            tasks.start_soon(_awaited, work)
        release = await asking.ask(Linear([Feature(name="x")], on_grid=True), reports=3)

    assert release.reports == 3
    assert "not authenticated" not in release.guarantee


async def _awaited(work: Any) -> None:
    await work


async def test_a_refused_device_is_told_so_and_a_refused_analyst_too(
    house: House, channel: grpc.aio.Channel, study: Defined[Study]
) -> None:
    device = Device(study, Ones(), FastSampler(np.random.default_rng(1)))
    credential = await house.device()
    await house.revoke(credential)
    await house.access.refresh()

    with pytest.raises(AccessError, match="not let in"):
        await visit(device, channel, credential=credential)
    with pytest.raises(AccessError, match="not let in"):
        async with Analyst.create(
            f"127.0.0.1:{house.ports.analyst}",
            study.value,
            credential=NamedSecret(secret=bytes(32)),
        ):
            pass


# ---- frames ----------------------------------------------------------------------------------


def proof_of(
    credential: DeviceCredential, round_hash: bytes, report_id: bytes, words: bytes
) -> bytes:
    """By the words of the schema, and not by our code."""
    message = b"demur.report\x00" + round_hash + report_id + hashlib.sha256(words).digest()
    return hmac.new(credential.secret, message, hashlib.sha256).digest()[:16]


def proven_frame(
    asked: Defined[Round],
    makers: list[DeviceCredential],
    words: list[int],
    *,
    ids: list[bytes] | None = None,
    number: int = 1,
) -> report_pb2.ReportFrame:
    ids = [maker.device_id[::-1] for maker in makers] if ids is None else ids
    encoded = [encode_words(np.array([[word]]), asked.value.word_type) for word in words]
    return report_pb2.ReportFrame(
        frame_number=number,
        round_hash=asked.hash,
        report_ids=b"".join(ids),
        words=b"".join(encoded),
        device_ids=b"".join(maker.device_id for maker in makers),
        proofs=b"".join(
            proof_of(maker, asked.hash, each, data)
            for maker, each, data in zip(makers, ids, encoded, strict=True)
        ),
    )


@pytest.fixture
async def gateway(house: House, channel: grpc.aio.Channel, study: Defined[Study]) -> Any:
    secret = await house.named("gateway", Role.GATEWAY)
    stub: Any = collector_pb2_grpc.CollectorStub(channel)
    call = stub.SubmitFrames(metadata=shown(secret), timeout=DEADLINE_S)
    hello = collector_pb2.Hello(protocol_version=1, study_hash=study.hash)
    await call.write(collector_pb2.SubmitFramesRequest(hello=hello))
    await call.read()
    return call


async def hand_in_frame(call: Any, frame: report_pb2.ReportFrame) -> list[int]:
    await call.write(collector_pb2.SubmitFramesRequest(frame=frame))
    while (message := await call.read()).WhichOneof("message") != "receipt":
        pass
    return list(message.receipt.dispositions)


async def how_it_ends(call: Any) -> Outcome:
    """The status of a stream; whatever comes before is passed over."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return OK


async def test_a_frame_counts_what_is_proven_and_nothing_else(
    house: House, gateway: Any, ask: Ask
) -> None:
    asked = await house.collector.open_round(ask(1).definition)
    other_round = ask(2)
    makers = [await house.device() for _ in range(9)]
    frame = proven_frame(asked, makers, [1 << i for i in range(9)])
    proofs = [frame.proofs[at : at + 16] for at in range(0, 144, 16)]
    ids, data = makers[0].device_id[::-1], encode_words(np.array([[4]]), asked.value.word_type)
    proofs[1] = bytes(16)
    proofs[2] = proof_of(makers[2], other_round.hash, makers[2].device_id[::-1], data)
    proofs[3] = proof_of(makers[3], asked.hash, ids, data)  # of another id
    proofs[4] = proof_of(makers[4], asked.hash, makers[4].device_id[::-1], data)  # of other words
    proofs[5] = proof_of(makers[6], asked.hash, makers[5].device_id[::-1], frame.words[20:24])
    proofs[7] = bytes([proofs[7][0] ^ 1]) + proofs[7][1:]
    await house.revoke(makers[8])
    await house.access.refresh()
    frame.proofs = b"".join(proofs)

    got = await hand_in_frame(gateway, frame)

    assert got == [ACCEPTED, *[INVALID] * 5, ACCEPTED, INVALID, INVALID]
    assert (await house.collector.totals(asked.hash)).sums.tolist() == [1 + 64]


async def test_one_device_counts_once_whichever_way_its_reports_come(
    house: House, channel: grpc.aio.Channel, gateway: Any, study: Defined[Study], ask: Ask
) -> None:
    asked = await house.collector.open_round(ask(1).definition)
    one, two, three = [await house.device() for _ in range(3)]

    call = await visiting(channel, study, one)
    assert await hand_in(call, report(asked, numbered(1), 5)) == ACCEPTED
    by_gateway = proven_frame(
        asked,
        [one, one, two, two, three],
        [5, 5, 7, 7, 9],
        ids=[numbered(1), numbered(2), numbered(3), numbered(4), numbered(1)],
    )
    assert await hand_in_frame(gateway, by_gateway) == [
        DUPLICATE,  # the same report, another way
        CONFLICT,  # a second id
        ACCEPTED,
        CONFLICT,
        CONFLICT,  # somebody else's id
    ]
    assert (await house.collector.totals(asked.hash)).reports == 2


async def test_without_devices_or_proofs_a_frame_is_refused_whole(
    house: House, channel: grpc.aio.Channel, study: Defined[Study], ask: Ask
) -> None:
    asked = await house.collector.open_round(ask(1).definition)
    makers = [await house.device() for _ in range(2)]
    secret = await house.named("gateway", Role.GATEWAY)
    stub: Any = collector_pb2_grpc.CollectorStub(channel)
    good = proven_frame(asked, makers, [1, 2])

    for name, value, complaint in (
        ("device_ids", b"", "every report in a frame needs the id of its device, and a proof"),
        ("proofs", b"", "every report in a frame needs the id of its device, and a proof"),
        ("device_ids", bytes(31), "device ids are 16 bytes for each of 2 reports, got 31"),
        ("proofs", bytes(48), "proofs are 16 bytes for each of 2 reports, got 48"),
        ("words", b"", "0 bytes are no words of 2 reports"),
        ("words", bytes(7), "7 bytes are no words of 2 reports"),
    ):
        call = stub.SubmitFrames(metadata=shown(secret), timeout=DEADLINE_S)
        hello = collector_pb2.Hello(protocol_version=1, study_hash=study.hash)
        await call.write(collector_pb2.SubmitFramesRequest(hello=hello))
        frame = report_pb2.ReportFrame()
        frame.CopyFrom(good)
        setattr(frame, name, value)

        await call.write(collector_pb2.SubmitFramesRequest(frame=frame))
        assert await how_it_ends(call) == (grpc.StatusCode.INVALID_ARGUMENT, complaint)
    assert (await house.collector.totals(asked.hash)).reports == 0


async def test_the_largest_frame_with_all_its_proofs_is_taken(
    house: House, gateway: Any, ask: Ask
) -> None:
    asked = await house.collector.open_round(ask(1, dimension=60).definition)
    master = prepare_key(house.master_key)
    devices = [secrets.token_bytes(16) for _ in range(MAXIMUM_FRAME_REPORTS)]
    data = encode_words(np.ones((1, 60), dtype=np.int64), asked.value.word_type)
    frame = report_pb2.ReportFrame(
        round_hash=asked.hash,
        report_ids=b"".join(devices),
        device_ids=b"".join(devices),
        words=data * len(devices),
        proofs=b"".join(
            proof_of(DeviceCredential(device_id=d, secret=s), asked.hash, d, data)
            for d, s in zip(devices, device_secrets(master, devices), strict=True)
        ),
    )
    assert len(frame.report_ids) + len(frame.words) == 1 << 20

    assert await hand_in_frame(gateway, frame) == [ACCEPTED] * MAXIMUM_FRAME_REPORTS


async def test_a_frame_of_nothing_but_wrong_proofs_counts_nothing_even_after_the_end(
    house: House, gateway: Any, ask: Ask
) -> None:
    asked = await house.collector.open_round(ask(1).definition)
    maker, liar = await house.device(), DeviceCredential(device_id=bytes(16), secret=bytes(32))

    assert await hand_in_frame(gateway, proven_frame(asked, [liar, liar], [1, 2])) == [INVALID] * 2
    await house.collector.close_round(asked.hash)
    assert await hand_in_frame(gateway, proven_frame(asked, [liar, maker], [1, 2])) == [
        INVALID,
        ROUND_CLOSED,
    ]


@given(
    reports=st.integers(0, 40),
    size=st.sampled_from([4, 8, 40]),
    wrong=st.sets(st.integers(0, 39)),
    gone=st.sets(st.integers(0, 39)),
    seed=st.integers(0, 1 << 32),
)
def test_exactly_the_unproven_are_found(
    reports: int, size: int, wrong: set[int], gone: set[int], seed: int
) -> None:
    draw = np.random.default_rng(seed)
    master, round_hash = draw.bytes(32), draw.bytes(32)
    devices = [draw.bytes(16) for _ in range(reports)]
    words = [draw.bytes(size) for _ in range(reports)]
    proofs = []
    for i, (device, word) in enumerate(zip(devices, words, strict=True)):
        secret = hmac.digest(master, b"demur.device\x00" + device, "sha256")
        maker = DeviceCredential(device_id=device, secret=secret)
        proof = proof_of(maker, round_hash, device[::-1], word)
        proofs.append(draw.bytes(16) if i in wrong else proof)
    frame = report_pb2.ReportFrame(
        round_hash=round_hash,
        report_ids=b"".join(device[::-1] for device in devices),
        words=b"".join(words),
        device_ids=b"".join(devices),
        proofs=b"".join(proofs),
    )
    revoked = frozenset(device for i, device in enumerate(devices) if i in gone)

    found = check_senders(frame, prepare_key(master), reports=reports, revoked=revoked)

    assert found.unproven == tuple(sorted(i for i in wrong | gone if i < reports))
    assert found.devices == frame.device_ids
    assert found.payload_hashes == [hashlib.sha256(word).digest() for word in words]


# ---- words about it --------------------------------------------------------------------------


async def test_under_open_access_every_release_says_that_reports_were_not_authenticated(
    house: House, collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    """`collector` is the open one."""
    sentence = (
        "Reports were not authenticated: whoever reached the collector could send any number of "
        "them, so this holds only where 2 of them came from as many devices that added their noise."
    )
    asked = await collector.open_round(ask(1).definition)
    for ids in (numbered(1), numbered(1) + numbered(2)):
        await collector.intake.submit(asked.hash, ids, bytes(4 * (len(ids) // 16)))
    enough = await collector.close_round(asked.hash)
    empty = await collector.open_round(ask(2).definition)
    too_few = await collector.close_round(empty.hash)
    await house.collector.open_round(ask(1).definition)
    authenticated = await house.collector.close_round(ask(1).hash)

    assert (enough.withheld, too_few.withheld) == (
        Withheld.NOTHING,
        Withheld.BELOW_MINIMUM_COHORT,
    )
    assert enough.guarantee.endswith(sentence)
    assert too_few.guarantee.endswith(sentence)
    assert "authenticated" not in authenticated.guarantee


async def test_no_credential_token_or_proof_appears_in_logs_or_reprs(
    house: House,
    channel: grpc.aio.Channel,
    gateway: Any,
    study: Defined[Study],
    ask: Ask,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    asked = await house.collector.open_round(ask(1).definition)
    token = await house.token()
    device = await enrol(channel, token)
    named = await house.named("analyst", Role.ANALYST)
    frame = proven_frame(asked, [device], [3])
    await hand_in_frame(gateway, frame)
    await hand_in(await visiting(channel, study, device), report(asked, numbered(1), 4))
    for wrong in (None, DeviceCredential(device_id=device.device_id, secret=token)):
        with pytest.raises(AccessError):
            await fetch_study(channel, credential=wrong)
    with pytest.raises(AccessError):
        await enrol(channel, token)

    told = caplog.text + repr(device) + repr(named) + repr(house.access)
    for secret in (token, device.secret, device.wire, named.secret, frame.proofs):
        for written in (secret.hex(), repr(secret)[2:-1], repr(secret)):
            assert written not in told
