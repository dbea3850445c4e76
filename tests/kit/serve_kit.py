"""What the tests of commands share: collectors as processes of their own, and devices for them."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import grpc

from demur_client.connection import connected
from demur_client.enrolment import enrol
from demur_proto.study import Study
from demur_proto.transport.credentials import (
    DeviceCredential,
    NamedSecret,
    metadata_of,
    read_credential,
)
from demur_proto.v1 import collector_pb2, collector_pb2_grpc, report_pb2
from demur_proto.wire.definition import PROTOCOL_VERSION, ROUND_TAG, Defined
from demur_proto.wire.hmacs import hash_definition

DEADLINE_S = 15.0
COMMAND = """
import argparse, sys
from demur_proto.errors import DemurError, ParameterError
from demur_server.commands import admin as admin_command, ask as ask_command, close as close_command, serve as commands
parser = argparse.ArgumentParser(prog="demur")
parts = parser.add_subparsers()
for each in (admin_command, ask_command, close_command, commands):
    each.add_commands(parts)
options = parser.parse_args()
try:
    sys.exit(options.run(options))
except DemurError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2 if isinstance(error, ParameterError) else 1)
"""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A collector in a process of its own."""

    process: "subprocess.Popen[str]"
    said: dict[str, Any]  #: its first line

    @property
    def devices(self) -> str:
        return str(self.said["collector"])

    @property
    def analysts(self) -> str:
        return str(self.said["analyst"])

    @property
    def folder(self) -> Path:
        return Path(self.said["folder"])

    @property
    def analyst(self) -> NamedSecret:
        """What was made at the first start."""
        secret = read_credential((self.folder / "analyst.credential").read_text())
        assert isinstance(secret, NamedSecret)
        return secret

    def ended(self) -> tuple[int, str, str]:
        """Exit status and the rest of what it said."""
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out, err


def start(*words: str) -> "subprocess.Popen[str]":
    """A command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def serving(folder: Path, *words: str, longest_s: float = DEADLINE_S) -> Iterator[Server]:
    """`demur serve --json` on a folder; it is killed if it outlives the block, or this time."""
    with start("serve", "--json", "--folder", str(folder), *words) as process:
        watchdog = threading.Timer(longest_s, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            yield Server(process=process, said=json.loads(line))
        finally:
            process.kill()
            watchdog.cancel()


async def enrolled(target: str, *tokens: bytes) -> list[DeviceCredential]:
    """A device for each token."""
    async with connected(target) as channel:
        return [await enrol(channel, token) for token in tokens]


async def answer(
    channel: grpc.aio.Channel,
    credential: DeviceCredential,
    study: Defined[Study],
    *,
    word: int,
    after_round: int = 0,
) -> int:
    """One device's answer to the next round, of one 32-bit word; its disposition."""
    call = collector_pb2_grpc.CollectorStub(channel).Visit(metadata=metadata_of(credential))
    hello = collector_pb2.Hello(
        protocol_version=PROTOCOL_VERSION, study_hash=study.hash, after_round=after_round
    )
    try:
        with anyio.fail_after(DEADLINE_S):
            await call.write(collector_pb2.VisitRequest(hello=hello))
            while True:
                response = await call.read()
                assert isinstance(response, collector_pb2.VisitResponse)
                if response.HasField("opened_round"):
                    report = report_pb2.Report(
                        round_hash=round_hash_of(response.opened_round.definition),
                        report_id=credential.device_id[::-1],
                        words=word.to_bytes(4, "little", signed=True),
                    )
                    await call.write(collector_pb2.VisitRequest(report=report))
                if response.HasField("receipt"):
                    return int(response.receipt.disposition)
    finally:
        call.cancel()


def round_hash_of(definition: bytes) -> bytes:
    """The hash of a round as it was put to devices."""
    return hash_definition(ROUND_TAG, definition)
