"""The door of one port: lets calls in while there is room, and shows out who may no longer stay."""

import asyncio
from dataclasses import dataclass, field

import anyio

from demur_proto.checks import check_integer
from demur_proto.errors import BusyError
from demur_server.access import Access, Caller, Kind, MetadataItems

HEALTH = "/grpc.health.v1.Health/"  #: asked by anybody, it answers even when there is no room


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many calls may be open at once on one port. Every open stream is one.

    Raises:
        ParameterError: a limit is not an integer above zero.
    """

    all_calls: int = 10_000
    each_device: int = 8
    each_named: int = 1_000  #: of one analyst's or gateway's credential
    anybody: int = 256  #: without a credential, where others need one

    def __post_init__(self) -> None:
        for name in self.__slots__:
            check_integer(name, getattr(self, name), 1)


@dataclass(eq=False, slots=True, kw_only=True)
class OpenCall:
    """A call that was let in."""

    caller: Caller
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Around the work for it: cancelling it shows the caller out."""


class Door:
    """Counts the calls of one port, each for as long as gRPC attends to it."""

    def __init__(self, access: Access, *, limits: Limits) -> None:
        self._access = access
        self._limits = limits
        self._calls: dict[Caller, set[OpenCall]] = {}
        self._open = 0

    @property
    def open_calls(self) -> int:
        """How many calls there are now, health checks apart."""
        return self._open

    def enter(self, method: str, metadata: MetadataItems) -> OpenCall:
        """Let in the call that the current task attends to, until that task is done.

        Raises:
            AccessError: its caller may not make it.
            BusyError: there is no room.
        """
        call = OpenCall(caller=self._access.admit(method, metadata))
        task = asyncio.current_task()
        if task is None or (method.startswith(HEALTH) and call.caller.kind is Kind.ANYBODY):
            return call
        mine = self._calls.get(call.caller, set())
        if self._open >= self._limits.all_calls or len(mine) >= self._limit(call.caller):
            raise BusyError("too many calls at once; try again later")
        self._calls.setdefault(call.caller, mine).add(call)
        self._open += 1
        # Not when the servicer returns: it is not even asked before the request has come.
        task.add_done_callback(lambda _: self._leave(call))
        return call

    def show_out(self) -> None:
        """End the calls of those who may no longer stay."""
        for caller, calls in self._calls.items():
            if not self._access.still_admits(caller):
                for call in calls:
                    call.scope.cancel()

    def _leave(self, call: OpenCall) -> None:
        mine = self._calls[call.caller]
        mine.discard(call)
        if not mine:
            del self._calls[call.caller]
        self._open -= 1

    def _limit(self, caller: Caller) -> int:
        if caller.kind is Kind.DEVICE:
            return self._limits.each_device
        if caller.kind is Kind.ANYBODY:
            return self._limits.all_calls if self._access.is_open else self._limits.anybody
        return self._limits.each_named
