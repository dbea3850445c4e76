"""Weighted sums asked of people: the same at every fidelity, charged by what is told."""

from typing import Any

import anyio
import numpy as np
import pytest

from counting_kit import NoNoise, a_study
from demur_client.device import Device
from demur_client.sources.base import FunctionSource
from demur_proto.queries import Feature, Linear, Weights
from demur_proto.release import Release
from demur_proto.round import Round, round_of
from demur_proto.wire.definition import Defined, define_round
from demur_proto.wire.words import decode_words
from demur_sim.engine.cohort import Cohort
from demur_sim.engine.session import Aftermath
from demur_sim.engine.simulation import open_session
from demur_sim.people.populations import ArrayPopulation, PersonSource
from demur_sim.scenario import Refusal, Scenario

DEADLINE_S = 60.0
DEVICES = 4096 + 200
GRID = -14
MATRIX = [[0.5, 0.25], [-0.25, 1.0], [0.0, 2.0]]
FEATURES = [Feature(name="value", parameters={"period": period}) for period in (1, 2)]


def people(devices: int = DEVICES) -> ArrayPopulation:
    values = np.random.default_rng(1).integers(0, 5, size=(devices, 2)) / 4
    values[::50, 1] = 0.3  # not on the grid
    return ArrayPopulation(values)


async def asked(fidelity: str) -> tuple[list[Release], Aftermath]:
    scenario = Scenario(name="w", budget=2, grid_exponent=GRID, on_grid=False, feature="value")
    with anyio.fail_after(DEADLINE_S):
        async with open_session(
            scenario, population=people(), fidelity=fidelity, workers=1, seed=2
        ) as session:
            releases = [
                await session.ask(Linear(FEATURES, weights=Weights.of(MATRIX), clip=3.0))
                for _ in range(2)
            ]
            releases.append(
                await session.ask(Linear([FEATURES[0]], weights=Weights.of([[0.1], [0.3]])))
            )
            return releases, await session.finish()


async def test_weighted_sums_are_the_same_over_processes() -> None:
    arrays, there = await asked("cohort"), await asked("processes")

    assert there[0] == arrays[0]
    assert np.array_equal(there[1].spent, arrays[1].spent)
    assert arrays[1].refused.any()
    assert [release.estimate.size for release in arrays[0]] == [3, 3, 2]


def a_round(study: Defined[Any], number: int, **options: Any) -> Defined[Round]:
    told: dict[str, Any] = {"weights": Weights.of(MATRIX), "clip": 3.0, "on_grid": True, **options}
    return define_round(round_of(study, Linear(FEATURES, **told), number=number))


def words_of(device: Device, asked_now: Defined[Round]) -> list[int]:
    report = device.report(asked_now, device.evaluate(asked_now))
    words, _ = decode_words(report.words, asked_now.value.word_type, reports=1, dimension=3)
    return [int(each) for each in words[0]]


def test_a_cohort_decides_about_weighted_values_as_single_devices_do() -> None:
    population = people(60)
    study = a_study(answers=4, maximum_dimension=3)
    cohort = Cohort(study, population, seed=1, refusal=Refusal.COVER)
    mine = [Device(study, PersonSource(population, index), NoNoise()) for index in range(60)]

    for number in (1, 2, 3):
        asked_now = a_round(study, number)
        answer = next(cohort.answers(asked_now.value))
        words = np.sum([words_of(device, asked_now) for device in mine], axis=0)
        assert answer.contributed.tolist() == words.tolist()

    left = [device.ledger.remaining_units(study.hash) for device in mine]
    assert (study.value.budget_units - cohort.spent()).tolist() == left
    assert cohort.covered().tolist() == [device.ever_covered for device in mine]
    assert 0 < cohort.refused().sum() < 60


def test_a_device_tells_and_pays_for_the_weighted_value_clipped() -> None:
    study = a_study(answers=1000, maximum_dimension=3)
    device = Device(
        study, FunctionSource({"value": lambda parameters: parameters["period"]}), NoNoise()
    )
    asked_now = a_round(study, 1, clip=8.0)

    words = words_of(device, asked_now)

    assert words == [1 << 14, 7 << 12, 1 << 16]  # 0.5 + 0.5, −0.25 + 2, 4
    left = device.ledger.remaining_units(study.hash)
    energy = sum(word**2 for word in words)
    assert study.value.budget_units - left == asked_now.value.weight * energy


@pytest.mark.parametrize("gives", [[1.0, 2.0], [], [float("nan")], ["x"]], ids=str)
def test_a_feature_that_gives_more_or_other_numbers_than_are_weighted_is_cover(gives: Any) -> None:
    study = a_study(answers=1000, maximum_dimension=3)
    device = Device(study, FunctionSource({"value": lambda _: gives}), NoNoise())
    notes: list[str] = []
    asked_now = a_round(study, 1)

    device.evaluate(asked_now, noted=notes.append)

    assert words_of(device, asked_now) == [0, 0, 0]
    assert device.ever_covered
    assert device.ledger.remaining_units(study.hash) == study.value.budget_units
    assert all(len(note.splitlines()) == 1 for note in notes)
