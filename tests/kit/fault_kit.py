"""What the tests of a failing store share: a round in it, and reports that are sent until they count."""

import logging

import anyio
import pytest

from demur_server.store.base import Batch
from demur_server.store.durable import DurableStore
from store_kit import STUDY, TRY_LATER, a_round

ASKED = a_round(STUDY)


async def with_round(store: DurableStore) -> DurableStore:
    await store.add_study(STUDY)
    await store.add_round(ASKED, sums_length=2)
    return store


async def settle(store: DurableStore, reports: Batch) -> list[int]:
    """Send again whatever is to be sent later, until it is not."""
    with anyio.fail_after(10):
        while True:
            told = await store.admit(ASKED.hash, reports)
            if TRY_LATER not in told:
                return told
            assert set(told) == {TRY_LATER}  # all of a batch or nothing
            await anyio.sleep(0.005)


def alarms(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def is_one_clear_line(error: BaseException) -> bool:
    return "\n" not in str(error) and 10 < len(str(error)) < 250
