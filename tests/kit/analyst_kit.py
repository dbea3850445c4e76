"""What the tests of an analyst share: reports to their rounds, refusals, releases that they watch."""

from collections.abc import Callable
from typing import Any

import anyio
import grpc
import numpy as np
import pytest

from demur_proto.errors import DemurError
from demur_proto.queries import Feature
from demur_proto.release import Release
from demur_proto.round import Round
from demur_proto.transport.calls import error_of
from demur_proto.wire.definition import Defined
from demur_proto.wire.words import encode_words
from demur_server.analyst import Analyst
from demur_server.collector.collector import Collector

DEADLINE_S = 10.0

Ask = Callable[..., Defined[Round]]
X = Feature(name="x")


async def send(collector: Collector, asked: Defined[Round], *words: int) -> None:
    """One report a word, from devices 0, 1, 2…"""
    ids = b"".join(who.to_bytes(16, "big") for who in range(len(words)))
    encoded = encode_words(np.array(words).reshape(-1, 1), asked.value.word_type)
    await collector.intake.submit(asked.hash, ids, encoded)


async def refusal(call: Any) -> DemurError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_of(caught.value, peer="the collector")


async def watched(analyst: Analyst, count: int, *, from_number: int = 1) -> list[Release]:
    releases: list[Release] = []
    with anyio.fail_after(DEADLINE_S):
        async for release in analyst.watch(from_number=from_number):
            releases.append(release)
            if len(releases) == count:
                break
    return releases
