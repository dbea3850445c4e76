"""Single reports and large vectors, beside bare gRPC with the same messages and as many streams."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bare_server import ANSWER, ECHO, SINK, bare_server
from collector_process import ask, collector
from figures import Figure
from premade import Frames, Question, accepted_frames, accepted_visits, device_streams
from traffic import Sent, Stream, pour, send, visit

VISIT = "/demur_proto.v1.Collector/Visit"
SUBMIT_FRAMES = "/demur_proto.v1.Collector/SubmitFrames"
UNARY_BAR = 0.5
VECTOR_BAR = 0.7
STREAMS = 8  #: of the gateway that brings vectors
AT_ONCE = 2  #: frames of a stream that wait for their receipts


def compared(
    name: str, unit: str, ours: list[float], bare: list[float], *, bar: float | None
) -> list[Figure]:
    """The median of what each burst showed beside bare gRPC, and the rates it comes from."""
    return [
        Figure(
            name=f"{name}, share of bare gRPC",
            value=statistics.median(mine / floor for mine, floor in zip(ours, bare, strict=True)),
            unit="median of ratios",
            better="higher",
            bar=bar,
        ),
        Figure(
            name=name,
            value=statistics.median(ours),
            unit=unit,
            better="higher",
            floor=statistics.median(bare),
        ),
    ]


async def measure_single(
    asked: Question, folder: Path, *, devices: int, bursts: int
) -> list[Figure]:
    """One report a message: from devices that stay for many rounds, and that come for one.

    Args:
        asked: a question with many rounds.
        folder: where the data folder is made.
        devices: how many stay at once. Four times as many come, a quarter of `devices` at once.
        bursts: into how many the rounds are divided, each beside the same messages on bare gRPC.
    """
    rounds = len(asked.rounds) // bursts
    staying = device_streams(asked, devices=devices, rounds=bursts * rounds, seed=2)
    coming = device_streams(asked, devices=4 * devices, rounds=1, seed=3)
    stays: tuple[list[float], list[float]] = ([], [])
    visits: tuple[list[float], list[float]] = ([], [])
    latencies = Sent()
    async with bare_server() as echo:
        with collector(folder / "single") as served:
            await ask(served, asked.study, asked.rounds)
            for part in parts(staying, bursts):
                bare = await send(echo, ECHO, part)
                sent = await send(served.devices, VISIT, part)
                assert accepted_visits(sent.answers) == devices * rounds
                latencies.latencies_s += sent.latencies_s
                stays[0].append(devices * rounds / sent.seconds)
                stays[1].append(devices * rounds / bare.seconds)
            for number in range(bursts):
                some = coming[number::bursts]
                bare_s = await visit(echo, ECHO, some, at_once=devices // 4)
                seconds = await visit(served.devices, VISIT, some, at_once=devices // 4)
                visits[0].append(len(some) / seconds)
                visits[1].append(len(some) / bare_s)
    return [
        *compared(f"unary, {devices} streams", "reports/s", *stays, bar=UNARY_BAR),
        latency(f"unary, {devices} streams", latencies),
        *compared("a visit for one report, opened and ended", "visits/s", *visits, bar=None),
    ]


async def measure_vectors(
    frames: Frames, asked: Question, folder: Path, *, devices: int, bursts: int
) -> list[Figure]:
    """Vectors against as many streams whose reader does nothing with the same bytes.

    Single ones are each answered by an empty message; frames by one when all were read.

    Args:
        frames: what a gateway brings, as many vectors in each as fit.
        asked: the same question, for devices that bring one vector each.
        folder: where the data folder is made.
        devices: how many, on open streams.
        bursts: into how many it is all divided.
    """
    words = len(frames.sums)
    crowd = device_streams(asked, devices=devices, rounds=1, seed=4)
    framed: tuple[list[float], list[float]] = ([], [])
    single: tuple[list[float], list[float]] = ([], [])
    times = Sent()
    async with bare_server() as bare:
        with collector(folder / "vectors") as served:
            await ask(served, frames.asked.study, frames.asked.rounds)
            for part in parts(frames.streams(STREAMS, served.gateway), bursts):
                floor = await pour(bare, SINK, part)
                sent = await send(served.devices, SUBMIT_FRAMES, part, at_once=AT_ONCE)
                reports = accepted_frames(sent.answers)
                times.latencies_s += sent.latencies_s
                framed[0].append(reports / sent.seconds)
                framed[1].append(reports / floor.seconds)
            for number in range(bursts):
                some = crowd[number::bursts]
                floor = await send(bare, ANSWER, some)
                sent = await send(served.devices, VISIT, some)
                assert accepted_visits(sent.answers) == len(some)
                single[0].append(len(some) / sent.seconds)
                single[1].append(len(some) / floor.seconds)
    name = f"vectors of {words:,} words"
    return [
        *compared(f"{name}, in frames", "reports/s", *framed, bar=VECTOR_BAR),
        latency(f"{name}, in frames", times),
        *compared(f"{name}, one a message", "reports/s", *single, bar=VECTOR_BAR),
    ]


def parts(streams: Sequence[Stream], count: int) -> Iterator[list[Stream]]:
    """The same streams with a part of their messages each, equally many every time."""
    size = len(streams[0].messages) // count
    for at in range(0, count * size, size):
        yield [replace(each, messages=each.messages[at : at + size]) for each in streams]


def latency(name: str, sent: Sent) -> Figure:
    """What one message in a hundred exceeds."""
    value = sent.latency_ms(0.99)
    return Figure(name=f"{name}: latency p99", value=value, unit="ms", better="lower")
