"""Intervals of monitoring hold as often as they say, however many people run out.

A run is a hundred people in a few rounds, one of which is counted: rounds of one run go together. Many
runs are one cohort, whose reports are added up a hundred at a time; every report has noise of its own,
so runs are independent.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from counting_kit import EXPONENT, a_study
from demur_proto.arrays import Flags, Integers, Values, Vector, Words
from demur_proto.everyone import EveryoneInterval, Measured, everyone_interval
from demur_proto.mechanisms.base import TWO_SIDED_QUANTILE, Estimate
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries import Feature, HaltCount, Linear, RunningCount
from demur_proto.round import Round, round_of
from demur_proto.running.estimates import RoundTotal
from demur_proto.running.factorisations import change_norm
from demur_proto.running.segments import Factorisation, Segment
from demur_proto.study import Purpose, Study, View
from demur_proto.wire.definition import Defined
from demur_server.collector.estimates import running_count
from demur_sim.engine.cohort import Cohort
from demur_sim.engine.cohort_session import cohort_session
from demur_sim.engine.session import Questions
from demur_sim.people.populations import ArrayPopulation
from demur_sim.scenario import Refusal

PEOPLE = 100  # of one run
ROUNDS, FIRST = 7, 5  # one of the rounds from FIRST on is counted; whoever runs out has by then
HORIZON = 8  # of running counts, which go on after the last round
SHARES = (1, 5, 20)  # how many of a hundred run out
KINDS = ("linear", "prefix")
EPSILON = 4.0  # at which noise is a few people in view aggregate, and those who run out matter
NORM = change_norm(Factorisation.SQUARE_ROOT, horizon=HORIZON, exponent=EXPONENT)
STUCK_OFF, STUCK_ON = [1, 0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]  # their second or third change
SEED = 11


# ---- many runs ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class People:
    """Everybody in all runs; the first ones of each run will run out."""

    values: Values  #: [runs, PEOPLE, ROUNDS]
    last_told: Vector  #: [runs], what one of those who ran out counts with
    run_out: int  #: how many of each run

    @property
    def exhausted(self) -> Flags:
        """Who will run out [runs · PEOPLE]."""
        first = np.arange(PEOPLE) < self.run_out
        return np.tile(first, len(self.values))

    @property
    def population(self) -> ArrayPopulation:
        return ArrayPopulation(self.values.reshape(-1, ROUNDS))

    def sums(self, counted: Integers) -> tuple[Vector, Vector]:
        """S_active and S_all of each run in its counted round [runs], by hand."""
        now = self.values[np.arange(len(counted)), :, counted - 1]
        others = now[:, self.run_out :].sum(axis=1)
        return others + self.run_out * self.last_told, now.sum(axis=1)


def people_of(kind: str, *, runs: int, run_out: int, seed: int) -> People:
    """Linear: the budget holds two answers by those who have 0.85 to 1 every day, and all by the
    others, who have up to a quarter. RunningCount: it holds one change, and the others have one at most.
    """
    rng = np.random.default_rng(seed)
    values = rng.random((runs, PEOPLE, ROUNDS)) / 4
    last_told = np.zeros(runs)
    if kind == "linear":
        values[:, :run_out] = rng.uniform(0.85, 1.0, size=(runs, run_out, 1))
    else:
        begins = rng.integers(0, 2 * ROUNDS, size=(runs, PEOPLE, 1))  # half of them never
        values[:] = np.arange(ROUNDS) >= begins
        last_told[1::2] = 1.0
        values[::2, :run_out] = STUCK_OFF
        values[1::2, :run_out] = STUCK_ON
    return People(values=values, last_told=last_told, run_out=run_out)


def main_study(kind: str, view: View) -> Defined[Study]:
    answers, clip = (2, 1.0) if kind == "linear" else (1, NORM)
    return a_study(
        answers=answers, clip=clip, name="main", epsilon=EPSILON, view=view, minimum_cohort=PEOPLE
    )


def halts_study(view: View, cohort: int = PEOPLE) -> Defined[Study]:
    return a_study(
        answers=1,
        clip=NORM,
        name="halts",
        epsilon=EPSILON,
        view=view,
        minimum_cohort=cohort,
        purpose=Purpose.HALTS,
    )


def main_round(kind: str, study: Defined[Study], number: int) -> Round:
    today = Feature(name="value", parameters={"period": number})
    if kind == "linear":
        return round_of(study, Linear([today]), number=number)
    return round_of(study, RunningCount(today, position(PEOPLE, number)), number=number)


def position(cohort: int, number: int) -> Segment:
    segment = Segment(horizon=HORIZON, cohort=cohort).begun(1)
    for _ in range(1, number):
        segment = segment.after()
    return segment


@dataclass(frozen=True, kw_only=True)
class Found:
    """What each run found in its counted round."""

    active: list[Estimate]
    halted: list[Estimate]
    bias: float  #: of the first
    told: Vector  #: S_active [runs]
    truth: Vector  #: S_all [runs]


def found(
    kind: str,
    *,
    runs: int,
    run_out: int,
    view: View = View.AGGREGATE,
    seed: int = SEED,
    counting: Flags | None = None,
    cohort: int | None = None,
) -> Found:
    """Ask everybody.

    Args:
        kind: of the main study's rounds.
        runs: how many.
        run_out: people of each run.
        view: of both studies.
        seed: of people and noise.
        counting: who takes part in the count of halts [PEOPLE]; everybody by default.
        cohort: how many people that count is for; by default those who take part.
    """
    there = np.ones(PEOPLE, dtype=np.bool_) if counting is None else counting
    present = int(np.count_nonzero(there))
    people = people_of(kind, runs=runs, run_out=run_out, seed=seed)
    study, beside = main_study(kind, view), halts_study(view, present)
    main = Cohort(study, people.population, seed=seed, refusal=Refusal.COVER)
    halts = Cohort(
        beside,
        people.population,
        seed=seed + 1,
        refusal=Refusal.COVER,
        beside={study.hash: main.covered},
    )
    counted = FIRST + np.arange(runs) % (ROUNDS - FIRST + 1)
    sums, halt_sums = np.zeros((2, runs, ROUNDS), dtype=np.int64)
    mains, counts = [], []
    for number in range(1, ROUNDS + 1):
        mains.append(main_round(kind, study, number))
        segment = position(present if cohort is None else cohort, number)
        counts.append(round_of(beside, HaltCount(study.hash, segment), number=number))
        sums[:, number - 1] = words_of(main, mains[-1], runs).sum(axis=1)
        halt_sums[:, number - 1] = words_of(halts, counts[-1], runs)[:, there].sum(axis=1)
        if number >= FIRST - 1:
            assert main.refused().tolist() == people.exhausted.tolist()
            assert main.covered().tolist() == people.exhausted.tolist()
    assert not halts.refused().any()
    told, truth = people.sums(counted)
    asked = mains[0].query
    clipped = GaussianLinear.of(study.value, asked) if isinstance(asked, Linear) else None
    return Found(
        active=[
            estimate_of(study.value, mains[last - 1], row[:last], PEOPLE)
            for row, last in zip(sums, counted.tolist(), strict=True)
        ],
        halted=[
            estimate_of(beside.value, counts[last - 1], row[:last], present)
            for row, last in zip(halt_sums, counted.tolist(), strict=True)
        ],
        bias=clipped.clipping_bias(PEOPLE) if clipped else 0.0,
        told=told,
        truth=truth,
    )


def words_of(cohort: Cohort, asked: Round, runs: int) -> Words:
    """Everybody's noisy words [runs, PEOPLE]."""
    words = np.concatenate([answer.words[:, 0] for answer in cohort.answers(asked)])
    return words.reshape(runs, PEOPLE)


def estimate_of(study: Study, asked: Round, sums: Integers, reports: int) -> Estimate:
    """As a release has it, from the sums of all rounds so far."""
    if isinstance(asked.query, Linear):
        return GaussianLinear.of(study, asked.query).estimate(sums[-1:], reports=reports)
    totals = [RoundTotal(sum=each, reports=reports) for each in sums.tolist()]
    return running_count(study, asked, totals)


# ---- how often intervals hold ------------------------------------------------------------------


def tolerance(runs: int) -> float:
    """Three standard errors of a share of so many independent runs that is 95 %."""
    return 3 * math.sqrt(0.95 * 0.05 / runs)


def active_share(each: Found) -> float:
    """How many of the intervals for S_active hold it."""
    held = [
        abs(mine.estimate.item() - told) <= mine.half_width.item()
        for mine, told in zip(each.active, each.told, strict=True)
    ]
    return float(np.mean(held))


def everyone(each: Found, kind: str, *, missing: int = 0) -> list[EveryoneInterval]:
    """The intervals for S_all."""
    return [
        everyone_interval(
            Measured(
                estimate=mine.estimate.item(),
                standard_error=mine.standard_error.item(),
                bias=each.bias,
            ),
            Measured(
                estimate=halted.estimate.item(),
                standard_error=halted.standard_error.item(),
                bias=halted.half_width.item() - TWO_SIDED_QUANTILE * halted.standard_error.item(),
            ),
            largest=1.0,
            signed=kind == "prefix",
            missing=missing,
        )
        for mine, halted in zip(each.active, each.halted, strict=True)
    ]


def everyone_share(each: Found, kind: str, **options: Any) -> float:
    """How many of the intervals for S_all hold it."""
    intervals = everyone(each, kind, **options)
    held = [
        mine.low <= truth <= mine.high for mine, truth in zip(intervals, each.truth, strict=True)
    ]
    return float(np.mean(held))


def check_coverage(kind: str, *, runs: int, run_out: int, view: View) -> None:
    each = found(kind, runs=runs, run_out=run_out, view=view, seed=SEED + run_out)
    active, all_of_them = active_share(each), everyone_share(each, kind)
    print(f"{kind}, {view}, {run_out} %: {active:.4f} of S_active, {all_of_them:.4f} of S_all")
    assert abs(active - 0.95) <= tolerance(runs)
    assert all_of_them >= 0.95 - tolerance(runs)


@pytest.mark.parametrize("run_out", SHARES)
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_hold_as_often_as_they_say_however_many_run_out(kind: str, run_out: int) -> None:
    check_coverage(kind, runs=400, run_out=run_out, view=View.AGGREGATE)


@pytest.mark.long
@pytest.mark.parametrize("run_out", SHARES)
@pytest.mark.parametrize("view", list(View))
@pytest.mark.parametrize("kind", KINDS)
def test_monitoring_covers_in_eight_thousand_runs(kind: str, view: View, run_out: int) -> None:
    check_coverage(kind, runs=8000, run_out=run_out, view=view)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interval_for_those_who_answered_is_none_for_everyone(kind: str) -> None:
    each = found(kind, runs=400, run_out=20)

    for_everyone = replace(each, told=each.truth)

    assert active_share(for_everyone) < 0.05


# ---- devices that are missing from the count of those who ran out ------------------------------

COUNTING = np.arange(PEOPLE) % 10 < 4  # 8 of the 20 who run out among them


@pytest.mark.parametrize("kind", KINDS)
def test_missing_devices_are_added_whether_the_count_is_for_them_or_not(kind: str) -> None:
    beyond = found(kind, runs=400, run_out=20, counting=COUNTING)
    within = found(kind, runs=400, run_out=20, counting=COUNTING, cohort=PEOPLE)

    assert everyone_share(beyond, kind, missing=60) >= 0.95 - tolerance(400)
    assert everyone_share(within, kind) >= 0.95 - tolerance(400)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interval_for_everyone_that_forgets_missing_devices_is_found(kind: str) -> None:
    forgot = found(kind, runs=400, run_out=20, counting=COUNTING)

    assert everyone_share(forgot, kind) < 0.95 - tolerance(400)


# ---- what is counted is what a session releases ------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_the_first_of_these_runs_is_what_a_session_releases_bit_for_bit(kind: str) -> None:
    each = found(kind, runs=1, run_out=20)
    people = people_of(kind, runs=1, run_out=20, seed=SEED).population
    questions = Questions(population=people, grid_exponent=EXPONENT)
    study, beside = main_study(kind, View.AGGREGATE), halts_study(View.AGGREGATE)
    options: Any = {"refusal": Refusal.COVER, "threads": 1}

    async with cohort_session(
        study, questions, seed=SEED, companions=[(beside, SEED + 1)], **options
    ) as session:
        halts = session.companions[beside.hash]
        for number in range(1, FIRST + 1):
            today = Feature(name="value", parameters={"period": number})
            segment = position(PEOPLE, number)
            if kind == "linear":
                active = await session.ask(Linear([today]))
            else:
                active = await session.ask(RunningCount(today, segment))
            halted = await halts.ask(HaltCount(study.hash, segment))

    for release, mine in ((active, each.active[0]), (halted, each.halted[0])):
        for name in ("estimate", "standard_error", "half_width"):
            assert getattr(release, name).tolist() == getattr(mine, name).tolist()
