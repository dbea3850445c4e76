"""Enrolment with collectors that misbehave; with a real one it is in tests/server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from demur_client.connection import connected
from demur_client.enrolment import enrol, new_nonce
from demur_proto.errors import ConnectionLost, WireError
from demur_proto.v1 import collector_pb2


class Answering:
    """Answers every enrolment in the same way."""

    def __init__(self, answer: collector_pb2.EnrolResponse) -> None:
        self.asked: list[collector_pb2.EnrolRequest] = []
        self._answer = answer

    async def enrol(self, request: Any, context: Any) -> collector_pb2.EnrolResponse:
        self.asked.append(request)
        return self._answer


@asynccontextmanager
async def answering(**fields: bytes) -> AsyncIterator[tuple[Answering, grpc.aio.Channel]]:
    servicer = Answering(collector_pb2.EnrolResponse(**fields))
    server = grpc.aio.server()
    handler: Any = grpc.unary_unary_rpc_method_handler(
        servicer.enrol,
        request_deserializer=collector_pb2.EnrolRequest.FromString,
        response_serializer=collector_pb2.EnrolResponse.SerializeToString,
    )
    methods = grpc.method_handlers_generic_handler("demur_proto.v1.Collector", {"Enrol": handler})
    server.add_generic_rpc_handlers((methods,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with connected(f"127.0.0.1:{port}") as channel:
            yield servicer, channel
    finally:
        await server.stop(None)


async def test_the_token_and_the_nonce_are_sent_as_they_are() -> None:
    async with answering(device_id=bytes(16), secret=bytes(32)) as (servicer, channel):
        await enrol(channel, b"t" * 32, nonce=b"n" * 16)
        await enrol(channel, b"t" * 32)
        await enrol(channel, b"t" * 32)

    given, drawn, again = servicer.asked
    assert (given.protocol_version, given.token, given.nonce) == (1, b"t" * 32, b"n" * 16)
    assert len(drawn.nonce) == 16
    assert len({given.nonce, drawn.nonce, again.nonce}) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"device_id": bytes(15), "secret": bytes(32)},
        {"device_id": bytes(16), "secret": bytes(31)},
        {"device_id": bytes(48)},
    ],
)
async def test_an_answer_that_is_no_credential_is_refused(fields: dict[str, bytes]) -> None:
    async with answering(**fields) as (_, channel):
        with pytest.raises(WireError, match="the collector answered with no credential"):
            await enrol(channel, bytes(32))


async def test_a_collector_that_is_gone_is_one_clear_line() -> None:
    with pytest.raises(ConnectionLost, match="lost the collector"):
        async with connected("127.0.0.1:1") as nobody:
            await enrol(nobody, bytes(32))


def test_nonces_are_16_bytes_and_new_each_time() -> None:
    assert {len(new_nonce()) for _ in range(9)} == {16}
    assert len({new_nonce() for _ in range(9)}) == 9
