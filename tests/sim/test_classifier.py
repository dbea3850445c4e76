"""The promise of running out, for every kind of question: it does not show but in the payloads.

Half of the people run out and the others never pay. A classifier is given who sent when, how much, and
which reply came back: of real devices on streams of their own, and of a run over processes. Where
devices fall silent instead, it finds them without fail. Chance alone puts it 3 standard errors away from
one half with probability 0.0027, and times are measured: so where a run disagrees a second one
decides, and a leak fails both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio
import numpy as np
import pytest
from tests.sim.visits import watched

from counting_kit import EXPONENT, a_study
from demur_client.device import Device
from demur_client.ledger.kept import MemoryLedger
from demur_proto.accounting.histograms import epsilon_for_answers
from demur_proto.arrays import Flags
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.models.architectures import Softmax
from demur_proto.models.definition import ModelDefinition
from demur_proto.queries import (
    ErrorCount,
    Feature,
    Gradient,
    HaltCount,
    Histogram,
    Linear,
    RunningCount,
)
from demur_proto.running.factorisations import change_norm
from demur_proto.running.segments import Admission, Factorisation, Segment
from demur_proto.study import Measure, Policy, Purpose, Study, View
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import Defined, define_study
from demur_server.analyst import Analyst
from demur_sim.engine.observer import Advantage, Messages, distinguish
from demur_sim.engine.sampling import FastSampler
from demur_sim.engine.simulation import open_session, study_of
from demur_sim.people.labelled import LabelledPeople, PersonExamples
from demur_sim.people.populations import ArrayPopulation, PersonSource
from demur_sim.scenario import Kind, Refusal, Scenario

ROUNDS, DEVICES, SLOT_MS = 8, 60, 60
CATEGORIES = 9
DEADLINE_S = 300.0  # of a run over processes
GROUPS = np.arange(4096 + 400) % 2 == 0  # who has something in every round


def exhausted(devices: int) -> Flags:
    who: Flags = GROUPS[:devices]
    return who


# ---- every kind of question --------------------------------------------------------------------


def values(devices: int, *, something: Sequence[float], nothing: float = 0.0) -> ArrayPopulation:
    """Every other person has something in every round, and nobody else ever has."""
    full = np.full((devices, ROUNDS), nothing)
    full[exhausted(devices)] = something
    return ArrayPopulation(full)


def examples(devices: int) -> LabelledPeople:
    """Every other person has an example, and nobody else has one."""
    count = int(exhausted(devices).sum())
    return LabelledPeople(
        data=np.ones((count, 3)),
        labels=np.zeros(count, dtype=np.int64),
        people=np.concatenate([[0], np.cumsum(exhausted(devices))]).astype(np.int64),
    )


def today(number: int) -> Feature:
    return Feature(name="value", parameters={"period": number})


def position(number: int, cohort: int) -> Segment:
    segment = Segment(horizon=ROUNDS, cohort=cohort).begun(1)
    for _ in range(1, number):
        segment = segment.after()
    return segment


async def linear(asker: Any, number: int, devices: int) -> None:
    await asker.ask(Linear([today(number)], on_grid=True))


async def categories(
    asker: Any,
    number: int,
    devices: int,
    *,
    mechanism: Randomiser,
) -> None:
    epsilon = epsilon_for_answers(
        asker.study.value, mechanism=mechanism, categories=CATEGORIES, answers=2
    )
    await asker.ask(
        Histogram(today(number), categories=CATEGORIES, mechanism=mechanism, epsilon=epsilon)
    )


async def state(asker: Any, number: int, devices: int, *, admission: Admission) -> None:
    await asker.ask(RunningCount(today(number), position(number, devices), admission=admission))


async def of_a_model(
    asker: Any, number: int, devices: int, *, kind: type[Gradient | ErrorCount]
) -> None:
    wrong = np.array([[-1.0, 1.0]] * 4).ravel() * (1 + number / 100)  # says 1, and all are 0
    model = ModelDefinition(architecture=Softmax(inputs=3, classes=2), theta=wrong)
    await asker.ask(kind.about(model))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kind of question, and people half of whom run out over it."""

    scenario: Scenario
    people: Callable[[int], Any]
    ask: Callable[..., Any]
    silent: bool = True  #: a device could fall silent
    purpose: Purpose = Purpose.DATA


PLAIN = Scenario(name="plain", feature="value", budget=2, grid_exponent=-10, policy=Policy.SKIP)
COUNTS = Scenario(
    name="counts", kind=Kind.HISTOGRAM, feature="value", categories=CATEGORIES,
    mechanism="oue", budget=2, view=View.LOCAL, measure=Measure.ZCDP,
)  # fmt: skip
STATES = Scenario(
    name="states", kind=Kind.PREFIX, feature="value", budget=1, grid_exponent=EXPONENT,
    view=View.LOCAL,
)  # fmt: skip
MODELS = replace(PLAIN, name="models", on_grid=False, grid_exponent=-14)
ON_AND_OFF = [1.0, 0.0] * (ROUNDS // 2)

CASES = {
    "linear": Case(scenario=PLAIN, people=partial(values, something=[1.0] * ROUNDS), ask=linear),
    "commit": Case(
        scenario=STATES,
        people=partial(values, something=ON_AND_OFF),
        ask=partial(state, admission=Admission.COMMIT),
        silent=False,  # a change is refused, never a word
    ),
    "halt": Case(
        scenario=replace(STATES, admission=Admission.HALT),
        people=partial(values, something=ON_AND_OFF),
        ask=partial(state, admission=Admission.HALT),
    ),
    "gradient": Case(scenario=MODELS, people=examples, ask=partial(of_a_model, kind=Gradient)),
    "shrunk gradient": Case(
        scenario=replace(MODELS, policy=Policy.CLIP),
        people=examples,
        ask=partial(of_a_model, kind=Gradient),
    ),
    "error count": Case(
        scenario=MODELS,
        people=examples,
        ask=partial(of_a_model, kind=ErrorCount),
        purpose=Purpose.ERRORS,
    ),
    **{
        f"histogram by {mechanism}": Case(
            scenario=replace(COUNTS, mechanism=mechanism.value),
            people=partial(values, something=[2.0] * ROUNDS, nothing=-1.0),
            ask=partial(categories, mechanism=mechanism),
        )
        for mechanism in Randomiser
    },
}
IN_SUITE = {"halt", "gradient"}  # linear, by oue and commit are in other files


def told_apart(messages: Messages, *, seed: int) -> Advantage:
    """How well the watcher tells those who run out from the others."""
    who = exhausted(len(messages))
    return distinguish(messages.of(who), messages.of(~who), seed=seed)


def look_alike(messages: Messages) -> None:
    """Everything but the time is the same for everybody."""
    assert messages.rounds == ROUNDS
    assert messages.sent.all()
    assert len(np.unique(messages.size_bytes)) == 1
    assert np.unique(messages.status).tolist() == [report_pb2.DISPOSITION_ACCEPTED]


# ---- real devices ------------------------------------------------------------------------------


def device_of(study: Defined[Study], people: Any, index: int, rng: np.random.Generator) -> Device:
    labelled = isinstance(people, LabelledPeople)
    source = PersonExamples(people, index) if labelled else PersonSource(people, index)
    return Device(study, source, FastSampler(rng))


async def seen_of_devices(case: Case, *, seed: int) -> Messages:
    rng = np.random.default_rng(seed)
    contract = study_of(case.scenario, devices=DEVICES, horizon=ROUNDS)
    study = define_study(replace(contract, purpose=case.purpose))
    people = case.people(DEVICES)
    mine = [device_of(study, people, index, rng) for index in range(DEVICES)]

    async def ask(number: int, analyst: Analyst) -> None:
        await case.ask(analyst, number, DEVICES)

    messages = await watched(
        [[each] for each in mine], ask, rounds=ROUNDS, rng=rng, slot_ms=SLOT_MS
    )
    check_refused([each.ledger.ever_refused(study.hash) for each in mine])
    return messages


def check_refused(refused: Sequence[bool]) -> None:
    """Those who were to run out did: all but a few, whose evaluation may have come too late."""
    who = exhausted(len(refused))
    assert not np.array(refused)[~who].any()
    assert np.array(refused)[who].mean() >= 0.8


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[] if each in IN_SUITE else pytest.mark.long) for each in CASES],
)
async def test_whoever_runs_out_looks_like_everybody_else_whatever_is_asked(name: str) -> None:
    for attempt in (1, 2):
        messages = await seen_of_devices(CASES[name], seed=attempt)
        look_alike(messages)
        seen = told_apart(messages, seed=attempt)
        if abs(seen.deviations) <= 3:
            break

    assert abs(seen.deviations) <= 3


async def test_whoever_ran_out_looks_like_everybody_else_when_halts_are_counted() -> None:
    """They are told by another study, whose device has the same ledger; the count is watched."""
    main = define_study(study_of(PLAIN, devices=DEVICES, horizon=ROUNDS))
    norm = change_norm(Factorisation.SQUARE_ROOT, horizon=ROUNDS, exponent=EXPONENT)
    halts = a_study(
        answers=1, clip=norm, minimum_cohort=DEVICES, name="halts", purpose=Purpose.HALTS
    )
    people = CASES["linear"].people(DEVICES)

    async def ask(number: int, counting: Analyst, asking: Analyst) -> None:
        await linear(asking, number, DEVICES)
        await counting.ask(HaltCount(main.hash, position(number, DEVICES)))

    for attempt in (1, 2):
        rng = np.random.default_rng(attempt)
        pairs = []
        for index in range(DEVICES):
            ledger, person = MemoryLedger(), PersonSource(people, index)
            pairs.append(
                [Device(each, person, FastSampler(rng), ledger=ledger) for each in (halts, main)]
            )
        messages = await watched(pairs, ask, rounds=ROUNDS, rng=rng, slot_ms=SLOT_MS)
        check_refused([each.ledger.ever_refused(main.hash) for _, each in pairs])
        paid = [
            each.ledger.remaining_units(halts.hash) < halts.value.budget_units for each, _ in pairs
        ]
        assert np.mean(np.array(paid)[exhausted(DEVICES)]) >= 0.8
        look_alike(messages)
        seen = told_apart(messages, seed=attempt)
        if abs(seen.deviations) <= 3:
            break

    assert abs(seen.deviations) <= 3


# ---- runs over processes -----------------------------------------------------------------------


async def seen_of_processes(case: Case, *, refusal: Refusal, devices: int) -> Messages:
    scenario = replace(case.scenario, refusal=refusal, minimum_cohort=1, shuffle=False)
    with anyio.fail_after(DEADLINE_S):
        async with open_session(
            scenario,
            fidelity="processes",
            workers=2,
            population=case.people(devices),
            horizon=ROUNDS,
            record=True,
            purpose=case.purpose,
        ) as session:
            for number in range(1, ROUNDS + 1):
                await case.ask(session, number, devices)
            aftermath = await session.finish()
    assert aftermath.messages is not None
    assert aftermath.refused.tolist() == exhausted(devices).tolist()
    return aftermath.messages


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
async def test_a_classifier_finds_nothing_in_processes_but_those_who_fall_silent(name: str) -> None:
    case = CASES[name]

    covering = await seen_of_processes(case, refusal=Refusal.COVER, devices=len(GROUPS))

    look_alike(covering)
    assert abs(told_apart(covering, seed=1).deviations) <= 3
    if case.silent:
        silent = await seen_of_processes(case, refusal=Refusal.SILENT, devices=400)
        assert told_apart(silent, seed=1).auc == 1.0
