"""A training by real rounds: wherever its process dies, no round is asked twice."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import numpy as np
import pytest

from demur_proto.arrays import Integers, Vector
from demur_proto.errors import StateError
from demur_proto.models.architectures import Softmax
from demur_proto.models.definition import DefinedModel, ModelDefinition, define_model, read_model
from demur_proto.queries import Gradient, ModelQuery, Query
from demur_proto.release import Release
from demur_proto.round import Round
from demur_proto.study import Policy, Purpose, design_study
from demur_proto.wire.definition import Defined, define_study
from demur_proto.wire.words import encode_words
from demur_server.analyst import Analyst
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import served
from demur_server.store.memory import MemoryStore
from demur_server.training.analyst_source import AnalystErrors, AnalystGradients
from demur_server.training.optimisers import Momentum, Rate
from demur_server.training.trainer import Settings, TrainingState, start, train
from demur_sim.engine.cohort import Cohort
from demur_sim.people.labelled import LabelledPeople
from demur_sim.scenario import Refusal

DEADLINE_S = 20.0
PEOPLE, STEPS = 30, 4
MODEL = Softmax(inputs=3, classes=2)
STUDY = define_study(
    design_study(
        name="learning",
        epsilon=1.0,
        delta=1e-6,
        answers=2,
        minimum_cohort=PEOPLE,
        policy=Policy.CLIP,
        grid_exponent=-15,
        maximum_dimension=MODEL.parameters,
    )
)
COUNTS = define_study(
    design_study(
        name="errors",
        epsilon=1.0,
        delta=1e-6,
        answers=STEPS // 2,
        minimum_cohort=PEOPLE,
        grid_exponent=-7,
        maximum_dimension=1,
        purpose=Purpose.ERRORS,
    )
)
SETTINGS = Settings(
    architecture=MODEL,
    features=None,
    cohort=PEOPLE,
    steps=STEPS,
    optimiser=Momentum(rate=Rate(first=1.0)),
)


class Killed(Exception):
    """Where the trainer's process would have died."""


class Mortal(Analyst):
    """An analyst that dies at one call, before it is made or after it was answered."""

    call = ""
    number = 0
    before = False

    def dying(self, call: str, *, before: bool) -> None:
        if (call, before) == (self.call, self.before):
            self.number -= 1
            if not self.number:
                raise Killed

    async def publish_model(self, model: DefinedModel) -> None:
        self.dying("publish", before=True)
        await super().publish_model(model)
        self.dying("publish", before=False)

    async def open(self, query: Query) -> Defined[Round]:
        asked = await super().open(query)
        self.dying("open", before=False)
        return asked

    async def close(self, asked: Defined[Round], **options: Any) -> Release:
        self.dying("close", before=True)
        release = await super().close(asked, **options)
        self.dying("close", before=False)
        return release


class World:
    """A collector, and people who answer each of its rounds once."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        people = LabelledPeople.one_each(rng.normal(size=(PEOPLE, 3)), rng.integers(0, 2, PEOPLE))
        self.cohorts = {
            study.hash: Cohort(study, people, seed=seed, refusal=Refusal.COVER)
            for seed, study in ((1, STUDY), (2, COUNTS))
        }
        self.collector = Collector(MemoryStore(), open_access=True)
        self.answered: list[int] = []
        self.counted: list[int] = []
        self.nobody = False  # answers

    async def answer(self, study_hash: bytes) -> None:
        cohort = self.cohorts[study_hash]
        async for asked in self.collector.open_rounds(study_hash):
            query = asked.value.query
            assert isinstance(query, ModelQuery)
            model = read_model(await self.collector.models.definition(query.model_hash)).value
            (self.answered if isinstance(query, Gradient) else self.counted).append(
                asked.value.number
            )
            if self.nobody:
                continue
            (block,) = cohort.blocks
            for answer in cohort.answers(asked.value, model):
                ids = block.report_ids().of(asked.hash)
                ids = ids[16 * answer.people.start : 16 * answer.people.stop]
                words = encode_words(answer.words, asked.value.word_type)
                await self.collector.intake.submit(asked.hash, ids, words)

    @property
    def spent(self) -> Integers:
        return np.concatenate([each.spent() for each in self.cohorts.values()])


@asynccontextmanager
async def world() -> AsyncIterator[tuple[World, str]]:
    made = World()
    for study in (STUDY, COUNTS):
        await made.collector.create_study(study.definition)
    with anyio.fail_after(DEADLINE_S):
        async with served(made.collector, drain_s=0.1) as ports, anyio.create_task_group() as tasks:
            for study in (STUDY, COUNTS):
                tasks.start_soon(made.answer, study.hash)
            yield made, f"127.0.0.1:{ports.analyst}"
            tasks.cancel_scope.cancel()


async def trained(analyst: Analyst, state: TrainingState, kept: list[TrainingState]) -> Vector:
    source = AnalystGradients(analyst, clip=1.0, timeout_s=DEADLINE_S)
    return (await train(SETTINGS, state, source, after=kept.append)).final


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize(
    ("call", "before"),
    [("publish", True), ("publish", False), ("open", False), ("close", True), ("close", False)],
)
async def test_a_round_that_was_opened_is_never_asked_again(
    call: str, before: bool, step: int
) -> None:
    kept = [start(SETTINGS, np.zeros(MODEL.parameters))]
    async with (
        world() as (one, target),
        Analyst.create(target, STUDY.value, answer_after_ms=0) as analyst,
    ):
        whole = await trained(analyst, kept[0], [])
        spent = one.spent

    async with world() as (one, target):
        async with Mortal.create(target, STUDY.value, answer_after_ms=0) as mortal:
            assert isinstance(mortal, Mortal)
            mortal.call, mortal.before, mortal.number = call, before, step
            with pytest.raises(Killed):
                await trained(mortal, kept[0], kept)
        async with Analyst.resume(target, STUDY.hash.hex(), answer_after_ms=0) as analyst:
            resumed = await trained(analyst, kept[-1], kept)

        assert kept[-1].number == STEPS
        assert one.answered == list(range(1, STEPS + 1))
        assert one.collector.rounds_opened(STUDY.hash) == STEPS
        np.testing.assert_array_equal(one.spent, spent)
    np.testing.assert_array_equal(resumed, whole)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("call", "before"),
    [("publish", True), ("publish", False), ("open", False), ("close", True), ("close", False)],
)
async def test_a_count_that_was_opened_is_never_asked_again(
    call: str, before: bool, count: int
) -> None:
    settings = replace(SETTINGS, every=2)

    async def counted(
        analyst: Analyst, counter: Analyst, state: TrainingState, kept: list[TrainingState]
    ) -> TrainingState:
        source = AnalystGradients(analyst, clip=1.0, timeout_s=DEADLINE_S)
        errors = AnalystErrors(counter, on_grid=True, timeout_s=DEADLINE_S)
        return await train(settings, state, source, errors=errors, after=kept.append)

    kept = [start(settings, np.zeros(MODEL.parameters))]
    async with (
        world() as (one, target),
        Analyst.create(target, STUDY.value, answer_after_ms=0) as analyst,
        Analyst.create(target, COUNTS.value, answer_after_ms=0) as counter,
    ):
        whole = await counted(analyst, counter, kept[0], [])
        spent = one.spent

    async with (
        world() as (one, target),
        Analyst.create(target, STUDY.value, answer_after_ms=0) as analyst,
    ):
        async with Mortal.create(target, COUNTS.value, answer_after_ms=0) as mortal:
            assert isinstance(mortal, Mortal)
            mortal.call, mortal.before, mortal.number = call, before, count
            with pytest.raises(Killed):
                await counted(analyst, mortal, kept[0], kept)
        async with (
            Analyst.resume(target, STUDY.hash.hex(), answer_after_ms=0) as analyst,
            Analyst.resume(target, COUNTS.hash.hex(), answer_after_ms=0) as counter,
        ):
            resumed = await counted(analyst, counter, kept[-1], kept)

        assert one.answered == list(range(1, STEPS + 1))
        assert one.counted == list(range(1, STEPS // 2 + 1))
        np.testing.assert_array_equal(one.spent, spent)
    assert resumed.errors == whole.errors
    assert resumed.final_step == whole.final_step
    np.testing.assert_array_equal(resumed.final, whole.final)
    assert all(0 < each.standard_error < PEOPLE for each in whole.errors)


async def test_a_count_that_asks_something_else_than_its_round_did_is_refused() -> None:
    async with (
        world() as (_, target),
        Analyst.create(target, COUNTS.value, answer_after_ms=0) as analyst,
    ):
        source = AnalystErrors(analyst, on_grid=True, timeout_s=DEADLINE_S)
        zero, one = (
            define_model(
                ModelDefinition(architecture=MODEL, theta=np.full(MODEL.parameters, value))
            )
            for value in (0.0, 1.0)
        )
        first = await source.errors(zero, number=1, step=2)

        assert await source.errors(zero, number=1, step=2) == first
        with pytest.raises(StateError, match="round 1 of this study asked something else than cou"):
            await source.errors(one, number=1, step=2)
        with pytest.raises(StateError, match="count 3 cannot follow the 1 rounds"):
            await source.errors(one, number=3, step=2)


async def test_a_step_that_asks_something_else_than_its_round_did_is_refused() -> None:
    async with (
        world() as (_, target),
        Analyst.create(target, STUDY.value, answer_after_ms=0) as analyst,
    ):
        source = AnalystGradients(analyst, clip=1.0, timeout_s=DEADLINE_S)
        zero, one = (
            define_model(
                ModelDefinition(architecture=MODEL, theta=np.full(MODEL.parameters, value))
            )
            for value in (0.0, 1.0)
        )
        first = await source.gradient(zero, number=1)

        np.testing.assert_array_equal(await source.gradient(zero, number=1), first)
        with pytest.raises(StateError, match="round 1 of this study asked something else than"):
            await source.gradient(one, number=1)
        with pytest.raises(StateError, match="step 3 cannot follow the 1 rounds"):
            await source.gradient(one, number=3)


async def test_a_sum_that_was_withheld_is_no_sum() -> None:
    async with (
        world() as (one, target),
        Analyst.create(target, STUDY.value, answer_after_ms=0) as analyst,
    ):
        one.nobody = True
        source = AnalystGradients(analyst, clip=1.0, reports=0, timeout_s=DEADLINE_S)
        zero = ModelDefinition(architecture=MODEL, theta=np.zeros(MODEL.parameters))

        with pytest.raises(StateError, match="round 1 has no sum: only 0 reports came"):
            await source.gradient(define_model(zero), number=1)
