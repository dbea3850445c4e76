"""Intervals of sums hold as often as they say, whatever a filter does with an answer that does not fit.

They are held against clipped values before shrinking and rounding, added up by hand. A run is a hundred
people in a few rounds, one of which is counted: rounds of one run go together. Many runs are one cohort,
whose reports are added up a hundred at a time; every report has noise of its own, so runs are
independent.
"""

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counting_kit import EXPONENT, a_study
from demur_proto.accounting.intervals import supremum_radius
from demur_proto.arrays import Flags, Values, Vector
from demur_proto.everyone import EveryoneInterval, Measured, everyone_interval
from demur_proto.mechanisms.base import TWO_SIDED_QUANTILE
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries import Feature, HaltCount, Linear
from demur_proto.release import Estimand, Release
from demur_proto.round import Round, round_of
from demur_proto.running.estimates import RoundTotal
from demur_proto.running.factorisations import change_norm
from demur_proto.running.segments import Factorisation, Segment
from demur_proto.study import Policy, Purpose, Study, View, design_study
from demur_proto.v1 import release_pb2
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_server.collector.estimates import make_release, running_count
from demur_server.formatting import told
from demur_server.post_processing import Processed
from demur_sim.engine.cohort import Cohort
from demur_sim.engine.cohort_session import cohort_session
from demur_sim.engine.session import Aftermath, Questions
from demur_sim.people.populations import ArrayPopulation
from demur_sim.results.files import save
from demur_sim.results.report import report
from demur_sim.results.sums import LinearResult
from demur_sim.run import simulate
from demur_sim.scenario import Refusal, Scenario

Cube = np.ndarray[Any, np.dtype[np.float64]]

PEOPLE = 100  # of one run
RUN_OUT = 20  # of these
ROUNDS, FIRST = 6, 3  # one of the rounds from FIRST on is counted; in the third, the first run out
WIDTH = 3  # numbers of one value
CLIP = 1.0
HORIZON = 8
EPSILON = 4.0  # at which noise is a few people, and those who run out matter
SEED = 5


def main_study(policy: Policy) -> Defined[Study]:
    return a_study(
        answers=2,
        clip=CLIP,
        name="main",
        epsilon=EPSILON,
        view=View.AGGREGATE,
        minimum_cohort=PEOPLE,
        policy=policy,
        maximum_dimension=WIDTH,
    )


def halts_study() -> Defined[Study]:
    norm = change_norm(Factorisation.SQUARE_ROOT, horizon=HORIZON, exponent=EXPONENT)
    return a_study(
        answers=1,
        clip=norm,
        name="halts",
        epsilon=EPSILON,
        view=View.AGGREGATE,
        minimum_cohort=PEOPLE,
        purpose=Purpose.HALTS,
    )


def values_of(runs: int, seed: int) -> Cube:
    """Numbers off the grid [people, ROUNDS · WIDTH]: the first of each run are at the clip or beyond it.

    Two of their answers fit, and half of the others' do not either. All others have so little that all of
    theirs do.
    """
    rng = np.random.default_rng(seed)
    directions = rng.random((runs, PEOPLE, ROUNDS, WIDTH)) + 0.1
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    lengths = rng.random((runs, PEOPLE, ROUNDS, 1)) / 4
    lengths[:, :RUN_OUT] = rng.uniform(0.8, 1.5, size=(runs, RUN_OUT, ROUNDS, 1))
    return (directions * lengths).reshape(runs * PEOPLE, ROUNDS, WIDTH)


def clipped_by_hand(values: Cube) -> Cube:
    lengths = np.linalg.norm(values, axis=-1, keepdims=True)
    clipped: Cube = values * np.minimum(1.0, CLIP / lengths)
    return clipped


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What each run released in its counted round, and what was true."""

    releases: list[Release]
    active: Values  #: S_active [runs, WIDTH]
    everyone: Values  #: S_all [runs, WIDTH]
    halted: list[Measured]
    bias: float


def counted(policy: Policy, *, runs: int, seed: int = SEED) -> Counted:
    values = values_of(runs, seed)
    people = ArrayPopulation(values)
    study, beside = main_study(policy), halts_study()
    main = Cohort(study, people, seed=seed, refusal=Refusal.COVER)
    halts = Cohort(
        beside,
        people,
        seed=seed + 1,
        refusal=Refusal.COVER,
        beside={study.hash: main.covered},
    )
    which = FIRST + np.arange(runs) % (ROUNDS - FIRST + 1)
    releases: dict[int, Release] = {}
    halted: dict[int, Measured] = {}
    active, everyone = np.zeros((2, runs, WIDTH))
    halt_words = np.zeros((runs, ROUNDS), dtype=np.int64)
    segment = Segment(horizon=HORIZON, cohort=PEOPLE).begun(1)
    bias = 0.0
    for number in range(1, ROUNDS + 1):
        feature = Feature(name="value", parameters={"period": number})
        asked = define_round(
            round_of(study, Linear([feature], dimension=WIDTH, clip=CLIP), number=number)
        )
        before = main.spent()
        words = np.concatenate([each.words for each in main.answers(asked.value)])
        gave: Flags = main.spent() > before  # nobody's value is nothing
        clipped = clipped_by_hand(values[:, number - 1])
        sums = words.reshape(runs, PEOPLE, WIDTH).sum(axis=1)
        given = (clipped * gave[:, None]).reshape(runs, PEOPLE, WIDTH).sum(axis=1)
        whole = clipped.reshape(runs, PEOPLE, WIDTH).sum(axis=1)
        count = round_of(beside, HaltCount(study.hash, segment), number=number)
        segment = segment.after()
        flags = np.concatenate([each.words[:, 0] for each in halts.answers(count)])
        halt_words[:, number - 1] = flags.reshape(runs, PEOPLE).sum(axis=1)
        mechanism = GaussianLinear.of(study.value, _linear(asked.value))
        bias = mechanism.clipping_bias(PEOPLE)
        for run in np.flatnonzero(which == number).tolist():
            releases[run] = make_release(study, asked, sums[run], reports=PEOPLE)
            totals = [
                RoundTotal(sum=each, reports=PEOPLE) for each in halt_words[run, :number].tolist()
            ]
            found = running_count(beside.value, count, totals)
            halted[run] = Measured(
                estimate=found.estimate.item(), standard_error=found.standard_error.item()
            )
            active[run], everyone[run] = given[run], whole[run]
    return Counted(
        releases=[releases[run] for run in range(runs)],
        active=active,
        everyone=everyone,
        halted=[halted[run] for run in range(runs)],
        bias=bias,
    )


def _linear(asked: Round) -> Linear:
    assert isinstance(asked.query, Linear)
    return asked.query


def tolerance(runs: int) -> float:
    """Three standard errors of a share of so many independent runs that is 95 %."""
    return 3 * math.sqrt(0.95 * 0.05 / runs)


def held(low: Vector, high: Vector, truth: Vector) -> float:
    return float(np.mean((low <= truth) & (truth <= high)))


def everyone_intervals(each: Counted) -> list[EveryoneInterval]:
    """Those of the first number of every run."""
    return [
        everyone_interval(
            Measured.of(release, bias=each.bias),
            halted,
            largest=CLIP,
            signed=False,
        )
        for release, halted in zip(each.releases, each.halted, strict=True)
    ]


def check_coverage(policy: Policy, *, runs: int) -> None:
    each = counted(policy, runs=runs)
    bounds = everyone_intervals(each)
    low, high = (np.array([getattr(bound, end) for bound in bounds]) for end in ("low", "high"))
    of_all = held(low, high, each.everyone[:, 0])
    assert of_all >= 0.95 - tolerance(runs)
    if policy is Policy.CLIP:
        assert all(not release.has_interval for release in each.releases)
        return
    lows = np.array([release.low for release in each.releases])
    highs = np.array([release.high for release in each.releases])
    # The allowance for clipping is far below the noise, and may only make intervals wider.
    widest = 0.95 + 2 * 0.0585 * each.bias / each.releases[0].standard_error_at(0)
    for at in range(WIDTH):
        share = held(lows[:, at], highs[:, at], each.active[:, at])
        assert 0.95 - tolerance(runs) <= share <= widest + tolerance(runs)
    radius = supremum_radius(WIDTH, failure=0.05)
    estimates = np.array([release.estimate for release in each.releases])
    reach = radius * each.releases[0].standard_error_at(0) + each.bias
    together = (np.abs(estimates - each.active) <= reach).all(axis=1).mean()
    assert together >= 0.95 - tolerance(runs)


@pytest.mark.parametrize("policy", list(Policy))
def test_intervals_hold_clipped_values_as_often_as_they_say(policy: Policy) -> None:
    check_coverage(policy, runs=400)


@pytest.mark.long
@pytest.mark.parametrize("policy", list(Policy))
def test_coverage_of_clipped_values_in_eight_thousand_runs(policy: Policy) -> None:
    check_coverage(policy, runs=8_000)


# ---- where budgets shrink what everybody answers ------------------------------------------------

MANY, VALUE = 20_000, 0.9


async def shrunk_rounds(count: int) -> tuple[list[Release], Aftermath, Defined[Study]]:
    """Everybody has 0.9 in every round, and three answers of 1 fit: the fourth is the last, and shrunk."""
    study = define_study(
        design_study(
            name="shrinking",
            epsilon=1.0,
            delta=1e-6,
            answers=3,
            minimum_cohort=MANY,
            policy=Policy.CLIP,
            grid_exponent=EXPONENT,
        )
    )
    people = ArrayPopulation(np.full((MANY, count), VALUE))
    questions = Questions(population=people, grid_exponent=EXPONENT)
    options: Any = {"seed": 1, "refusal": Refusal.COVER, "threads": 1}
    async with cohort_session(study, questions, **options) as session:
        releases = [
            await session.ask(Linear([Feature(name="value", parameters={"period": number})]))
            for number in range(1, count + 1)
        ]
        return releases, await session.finish(), study


async def test_under_clip_no_interval_is_claimed_for_those_who_answered() -> None:
    releases, aftermath, study = await shrunk_rounds(4)
    last, active = releases[-1], MANY * VALUE
    query = round_of(study, Linear([Feature(name="value")]), number=4).query
    assert isinstance(query, Linear)
    bias = GaussianLinear.of(study.value, query).clipping_bias(MANY)
    reach = TWO_SIDED_QUANTILE * last.standard_error_at(0) + bias

    # What everybody answered with is 0.9, and what was left of three is the root of 0.57.
    steps = [float(each[0]) * 2.0**EXPONENT for each in aftermath.contributed]
    assert steps == pytest.approx([active] * 4, rel=1e-6)
    assert abs(last.estimate[0] - MANY * math.sqrt(3 - 3 * VALUE**2)) <= 3 * reach
    assert last.estimate[0] + reach < active  # an interval around the estimate misses it by far
    for release in releases:
        assert (release.low.size, release.high.size) == (0, 0)
        assert math.isnan(release.confidence)
        assert release.estimand is Estimand.S_SHRUNK
        assert release.message().estimand == release_pb2.ESTIMAND_S_SHRUNK
    # A count of halts bounds the sum over everyone all the same.
    found = everyone_interval(
        Measured(
            estimate=float(last.estimate[0]), standard_error=last.standard_error_at(0), bias=bias
        ),
        Measured(estimate=float(MANY), standard_error=0.0),
        largest=1.0,
        signed=False,
    )
    assert found.low <= active <= found.high


async def test_under_clip_words_say_what_an_estimate_is_unbiased_for() -> None:
    releases, _, _ = await shrunk_rounds(1)

    said = told("minutes", releases[0], histogram=False)

    assert "unbiased for values as shrunk by budgets; no interval" in said
    assert "±" not in said
    assert Processed.of(releases[0]).label == (
        "as released: unbiased for values as shrunk by budgets, without an interval"
    )


def test_a_run_under_clip_says_in_all_it_leaves_that_there_is_no_interval(tmp_path: Path) -> None:
    scenario = Scenario(
        name="shrinking",
        feature="value",
        policy=Policy.CLIP,
        budget=2,
        on_grid=False,
        grid_exponent=EXPONENT,
    )
    people = ArrayPopulation(np.full((300, 4), 1.5))

    result = simulate(scenario, population=people, seed=3)
    assert isinstance(result, LinearResult)
    save(result, tmp_path)

    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert summary["simulator_truth"]["coverage"] is None
    assert summary["simulator_truth"]["clipping_rmse"] == pytest.approx(150)
    with (tmp_path / "releases.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["low"], row["high"], row["estimand"]) for row in rows] == [
        ("", "", "S_shrunk")
    ] * 4
    assert [float(row["simulator_truth_everyone"]) for row in rows] == [450.0] * 4
    # Answers end just inside the clip, so that two leave a little for a third, which is the last.
    assert [float(row["simulator_truth_active"]) for row in rows] == pytest.approx(
        [300.0] * 3 + [0.0]
    )
    assert result.rmse == pytest.approx(
        math.sqrt(np.mean((result.estimates - 300.0) ** 2))
    )  # beside what clipping loses
    said = report(result, tmp_path)
    assert "values as shrunk by budgets, without an interval" in said
    assert "beside clipping, 150.0" in said
