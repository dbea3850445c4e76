"""Counts of errors for many people at once, against one person at a time and against processes."""

import itertools
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import anyio
import numpy as np
import pytest

from demur_client.device import Device
from demur_proto.arrays import Bits, Values, Words
from demur_proto.errors import DataError, ParameterError, UnsupportedError
from demur_proto.models.architectures import Softmax
from demur_proto.models.definition import ModelDefinition, Module, define_model
from demur_proto.models.gradients import person_error_share
from demur_proto.queries import ErrorCount, Feature, Gradient, Linear
from demur_proto.queries.registry import mechanism_for
from demur_proto.release import Release
from demur_proto.round import Round, round_of
from demur_proto.study import Policy, Purpose, Study, design_study
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_sim.engine.cohort import Cohort
from demur_sim.engine.float_cohort import FloatCohort
from demur_sim.engine.session import Aftermath, Session
from demur_sim.engine.simulation import open_session
from demur_sim.people.labelled import LabelledPeople, PersonExamples
from demur_sim.people.populations import ArrayPopulation
from demur_sim.scenario import Refusal, Scenario
from demur_sim.training.sources import restore_into, snapshot_of

DEADLINE_S = 60.0
INPUTS, CLASSES = 3, 2
PARAMETERS = (INPUTS + 1) * CLASSES


@cache
def people(devices: int) -> LabelledPeople:
    """Nobody to three examples each; every seventh has a pixel that is no number."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(0, 4, size=devices)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    data = rng.normal(size=(int(offsets[-1]), INPUTS))
    data[::7, 0] = np.nan
    return LabelledPeople(data=data, labels=rng.integers(0, CLASSES, len(data)), people=offsets)


def a_model(step: int = 1) -> ModelDefinition:
    theta = np.linspace(-1.0, 1.0, PARAMETERS) * step
    return ModelDefinition(architecture=Softmax(inputs=INPUTS, classes=CLASSES), theta=theta)


def a_study(
    policy: Policy = Policy.SKIP,
    *,
    answers: int = 2,
    cohort: int = 40,
    purpose: Purpose = Purpose.ERRORS,
) -> Defined[Study]:
    return define_study(
        design_study(
            name="errors",
            epsilon=1.0,
            delta=1e-6,
            answers=answers,
            minimum_cohort=cohort,
            grid_exponent=-15,
            maximum_dimension=PARAMETERS,
            policy=policy,
            purpose=purpose,
        )
    )


def asking(study: Defined[Study], number: int) -> Defined[Round]:
    model_hash = define_model(a_model(number)).hash
    return define_round(
        round_of(study, ErrorCount(model_hash=model_hash, parameters=PARAMETERS), number=number)
    )


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


class Coins:
    """Draws no noise, and the same coin for everyone: devices and cohorts then agree in every word."""

    name = "coins"

    def words(self, count: int) -> Bits:
        raise AssertionError("nobody asks for bits")

    def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
        return np.zeros((reports, dimension), dtype=np.int64)

    def uniform(self, *, reports: int, dimension: int) -> Values:
        return np.full((reports, dimension), 0.5)


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("kind", ["errors", "gradients"])
def test_a_cohort_does_what_devices_do_one_by_one_and_raises_the_same_flags(
    policy: Policy, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    purpose = Purpose.ERRORS if kind == "errors" else Purpose.DATA
    study, of = a_study(policy, purpose=purpose), people(40)
    cohort = Cohort(study, of, seed=1, refusal=Refusal.COVER)
    devices = [Device(study, PersonExamples(of, each), Coins()) for each in range(40)]
    monkeypatch.setattr("demur_sim.engine.cohort.FastSampler", lambda rng, *, widen: Coins())

    for number in range(1, 7):
        model_hash = define_model(a_model(number)).hash
        asked = (
            asking(study, number)
            if kind == "errors"
            else define_round(
                round_of(
                    study, Gradient(model_hash=model_hash, dimension=PARAMETERS), number=number
                )
            )
        )
        model = define_model(a_model(number))
        together = np.concatenate([each.words for each in cohort.answers(asked.value, model.value)])
        alone = [
            np.frombuffer(device.report(asked, device.evaluate(asked, model)).words, dtype="<i4")
            for device in devices
        ]
        np.testing.assert_array_equal(together, alone)
        assert cohort.covered().tolist() == [each.ever_covered for each in devices]

    spent = [study.value.budget_units - each.ledger.remaining_units(study.hash) for each in devices]
    assert cohort.spent().tolist() == spent
    assert max(spent) <= study.value.budget_units
    covered, refused = cohort.covered(), cohort.refused()
    assert (covered >= refused).all()
    assert 0 < covered.sum() < 40
    # NaN is wrong, which is a value; a gradient of NaN is none, and the filter knows nothing of it.
    assert (covered > refused).any() == (kind == "gradients")


def test_flags_go_on_with_a_checkpoint(pool: ThreadPoolExecutor) -> None:
    study, of = a_study(Policy.CLIP, purpose=Purpose.DATA), people(40)
    cohort, later = (Cohort(study, of, seed=1, refusal=Refusal.COVER) for _ in range(2))
    asked = define_round(
        round_of(
            study, Gradient(model_hash=define_model(a_model()).hash, dimension=PARAMETERS), number=1
        )
    )
    cohort.sum(asked.value, pool, threads=1, model=a_model())
    kept = snapshot_of(cohort)

    restore_into(later, kept)

    assert later.covered().any()
    assert later.covered().tolist() == cohort.covered().tolist()
    with pytest.raises(DataError, match="the checkpoint has no covered of 40 devices"):
        restore_into(later, {name: each for name, each in kept.items() if name != "covered"})


def test_floats_raise_the_flag_of_whoever_gave_less_than_their_gradient() -> None:
    study, of = a_study(Policy.CLIP, answers=1).value, people(40)
    cohort = FloatCohort(study, of, clip=1.0, seed=1)
    flags = []

    for number in range(1, 6):
        cohort.noisy_sum(a_model(number), number=number)
        flags.append(cohort.covered.copy())

    has_nan = [bool(np.isnan(PersonExamples(of, each).examples()[0]).any()) for each in range(40)]
    assert flags[0].tolist() == has_nan
    assert all((later >= earlier).all() for earlier, later in itertools.pairwise(flags))
    assert flags[-1].tolist() == (cohort.refused | has_nan).tolist()
    assert cohort.refused.any()


@pytest.mark.parametrize("policy", [Policy.SKIP, Policy.RETIRE])
def test_floats_without_clipping_to_the_budget_raise_it_too(policy: Policy) -> None:
    study, of = a_study(policy, answers=1).value, people(40)
    for worst_case in (False, True):
        cohort = FloatCohort(study, of, clip=1.0, seed=1, worst_case=worst_case)
        for number in (1, 2, 3):
            cohort.noisy_sum(a_model(number), number=number)

        has_nan = [np.isnan(PersonExamples(of, each).examples()[0]).any() for each in range(40)]
        assert cohort.covered.tolist() == (cohort.refused | has_nan).tolist()
        assert cohort.refused.any()


def test_a_value_off_the_promised_grid_raises_the_flag_and_a_value_of_nothing_does_not(
    pool: ThreadPoolExecutor,
) -> None:
    values = np.array([[0.0], [1.0], [0.5], [1 / 3], [3.0]])
    study = a_study(cohort=5, purpose=Purpose.DATA)
    cohort = Cohort(study, ArrayPopulation(values), seed=1, refusal=Refusal.COVER)

    asked = define_round(
        round_of(
            study,
            Linear([Feature(name="value", parameters={"period": 1.0})], on_grid=True),
            number=1,
        )
    )
    cohort.sum(asked.value, pool, threads=1)

    assert cohort.covered().tolist() == [False, False, False, True, True]
    assert not cohort.refused().any()


def test_counts_are_unbiased_with_the_standard_error_that_is_stated(
    pool: ThreadPoolExecutor,
) -> None:
    devices, rounds = 500, 200
    of, study = people(devices), a_study(answers=rounds, cohort=devices)
    cohort = Cohort(study, of, seed=3, refusal=Refusal.COVER)
    asked = [
        define_round(
            round_of(
                study,
                ErrorCount(model_hash=define_model(a_model()).hash, parameters=PARAMETERS),
                number=number,
            )
        ).value
        for number in range(1, rounds + 1)
    ]
    mechanism = mechanism_for(study.value, asked[0])

    found = [
        mechanism.estimate(cohort.sum(each, pool, threads=2, model=a_model()).sums, reports=devices)
        for each in asked
    ]

    truth = sum(
        person_error_share(a_model(), *PersonExamples(of, each).examples()).item()
        for each in range(devices)
    )
    error = found[0].standard_error.item()
    errors = np.array([each.estimate.item() for each in found]) - truth
    assert not cohort.covered().any()
    assert abs(errors.mean()) <= 5 * error / rounds**0.5
    assert abs(errors.var() / error**2 - 1) <= 5 * (2 / rounds) ** 0.5


# ---- sessions ----------------------------------------------------------------------------------

COUNTING = Scenario(name="counting", policy=Policy.SKIP, budget=2, on_grid=False, grid_exponent=-14)


@asynccontextmanager
async def session(devices: int, **options: Any) -> AsyncIterator[Session]:
    with anyio.fail_after(DEADLINE_S):
        async with open_session(
            COUNTING, population=people(devices), purpose=Purpose.ERRORS, **options
        ) as made:
            yield made


async def counted(devices: int, **options: Any) -> tuple[list[Release], Aftermath]:
    """Four counts, each of a model that depends on the count before."""
    releases: list[Release] = []
    async with session(devices, seed=6, **options) as asked:
        for _ in range(4):
            step = 1.0 + round(releases[-1].estimate.item(0)) / devices if releases else 1.0
            theta = np.linspace(-1.0, 1.0, PARAMETERS) ** 3 * step
            model = ModelDefinition(architecture=a_model().architecture, theta=theta)
            releases.append(await asked.ask(ErrorCount.about(model)))
        return releases, await asked.finish()


async def test_processes_count_what_the_cohort_counts_bit_for_bit() -> None:
    devices = 60  # the trainings have two blocks, and as many workers

    alone, truth = await counted(devices, workers=1)
    for fidelity, workers in (("cohort", 2), ("processes", 1)):
        releases, aftermath = await counted(devices, fidelity=fidelity, workers=workers)

        assert releases == alone
        np.testing.assert_array_equal(aftermath.spent, truth.spent)
        np.testing.assert_array_equal(aftermath.refused, truth.refused)
        np.testing.assert_array_equal(
            np.concatenate(aftermath.contributed), np.concatenate(truth.contributed)
        )
    assert [release.reports for release in alone] == [devices] * 4
    assert truth.refused.any()


async def test_questions_that_these_people_cannot_answer_are_refused_and_others_may_follow() -> (
    None
):
    wide = ModelDefinition(architecture=Softmax(inputs=4, classes=2), theta=np.zeros(10))
    module = Module(path="nowhere.at_all:Net", inputs=3, classes=2, parameters=8)
    unknown = ModelDefinition(architecture=module, theta=np.zeros(8))
    async with session(40) as asked:
        for model in (wide, None, "softmax"):
            with pytest.raises(ParameterError):
                await asked.ask(ErrorCount.about(model))  # type: ignore[arg-type]
        with pytest.raises(UnsupportedError, match="nowhere"):
            await asked.ask(ErrorCount.about(unknown))
        with pytest.raises(ParameterError, match="on_grid must be false, as somebody has 3 exampl"):
            await asked.ask(ErrorCount.about(a_model(), on_grid=True))
        release = await asked.ask(ErrorCount.about(a_model()))

    assert release.number == 1
    assert len(release.estimate) == 1


async def test_who_has_one_two_or_four_examples_answers_on_the_grid() -> None:
    sizes = np.array([0, 1, 2, 4, 0, 1])
    of = LabelledPeople(
        data=np.ones((8, INPUTS)),
        labels=np.zeros(8, dtype=np.int64),
        people=np.concatenate([[0], np.cumsum(sizes)]),
    )
    with anyio.fail_after(DEADLINE_S):
        async with open_session(COUNTING, population=of, purpose=Purpose.ERRORS) as asked:
            release = await asked.ask(ErrorCount.about(a_model(), on_grid=True))
            off = await asked.ask(ErrorCount.about(a_model(), on_grid=False))

    assert release.standard_error_at(0) < off.standard_error_at(0)


async def test_people_without_examples_have_no_errors() -> None:
    plain = ArrayPopulation(np.zeros((40, 1)))
    with anyio.fail_after(DEADLINE_S):
        async with open_session(COUNTING, population=plain, purpose=Purpose.ERRORS) as asked:
            with pytest.raises(ParameterError, match="people who own labelled examples"):
                await asked.ask(ErrorCount.about(a_model()))
