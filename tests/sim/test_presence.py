"""Devices come and go whatever their data: the same at every fidelity, and no guarantee gets weaker."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import anyio
import numpy as np
import pytest

from counting_kit import NoNoise, a_study, rounds_of
from demur_client.device import Device
from demur_proto.errors import ParameterError
from demur_proto.queries import Feature, Linear, RunningCount
from demur_proto.release import Withheld
from demur_proto.round import Round, round_of
from demur_proto.running.segments import Admission, Segment
from demur_proto.study import Measure, Policy, View
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_sim.engine.cohort import Cohort
from demur_sim.engine.simulation import study_of
from demur_sim.people.populations import ArrayPopulation, PersonSource
from demur_sim.people.presence import BLOCK, Presence, Turnout
from demur_sim.results.base import Result
from demur_sim.run import How, run_scenario
from demur_sim.scenario import Kind, Refusal, Scenario

DEADLINE_S = 60.0
DEVICES, ROUNDS = BLOCK + 404, 5
LIVELY = Presence(enrolled=0.6, enrol=0.2, stay=20.0, drop_out=0.15, late=0.1)
SUMS = Scenario(
    name="lively",
    feature="value",
    budget=2,
    on_grid=False,
    grid_exponent=-14,
    minimum_cohort=1500,
    presence=LIVELY,
)


@cache
def people(devices: int = DEVICES, rounds: int = ROUNDS, share: float = 0.4) -> ArrayPopulation:
    draws = np.random.default_rng(1).random((devices, rounds))
    return ArrayPopulation((draws < share).astype(float))


async def finished(scenario: Scenario, **options: Any) -> Result:
    with anyio.fail_after(DEADLINE_S):
        return await run_scenario(scenario, How(**{"population": people(), "seed": 3, **options}))


# ---- the same everywhere ---------------------------------------------------------------------


async def test_processes_release_what_the_cohort_does_and_late_reports_come_in_vain() -> None:
    one = await finished(SUMS, workers=1)
    two = await finished(SUMS, workers=2)
    real = await finished(SUMS, workers=2, fidelity="processes", record=True)

    assert one.releases == two.releases == real.releases
    np.testing.assert_array_equal(one.aftermath.spent, real.aftermath.spent)
    np.testing.assert_array_equal(one.aftermath.refused, real.aftermath.refused)
    np.testing.assert_array_equal(one.active_truth, real.active_truth)
    assert 0 < one.exhausted_fraction < 1
    messages = real.aftermath.messages
    assert messages is not None
    closed = messages.status == report_pb2.DISPOSITION_ROUND_CLOSED
    counted = messages.status == report_pb2.DISPOSITION_ACCEPTED
    assert counted.sum(axis=0).tolist() == [release.reports for release in one.releases]
    # All but those of the last round, after which no other opened, were sent, and none was counted.
    late = np.array([np.concatenate(_late(number)) for number in range(1, ROUNDS + 1)]).T
    np.testing.assert_array_equal(closed[:, :-1], late[:, :-1])
    assert late.sum() > 500
    assert not closed[:, -1].any()


def _late(number: int) -> list[Any]:
    turnout = Turnout(presence=LIVELY, seed=3)
    return [block.of(number)[1] for block in turnout.blocks(DEVICES)]


async def test_a_running_count_with_late_reports_is_the_same_over_processes() -> None:
    late = Scenario(
        name="late",
        kind=Kind.PREFIX,
        feature="value",
        budget=3,
        grid_exponent=-14,
        halts=0.3,
        minimum_cohort=3000,
        presence=Presence(late=0.1),
    )

    arrays = await finished(late)
    real = await finished(late, fidelity="processes", workers=2)

    assert real.releases == arrays.releases
    assert real.summary()["halts"] == arrays.summary()["halts"]
    assert all(3000 <= release.reports < DEVICES for release in real.releases)
    # Whoever is late has told its state: what counts of it is told, whether its word came or not.
    told = arrays.active_truth[:, 0]
    assert told[0] == people().values[:, 0].sum()


@pytest.mark.parametrize("kind", ["krr", "oue"])
async def test_histograms_know_presence_too(kind: str) -> None:
    scenario = Scenario(
        name="symbols",
        kind=Kind.HISTOGRAM,
        feature="value",
        categories=2,
        mechanism=kind,
        view=View.LOCAL,
        measure=Measure.ZCDP,
        epsilon=8.0,
        minimum_cohort=1000,
        presence=LIVELY,
    )

    result = await finished(scenario)

    assert [each.reports for each in result.releases] == [
        each.reports for each in (await finished(SUMS)).releases
    ]
    assert all(each is not None for each in result.scaled)


# ---- independent of data, filter and budget --------------------------------------------------


async def test_who_is_there_follows_from_the_seed_alone() -> None:
    """Neither data nor budgets, nor who ran out, move a single report."""
    runs = [
        await finished(SUMS),
        await finished(SUMS, population=people(share=0.0)),
        await finished(SUMS, population=people(share=1.0)),
        await finished(replace(SUMS, budget=1000)),
        await finished(replace(SUMS, policy=Policy.RETIRE, view=View.LOCAL)),
    ]

    reports = [[release.reports for release in run.releases] for run in runs]
    assert all(each == reports[0] for each in reports)
    assert runs[2].exhausted_fraction > 0.5
    assert runs[3].exhausted_fraction == 0.0
    other = await finished(SUMS, seed=4)
    assert [release.reports for release in other.releases] != reports[0]


def test_shares_are_what_the_scenario_says() -> None:
    devices, rounds = 40 * BLOCK, 40
    blocks = Turnout(presence=LIVELY, seed=1).blocks(devices)
    expected = LIVELY.expected_enrolled(rounds)
    counts = Turnout(presence=LIVELY, seed=1).enrolled(devices=devices, rounds=rounds)

    for number in (1, 2, 10, 40):
        enrolled = np.concatenate([block.enrolled(number) for block in blocks])
        here, late = map(np.concatenate, zip(*(block.of(number) for block in blocks), strict=True))
        assert not (here & ~enrolled).any()
        assert not (late & ~here).any()
        assert enrolled.sum() == counts[number - 1]
        for part, whole, share in (
            (enrolled, np.ones_like(enrolled), expected[number - 1]),
            (here, enrolled, 1 - LIVELY.drop_out),
            (late, here, LIVELY.late),
        ):
            n = int(whole.sum())
            assert abs(part.sum() - n * share) <= 5 * math.sqrt(n * share * (1 - share))


def test_a_device_enrols_once_and_leaves_for_good() -> None:
    (block,) = Turnout(presence=LIVELY, seed=2).blocks(500)
    enrolled = np.array([block.enrolled(number) for number in range(1, 200)], dtype=int)

    changes = np.abs(np.diff(enrolled, axis=0, prepend=0)).sum(axis=0)
    assert changes.max() == 2
    stays = (block.end - block.first)[enrolled.any(axis=0)]
    assert abs(stays.mean() - LIVELY.stay) <= 5 * LIVELY.stay / math.sqrt(len(stays))


def test_later_studies_of_a_run_go_on_where_the_earlier_ones_were() -> None:
    turnout = Turnout(presence=LIVELY, seed=2)
    (whole,), (rest,) = turnout.blocks(300), replace(turnout, before=7).blocks(300)

    for number in (1, 5):
        assert all(map(np.array_equal, rest.of(number), whole.of(7 + number)))
    assert np.array_equal(
        replace(turnout, before=7).enrolled(devices=300, rounds=3),
        turnout.enrolled(devices=300, rounds=10)[7:],
    )


# ---- what it costs, and what is released -----------------------------------------------------


def linear_rounds(scenario: Scenario, devices: int) -> tuple[Any, list[Defined[Round]]]:
    study = define_study(study_of(scenario, devices=devices))
    asked = [
        define_round(
            round_of(
                study,
                Linear(
                    [Feature(name="value", parameters={"period": float(number)})],
                    clip=1.0,
                    on_grid=False,
                ),
                number=number,
            )
        )
        for number in range(1, ROUNDS + 1)
    ]
    return study, asked


@pytest.mark.parametrize("policy", list(Policy))
def test_the_absent_pay_nothing_and_the_late_pay_for_what_nobody_counts(policy: Policy) -> None:
    scenario = replace(SUMS, budget=3, policy=policy)
    study, rounds = linear_rounds(scenario, DEVICES)
    turnout = Turnout(presence=LIVELY, seed=3)
    everybody = people(share=1.0)  # so that each answer costs the same
    cohort = Cohort(study, everybody, seed=3, refusal=Refusal.COVER, turnout=turnout)
    whole = Cohort(study, everybody, seed=3, refusal=Refusal.COVER)
    one = whole.spent  # after its first round: what an answer costs

    took_part = np.zeros(DEVICES, dtype=int)
    for index, asked in enumerate(rounds, start=1):
        here = np.concatenate([block.of(index)[0] for block in turnout.blocks(DEVICES)])
        answers = list(cohort.answers(asked.value))
        late = np.concatenate([answer.late for answer in answers])
        sent = np.concatenate([answer.sent for answer in answers])
        np.testing.assert_array_equal(here, sent | late)
        assert [len(answer.words) for answer in answers] == [a.sent.sum() for a in answers]
        took_part += here
        if index == 1:
            list(whole.answers(asked.value))
            price = int(one()[0])
            assert set(one().tolist()) == {price}

    fits = study.value.budget_units // price
    np.testing.assert_array_equal(cohort.spent(), price * np.minimum(took_part, fits))
    np.testing.assert_array_equal(cohort.refused(), took_part > fits)
    assert 0 < cohort.refused().sum() < DEVICES


@pytest.mark.parametrize("admission", list(Admission))
def test_a_cohort_passes_over_rounds_of_a_running_count_as_devices_do(admission: Admission) -> None:
    devices, horizon = 60, 6
    study = a_study(answers=5)
    states = np.random.default_rng(7).integers(0, 3, size=(devices, horizon)).astype(float)
    population = ArrayPopulation(states)
    turnout = Turnout(presence=Presence(enrolled=0.7, enrol=0.5, drop_out=0.3), seed=5)
    (block,) = turnout.blocks(devices)
    cohort = Cohort(study, population, seed=1, refusal=Refusal.COVER, turnout=turnout)
    mine = [Device(study, PersonSource(population, index), NoNoise()) for index in range(devices)]
    segment = Segment(horizon=horizon, cohort=devices)
    for asked in rounds_of(study, segment, bound=2, admission=admission):
        number = asked.value.number
        asked = at_period(asked, number)
        (answer,) = cohort.answers(asked.value)
        here, _ = block.of(number)
        assert np.array_equal(answer.sent, here)
        for device in np.array(mine)[here]:
            device.report(asked, device.evaluate(asked))

    left = [
        device.ledger.remaining_units(device.study.hash) if device.ledger.studies() else None
        for device in mine
    ]
    spent = cohort.spent().tolist()
    for units, cost in zip(left, spent, strict=True):
        assert cost == (0 if units is None else study.value.budget_units - units)
    assert cohort.covered().tolist() == [device.ever_covered for device in mine]
    assert cohort.refused().any()


def at_period(asked: Defined[Round], period: int) -> Defined[Round]:
    feature = Feature(name="value", parameters={"period": float(period)})
    assert isinstance(asked.value.query, RunningCount)
    return define_round(replace(asked.value, query=replace(asked.value.query, feature=feature)))


async def test_a_round_below_the_minimum_is_withheld_and_the_run_goes_on() -> None:
    """The sum that is released never has less noise than the guarantee is sized for."""
    scenario = replace(
        SUMS, minimum_cohort=1790, dishonest=300, presence=Presence(drop_out=0.6), budget=10
    )

    result = await finished(scenario, population=people(rounds=40))

    withheld = [each.withheld is Withheld.BELOW_MINIMUM_COHORT for each in result.releases]
    assert 5 < sum(withheld) < 35
    assert withheld == [each.reports < 1790 for each in result.releases]
    assert len(result.releases) == 40
    study = result.study.value
    assert study.noise_shares == 1790 - 300
    for release in result.releases:
        if release.withheld is Withheld.NOTHING:
            honest = release.reports - study.dishonest  # at least, as so many may add no noise
            assert honest >= study.noise_shares
            share = study.base_sigma / math.sqrt(study.noise_shares)
            assert math.sqrt(honest) * share >= study.base_sigma * (1 - 1e-12)
        else:
            assert not release.sums.size
    presence = result.summary()["presence"]
    assert presence["withheld_rounds"] == sum(withheld)
    assert presence["reports"]["least"] == min(each.reports for each in result.releases)


# ---- wrong ones ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"enrolled": 1.5}, "presence.enrolled must be from 0 to 1, got 1.5"),
        (
            {"enrolled": 0.0},
            "presence.enrol must be above 0 where nobody is enrolled at first, got",
        ),
        ({"stay": 0.5}, "presence.stay must be at least 1 round, or 0 for all of them, got 0.5"),
        ({"drop_out": 1.0}, "presence.drop_out must be at least 0 and below 1, got 1.0"),
        ({"late": math.nan}, "presence.late must be a number >= 0, got nan"),
        ({"late": True}, "presence.late must be a number >= 0, got True"),
    ],
)
def test_a_presence_is_valid_from_birth(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        Presence(**wrong)

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("minimum", [0, 2066])
async def test_a_minimum_cohort_that_cannot_be_expected_is_one_clear_line(minimum: int) -> None:
    with pytest.raises(ParameterError) as caught:
        await finished(replace(SUMS, minimum_cohort=minimum))

    # 4,500 devices, of which 60 % are there at first, less 15 % and of these 10 %.
    assert str(caught.value) == (
        "minimum_cohort must be from 1 to 2065, the fewest reports to be expected in a round, "
        f"got {minimum}"
    )


async def test_where_devices_are_processes_nobody_comes_or_goes() -> None:
    small = {"population": people(devices=20), "fidelity": "device"}
    with pytest.raises(ParameterError, match=r"^presence must be everybody, in time \(fidelity"):
        await finished(replace(SUMS, minimum_cohort=5), **small)


def test_a_running_count_knows_late_reports_only() -> None:
    with pytest.raises(ParameterError, match=r"^presence must be of nobody but late reports where"):
        Scenario(name="x", kind=Kind.PREFIX, grid_exponent=-14, presence=Presence(drop_out=0.1))
