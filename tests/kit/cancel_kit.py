"""Calls that are cancelled."""

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import pytest


async def cancelled(wait_s: float, call: Callable[[], Awaitable[object]]) -> None:
    """Cancel a call after a while; a cancellation that leaks fails here, and would hang pytest."""
    try:
        with anyio.move_on_after(wait_s) as scope:
            await call()
    except asyncio.CancelledError:
        pytest.fail("the cancellation leaked out of its scope")
    assert scope.cancelled_caught
