"""Gradient rounds: the step of arithmetic float on MNIST's network, and reports through gRPC.

A step of float is all of it: everyone's gradient, norms, filters, sum and noise. It is compared with a
plain forward and backward pass over the same images by torch itself, in CPU seconds on one thread.
Images are made up: what they show changes no time. That half needs the extra torch.

Reports go from worker processes, of which each works on one thread, to a collector, with gradients that
are there already: clipping, rounding, filters, noise, frames and sums are what remains. Their floor is
the slower of drawing that noise on one thread and a bare gRPC stream of such words. All three are
measured in turns, and of each the best turn counts: what else a machine does slows them down, and
nothing speeds them up.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import anyio
import grpc
import numpy as np

from demur_proto.errors import StateError, UnsupportedError
from demur_proto.models.architectures import Softmax
from demur_proto.models.definition import ModelDefinition
from demur_proto.queries import Gradient
from demur_proto.study import Measure, Policy, Study, View, design_study
from demur_proto.wire.definition import define_study
from demur_sim.engine import processes as opening_processes
from demur_sim.engine.children import Child
from demur_sim.engine.float_cohort import FloatCohort
from demur_sim.engine.sampling import FastSampler
from demur_sim.engine.session import Questions
from demur_sim.engine.worker import work
from demur_sim.people import labelled as learners
from demur_sim.people.labelled import LabelledPeople
from demur_sim.people.presence import PORTION_WORDS
from demur_sim.scenario import Refusal
from demur_sim.training.torch_models import load_torch
from demur_sim.training.torch_networks import TWO_CONVOLUTIONS, two_convolutions
from figures import Figure, publish

WIDE = Softmax(inputs=2600, classes=10)  #: as many parameters as the network of two convolutions
DEVICES = 8192  #: two blocks, so that two workers have one each
FLOOR_WORDS = 1024 * WIDE.parameters  #: for which the floors are measured, each turn
TURNS = 3
MOST_WORKERS = 2
FRAME_BYTES = 1 << 20
WORD_BYTES = 4


class Rates(NamedTuple):
    """Words a second."""

    through: float  #: through worker, collector and sums
    drawn: float  #: noise alone, on one thread
    streamed: float  #: a bare stream


def cpu_seconds(work: Callable[[], object], *, runs: int) -> float:
    """CPU seconds of a call, the best of several."""
    times = []
    for _ in range(runs):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def float_step(images: int) -> tuple[float, float]:
    """CPU seconds of a step in float, and of a plain pass over the same images."""
    torch = load_torch()
    rng = np.random.default_rng(1)
    people = LabelledPeople.one_each(
        rng.random((images, 784), dtype=np.float32), rng.integers(0, 10, images)
    )
    study = Study(
        name="float",
        view=View.AGGREGATE,
        measure=Measure.ZCDP,
        policy=Policy.CLIP,
        budget=1e-2,
        epsilon=1.0,
        delta=1e-5,
        minimum_cohort=images,
        base_sigma=1700.0,
        base_grid_exponent=-12,
        maximum_dimension=TWO_CONVOLUTIONS.parameters,
    )
    filters = FloatCohort(study, people, clip=10.0, seed=1)
    blank = ModelDefinition(architecture=TWO_CONVOLUTIONS, theta=np.zeros(26_010))
    theta = filters.model(blank).initial(rng)
    defined = ModelDefinition(architecture=TWO_CONVOLUTIONS, theta=theta)

    def ours() -> None:
        filters.noisy_sum(defined, number=filters.rounds + 1)

    network = two_convolutions()
    inputs = torch.from_numpy(np.asarray(people.data))
    labels = torch.from_numpy(people.labels)

    def plain(size: int, stop: int) -> None:
        network.zero_grad()
        for at in range(0, stop, size):
            some = slice(at, min(at + size, stop))
            scores = network(inputs[some])
            torch.nn.functional.cross_entropy(scores, labels[some], reduction="sum").backward()

    few = min(images, 4096)
    sizes = (64, 128, 256, 1024, few)
    plain(128, few)
    best = min(sizes, key=lambda size: cpu_seconds(lambda: plain(size, few), runs=2))
    ours()
    return cpu_seconds(ours, runs=2), cpu_seconds(lambda: plain(best, images), runs=2)


class Precomputed:
    """Stands for a model whose gradients are there already, all beyond the clip."""

    def __init__(self) -> None:
        rows = -(-PORTION_WORDS // WIDE.parameters)
        self._rows = np.random.default_rng(1).normal(size=(rows, WIDE.parameters))
        self.asked = False

    def gradients(self, theta: Any, examples: Any) -> Any:
        """The first of them."""
        self.asked = True
        return self._rows[: examples.number_of_people]


def answer(pipe: Connection) -> None:
    """A worker process with such a model."""
    ready = Precomputed()
    vars(learners)["model_of"] = lambda definition: ready
    work(pipe)
    if not ready.asked:
        raise StateError(
            "the worker computed gradients itself: put them where it looks for a model"
        )


@contextmanager
def precomputed() -> Iterator[None]:
    """Worker processes have such a model for as long as the block lasts."""
    vars(opening_processes)["work"] = answer
    try:
        yield
    finally:
        vars(opening_processes)["work"] = work


async def turns(workers: int) -> Rates:
    """The best of several turns of all three."""
    study = design_study(
        name="gradients",
        epsilon=1.0,
        delta=1e-5,
        answers=TURNS + 2,  # so that nobody has to shrink an answer
        minimum_cohort=DEVICES,
        policy=Policy.CLIP,
        grid_exponent=-14,
        horizon=TURNS + 1,
        maximum_dimension=WIDE.parameters,
    )
    people = LabelledPeople.one_each(
        np.zeros((DEVICES, WIDE.inputs), dtype=np.uint8), np.zeros(DEVICES, dtype=np.int64)
    )
    questions = Questions(population=people, grid_exponent=-14)
    model = ModelDefinition(architecture=WIDE, theta=np.zeros(WIDE.parameters))
    steps = study.base_sigma / study.noise_shares**0.5 * 2**14
    through, drawn, streamed = [], [], []
    with precomputed():
        async with opening_processes.process_session(
            define_study(study), questions, seed=1, refusal=Refusal.COVER, workers=workers
        ) as session:
            await session.ask(Gradient.about(model))  # the first takes in data and code
            for _ in range(TURNS):
                started = time.perf_counter()
                await session.ask(Gradient.about(model))
                seconds = time.perf_counter() - started
                through.append(DEVICES * WIDE.parameters / seconds)
                drawn.append(drawing_floor(steps))
                streamed.append(await stream_floor())
            await session.finish()
    return Rates(through=max(through), drawn=max(drawn), streamed=max(streamed))


def drawing_floor(steps: float) -> float:
    """Words of noise a second that one thread draws and does nothing else with."""
    sampler = FastSampler(np.random.Generator(np.random.SFC64(1)), widen=False)
    reports = -(-PORTION_WORDS // WIDE.parameters)
    started = time.perf_counter()
    draws = FLOOR_WORDS // (reports * WIDE.parameters)
    for _ in range(draws):
        sampler.gaussian(steps, reports=reports, dimension=WIDE.parameters)
    return draws * reports * WIDE.parameters / (time.perf_counter() - started)


def take(pipe: Any) -> None:
    """A bare gRPC server that answers every message with one byte."""
    anyio.run(_take, pipe)


async def _take(pipe: Any) -> None:
    async def answer(requests: Any, context: Any) -> None:
        async for _ in requests:
            await context.write(b"1")

    handlers: dict[str, Any] = {"Take": grpc.stream_stream_rpc_method_handler(answer)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bare.Bare", handlers)])
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await anyio.wait_readable(pipe)
    await server.stop(1.0)


async def stream_floor() -> float:
    """Words a second through a bare stream of full frames."""
    child = Child("take", take)
    try:
        port = await child.hear()
        frame = bytes(FRAME_BYTES - 1024)
        frames = FLOOR_WORDS * WORD_BYTES // len(frame)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.stream_stream("/bare.Bare/Take")()
            started = time.perf_counter()
            for _ in range(frames):
                await call.write(frame)
                await call.read()
            seconds = time.perf_counter() - started
            await call.done_writing()
            await call.read()  # nothing more; a call left open is cancelled, which gRPC would print
        child.tell("stop")
        return frames * len(frame) / WORD_BYTES / seconds
    finally:
        child.end()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=60_000, help="of the step in float")
    asked = parser.parse_args(arguments)
    figures = []
    try:
        step, plain = float_step(asked.images)
        figures.append(
            Figure(
                name=f"a step in float, {asked.images} images",
                value=step,
                unit="CPU s",
                better="lower",
                bar=2.5 * plain,
                floor=plain,
            )
        )
    except UnsupportedError as error:
        print(f"no step in float: {error}")
    rates = {workers: anyio.run(turns, workers) for workers in range(1, MOST_WORKERS + 1)}
    drawn = max(each.drawn for each in rates.values())
    streamed = max(each.streamed for each in rates.values())
    floor = min(drawn, streamed)
    figures += [
        Figure(
            name=f"words of gradients through gRPC, {workers} worker{'s' if workers > 1 else ''}",
            value=each.through,
            unit="words/s",
            better="higher",
            bar=0.6 * floor,
            floor=floor,
        )
        for workers, each in rates.items()
    ]
    figures += [
        Figure(name="noise drawn by one thread", value=drawn, unit="words/s", better="higher"),
        Figure(name="a bare gRPC stream", value=streamed, unit="words/s", better="higher"),
    ]
    publish("gradient", figures)


if __name__ == "__main__":
    main()
