"""The whole path on real input: CDNOW, 23,570 people, 546 days, at both fidelities."""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import anyio
import grpc
import numpy as np

from demur_client.budget.decide import charge_units, decide
from demur_sim.engine.children import Child
from figures import Figure, publish

ROUNDS, DEVICES = 546, 23_570
FRAME_REPORTS = 4096


def simulate(*options: str) -> tuple[dict[str, Any], float]:
    """Run `demur simulate cdnow` as a person would; its summary and the whole wall time, s."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        command = [sys.executable, "-m", "demur_sim.cli", "simulate", "cdnow", "--json"]
        finished = subprocess.run(
            [*command, "--out", folder, *options], capture_output=True, text=True, check=True
        )
        return json.loads(finished.stdout), time.perf_counter() - started


def best_of(runs: int, work: Callable[[], object]) -> float:
    """Median seconds of a call."""
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def drawing_floor() -> float:
    """Seconds to draw and add up all the noise and nothing else, one thread."""
    rng = np.random.Generator(np.random.SFC64(1))

    def draw() -> None:
        for _ in range(ROUNDS * DEVICES // FRAME_REPORTS):
            np.rint(rng.standard_normal(FRAME_REPORTS) * 13.6).astype(np.int64).sum()

    return best_of(3, draw)


def echo(pipe: Any) -> None:
    """A bare gRPC server that sends every message back."""
    anyio.run(_echo, pipe)


async def _echo(pipe: Any) -> None:
    async def answer(requests: Any, context: Any) -> None:
        async for request in requests:
            await context.write(request[:FRAME_REPORTS])  # a receipt is a byte a report

    handlers: dict[str, Any] = {"Echo": grpc.stream_stream_rpc_method_handler(answer)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bare.Bare", handlers)])
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await anyio.wait_readable(pipe)
    await server.stop(None)


async def echo_floor() -> float:
    """Reports a second through a bare gRPC echo: frames of the same size, one stream."""
    child = Child("echo", echo)
    try:
        port = await child.hear()
        frame, frames = bytes(FRAME_REPORTS * 20), 1500
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.stream_stream("/bare.Bare/Echo")()
            started = time.perf_counter()
            for _ in range(frames):
                await call.write(frame)
                await call.read()
            seconds = time.perf_counter() - started
            await call.done_writing()
        child.tell("stop")
        return frames * FRAME_REPORTS / seconds
    finally:
        child.end()


def decisions() -> tuple[float, float]:
    """Milliseconds for a million people's decisions, and for a bare compare-and-add."""
    people, block, units = 1_000_000, 4096, 15 * 2**58
    squares = np.random.default_rng(1).integers(0, 2, people) * 2**14
    blocks = [squares[at : at + block] for at in range(0, people, block)]
    fresh = [np.full(len(part), units, dtype=np.int64) for part in blocks]
    refused = [np.zeros(len(part), dtype=np.bool_) for part in blocks]

    def ours() -> None:
        for part, remaining, before in zip(blocks, fresh, refused, strict=True):
            charge = charge_units(part, weight=2**44, budget_units=units, largest=2**14)
            decide(charge, remaining=remaining, refused=before, retire=False)

    def bare() -> None:
        for part, remaining in zip(blocks, fresh, strict=True):
            np.add(remaining, part, where=part <= remaining, out=remaining.copy())

    return best_of(9, ours) * 1000, best_of(9, bare) * 1000


def main() -> None:
    """Measure, print, write."""
    hashes, ratios, cohort_s = set(), [], []
    for seed in range(5):
        summary, seconds = simulate("--seed", str(seed))
        cohort_s.append(seconds)
        rmse = summary["rmse"]
        ratios.append(rmse["worst_case_all_rounds"] / rmse["individual"])
    cohort, _ = simulate("--seed", "0")
    hashes.add(cohort["releases_sha256"])
    runs = {}
    for workers in (1, 2, 4):
        options = ("--fidelity", "processes", "--workers", str(workers), "--seed", "0")
        runs[workers] = simulate(*options)
        hashes.add(runs[workers][0]["releases_sha256"])
    processes, processes_s = runs[2]
    decide_ms, bare_ms = decisions()
    publish(
        "path",
        [
            Figure(
                name="cohort, whole command (median of 5 seeds)",
                value=statistics.median(cohort_s),
                unit="s",
                better="lower",
                bar=5.0,
                floor=drawing_floor(),
            ),
            Figure(
                name="processes, 2 workers, reports through gRPC",
                value=processes["reports_per_s"],
                unit="reports/s",
                better="higher",
                bar=300_000,
                floor=anyio.run(echo_floor),
            ),
            Figure(
                name="processes, 2 workers, whole command",
                value=processes_s,
                unit="s",
                better="lower",
                bar=60.0,
            ),
            Figure(
                name="largest process, both fidelities",
                value=max(cohort["peak_rss_mb"], processes["peak_rss_mb"]),
                unit="MiB",
                better="lower",
                bar=1024.0,
            ),
            Figure(
                name="decisions for a million people",
                value=decide_ms,
                unit="ms",
                better="lower",
                floor=bare_ms,
            ),
            Figure(
                name="worst case over individual error, smallest of seeds 0 to 4",
                value=min(ratios),
                unit="ratio",
                better="higher",
                bar=4.9,
            ),
            Figure(
                name="worst case over individual error, mean of seeds 0 to 4",
                value=statistics.mean(ratios),
                unit="ratio",
                better="higher",
                bar=5.1,
            ),
            Figure(
                name="different releases among cohort and 1, 2, 4 workers, seed 0",
                value=len(hashes),
                unit="hashes",
                better="lower",
                bar=1,
            ),
            *[
                Figure(
                    name=f"processes, {workers} workers, reports through gRPC",
                    value=runs[workers][0]["reports_per_s"],
                    unit="reports/s",
                    better="higher",
                )
                for workers in (1, 4)
            ],
        ],
    )


if __name__ == "__main__":
    main()
