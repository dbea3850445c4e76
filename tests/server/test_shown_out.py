"""Revoked in the middle of a visit, whatever the collector is at: its caller learns of it."""

from collections.abc import Callable

import anyio
import grpc
import pytest

from access_kit import CROSSED, House, opened, reached
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.transport.credentials import DeviceCredential
from demur_proto.wire.definition import Defined
from demur_server.grpc import serving
from serve_kit import answer

DEVICES = 120  #: one in fourteen hung, when the first message took the call's headers along
LONGEST_S = 3.0  #: how long all visits of a device may take; a refresh comes every 4 ms


async def test_whoever_is_revoked_at_any_moment_of_a_visit_gets_a_status(
    study: Defined[Study], ask: Callable[..., Defined[Round]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "REFRESH_S", 0.004)
    async with opened(study) as house, reached(house.ports.collector) as channel:
        await house.collector.open_round(ask(1).definition)
        for turn in range(DEVICES):
            device = await house.device()
            await answer(channel, device, study, word=5)
            with anyio.fail_after(LONGEST_S):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_revoke, house, device, 0.0005 * (turn % 17))
                    assert await _refusal(channel, device, study) == "UNAUTHENTICATED"


async def _revoke(house: House, device: DeviceCredential, after_s: float) -> None:
    await anyio.sleep(after_s)
    await house.revoke(device)


async def _refusal(
    channel: grpc.aio.Channel, device: DeviceCredential, study: Defined[Study]
) -> str:
    """Bring the same report again and again, until it is refused; with which status."""
    while True:
        try:
            await answer(channel, device, study, word=5)
        except grpc.aio.AioRpcError as error:
            if (error.code(), error.details()) != CROSSED:
                return error.code().name
