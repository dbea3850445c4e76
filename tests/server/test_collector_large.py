"""A round of ten million words, from devices to an analyst, through a collector process of its own."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from agent_kit import visit
from demur_client.connection import connected
from demur_client.device import Device
from demur_proto.arrays import Values, Words
from demur_proto.queries import Feature, Linear
from demur_proto.round import Round, round_of
from demur_proto.study import Study, design_study
from demur_proto.transport.credentials import (
    DeviceCredential,
    NamedSecret,
    metadata_of,
    read_credential,
    read_token,
)
from demur_proto.v1 import collector_pb2, collector_pb2_grpc, report_pb2
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_proto.wire.frames import frame_messages, split_frames
from demur_proto.wire.words import WordType, encode_words
from demur_server.analyst import Analyst
from demur_server.collector.estimates import make_release
from demur_server.formatting import csv_pieces
from demur_sim.engine.sampling import FastSampler
from serve_kit import Server, enrolled, start
from store_kit import ACCEPTED, DUPLICATE, PostgresServer

WORDS = 10_000_000
DEADLINE_S = 120.0
STUDY = design_study(
    name="large",
    epsilon=1.0,
    delta=1e-6,
    answers=3,
    minimum_cohort=2,
    grid_exponent=-7,
    maximum_dimension=WORDS,
)
# What a report of 40 MB takes: its words as integers, 80 MB; what they add to the sums, 80 MB; and a
# commit of the sums, 80 MB and the database's buffers.
ONE_REPORT_MB = 400
# What the round takes at its worst: the release has 160 MB of numbers, as arrays, as a message, as
# the bytes of one, and in the buffers of the database and of gRPC.
WHOLE_ROUND_MB = 1800


@contextmanager
def collecting(folder: Path, *words: str) -> Iterator[Server]:
    """`demur serve` on a folder."""
    with start("serve", "--json", "--folder", str(folder), *words) as process:
        try:
            assert process.stdout is not None
            yield Server(process=process, said=json.loads(process.stdout.readline()))
        finally:
            process.terminate()
            process.communicate(timeout=DEADLINE_S)


def command(*words: str) -> tuple[int, str, str]:
    process = start(*words)
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, err


def peak_mb(server: Server) -> int:
    """The most memory the process ever had, MB."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) // 1000


class Spread:
    """A source of a large vector: 1 in the first coordinate, 0 in the others."""

    def evaluate(self, feature: Feature) -> Values:
        values = np.zeros((1, WORDS))
        values[0, 0] = 1.0
        return values


POLL = """
import select, sys, time
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
stub = health_pb2_grpc.HealthStub(grpc.insecure_channel(sys.argv[1]))
longest = 0.0
while not select.select([sys.stdin], [], [], 0.02)[0]:
    begun = time.monotonic()
    stub.Check(health_pb2.HealthCheckRequest())
    longest = max(longest, time.monotonic() - begun)
print(longest)
"""


@contextmanager
def asked_all_the_time(server: Server) -> Iterator[Callable[[], float]]:
    """How long the collector took at most to say that it is well, again and again meanwhile."""
    process = subprocess.Popen(
        [sys.executable, "-c", POLL, server.devices],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield lambda: float(process.communicate("\n", timeout=DEADLINE_S)[0])
    finally:
        process.kill()
        process.communicate()


def wide_round() -> tuple[Defined[Study], Defined[Round]]:
    study = define_study(STUDY)
    question = [Feature(name="x")]
    return study, define_round(
        round_of(study, Linear(question, dimension=WORDS, on_grid=True), number=1)
    )


async def let_in(
    server: Server, place: list[str]
) -> tuple[DeviceCredential, DeviceCredential, NamedSecret]:
    """Two devices and a gateway."""
    status, out, err = command("admin", "tokens", "--count", "2", "--json", *place)
    assert status == 0, err
    one, two = await enrolled(server.devices, *map(read_token, json.loads(out)["tokens"]))
    status, out, err = command("admin", "credential", "g", "--role", "gateway", "--json", *place)
    assert status == 0, err
    gateway = read_credential(json.loads(out)["credential"])
    assert isinstance(gateway, NamedSecret)
    await anyio.sleep(1.5)  # until the collector has looked
    return one, two, gateway


def proven(round_hash: bytes, words: Words, maker: DeviceCredential) -> report_pb2.ReportFrame:
    report_id, encoded = maker.device_id[::-1], encode_words(words, WordType.INT32)
    [frame] = split_frames(
        round_hash,
        report_id,
        encoded,
        first_number=1,
        device_ids=maker.device_id,
        proofs=maker.proof(round_hash, report_id, encoded),
    )
    return frame


async def through_a_gateway(
    server: Server, gateway: NamedSecret, frame: report_pb2.ReportFrame, study: Defined[Study]
) -> list[int]:
    async with connected(server.devices) as channel:
        stub: Any = collector_pb2_grpc.CollectorStub(channel)
        call = stub.SubmitFrames(metadata=metadata_of(gateway), timeout=DEADLINE_S)
        hello = collector_pb2.Hello(protocol_version=1, study_hash=study.hash)
        await call.write(collector_pb2.SubmitFramesRequest(hello=hello))
        for message in frame_messages(frame):
            await call.write(message)
        while (answer := await call.read()).WhichOneof("message") != "receipt":
            pass
        call.cancel()
        return list(answer.receipt.dispositions)


@pytest.fixture(params=["sqlite", "postgres"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    if request.param == "sqlite":
        return []
    server: PostgresServer = request.getfixturevalue("postgres")
    config = tmp_path / "server.toml"
    config.write_text(f'[store]\npostgres = "{server.new_database()}"\n')
    return ["--config", str(config)]


@pytest.mark.long
async def test_ten_million_words_reach_the_analyst_in_bounded_memory(
    tmp_path: Path, options: list[str]
) -> None:
    folder, spent = tmp_path / "data", {}
    place = ["--folder", str(folder), *options]
    words = np.random.default_rng(2).integers(-1000, 1000, size=(1, WORDS))

    with collecting(folder, *options) as server:
        one, two, gateway = await let_in(server, place)
        async with Analyst.create(
            server.analysts, STUDY, credential=server.analyst, answer_after_ms=0
        ) as analyst:
            asked = await analyst.open(Linear([Feature(name="x")], dimension=WORDS, on_grid=True))
            assert asked.value.word_type is WordType.INT32
            device = Device(analyst.study, Spread(), FastSampler(np.random.default_rng(1)))
            sealed = device.report(asked, device.evaluate(asked))
            with asked_all_the_time(server) as longest_s:
                before = peak_mb(server)
                begun = time.monotonic()
                async with connected(server.devices) as channel:
                    await visit(device, channel, last_round=1, credential=one)
                spent["visit"] = time.monotonic() - begun
                one_report = peak_mb(server) - before
                frame = proven(asked.hash, words, two)
                begun = time.monotonic()
                assert await through_a_gateway(server, gateway, frame, analyst.study) == [ACCEPTED]
                spent["frame"] = time.monotonic() - begun
                assert await through_a_gateway(server, gateway, frame, analyst.study) == [DUPLICATE]
                begun = time.monotonic()
                release = await analyst.close(asked, after_reports=2, timeout_s=DEADLINE_S)
                spent["close"] = time.monotonic() - begun
                paused_s = longest_s()
        whole_round = peak_mb(server)

    expected = np.frombuffer(sealed.words, dtype="<i4").astype(np.int64) + words[0]
    np.testing.assert_array_equal(release.sums, expected)
    np.testing.assert_array_equal(release.estimate, expected / 128)
    assert release.reports == 2
    print(
        f"\n40 MB report: +{one_report} MB; peak {whole_round} MB; longest pause {paused_s:.2f} s"
    )
    print(", ".join(f"{name} {took:.1f} s" for name, took in spent.items()))
    assert one_report <= ONE_REPORT_MB
    assert whole_round <= WHOLE_ROUND_MB
    assert paused_s < 2.0

    with collecting(folder, *options) as server:  # it is still there, and goes on
        async with Analyst.resume(server.analysts, credential=server.analyst) as analyst:
            assert await anext(analyst.watch()) == release
    status, out, err = command("admin", "verify", *place)
    assert (status, err) == (0, "")
    assert "is sound" in out
    status, out, err = command("admin", "export", "--format", "json", *place)
    assert (status, err) == (0, "")
    assert json.loads(out)[0]["sums"][:5] == expected[:5].tolist()
    for part in ("rounds", "releases"):
        status, out, err = command("admin", part, "--json", *place)
        assert (status, err) == (0, "")


@pytest.mark.long
def test_a_large_release_becomes_csv_a_piece_at_a_time() -> None:
    release = make_release(*wide_round(), np.arange(WORDS), reports=2)
    peak, lines, begun = 0, 0, time.monotonic()

    for piece in csv_pieces([release]):
        lines += piece.count("\n")
        peak = max(peak, len(piece))

    print(f"\n{lines:,} lines in {time.monotonic() - begun:.0f} s")
    assert lines == WORDS + 1
    assert peak < 1 << 21
