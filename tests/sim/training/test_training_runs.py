"""Whole trainings of few parameters: the same at every fidelity, within budget, and to be gone on."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from demur_proto.accounting.conversions import gdp_delta
from demur_proto.errors import DataError, ParameterError, StateError
from demur_proto.models.gradients import inputs_of
from demur_proto.study import Measure, View
from demur_server.training import trainer as checkpoints
from demur_server.training.trainer import TrainingState
from demur_sim.training.people import task_of
from demur_sim.training.results import TrainingResult
from demur_sim.training.run import run_training, train_scenario
from demur_sim.training.scenario import (
    Algorithm,
    Arithmetic,
    Average,
    Averages,
    Counts,
    Descent,
    Kind,
    Source,
    TrainingScenario,
)

DEADLINE_S = 60.0
PEOPLE = 4096 + 204  # two blocks
SMALL = TrainingScenario(
    name="small",
    budget=3,
    steps=6,
    data=Source(people=PEOPLE),
    features={"map": "oriented_gradients", "cell": 7, "block": 1, "bins": 4},
    optimiser=Descent(rate=20.0, momentum=0.5),
    average=Averages(kind=Average.TAIL),
)
WITH_ERRORS = replace(SMALL, counts=Counts(every=2, errors=0.1), epsilon=4.0)
COUNTED = replace(SMALL, counts=Counts(every=2, errors=0.1, halts=0.1, most_halts=1.0), epsilon=4.0)
FEW = replace(COUNTED, data=Source(people=300))

Run = Callable[..., Awaitable[TrainingResult]]


async def trained(scenario: TrainingScenario = SMALL, **options: Any) -> TrainingResult:
    with anyio.fail_after(DEADLINE_S):
        return await train_scenario(scenario, **{"workers": 1, **options})


@pytest.fixture(scope="module")
def run() -> Run:
    """Runs by fidelity and workers; each of them only once."""
    results: dict[tuple[str, int], TrainingResult] = {}

    async def once(fidelity: str, workers: int) -> TrainingResult:
        key = (fidelity, workers)
        if key not in results:
            results[key] = await trained(COUNTED, fidelity=fidelity, workers=workers)
        return results[key]

    return once


@pytest.mark.parametrize(
    ("fidelity", "workers"), [("cohort", 3), ("processes", 1), ("processes", 2)]
)
async def test_the_same_seed_trains_the_same_model(run: Run, fidelity: str, workers: int) -> None:
    arrays, other = await run("cohort", 1), await run(fidelity, workers)

    assert other.theta_sha256 == arrays.theta_sha256
    assert other.accuracies.tolist() == arrays.accuracies.tolist()
    # So do counts of errors, which decide which model is the final one, and of those who ran out.
    assert other.state.errors == arrays.state.errors
    assert other.state.halts == arrays.state.halts
    assert [count.step for count in arrays.state.errors] == [2, 4, 6]
    assert [count.step for count in arrays.state.halts] == [2, 4, 6]
    # What only a simulator knows is the same too.
    assert other.actives.tolist() == arrays.actives.tolist()
    np.testing.assert_array_equal(other.ending.spent, arrays.ending.spent)
    np.testing.assert_array_equal(other.ending.refused, arrays.ending.refused)


async def test_features_that_are_fitted_are_the_same_in_every_process() -> None:
    whitened = {"map": "whitened_gradients", "cells": 2, "bins": 4, "synthetic": 100}
    scenario = replace(SMALL, budget=2, steps=2, data=Source(people=100), features=whitened)

    arrays, processes = await trained(scenario), await trained(scenario, fidelity="processes")

    assert arrays.theta_sha256 == processes.theta_sha256


async def test_another_seed_trains_another_model(run: Run) -> None:
    assert (await trained(WITH_ERRORS, seed=1)).theta_sha256 != (
        await run("cohort", 1)
    ).theta_sha256


async def test_nobody_spends_more_than_their_budget_and_many_spend_all_of_it(run: Run) -> None:
    result = await run("cohort", 1)

    units = result.design.study.value.budget_units
    assert (result.ending.spent <= units).all()
    assert 0.5 < result.exhausted_fraction <= 1
    # Three gradients of full length fit, and nobody's is longer: the first three are whole.
    assert (result.actives[:3] == PEOPLE).all()
    assert result.actives[-1] == np.count_nonzero(~result.ending.refused)
    # Whoever was shrunk has spent all, up to the 2^-12 by which a shrunk gradient is shorter still.
    assert (result.ending.spent[result.ending.refused] > units * (1 - 2.0**-10)).all()


@pytest.mark.parametrize("view", list(View))
@pytest.mark.parametrize("measure", [Measure.GDP, Measure.ZCDP])
async def test_both_algorithms_are_one_where_the_budget_is_that_of_all_steps(
    view: View, measure: Measure
) -> None:
    scenario = replace(
        SMALL, budget=4, steps=4, view=view, measure=measure, data=Source(people=500)
    )
    private = await trained(replace(scenario, algorithm=Algorithm.PRIVATE_GD))
    filtered = await trained(replace(scenario, algorithm=Algorithm.FILTERED_GD))

    assert filtered.theta_sha256 == private.theta_sha256
    np.testing.assert_array_equal(filtered.ending.spent, private.ending.spent)
    assert filtered.exhausted_fraction == private.exhausted_fraction == 0
    # They are two studies all the same, with one budget.
    assert filtered.design.study.hash != private.design.study.hash
    assert filtered.design.study.value.budget == private.design.study.value.budget


async def test_a_filter_that_never_shrinks_leaves_a_model_that_learned(run: Run) -> None:
    result = await run("cohort", 1)

    # Sixteen features hold little, but guessing is right about one in ten.
    assert result.test_accuracy > 0.2
    assert result.test_accuracy == result.accuracies[-1]


# ---- floats ----------------------------------------------------------------------------------

FLOATS = replace(FEW, arithmetic=Arithmetic.FLOAT)


async def test_a_step_in_floats_is_that_on_the_grid_but_for_the_noise() -> None:
    one = replace(SMALL, steps=1, epsilon=8.0, optimiser=Descent(kind=Kind.SGD, rate=float(PEOPLE)))

    grid, floats = await trained(one), await trained(replace(one, arithmetic=Arithmetic.FLOAT))

    # Parameters are minus the sum; 170 of them, each with two noises, at 6 sigma, and what the grid
    # shrinks of a clipped gradient.
    assert floats.sigma == pytest.approx(grid.sigma, rel=0.01)
    bound = 6 * 2**0.5 * grid.sigma + PEOPLE * 2.0**-12
    np.testing.assert_allclose(floats.theta, grid.theta, rtol=0, atol=bound)
    assert np.abs(grid.theta).max() > 3 * bound
    np.testing.assert_allclose(floats.ending.spent, grid.ending.spent, rtol=2.0**-10)


async def test_it_trains_where_an_event_loop_runs_already(whole: TrainingResult) -> None:
    assert run_training(FEW, workers=1).theta_sha256 == whole.theta_sha256


def test_a_training_in_floats_says_what_it_is() -> None:
    floats = run_training(FLOATS, workers=1)

    assert (floats.ending.spent <= floats.design.study.value.budget_units).all()
    assert floats.statement.startswith("In real arithmetic: ")
    assert "What was tried in order to choose the settings" in floats.statement
    assert floats.summary()["arithmetic"] == "float"
    assert floats.summary()["guarantee"]["per_report_mu"] is None


@pytest.mark.parametrize("step", [1, 4])
async def test_floats_go_on_as_well(step: int, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    with pytest.raises(Killed):
        await trained(FLOATS, checkpoint=path, progress=killed_after(step))

    resumed = await trained(FLOATS, checkpoint=path, resume=True, workers=2)

    assert_same(resumed, await trained(FLOATS))


async def test_floats_pay_for_every_step_in_full_without_a_filter() -> None:
    private = replace(FLOATS, algorithm=Algorithm.PRIVATE_GD, budget=6)

    result = await trained(private)

    (spent,) = set(result.ending.spent.tolist())
    units = result.design.study.value.budget_units
    assert units * (1 - 1e-6) <= spent <= units


# ---- counts ----------------------------------------------------------------------------------


async def test_counts_are_near_the_truth_and_paid_for_beside() -> None:
    result = await trained(COUNTED)

    units = result.design.study.value.budget_units
    assert (result.ending.spent <= units).all()
    assert [count.step for count in result.state.errors] == [2, 4, 6]
    for count in result.state.halts:
        truth = PEOPLE - result.actives[count.step - 1]
        assert abs(count.value - truth) <= 5 * count.standard_error  # 5 sigma
    # Of the square root of all prefix sums, the rows are 1, then ½ and 1, then ⅜, ½ and 1.
    errors = [count.standard_error for count in result.state.halts]
    squares = np.cumsum(np.square([1.0, 0.5, 0.375]))
    np.testing.assert_allclose(errors, errors[0] * np.sqrt(squares), rtol=1e-3)  # on the grid


async def test_the_printed_promise_adds_every_reserved_budget(whole: TrainingResult) -> None:
    result = whole

    design, guarantee = result.design, result.design.guarantee
    assert design.errors is not None
    assert design.halts is not None
    mus = [each.value.budget for each in (design.study, design.errors, design.halts)]
    together = float(np.sqrt(np.sum(np.square(mus))))
    assert guarantee.budget == pytest.approx(together, rel=1e-12)
    assert (guarantee.epsilon, guarantee.delta) == (FEW.epsilon, FEW.delta)
    assert gdp_delta(guarantee.budget, epsilon=FEW.epsilon) <= FEW.delta
    assert gdp_delta(guarantee.budget * 1.0001, epsilon=FEW.epsilon) > FEW.delta
    np.testing.assert_allclose(np.square(mus) / together**2, [0.8, 0.1, 0.1], rtol=1e-6)
    assert "3 studies, each with a budget of its own" in result.statement
    assert "What was tried in order to choose the settings" in result.statement


async def test_a_count_of_errors_is_near_the_truth() -> None:
    result = await trained(replace(WITH_ERRORS, steps=2, epsilon=50.0))

    task = task_of(result.scenario)
    inputs = inputs_of(task.features, task.people.data)
    truth = np.count_nonzero(task.learner.errors(result.theta, inputs, task.people.labels))
    (count,) = result.state.errors
    assert abs(count.value - truth) <= 5 * count.standard_error  # 5 sigma
    assert 5 * count.standard_error < truth / 2


async def test_the_best_model_that_was_counted_is_the_model() -> None:
    scenario = replace(
        FEW, optimiser=Descent(rate=1e6), average=Averages(), counts=Counts(every=1, errors=0.9)
    )
    result = await trained(replace(scenario, epsilon=50.0, data=Source(people=300)))

    values = [count.value for count in result.state.errors]
    assert result.state.final_step == 1 + values.index(min(values))
    assert result.test_accuracy == result.accuracies[result.state.final_step - 1]


# ---- going on --------------------------------------------------------------------------------


class Killed(Exception):
    """Where a process would have died."""


def killed_after(step: int) -> Callable[[TrainingState, float], None]:
    def progress(state: TrainingState, accuracy: float) -> None:
        if state.number == step:
            raise Killed

    return progress


@pytest.fixture(scope="module")
async def whole() -> TrainingResult:
    """A training that nothing happened to."""
    return await trained(FEW)


def assert_same(one: TrainingResult, other: TrainingResult) -> None:
    assert one.theta_sha256 == other.theta_sha256
    assert (one.state.errors, one.state.halts) == (other.state.errors, other.state.halts)
    assert one.accuracies.tolist() == other.accuracies.tolist()
    assert one.actives.tolist() == other.actives.tolist()
    np.testing.assert_array_equal(one.ending.spent, other.ending.spent)


@pytest.mark.parametrize("step", range(1, 7))
async def test_arrays_go_on_after_any_step_and_spend_nothing_twice(
    step: int, tmp_path: Path, whole: TrainingResult
) -> None:
    path = tmp_path / "checkpoint.npz"
    with pytest.raises(Killed):
        await trained(FEW, checkpoint=path, progress=killed_after(step))

    rest: list[int] = []
    resumed = await trained(
        FEW,
        checkpoint=path,
        resume=True,
        progress=lambda state, accuracy: rest.append(state.number),
    )

    assert_same(resumed, whole)
    assert rest == list(range(step + 1, 7))  # nothing before was asked again


@pytest.mark.parametrize("saves", [1, 2, 6])
async def test_arrays_go_on_where_they_died_between_a_step_and_its_checkpoint(
    saves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: TrainingResult
) -> None:
    path = tmp_path / "checkpoint.npz"
    number = 0

    def replace_or_die(source: Path, target: Path) -> Path:
        nonlocal number
        number += 1
        if number == saves:
            raise Killed
        return renamed(source, target)

    renamed = Path.replace
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace_or_die)
        with pytest.raises(Killed):
            await trained(FEW, checkpoint=path)

    resumed = await trained(FEW, checkpoint=path, resume=saves > 1)

    assert_same(resumed, whole)


async def test_processes_answer_again_and_come_to_the_same_model_and_the_same_end(
    tmp_path: Path,
) -> None:
    scenario = replace(
        SMALL,
        data=Source(people=200),
        epsilon=50.0,
        optimiser=Descent(rate=1e-9),  # nothing is ever learned
        counts=Counts(every=1, errors=0.9, patience=2, margin=50.0),
    )
    path = tmp_path / "checkpoint.npz"
    with pytest.raises(Killed):
        await trained(scenario, checkpoint=path, progress=killed_after(2))

    resumed = await trained(scenario, checkpoint=path, resume=True, fidelity="processes")

    assert_same(resumed, await trained(scenario))
    assert (resumed.steps, resumed.state.ended) == (3, "errors have not become fewer")


@pytest.mark.parametrize(
    ("moved", "number", "said"),
    [(1e-9, 2, "after step 2"), (0.0, 3, "the training is over after step 2")],
)
async def test_a_replay_that_comes_to_something_else_is_noticed(
    moved: float, number: int, said: str, tmp_path: Path
) -> None:
    scenario = replace(SMALL, data=Source(people=200), steps=2)
    path = tmp_path / "checkpoint.npz"
    await trained(scenario, checkpoint=path)
    kept = checkpoints.load_checkpoint(path)
    theta = kept.state.theta + moved
    other = replace(kept, state=replace(kept.state, theta=theta, number=number))
    checkpoints.save_checkpoint(other, path)

    with pytest.raises(StateError, match=f"asked again, devices answered otherwise: {said}"):
        await trained(scenario, checkpoint=path, resume=True, fidelity="processes")


@pytest.mark.parametrize(
    ("changes", "seed", "message"),
    [
        ({"clip": 0.5}, 0, r"clip was 1\.0, is 0\.5"),
        ({"steps": 7}, 0, "steps was 6, is 7"),
        ({"optimiser": Descent(rate=2.0)}, 0, r"optimiser\.rate was 20\.0, is 2\.0"),
        ({"data": Source(people=299)}, 0, r"data\.people was 300, is 299"),
        ({}, 1, "seed was 0, is 1"),
    ],
)
async def test_other_settings_cannot_go_on(
    changes: dict[str, Any], seed: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.npz"
    with pytest.raises(Killed):
        await trained(FEW, checkpoint=path, progress=killed_after(1))

    with pytest.raises(StateError, match=f"of a run with other settings: .*{message}"):
        await trained(replace(FEW, **changes), checkpoint=path, resume=True, seed=seed)


async def test_a_checkpoint_without_its_devices_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    await trained(FEW, checkpoint=path)
    kept = checkpoints.load_checkpoint(path)
    extra = {name: each for name, each in kept.extra.items() if name != "devices.spent"}
    checkpoints.save_checkpoint(replace(kept, extra=extra), path)

    with pytest.raises(DataError, match="the checkpoint has no spent of 300 devices"):
        await trained(FEW, checkpoint=path, resume=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise": "summed"}, "noise must be shares: processes send real reports"),
        ({"arithmetic": "float"}, "arithmetic must be grid, in processes"),
    ],
)
async def test_what_processes_cannot_do_is_said_first(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        await trained(replace(SMALL, **changes), fidelity="processes")


async def test_no_training_calls_itself_one_of_single_devices() -> None:
    with pytest.raises(ParameterError, match="fidelity must be cohort or processes, in a training"):
        await trained(SMALL, fidelity="device")


async def test_more_counts_than_a_running_count_has_rounds_are_refused_by_the_key_to_change() -> (
    None
):
    counts = Counts(every=2, halts=0.1, most_halts=1.0)

    with pytest.raises(ParameterError, match=r"counts\.every must be at least 3: .* got 2"):
        await trained(replace(SMALL, steps=2 * 16384 + 1, counts=counts))
