"""Running counts asked of a session: the same at every fidelity, unbiased, and nothing shows."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import anyio
import numpy as np
import pytest

from counting_kit import EXPONENT, NoNoise, a_study, chain_of, dense, dense_chain, rounds_of
from demur_client.device import Device
from demur_proto.arrays import Integers
from demur_proto.errors import ParameterError, StateError
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries import Feature, HaltCount, Linear, RunningCount
from demur_proto.release import Release
from demur_proto.round import Round
from demur_proto.running.segments import Admission, Factorisation, Segment
from demur_proto.study import Policy, Study, View
from demur_proto.study import Purpose as StudyPurpose
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import Defined, define_round
from demur_proto.wire.words import decode_words
from demur_sim.engine.cohort import BlockAnswer, Cohort
from demur_sim.engine.cohort_session import cohort_session
from demur_sim.engine.observer import distinguish
from demur_sim.engine.processes import process_session
from demur_sim.engine.running_counts import BUNCH
from demur_sim.engine.sampling import FastSampler, Purpose, stream
from demur_sim.engine.session import Aftermath, Questions, Session
from demur_sim.people.populations import ArrayPopulation, PersonSource
from demur_sim.people.presence import BLOCK
from demur_sim.scenario import Refusal

DEADLINE_S = 60.0
DEVICES, HORIZON = 4096 + 300, 5  # two blocks, the last one small
KINDS = list(Factorisation)


@cache
def people(devices: int = DEVICES) -> ArrayPopulation:
    """States from 0 to 2 that change now and then; who has none in a period is not there either."""
    rng = np.random.default_rng(1)
    states = rng.integers(0, 3, size=(devices, HORIZON))
    stay = rng.random((devices, HORIZON)) < 0.6
    for period in range(1, HORIZON):
        states[:, period] = np.where(stay[:, period], states[:, period - 1], states[:, period])
    values = states.astype(float)
    values[rng.random(values.shape) < 0.05] = 0.5  # no state
    return ArrayPopulation(values)


def today(period: int) -> Feature:
    return Feature(name="value", parameters={"period": period})


def questions(population: Any) -> Questions:
    return Questions(population=population, grid_exponent=EXPONENT)


@asynccontextmanager
async def opened(
    study: Defined[Study], fidelity: str, workers: int, **options: Any
) -> AsyncIterator[Session]:
    told: Any = {"seed": 3, "refusal": Refusal.COVER, **options}
    with anyio.fail_after(DEADLINE_S):
        if fidelity == "cohort":
            async with cohort_session(
                study, questions(people()), threads=workers, **told
            ) as session:
                yield session
        else:
            async with process_session(
                study, questions(people()), workers=workers, **told
            ) as processes:
                yield processes


async def count_all(session: Session, **options: Any) -> list[Release]:
    """A segment of each factorisation, and a count in segments of 1, 2 and 4 rounds."""
    releases: list[Release] = []
    for kind in KINDS:
        segment = Segment(horizon=HORIZON, cohort=DEVICES, factorisation=kind)
        for period in range(1, HORIZON + 1):
            release = await session.ask(RunningCount(today(period), segment, bound=2, **options))
            releases.append(release)
            segment = segment.after(release.number) if period < HORIZON else segment
    segment = Segment(horizon=1, cohort=DEVICES)
    for period in range(1, HORIZON + 1):
        release = await session.ask(RunningCount(today(period), segment, bound=2, **options))
        releases.append(release)
        segment = segment.following(release.number)
    return releases


@cache
def study_of(**options: Any) -> Defined[Study]:
    return a_study(answers=20, **options)


async def asked(
    fidelity: str,
    workers: int,
    study: Defined[Study],
    *,
    admission: Admission = Admission.COMMIT,
    **options: Any,
) -> tuple[list[Release], Aftermath]:
    async with opened(study, fidelity, workers, **options) as session:
        return await count_all(session, admission=admission), await session.finish()


@pytest.fixture(scope="module")
async def arrays() -> tuple[list[Release], Aftermath]:
    return await asked("cohort", 1, study_of())


@pytest.fixture(scope="module")
async def watched() -> tuple[list[Release], Aftermath]:
    """Over two processes, every message recorded."""
    return await asked("processes", 2, study_of(), record=True)


def test_releases_are_the_same_over_processes(
    arrays: tuple[list[Release], Aftermath], watched: tuple[list[Release], Aftermath]
) -> None:
    check_same(watched, arrays)


@pytest.mark.parametrize(("fidelity", "workers"), [("cohort", 2), ("processes", 1)])
async def test_releases_are_the_same_whatever_the_number_of_workers(
    arrays: tuple[list[Release], Aftermath], fidelity: str, workers: int
) -> None:
    check_same(await asked(fidelity, workers, study_of()), arrays)


def check_same(
    one: tuple[list[Release], Aftermath], other: tuple[list[Release], Aftermath]
) -> None:
    assert one[0] == other[0]
    for name in ("refused", "spent"):
        assert np.array_equal(getattr(one[1], name), getattr(other[1], name))
    for mine, its in zip(one[1].contributed, other[1].contributed, strict=True):
        assert np.array_equal(mine, its)


def test_some_run_out_and_nobody_overspends(arrays: tuple[list[Release], Aftermath]) -> None:
    _, aftermath = arrays

    assert 0.02 < aftermath.refused.mean() < 0.98
    assert aftermath.spent.max() <= study_of().value.budget_units


def test_estimates_differ_from_what_people_told_by_just_the_noise_that_is_stated(
    arrays: tuple[list[Release], Aftermath],
) -> None:
    """Errors of a count, turned back into the noise of each round: 20 standard normals."""
    releases, aftermath = arrays
    normals = []
    matrices = [dense(kind, HORIZON) for kind in KINDS]
    matrices.append(dense_chain(Factorisation.SQUARE_ROOT, (1, 2, 4))[:HORIZON, :HORIZON])
    for index, steps in enumerate(matrices):
        part = slice(index * HORIZON, (index + 1) * HORIZON)
        matrix = steps.astype(float)
        told = np.cumsum(np.linalg.solve(matrix, np.array(aftermath.contributed[part])[:, 0]))
        errors = np.array([release.estimate[0] for release in releases[part]]) - told
        assert all(
            abs(error) <= 4.5 * release.standard_error[0]
            for error, release in zip(errors, releases[part], strict=True)
        )
        first = releases[part][0].standard_error[0] * matrix[0, 0]  # of every round's own sum
        normals.append(matrix @ np.diff(errors, prepend=0.0) / first)

    # Their sum of squares is chi squared with 20 degrees of freedom: mean 20, standard deviation √40.
    assert abs(np.sum(np.square(normals)) - 20) < 4 * math.sqrt(40)


@pytest.mark.parametrize("policy", [Policy.SKIP, Policy.RETIRE])
@pytest.mark.parametrize("admission", list(Admission))
def test_a_cohort_decides_as_single_devices_do(policy: Policy, admission: Admission) -> None:
    devices = 60
    population = people().part(slice(0, devices))
    study = a_study(answers=6, policy=policy)
    cohort = Cohort(study, population, seed=1, refusal=Refusal.COVER)
    mine = [Device(study, PersonSource(population, index), NoNoise()) for index in range(devices)]
    number = 1
    for kind in KINDS:
        segment = Segment(horizon=HORIZON, cohort=devices, factorisation=kind)
        for asked_now in rounds_of(study, segment, number=number, bound=2, admission=admission):
            period = asked_now.value.number - number + 1
            asked_now = at_period(asked_now, period)
            answer = next(cohort.answers(asked_now.value))
            check_answered(answer, mine, asked_now)
        number += HORIZON
    for asked_now in chain_of(
        study, (1, 4), number=number, cohort=devices, bound=2, admission=admission
    ):
        asked_now = at_period(asked_now, asked_now.value.number - number + 1)
        answer = next(cohort.answers(asked_now.value))
        check_answered(answer, mine, asked_now)
    left = [device.ledger.remaining_units(device.study.hash) for device in mine]
    assert (study.value.budget_units - cohort.spent()).tolist() == left
    assert cohort.covered().tolist() == [device.ever_covered for device in mine]
    assert cohort.refused().tolist() == [
        device.ledger.ever_refused(device.study.hash) for device in mine
    ]
    assert cohort.refused().sum() > 0
    assert not cohort.held().any()


def check_answered(answer: BlockAnswer, mine: list[Device], asked_now: Defined[Round]) -> None:
    """A block has told what devices tell, with its own noise."""
    words: list[int] = []
    for device in mine:
        report = device.report(asked_now, device.evaluate(asked_now))
        decoded, _ = decode_words(report.words, asked_now.value.word_type, reports=1, dimension=1)
        words.append(int(decoded[0, 0]))
    assert answer.contributed.tolist() == [sum(words)]
    noise = answer.words[:, 0] - np.array(words)
    assert np.array_equal(noise, noise_of(mine[0].study, asked_now, len(mine)))


def test_a_cohort_refuses_to_pass_over_a_position_as_it_would_decide_otherwise_than_devices() -> (
    None
):
    study = a_study()
    population = people().part(slice(0, 2))
    cohort = Cohort(study, population, seed=1, refusal=Refusal.COVER)
    first, second, third = [
        at_period(asked_now, 1).value
        for asked_now in rounds_of(study, Segment(horizon=3, cohort=2), number=1, bound=2)
    ]
    next(cohort.answers(first))

    with pytest.raises(ParameterError, match="position must be 2"):
        next(cohort.answers(third))

    assert next(cohort.answers(second)).sent.all()


@pytest.mark.parametrize("admission", list(Admission))
def test_which_blocks_decide_together_changes_nothing(admission: Admission) -> None:
    devices, cut = BUNCH + BLOCK + 100, 5 * BLOCK  # two bunches, and three otherwise
    study, many = a_study(answers=3), people(devices)
    whole = Cohort(study, many, seed=1, refusal=Refusal.COVER)
    parts = [
        Cohort(study, many.part(slice(0, cut)), seed=1, refusal=Refusal.COVER),
        Cohort(study, many.part(slice(cut, devices)), seed=1, refusal=Refusal.COVER, first_block=5),
    ]
    segment = Segment(horizon=HORIZON, cohort=devices)
    rounds = rounds_of(study, segment, number=1, bound=2, admission=admission)

    for period, asked_now in enumerate(rounds, start=1):
        asked = at_period(asked_now, period).value
        together = [answer.words for answer in whole.answers(asked)]
        apart = [answer.words for part in parts for answer in part.answers(asked)]
        assert np.array_equal(np.concatenate(together), np.concatenate(apart))

    for name in ("spent", "held", "refused", "covered"):
        apart = [getattr(part, name)() for part in parts]
        assert np.array_equal(getattr(whole, name)(), np.concatenate(apart))
    assert 0.1 < whole.refused().mean() < 0.98


def at_period(asked_now: Any, period: int) -> Any:
    query = replace(asked_now.value.query, feature=today(period))
    return define_round(replace(asked_now.value, query=query))


def noise_of(study: Defined[Study], asked_now: Any, devices: int) -> Integers:
    mechanism = GaussianLinear.of(study.value, asked_now.value.query)
    sampler = FastSampler(stream(1, Purpose.NOISE, asked_now.value.number, 0))
    drawn: Integers = mechanism.noise(sampler, reports=devices)[:, 0]
    return drawn


async def test_in_view_aggregate_devices_add_shares_of_the_noise() -> None:
    local, aggregate = study_of(), study_of(view=View.AGGREGATE, minimum_cohort=DEVICES)

    noisy, _ = await asked("cohort", 1, local)
    quiet, _ = await asked("cohort", 1, aggregate)

    ratio = noisy[0].standard_error[0] / quiet[0].standard_error[0]
    assert ratio == pytest.approx(math.sqrt(DEVICES), rel=0.1)


async def test_under_halt_releases_carry_no_interval() -> None:
    releases, aftermath = await asked("cohort", 2, study_of(), admission=Admission.HALT)

    assert all(release.half_width.size == 0 for release in releases)
    assert aftermath.spent.max() <= study_of().value.budget_units


@pytest.mark.parametrize("fidelity", ["cohort", "processes"])
async def test_a_question_that_breaks_its_segment_is_refused_and_another_may_follow(
    fidelity: str,
) -> None:
    segment = Segment(horizon=3, cohort=DEVICES)
    async with opened(study_of(), fidelity, 1) as session:
        await session.ask(RunningCount(today(1), segment, bound=2))
        await session.ask(RunningCount(today(1), segment, bound=2))  # a segment of its own
        second = segment.after(1)
        for broken, error in [
            (second.after(), StateError),  # position 3, before position 2
            (replace(second, horizon=4), ParameterError),
            (replace(second, first_round=3), ParameterError),
        ]:
            with pytest.raises(error):
                await session.ask(RunningCount(today(2), broken, bound=2))
        with pytest.raises(ParameterError, match="bound"):
            await session.ask(RunningCount(today(2), second, bound=0))
        with pytest.raises(ParameterError, match="purpose"):
            await session.ask(HaltCount(bytes(32), segment))

        release = await session.ask(RunningCount(today(2), second, bound=2))

        assert release.number == 3
        assert release.estimate.size == 1


def test_whoever_ran_out_looks_like_everybody_else_in_a_run_over_processes(
    watched: tuple[list[Release], Aftermath],
) -> None:
    _, aftermath = watched

    messages, exhausted = aftermath.messages, aftermath.refused
    assert messages is not None
    assert messages.sent.all()
    assert np.unique(messages.size_bytes).size == 1
    assert np.unique(messages.status).tolist() == [report_pb2.DISPOSITION_ACCEPTED]
    # The seed deals people to blocks, and all devices of a block send at the same time.
    advantage = distinguish(messages.of(exhausted), messages.of(~exhausted), seed=0)
    assert abs(advantage.deviations) <= 3


# ---- who halted -------------------------------------------------------------------------------


def main_study() -> Defined[Study]:
    return a_study(answers=3, name="main")


def halts_study() -> Defined[Study]:
    return a_study(answers=3, name="halts", purpose=StudyPurpose.HALTS)


async def halts_counted(main: Session, halts: Session) -> list[Release]:
    """A sum of everybody's state, its running count under `halt`, and who could not pay; and so on."""
    segment = Segment(horizon=HORIZON, cohort=DEVICES)
    decaying, counting = segment, segment
    releases = []
    for period in range(1, HORIZON + 1):
        releases.append(await main.ask(Linear([today(period)], clip=2.0)))
        releases.append(
            await main.ask(RunningCount(today(period), decaying, bound=2, admission=Admission.HALT))
        )
        decaying = decaying.after(releases[-1].number) if period < HORIZON else decaying
        releases.append(await halts.ask(HaltCount(main.study.hash, counting)))
        counting = counting.after(releases[-1].number) if period < HORIZON else counting
    return releases


async def halts_of_arrays(threads: int) -> tuple[list[Release], Aftermath, Aftermath, int]:
    """What both studies released, how they ended, and how many people really halted."""
    main, study = main_study(), halts_study()
    async with (
        opened(main, "cohort", threads) as session,
        opened(
            study,
            "cohort",
            threads,
            seed=4,
            beside={main.hash: session.cohort.covered},  # type: ignore[attr-defined]
        ) as halts,
    ):
        releases = await halts_counted(session, halts)
        covered = int(session.cohort.covered().sum())  # type: ignore[attr-defined]
        return releases, await session.finish(), await halts.finish(), covered


async def halts_of_processes(workers: int) -> tuple[list[Release], Aftermath, Any]:
    main, study = main_study(), halts_study()
    with anyio.fail_after(DEADLINE_S):
        async with process_session(
            main,
            questions(people()),
            seed=3,
            refusal=Refusal.COVER,
            workers=workers,
            companions=[(study, 4)],
        ) as session:
            halts = session.companions[study.hash]
            releases = await halts_counted(session, halts)
            return releases, await session.finish(), halts


async def test_those_who_ran_out_are_counted_alike_at_every_fidelity() -> None:
    releases, main, halts, covered = await halts_of_arrays(threads=1)
    threaded, _, _, _ = await halts_of_arrays(threads=2)

    assert threaded == releases
    for workers in (1, 2):
        over_grpc, there, beside = await halts_of_processes(workers)
        assert over_grpc == releases
        assert np.array_equal(there.refused, main.refused)
        assert np.array_equal(beside.spent, halts.spent)
        assert not beside.refused.any()
    assert 0.1 < main.refused.mean() < 0.98
    last = releases[-1]
    assert abs(last.estimate[0] - covered) <= 4.5 * last.standard_error[0]
