"""The scenario states: a running count of everybody, and how far off it is."""

import dataclasses
import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from counting_kit import EXPONENT, a_study, dense, mu_of, sigma_of_changes, undone
from demur_client.budget import running_counts as running_state
from demur_client.budget.filters import Filter
from demur_proto.accounting.conversions import gdp_delta
from demur_proto.arrays import Flags, Integers, Values
from demur_proto.errors import ParameterError
from demur_proto.queries import Feature, RunningCount
from demur_proto.round import round_of
from demur_proto.running.factorisations import change_norm
from demur_proto.running.segments import Factorisation, Segment
from demur_proto.study import View, design_study
from demur_sim.engine import running_counts as running_block
from demur_sim.engine.running_counts import RunningBlock, Step
from demur_sim.people.populations import ArrayPopulation
from demur_sim.people.states import States
from demur_sim.scenario import Kind, Scenario, load_scenario
from states_kit import DEVICES, KINDS, MILLION, ROUNDS, bought, counted, small, whole

# ---- what is counted -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_where_everything_fits_what_is_told_is_the_truth(kind: Factorisation) -> None:
    result = counted(small("budget=5000", f"factorisation={kind}", "rounds=20"))

    assert result.exhausted_fraction == 0
    assert result.active_truth.tolist() == result.truth.tolist()
    assert result.truth[-1, 0] > 100


def test_without_a_known_end_states_are_told_once_and_the_noise_of_ended_segments_stays() -> None:
    doubled = counted(small("budget=5000", "first_segment=4", "rounds=20"))
    one = counted(small("budget=5000", "rounds=20"))

    assert doubled.design.horizons == (4, 8, 16)
    assert doubled.active_truth.tolist() == doubled.truth.tolist()
    assert doubled.details()["segment"]["horizons"] == [4, 8, 16]
    errors = np.array([release.standard_error[0] for release in doubled.releases])
    np.testing.assert_allclose(errors, doubled.noise_errors, rtol=1e-9)
    # A change weighs no more than in the longest segment, which is shorter than one for all.
    assert errors[0] < one.releases[0].standard_error[0]
    assert errors[4] == pytest.approx(math.hypot(errors[0], errors[3]))  # frozen, and the first
    off = np.abs(doubled.estimates - doubled.active_truth)[:, 0]
    assert (off <= 4.5 * errors).all()


def test_segments_that_cannot_be_are_refused() -> None:
    for wrong in ("first_segment=-1", "first_segment=20000"):
        with pytest.raises(ParameterError, match="first_segment"):
            small(wrong)
    with pytest.raises(ParameterError, match="left out where kind is linear"):
        load_scenario("cdnow", overrides=["first_segment=4"])


def test_what_is_told_falls_behind_once_people_run_out() -> None:
    result = whole()

    assert 0.05 < result.exhausted_fraction < 0.5
    assert 0 < result.truncation_rmse < result.sigma
    assert result.active_truth[0] == result.truth[0]


def test_errors_turned_back_into_the_noise_of_each_round_are_independent_normals() -> None:
    result = whole()
    matrix = dense(Factorisation.SQUARE_ROOT, ROUNDS).astype(float)

    errors = (result.estimates - result.active_truth)[:, 0]
    normals = matrix @ np.diff(errors, prepend=0.0) / (matrix[0, 0] * result.noise_errors[0])

    # Their squares add up to chi squared: of mean 96, and standard deviation √(2·96).
    assert abs(np.sum(normals**2) - ROUNDS) < 4 * math.sqrt(2 * ROUNDS)
    assert abs(np.sum(normals[1:] * normals[:-1])) < 4 * math.sqrt(ROUNDS)


def test_the_stated_errors_are_those_that_were_released() -> None:
    result = whole()

    np.testing.assert_allclose(result.standard_errors[:, 0], result.noise_errors, rtol=1e-12)
    assert result.sigma == pytest.approx(np.sqrt(np.mean(result.standard_errors**2)), rel=1e-12)


def test_asking_everybody_for_their_state_in_every_round_is_far_noisier() -> None:
    result = whole()

    # For 96 rounds of ones, σ² is 96/μ², and the sum's n times that.
    expected = math.sqrt(DEVICES * ROUNDS) / result.study.value.budget
    assert result.worst_case_sigma == pytest.approx(expected, rel=1e-3)
    assert result.worst_case_sigma > 2 * result.sigma
    assert result.worst_case_rounds == math.floor(
        2 * result.details()["segment"]["change_norm"] ** 2
    )


def test_one_of_ones_own_arrays_may_hold_states_and_nothing() -> None:
    values = np.array([[0.0, 1.0, 1.0], [1.0, 0.5, 0.0], [1.0, 7.0, 1.0]])
    scenario = Scenario(
        name="mine",
        kind=Kind.PREFIX,
        feature="value",
        budget=9,
        grid_exponent=EXPONENT,
        view=View.LOCAL,
    )

    result = counted(scenario, population=ArrayPopulation(values))

    assert result.truth[:, 0].tolist() == [2, 1, 2]
    assert result.active_truth[:, 0].tolist() == [2, 3, 2]  # who has no state stays as told


@pytest.mark.parametrize("kind", KINDS)
def test_decisions_in_doubles_are_those_in_integers(kind: Factorisation) -> None:
    """Sums are taken in doubles where they are exact there, and in integers for larger states."""
    rng = np.random.default_rng(1)
    study = a_study(answers=12)
    blocks = [RunningBlock(300), RunningBlock(300)]
    remaining = [np.full(300, study.value.budget_units) for _ in blocks]
    refused = [np.zeros(300, dtype=np.bool_) for _ in blocks]
    segment = Segment(horizon=12, cohort=300, factorisation=kind).begun(1)
    for number in range(1, 13):
        asked = round_of(
            study, RunningCount(Feature(name="state"), segment, bound=3), number=number
        )
        values = rng.integers(0, 4, size=(300, 1)).astype(float)
        step = Step.of(asked.query, weight=asked.weight)  # type: ignore[arg-type]  # a prefix
        assert step.in_doubles
        steps = (step, dataclasses.replace(step, in_doubles=False))

        words = [
            block.answer(
                each,
                values,
                remaining=left,
                refused=flags,
                budget_units=study.value.budget_units,
                retire=False,
            )[0].tolist()
            for block, each, left, flags in zip(blocks, steps, remaining, refused, strict=True)
        ]

        assert words[0] == words[1]
        assert remaining[0].tolist() == remaining[1].tolist()
        segment = segment.after() if number < 12 else segment
    assert refused[0].mean() > 0.1


@pytest.mark.parametrize(("bound", "exact"), [(2590, True), (2591, False)])
def test_doubles_are_left_where_they_would_be_too_short(bound: int, exact: bool) -> None:
    """The energy of all words is below H·bound²·2^28, and doubles hold integers below 2^53."""
    segment = Segment(horizon=5, cohort=300).begun(1)
    asked = round_of(a_study(), RunningCount(Feature(name="state"), segment, bound=bound), number=1)

    step = Step.of(asked.query, weight=asked.weight)  # type: ignore[arg-type]  # a prefix

    assert step.in_doubles is exact


# ---- the same at every fidelity --------------------------------------------------------------


def test_processes_release_the_same_with_and_without_a_count_of_those_who_ran_out() -> None:
    scenario = small("budget=1", "halts=0.3", "first_segment=2", "rounds=6")
    arrays = counted(scenario, seed=3)

    there = counted(scenario, seed=3, fidelity="processes", workers=2)

    assert there.releases == arrays.releases
    assert there.halts == arrays.halts
    assert len(there.halts) == 6
    assert there.aftermath.refused.tolist() == arrays.aftermath.refused.tolist()
    assert there.everyone == arrays.everyone


# ---- how far off a million people are --------------------------------------------------------


@cache
def truncation(kind: Factorisation, *, budget: int, devices: int, seed: int) -> float:
    """What changes that were not told add to the error of the fraction, without drawing any noise."""
    periods = 1024
    people = States.of(devices=devices, periods=periods, seed=seed)
    norm = change_norm(kind, horizon=periods, exponent=EXPONENT)
    study = a_study(answers=budget, clip=norm, horizon=periods)
    units = study.value.budget_units
    block = RunningBlock(devices)
    remaining: Integers = np.full(devices, units, dtype=np.int64)
    refused: Flags = np.zeros(devices, dtype=np.bool_)
    segment = Segment(horizon=periods, cohort=devices, factorisation=kind).begun(1)
    squares = 0.0
    for number, truth in enumerate(people.totals().tolist(), start=1):
        now = Feature(name="state", parameters={"period": number})
        asked = round_of(study, RunningCount(now, segment), number=number)
        block.answer(
            Step.of(asked.query, weight=asked.weight),  # type: ignore[arg-type]  # a prefix
            people.evaluate(now, slice(None)),
            remaining=remaining,
            refused=refused,
            budget_units=units,
            retire=False,
        )
        squares += (int(block.told.sum()) - truth) ** 2
        segment = segment.after() if number < periods else segment
    return math.sqrt(squares / periods) / devices


def noise_of_a_million(
    kind: Factorisation, *, budget: int, mu: float, periods: int = 1024
) -> float:
    """In theory, of the fraction: the root of the mean over rounds of n·σ²·‖B_t‖²/n²."""
    sigma = sigma_of_changes(kind, periods, changes=budget, mu=mu)
    return sigma * math.sqrt((undone(kind, periods) ** 2).sum() / periods / MILLION)


BARS = [(Factorisation.SQUARE_ROOT, 1.0, 0.028), (Factorisation.TREE, 1.0, 0.066)]
PAIRS = [(Factorisation.SQUARE_ROOT, 0.5, 0.056)]  # 2μ between two people: half of the budget


@pytest.mark.parametrize(("kind", "share", "bar"), [*BARS, *PAIRS])
def test_the_error_of_a_million_people_with_four_changes_each_is_as_small_as_promised(
    kind: Factorisation, share: float, bar: float
) -> None:
    mu = share * mu_of(1.0, 1e-6)
    # Fewer people are off by more: the mean over them is as noisy as it is.
    missed = truncation(kind, budget=4, devices=4096, seed=0)

    assert math.hypot(noise_of_a_million(kind, budget=4, mu=mu), missed) <= bar


@pytest.mark.long
@pytest.mark.parametrize(("kind", "share", "bar"), [*BARS, *PAIRS])
def test_monitoring_keeps_its_error_over_twenty_populations(
    kind: Factorisation, share: float, bar: float
) -> None:
    missed = [truncation(kind, budget=4, devices=20_000, seed=seed) for seed in range(20)]
    noise = noise_of_a_million(kind, budget=4, mu=share * mu_of(1.0, 1e-6))

    total = math.hypot(noise, math.sqrt(np.mean(np.square(missed))))

    print(
        f"{kind}, share {share}: {total:.5f}, noise {noise:.5f}, not told {max(missed):.5f} at most"
    )
    assert total <= bar


def test_the_noise_of_a_run_is_that_of_theory() -> None:
    result = counted(small())

    theory = noise_of_a_million(
        Factorisation.SQUARE_ROOT, budget=4, mu=mu_of(1.0, 1e-6), periods=ROUNDS
    )
    scaled = theory * math.sqrt(MILLION / DEVICES)
    assert result.sigma / DEVICES == pytest.approx(scaled, rel=1e-3)


# ---- everyone --------------------------------------------------------------------------------


def test_a_count_of_those_who_ran_out_makes_an_interval_for_everyone() -> None:
    result = bought()

    assert result.exhausted_fraction > 0.1
    ran_out = result.aftermath.refused.sum()
    last = result.halts[-1]
    assert abs(last.estimate[0] - ran_out) <= 4.5 * last.standard_error[0]
    assert result.everyone_coverage >= 0.9
    for found, release in zip(result.everyone, result.releases, strict=True):
        assert found is not None
        assert found.high - found.low > 2 * release.half_width[0]


def test_what_both_studies_promise_together_is_what_the_scenario_says() -> None:
    result = bought()

    guarantee, halts = result.guarantee, result.design.halts
    assert halts is not None
    assert (guarantee.epsilon, guarantee.delta) == (1.0, 1e-6)
    together = math.hypot(result.study.value.budget, halts.budget)
    assert guarantee.budget == pytest.approx(together, rel=1e-12)
    assert gdp_delta(together, epsilon=1.0) <= 1e-6
    assert halts.budget**2 / together**2 == pytest.approx(0.3, rel=1e-6)
    assert "2 studies" in guarantee.statement


# ---- planted bugs ----------------------------------------------------------------------------


def levels_wanted(values: Values, *, told: Integers, bound: int) -> tuple[Integers, Flags]:
    """A level question: whoever is on says so every day."""
    levels: Integers = values[:, 0].astype(np.int64)
    return levels, np.ones(len(levels), dtype=np.bool_)


def spent_of_a_block() -> list[int]:
    """What three people have spent after each of four rounds: off, on since the first, on once."""
    result = counted(
        small("budget=50", "feature=value", "shuffle=false"),
        population=ArrayPopulation(np.array([[0.0] * 4, [1.0] * 4, [0.0, 1.0, 0.0, 0.0]])),
    )
    return [int(units) for units in result.aftermath.spent]


def spent_of_a_device() -> int:
    """What somebody who is on all the time has spent of a device's filter after four rounds."""
    study = a_study(answers=50)
    mine = Filter.of(study.value)
    segment = Segment(horizon=4, cohort=1).begun(1)
    state = running_state.RunningState()
    for number in range(1, 5):
        asked = round_of(study, RunningCount(Feature(name="state"), segment), number=number)
        state = state.answer(asked, np.ones((1, 1)), mine).state
        segment = segment.after() if number < 4 else segment
    return study.value.budget_units - mine.remaining_units


def check_that_only_changes_cost() -> None:
    """Somebody who stays pays once in all, which is what one change at the first round costs."""
    never, stays, twice = spent_of_a_block()
    scenario = small("budget=50")
    norm = change_norm(Factorisation.SQUARE_ROOT, horizon=4, exponent=EXPONENT)
    study = design_study(
        name="one", epsilon=scenario.epsilon, delta=scenario.delta, answers=50, clip=norm,
        minimum_cohort=3, view=scenario.view, grid_exponent=EXPONENT, horizon=4,
        maximum_dimension=1 << 16,
    )  # fmt: skip
    once = study.base_weight * int(norm**2 * 4**-EXPONENT)
    assert never == 0
    assert stays == once
    assert 0 < twice < 2 * stays
    lone = a_study(answers=50).value
    assert spent_of_a_device() == lone.base_weight * int(norm**2 * 4**-EXPONENT)


def test_only_changes_cost() -> None:
    check_that_only_changes_cost()


@pytest.mark.parametrize("where", [running_block, running_state])
def test_a_level_question_that_charges_daily_is_found(
    monkeypatch: pytest.MonkeyPatch, where: Any
) -> None:
    monkeypatch.setattr(where, "changes_wanted", levels_wanted)

    with pytest.raises(AssertionError):
        check_that_only_changes_cost()
