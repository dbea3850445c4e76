"""Tries out a collector that has one study and an open linear round, with a few enrolled devices."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from demur_client.connection import connected
from demur_proto.channels import ClientTls
from demur_proto.credentials import NamedSecret, read_credential, read_token
from demur_proto.errors import DataError, DemurError, ParameterError, StateError
from demur_sim.conformance.collector_scripts import Ground, check_doors, check_reports, find_ground
from demur_sim.conformance.knocking import Knocker
from demur_sim.conformance.verdicts import Verdicts

DEVICES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """How a collector is tried out."""

    target: str  #: HOST:PORT
    tokens: tuple[bytes, ...] = field(repr=False)  #: 32 bytes each; four of them are used up
    gateway: NamedSecret | None = None  #: to test frames
    close: Callable[[], Awaitable[None]] | None = None  #: closes the open round
    tls: ClientTls | None = None

    @classmethod
    def of(
        cls,
        target: str,
        *,
        tokens: Path,
        gateway: Path | None = None,
        close_command: tuple[str, ...] = (),
        ca: Path | None = None,
    ) -> "Visitor":
        """From files and a command.

        Raises:
            DataError: a file cannot be read.
            ParameterError: it holds something else.
            AccessError: the CA's file is no good.
        """
        secret = read_credential(_read(gateway)) if gateway else None
        if secret is not None and not isinstance(secret, NamedSecret):
            raise ParameterError("gateway-credential", "a device's", "one of a gateway")

        async def close() -> None:
            done = await anyio.run_process(close_command, check=False, stderr=None)
            if done.returncode:
                raise StateError(f"the close command failed with exit status {done.returncode}")

        return cls(
            target=target,
            tokens=tuple(map(read_token, _read(tokens).split())),
            gateway=secret,
            close=close if close_command else None,
            tls=ClientTls.read(ca) if ca else None,
        )


async def try_collector(visitor: Visitor, verdicts: Verdicts) -> None:
    """Run the scripts; what they see goes into the verdicts.

    Raises:
        ParameterError: there are too few tokens.
        StateError: there is no open linear round whose report fits one message.
        DemurError: the collector cannot be reached.
    """
    if len(visitor.tokens) < DEVICES:
        raise ParameterError("tokens", f"{len(visitor.tokens)} of them", f"{DEVICES} or more")
    async with connected(visitor.target, tls=visitor.tls) as channel:
        knocker = Knocker(channel)
        ground = await find_ground(knocker, visitor.tokens[:DEVICES], verdicts)
        await check_doors(knocker, ground, verdicts)
        await check_reports(knocker, ground, verdicts, gateway=visitor.gateway)
        if visitor.close is not None:
            try:
                await visitor.close()
                await _check_closed(knocker, ground, verdicts)
            except DemurError as error:  # what was found so far is worth keeping
                verdicts.omit("closed", str(error))


async def _check_closed(knocker: Knocker, ground: Ground, verdicts: Verdicts) -> None:
    counted = await ground.send(knocker, 0, ground.report(0))
    new = await ground.send(knocker, 3, ground.report(3))
    verdicts.check(
        "closed",
        (counted, new) == ("ROUND_CLOSED", "ROUND_CLOSED"),
        f"a report that was counted: {counted}, a new one: {new}",
    )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise DataError(f"{path} cannot be read: {reason}") from None
