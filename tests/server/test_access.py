"""Every rpc there is, with every credential that is not the right one, and with the right one."""

import hmac
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2

from access_kit import DEADLINE_S, OK, House, Outcome, opened, outcome, reached, shown
from demur_proto.errors import AccessError, ParameterError
from demur_proto.models.architectures import Softmax
from demur_proto.models.definition import ModelDefinition, define_model
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.transport.calls import REFUSED
from demur_proto.transport.credentials import DeviceCredential, NamedSecret
from demur_proto.v1 import analyst_pb2, collector_pb2
from demur_proto.wire.definition import Defined
from demur_server.collector.collector import Collector
from demur_server.grpc.access import (
    RULES,
    CredentialAccess,
    Kind,
    OpenAccess,
    caller_now,
    hash_secret,
    new_named,
)
from demur_server.grpc.serving import served
from demur_server.store.base import Role
from demur_server.store.memory import MemoryStore

Ask = Callable[..., Defined[Round]]

MODEL = define_model(ModelDefinition(architecture=Softmax(inputs=1, classes=2), theta=np.zeros(4)))
HEADER = analyst_pb2.ModelHeader(
    protocol_version=1, model_hash=MODEL.hash, size=len(MODEL.definition)
)

UNAUTHENTICATED: Outcome = (grpc.StatusCode.UNAUTHENTICATED, REFUSED)
PREFIX = "/demur_proto.v1."
ENROL = "/demur_proto.v1.Collector/Enrol"
OPEN_TO_ALL = {ENROL, "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/List"}


def paths_of(file: Any) -> list[str]:
    """Every rpc that a .proto file defines."""
    return [
        f"/{service.full_name}/{method.name}"
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]


COLLECTOR = paths_of(collector_pb2)
ANALYST = paths_of(analyst_pb2)
HEALTH = paths_of(health_pb2)


def test_every_rpc_has_a_rule_and_every_rule_an_rpc() -> None:
    later = {"/grpc.health.v1.Health/List"}  # newer versions of the package have it

    assert set(RULES) - later == set(COLLECTOR + ANALYST + HEALTH) - later
    assert len(COLLECTOR) >= 4
    assert len(ANALYST) >= 6


def test_no_rpc_but_enrolment_and_health_is_open_to_anybody() -> None:
    assert {path for path, kinds in RULES.items() if Kind.ANYBODY in kinds} == OPEN_TO_ALL


def requests(study: Defined[Study], asked: Defined[Round]) -> dict[str, bytes]:
    """What makes each call do something, in an order in which all of them can."""
    hello = collector_pb2.Hello(protocol_version=1, study_hash=study.hash)
    messages: dict[str, Any] = {
        "Collector/GetStudy": collector_pb2.GetStudyRequest(protocol_version=1),
        "Collector/GetModel": collector_pb2.GetModelRequest(
            protocol_version=1, model_hash=MODEL.hash
        ),
        "Collector/Visit": collector_pb2.VisitRequest(hello=hello),
        "Collector/SubmitFrames": collector_pb2.SubmitFramesRequest(hello=hello),
        "Analyst/CreateStudy": analyst_pb2.CreateStudyRequest(
            protocol_version=1, definition=study.definition
        ),
        "Analyst/ListStudies": analyst_pb2.ListStudiesRequest(protocol_version=1),
        "Analyst/PublishModel": analyst_pb2.PublishModelRequest(header=HEADER),
        "Analyst/OpenRound": analyst_pb2.OpenRoundRequest(definition=asked.definition),
        "Analyst/ListRounds": analyst_pb2.ListRoundsRequest(study_hash=study.hash),
        "Analyst/GetRound": analyst_pb2.GetRoundRequest(round_hash=asked.hash),
        "Analyst/CloseRound": analyst_pb2.CloseRoundRequest(round_hash=asked.hash),
        "Analyst/GetRelease": analyst_pb2.GetReleaseRequest(round_hash=asked.hash),
        "Analyst/WatchReleases": analyst_pb2.WatchReleasesRequest(study_hash=study.hash),
    }
    made = {PREFIX + name: message.SerializeToString() for name, message in messages.items()}
    health = health_pb2.HealthCheckRequest().SerializeToString()
    return made | dict.fromkeys(HEALTH, health)


@pytest.fixture
async def house(study: Defined[Study]) -> AsyncIterator[House]:
    async with opened(study) as made:
        yield made


async def test_the_right_credential_opens_every_rpc_and_no_other_opens_any(
    house: House, study: Defined[Study], ask: Ask
) -> None:
    """The table: every rpc of every service, on the port that serves it."""
    device, revoked, other = [await house.device() for _ in range(3)]
    gateway = await house.named("gateway", Role.GATEWAY)
    analyst = await house.named("analyst", Role.ANALYST)
    removed = await house.named("removed", Role.ANALYST)
    removed_gateway = await house.named("removed gateway", Role.GATEWAY)
    await house.revoke(revoked)
    await house.store.remove_credential("removed")
    await house.store.remove_credential("removed gateway")
    await house.access.refresh()
    right: dict[str, list[DeviceCredential | NamedSecret]] = {
        PREFIX + "Collector/GetStudy": [device, gateway],
        PREFIX + "Collector/GetModel": [device, gateway],
        PREFIX + "Collector/Visit": [device],
        PREFIX + "Collector/SubmitFrames": [gateway],
        **{path: [analyst] for path in ANALYST},
    }
    flipped = bytearray(device.wire)
    flipped[-1] ^= 1
    wrong: dict[str, list[tuple[str, str | bytes]]] = {
        "none": [],
        "under another name": [("demur-credential", device.wire.hex())],
        "a named one that nobody gave out": [*shown(secrets.token_bytes(32))],
        "a device's that nobody gave out": [*shown(secrets.token_bytes(48))],
        "one bit off": [*shown(bytes(flipped))],
        "another device's secret": [*shown(device.device_id + other.secret)],
        "the hash that the store keeps": [*shown(hash_secret(analyst.secret))],
        "zeros": [*shown(bytes(48))],
        "text": [*shown(device.text.encode())],
        "text of a named one": [*shown(analyst.text.encode())],
        "a secret in hexadecimal": [*shown(analyst.secret.hex().encode())],
        "twice": [*shown(device, device)],
        "two": [*shown(analyst, gateway)],
        "of a revoked device": [*shown(revoked)],
        "a removed analyst's": [*shown(removed)],
        "a removed gateway's": [*shown(removed_gateway)],
        **{f"{length} bytes": [*shown(bytes(length))] for length in (0, 1, 16, 31, 33, 47, 49, 80)},
        **{
            f"{length} bytes of a right one": [*shown(device.wire[:length])]
            for length in (16, 32, 47)
        },
    }
    people: dict[str, DeviceCredential | NamedSecret] = {
        "a device's": device,
        "a gateway's": gateway,
        "an analyst's": analyst,
    }
    messages = requests(study, ask(1))
    await house.collector.models.publish(MODEL.hash, MODEL.definition)
    checked = 0
    assert set(messages) == {*COLLECTOR, *ANALYST, *HEALTH} - {ENROL}

    async with (
        reached(house.ports.collector) as devices,
        reached(house.ports.analyst) as analysts,
    ):
        for path, request in messages.items():
            if path in OPEN_TO_ALL:
                continue
            channel = devices if path in COLLECTOR else analysts
            for name, metadata in wrong.items():
                assert await outcome(channel, path, request, metadata) == UNAUTHENTICATED, (
                    path,
                    name,
                )
                # Nobody waits for a request before the refusal, and an unreadable one changes nothing.
                assert await outcome(channel, path, None, metadata) == UNAUTHENTICATED, (path, name)
                assert await outcome(channel, path, b"\xff", metadata) == UNAUTHENTICATED
                checked += 1
            if path in HEALTH:
                continue
            for name, credential in people.items():
                if credential not in right[path]:
                    got = await outcome(channel, path, request, shown(credential))
                    assert got == UNAUTHENTICATED, (path, name)
        for path, request in messages.items():
            channel = devices if path in COLLECTOR else analysts
            if path in OPEN_TO_ALL:
                assert await outcome(channel, path, request) == OK, path
            for each in right.get(path, [device]):
                assert await outcome(channel, path, request, shown(each)) == OK, path

    assert checked == len(wrong) * len({*COLLECTOR, *ANALYST, *HEALTH} - OPEN_TO_ALL)


async def test_a_wrong_token_is_refused_with_the_same_status_and_text(house: House) -> None:
    async def enrolling(token: bytes, nonce: bytes = bytes(16)) -> Outcome:
        request = collector_pb2.EnrolRequest(protocol_version=1, token=token, nonce=nonce)
        return await outcome(channel, ENROL, request.SerializeToString())

    async with reached(house.ports.collector) as channel:
        for token in (b"", bytes(31), bytes(32), bytes(33), bytes(48), secrets.token_bytes(32)):
            assert await enrolling(token) == UNAUTHENTICATED
        used = await house.token()
        assert await enrolling(used) == OK
        assert await enrolling(used) == OK
        assert await enrolling(used, bytes(15) + b"\x01") == UNAUTHENTICATED
        assert await enrolling(used.hex().encode()) == UNAUTHENTICATED
        # The rest of a request is judged without a look at the token.
        for token in (used, bytes(32)):
            code, details = await enrolling(token, bytes(15))
            assert (code, details) == (
                grpc.StatusCode.INVALID_ARGUMENT,
                "a nonce is 16 bytes, got 15",
            )


async def test_neither_port_has_the_others_rpcs(house: House) -> None:
    device = await house.device()
    analyst = await house.named("analyst", Role.ANALYST)

    for port, paths in ((house.ports.collector, ANALYST), (house.ports.analyst, COLLECTOR)):
        async with reached(port) as channel:
            for path in paths:
                for metadata in ([], shown(device), shown(analyst)):
                    code, _ = await outcome(channel, path, b"", metadata)
                    assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_a_credential_of_another_collector_is_worth_nothing(
    house: House, study: Defined[Study], ask: Ask
) -> None:
    path = PREFIX + "Collector/GetStudy"
    async with opened(study) as elsewhere, reached(house.ports.collector) as channel:
        strangers: list[Any] = [
            await elsewhere.device(),
            await elsewhere.named("gateway", Role.GATEWAY),
        ]
        for stranger in strangers:
            got = await outcome(channel, path, requests(study, ask(1))[path], shown(stranger))
            assert got == UNAUTHENTICATED


async def test_who_is_revoked_during_a_call_is_shown_out_of_it(
    house: House, study: Defined[Study], ask: Ask
) -> None:
    device, stays = await house.device(), await house.device()
    gateway = await house.named("gateway", Role.GATEWAY)
    analyst = await house.named("analyst", Role.ANALYST)
    messages = requests(study, ask(1))
    await house.collector.models.publish(MODEL.hash, MODEL.definition)

    async def until_the_end(
        channel: grpc.aio.Channel, path: str, who: DeviceCredential | NamedSecret
    ) -> Outcome:
        raw: Any = channel.stream_stream(PREFIX + path)
        call = raw(metadata=tuple(shown(who)), timeout=DEADLINE_S)
        await call.write(messages[PREFIX + path])
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        return OK

    ended: dict[str, Outcome] = {}

    async def stay(channel: grpc.aio.Channel, path: str, who: Any) -> None:
        ended[path] = await until_the_end(channel, path, who)

    async with (
        reached(house.ports.collector) as devices,
        reached(house.ports.analyst) as analysts,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(stay, devices, "Collector/Visit", device)
        tasks.start_soon(stay, devices, "Collector/SubmitFrames", gateway)
        tasks.start_soon(stay, analysts, "Analyst/WatchReleases", analyst)
        raw: Any = devices.stream_stream(PREFIX + "Collector/Visit")
        staying = raw(metadata=tuple(shown(stays)), timeout=DEADLINE_S)
        await staying.write(messages[PREFIX + "Collector/Visit"])
        await staying.read()
        await anyio.sleep(0.1)
        assert not ended

        await house.revoke(device)
        for name in ("gateway", "analyst"):
            await house.store.remove_credential(name)
        with anyio.fail_after(DEADLINE_S):  # it is noticed once a second
            while len(ended) < 3:  # noqa: ASYNC110  a test waits for other tasks' ends
                await anyio.sleep(0.02)

        assert set(ended.values()) == {UNAUTHENTICATED}
        await house.collector.open_round(ask(1).definition)
        pushed = collector_pb2.VisitResponse.FromString(await staying.read())
        assert pushed.WhichOneof("message") == "opened_round"
        staying.cancel()


async def test_nobody_is_let_in_before_it_is_known_who_was_revoked() -> None:
    store = MemoryStore()
    fresh = CredentialAccess(store, master_key=bytes(32))
    secret, kept = new_named("analyst", Role.ANALYST)
    await store.add_credential(kept)
    metadata = shown(secret)

    with pytest.raises(AccessError):
        fresh.admit(PREFIX + "Analyst/GetRound", metadata)
    await fresh.refresh()

    assert fresh.admit(PREFIX + "Analyst/GetRound", metadata).kind is Kind.ANALYST


async def test_a_name_given_to_somebody_else_does_not_let_the_first_one_stay(
    house: House,
) -> None:
    first = await house.named("analyst", Role.ANALYST)
    caller = house.access.admit(PREFIX + "Analyst/GetRound", shown(first))

    await house.store.remove_credential("analyst")
    await house.named("analyst", Role.ANALYST)

    assert not house.access.still_admits(caller)


async def test_a_method_without_a_rule_is_refused_to_everybody(house: House) -> None:
    device = await house.device()

    for access, metadata in ((house.access, shown(device)), (OpenAccess(), [])):
        with pytest.raises(AccessError, match="not let in"):
            access.admit("/demur_proto.v1.Collector/New", metadata)


async def test_every_named_credential_is_compared_whichever_it_is(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = [await house.named(f"analyst {i}", Role.ANALYST) for i in range(5)]
    compared = 0
    compare = hmac.compare_digest

    def counting(a: bytes, b: bytes) -> bool:
        nonlocal compared
        compared += 1
        return compare(a, b)

    monkeypatch.setattr("hmac.compare_digest", counting)
    for each in (people[0], people[4], bytes(32)):
        compared = 0
        try:
            house.access.admit(PREFIX + "Analyst/GetRound", shown(each))
        except AccessError:
            assert each == bytes(32)
        assert compared == 5


def test_a_task_that_serves_nobody_has_no_caller() -> None:
    with pytest.raises(LookupError):
        caller_now()


# ---- open access -----------------------------------------------------------------------------


async def test_under_open_access_every_rpc_answers_without_a_credential(
    study: Defined[Study], ask: Ask
) -> None:
    collector = Collector(MemoryStore(), open_access=True)
    async with (
        served(collector) as ports,
        reached(ports.collector) as devices,
        reached(ports.analyst) as analysts,
    ):
        await collector.create_study(study.definition)
        await collector.models.publish(MODEL.hash, MODEL.definition)
        for path, request in requests(study, ask(1)).items():
            channel = devices if path in COLLECTOR else analysts
            assert await outcome(channel, path, request) == OK, path
        enrol = collector_pb2.EnrolRequest(protocol_version=1, token=bytes(32), nonce=bytes(16))
        code, details = await outcome(devices, ENROL, enrol.SerializeToString())

    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert details == "this collector takes reports from anybody: there is nothing to enrol for"


async def test_what_a_collector_is_made_for_and_how_it_is_served_must_agree() -> None:
    credentials = CredentialAccess(MemoryStore(), master_key=bytes(32))

    for collector, access in (
        (Collector(MemoryStore()), None),
        (Collector(MemoryStore()), OpenAccess()),
        (Collector(MemoryStore(), open_access=True), credentials),
    ):
        with pytest.raises(ParameterError, match="access must be that of the collector"):
            async with served(collector, access=access):
                pass


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
async def test_nothing_but_loopback_is_served_without_being_asked_to(host: str) -> None:
    credentials = CredentialAccess(MemoryStore(), master_key=bytes(32))

    changes: Any
    for changes in ({"host": host}, {"analyst_host": host or "0.0.0.0"}):
        with pytest.raises(ParameterError, match="a loopback address as long as there is no cert"):
            async with served(Collector(MemoryStore()), access=credentials, **changes):
                pass
        with pytest.raises(ParameterError, match="under open access whoever reaches it is let in"):
            async with served(
                Collector(MemoryStore(), open_access=True), insecure_plaintext=True, **changes
            ):
                pass


async def test_plaintext_beyond_this_machine_is_served_when_asked_for_in_so_many_words(
    study: Defined[Study], ask: Ask
) -> None:
    async with (
        opened(study, host="0.0.0.0", insecure_plaintext=True) as house,
        reached(house.ports.collector) as channel,
    ):
        path = PREFIX + "Collector/GetStudy"
        request = requests(study, ask(1))[path]

        assert await outcome(channel, path, request, shown(await house.device())) == OK
        assert await outcome(channel, path, request) == UNAUTHENTICATED
