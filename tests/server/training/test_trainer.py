"""The loop, with people whose gradient is known: where it goes, when it stops, how it goes on."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demur_proto.arrays import Vector
from demur_proto.errors import DataError, ParameterError, StateError
from demur_proto.models.architectures import Softmax
from demur_proto.models.definition import DefinedModel
from demur_server.training.optimisers import (
    Adam,
    Count,
    HaltThreshold,
    Momentum,
    Plateau,
    Rate,
    Sgd,
    TailAverage,
)
from demur_server.training.trainer import (
    Checkpoint,
    Settings,
    TrainingState,
    load_checkpoint,
    save_checkpoint,
    start,
    train,
)

SETTINGS = Settings(
    architecture=Softmax(inputs=1, classes=2),
    features=None,
    cohort=10,
    steps=6,
    optimiser=Sgd(rate=Rate(first=0.5)),
)


class Bowl:
    """Ten people whose gradients add up to ten times θ − 1, plus a noise that only they know."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()

    async def gradient(self, model: DefinedModel, *, number: int) -> Vector:
        self.asked[number] += 1
        noise = np.random.default_rng(number).normal(size=4)
        with np.errstate(over="ignore"):
            return 10 * (model.value.theta - 1) + noise


class Told:
    """Counts that were written down beforehand."""

    def __init__(self, *values: float) -> None:
        self._values = values
        self.models: list[Vector] = []

    async def errors(self, model: DefinedModel, *, number: int, step: int) -> Count:
        self.models.append(model.value.theta)
        return Count(step=step, value=self._values[number - 1], standard_error=0.0)

    async def halts(self, *, number: int, step: int) -> Count:
        return Count(step=step, value=self._values[number - 1], standard_error=0.0)


def begun(settings: Settings = SETTINGS) -> TrainingState:
    return start(settings, np.zeros(4))


async def test_a_step_goes_along_the_sum_over_the_public_cohort() -> None:
    state = await train(replace(SETTINGS, steps=1), begun(), Bowl())

    noise = np.random.default_rng(1).normal(size=4)
    np.testing.assert_array_equal(state.theta, -0.5 * ((-10 + noise) / 10))
    assert (state.number, state.ended) == (1, "all steps taken")


async def test_the_model_is_the_last_iterate_unless_an_average_is_asked_for() -> None:
    iterates: list[Vector] = []
    tail = replace(SETTINGS, averaging=TailAverage(start=4))

    state = await train(tail, begun(tail), Bowl(), after=lambda made: iterates.append(made.theta))
    last = await train(SETTINGS, begun(), Bowl())

    np.testing.assert_array_equal(last.final, iterates[-1])
    np.testing.assert_allclose(state.final, np.mean(iterates[3:], axis=0), rtol=1e-15)


async def test_counts_choose_the_best_model_that_was_counted() -> None:
    settings = replace(SETTINGS, every=2)
    errors, iterates = Told(5, 3, 4), list[Vector]()

    state = await train(
        settings, begun(), Bowl(), errors=errors, after=lambda made: iterates.append(made.theta)
    )

    assert [count.step for count in state.errors] == [2, 4, 6]
    assert state.final_step == 4
    np.testing.assert_array_equal(state.final, iterates[3])
    np.testing.assert_array_equal(errors.models, iterates[1::2])


async def test_of_equal_counts_the_first_stays() -> None:
    state = await train(replace(SETTINGS, every=3), begun(), Bowl(), errors=Told(3, 3))

    assert state.final_step == 3


async def test_the_last_step_is_counted_even_between_two_counts() -> None:
    settings = replace(SETTINGS, every=4)

    state = await train(settings, begun(), Bowl(), errors=Told(5, 2))

    assert settings.counts == 2
    assert [count.step for count in state.errors] == [4, 6]


async def test_a_plateau_ends_it() -> None:
    settings = replace(SETTINGS, every=1, plateau=Plateau(patience=2))

    state = await train(settings, begun(), Bowl(), errors=Told(9, 8, 8, 8, 1, 1))

    assert (state.number, state.ended) == (4, "errors have not become fewer")
    assert state.final_step == 2


async def test_too_many_who_ran_out_end_it() -> None:
    settings = replace(SETTINGS, every=2, halt=HaltThreshold(share=0.5))

    state = await train(settings, begun(), Bowl(), halts=Told(1, 5, 6))

    assert (state.number, state.ended) == (4, "too many have run out")
    assert state.final_step == 4  # nothing chooses among models, so it is the last


async def test_a_rule_without_its_counts_is_refused() -> None:
    with pytest.raises(ParameterError, match="every must be at least 1"):
        replace(SETTINGS, plateau=Plateau(patience=1))
    with pytest.raises(ParameterError, match="errors must be given"):
        await train(replace(SETTINGS, every=1, plateau=Plateau(patience=1)), begun(), Bowl())
    with pytest.raises(ParameterError, match="halts must be given"):
        await train(replace(SETTINGS, every=1, halt=HaltThreshold(share=1.0)), begun(), Bowl())


@pytest.mark.parametrize("steps", [2, 6])
async def test_parameters_that_run_away_end_in_one_clear_line(steps: int) -> None:
    settings = replace(SETTINGS, steps=steps, optimiser=Sgd(rate=Rate(first=1e200)))

    with pytest.raises(StateError, match="after step 2 the parameters are not finite any more"):
        await train(settings, begun(), Bowl())


# ---- going on --------------------------------------------------------------------------------

WHOLE = replace(
    SETTINGS,
    optimiser=Adam(rate=Rate(first=0.5, last=0.1, steps=6)),
    averaging=TailAverage(start=2),
    every=2,
)


@pytest.mark.parametrize("stop", range(7))
async def test_a_training_goes_on_from_any_checkpoint_to_the_same_end(
    stop: int, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.npz"
    bowl = Bowl()

    def keep(state: TrainingState) -> None:
        save_checkpoint(Checkpoint(state=state, settings={}), path)
        if state.number == stop:
            raise KeyboardInterrupt

    whole = await train(WHOLE, begun(WHOLE), Bowl(), errors=Told(3, 2, 1))
    save_checkpoint(Checkpoint(state=begun(WHOLE), settings={}), path)
    if stop:
        with pytest.raises(KeyboardInterrupt):
            await train(WHOLE, begun(WHOLE), bowl, errors=Told(3, 2, 1), after=keep)
    kept = load_checkpoint(path).state
    state = await train(WHOLE, kept, bowl, errors=Told(3, 2, 1))

    assert kept.number == stop
    for name in ("theta", "total", "best", "final"):
        np.testing.assert_array_equal(getattr(state, name), getattr(whole, name))
    assert (state.errors, state.best_step) == (whole.errors, whole.best_step)
    assert set(bowl.asked.values()) == {1}


def a_checkpoint() -> Checkpoint:
    settings = replace(SETTINGS, optimiser=Momentum(rate=Rate(first=1.0)))
    return Checkpoint(
        state=start(settings, np.arange(4.0)),
        settings={"clip": "1.0"},
        extra={"devices.spent": np.arange(3)},
    )


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "new" / "checkpoint.npz"
    save_checkpoint(a_checkpoint(), path)

    kept = load_checkpoint(path)

    assert kept.settings == {"clip": "1.0"}
    np.testing.assert_array_equal(kept.state.theta, np.arange(4.0))
    assert [each.tolist() for each in kept.state.memory] == [[0.0] * 4]
    assert kept.extra["devices.spent"].tolist() == [0, 1, 2]
    assert [file.name for file in path.parent.iterdir()] == ["checkpoint.npz"]


def test_a_checkpoint_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    save_checkpoint(a_checkpoint(), path)
    content = path.read_bytes()

    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=r"expected a whole checkpoint|cannot be read"):
            load_checkpoint(path)


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x93NUMPY"])
def test_other_bytes_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    path.write_bytes(content)

    with pytest.raises(DataError, match="expected a whole checkpoint"):
        load_checkpoint(path)


def test_a_checkpoint_of_another_form_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "checkpoint.npz"
    with monkeypatch.context() as patch:
        patch.setattr("demur_server.training.trainer.FORM", 2)
        save_checkpoint(a_checkpoint(), path)

    with pytest.raises(DataError, match="of form 2, and not 1"):
        load_checkpoint(path)
