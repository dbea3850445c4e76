"""A device that goes on by itself answers every kind of question, in several studies, from one ledger."""

from pathlib import Path
from typing import Any

import anyio
import numpy as np

from counting_kit import NoNoise
from demur_client.agent import Agent
from demur_client.connection import connected
from demur_client.ledger.file import LedgerFile
from demur_client.policy import OwnerPolicy
from demur_proto.arrays import Values
from demur_proto.models.architectures import Softmax
from demur_proto.models.definition import ModelDefinition, define_model
from demur_proto.queries import ErrorCount, Feature, Gradient, HaltCount, Linear, RunningCount
from demur_proto.round import Round, round_of
from demur_proto.running.segments import Segment
from demur_proto.study import Purpose, Study, View, design_study
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import served
from demur_server.store.memory import MemoryStore
from demur_sim.engine.devices import InProcessEvaluator

DEADLINE_S = 20.0
STATE = Feature(name="state")
# Scores are (x, −x): class 0 for x above zero, else class 1.
SIGN = define_model(
    ModelDefinition(
        architecture=Softmax(inputs=1, classes=2), theta=np.array([1.0, -1.0, 0.0, 0.0])
    )
)


class Halves(NoNoise):
    """No noise, and every coin lands in the middle."""

    def uniform(self, *, reports: int, dimension: int) -> Values:
        return np.full((reports, dimension), 0.5)


class Person:
    """Somebody with a state that never changes, and one example that the model takes for the other class."""

    def evaluate(self, feature: Feature) -> Values:
        return np.array([[1.0]])

    def examples(self) -> tuple[Any, Any]:
        return [[1.0]], [1]


def a_study(name: str, *, answers: int = 9, purpose: Purpose = Purpose.DATA) -> Defined[Study]:
    study = design_study(
        name=name,
        epsilon=1.0,
        delta=1e-6,
        answers=answers,
        minimum_cohort=1,
        view=View.LOCAL,
        grid_exponent=-15,
        maximum_dimension=4,
        purpose=purpose,
    )
    return define_study(study)


def rounds_of(
    sums: Defined[Study], models: Defined[Study], errors: Defined[Study], halts: Defined[Study]
) -> list[Round]:
    """Rounds of all kinds: sums and a state, a model's gradient, its errors, who halted."""
    first = Segment(horizon=3, cohort=1)
    begun = first.begun(1)
    later = (begun, begun.after(), begun.after().after())
    counts = [
        round_of(halts, HaltCount(sums.hash, part), number=number)
        for number, part in enumerate(later, start=1)
    ]
    return [
        round_of(sums, RunningCount(STATE, first.begun(1)), number=1),
        counts[0],
        round_of(models, Gradient(model_hash=SIGN.hash, dimension=4), number=1),
        round_of(errors, ErrorCount(model_hash=SIGN.hash, parameters=4), number=1),
        round_of(
            sums, Linear([STATE], clip=1.0, on_grid=True), number=2
        ),  # the segment holds too much
        counts[1],
        round_of(sums, RunningCount(STATE, later[1]), number=3),
        counts[2],
        round_of(errors, ErrorCount(model_hash=SIGN.hash, parameters=4), number=2),
    ]


async def test_an_agent_answers_every_kind_of_question_across_restarts(tmp_path: Path) -> None:
    sums, models = a_study("sums", answers=2), a_study("models")
    errors = a_study("errors", purpose=Purpose.ERRORS)
    halts = a_study("halts", purpose=Purpose.HALTS)
    studies = {each.hash: each for each in (sums, models, errors, halts)}
    collector = Collector(MemoryStore(), open_access=True)
    for study in studies.values():
        await collector.create_study(study.definition)
    policy = OwnerPolicy(studies=tuple(studies), shortest_slot_ms=0)
    found: dict[tuple[str, int], list[float]] = {}

    async with served(collector, drain_s=0.1) as ports:
        for asked in rounds_of(sums, models, errors, halts):
            await collector.models.publish(
                SIGN.hash, SIGN.definition
            )  # kept while a round names it
            defined = await collector.open_round(define_round(asked).definition)
            with anyio.fail_after(DEADLINE_S), LedgerFile(tmp_path / "ledger") as ledger:
                agent = Agent(
                    ledger,
                    InProcessEvaluator(Person()),
                    policy=policy,
                    open_channel=lambda: connected(f"127.0.0.1:{ports.collector}"),
                    sampler=Halves(),
                    first_retry_s=0.02,
                    longest_retry_s=0.1,
                )
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(agent.run)
                    while (await collector.totals(defined.hash)).reports < 1:  # noqa: ASYNC110
                        await anyio.sleep(0.01)
                    tasks.cancel_scope.cancel()
            release = await collector.close_round(defined.hash)
            name = studies[asked.study_hash].value.name
            found[name, asked.number] = list(map(float, release.estimate))

    counts = {key: values[0] for key, values in found.items() if len(values) == 1}
    assert {key: round(value, 3) for key, value in counts.items()} == {
        ("sums", 1): 1,  # the state
        ("halts", 1): 0,
        ("errors", 1): 1,  # the error
        ("sums", 2): 0,  # which is cover
        ("halts", 2): 1,
        ("sums", 3): 1,  # told to the end
        ("halts", 3): 1,
        ("errors", 2): 1,
    }
    assert np.linalg.norm(found["models", 1]) > 0.5
