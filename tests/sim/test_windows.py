"""Windows of a run: the same people, a fresh budget in each, and a promise for each and for all."""

import csv
import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from demur_proto.errors import ParameterError
from demur_proto.study import View
from demur_sim.cli import main
from demur_sim.people.populations import ArrayPopulation
from demur_sim.people.presence import BLOCK, Presence, Turnout
from demur_sim.results.report import report, report_windows
from demur_sim.results.running import RunningResult
from demur_sim.results.windows import WindowedResult
from demur_sim.run import How, run_scenario, run_windows, simulate, simulate_windows
from demur_sim.scenario import Kind, Refusal, Scenario

DEADLINE_S = 60.0
DEVICES, ROUNDS = BLOCK + 104, 5
SUMS = Scenario(name="years", feature="value", budget=1, on_grid=False, grid_exponent=-14, window=2)
COUNT = Scenario(
    name="states", kind=Kind.PREFIX, feature="value", budget=1, grid_exponent=-14, window=2
)


@cache
def people(share: float = 0.5, devices: int = DEVICES) -> ArrayPopulation:
    draws = np.random.default_rng(2).random((devices, ROUNDS))
    return ArrayPopulation((draws < share).astype(float))


def finished(scenario: Scenario, **options: Any) -> WindowedResult:
    return simulate_windows(scenario, **{"population": people(), "seed": 3, **options})


async def test_windows_are_the_same_over_processes_and_devices_come_and_go_once() -> None:
    presence = Presence(enrolled=0.7, enrol=0.1, stay=8.0, drop_out=0.1, late=0.05)
    scenario = replace(SUMS, window=3, minimum_cohort=1500, presence=presence)
    how = How(population=people(), seed=3)
    with anyio.fail_after(DEADLINE_S):
        arrays = await run_windows(scenario, how)
        real = await run_windows(scenario, replace(how, fidelity="processes", workers=2))

    assert [part.releases for part in real.results] == [part.releases for part in arrays.results]
    assert real.releases_sha256 == arrays.releases_sha256
    enrolled = np.concatenate([part.enrolled for part in arrays.results])
    one_run = Turnout(presence=presence, seed=3).enrolled(devices=DEVICES, rounds=ROUNDS)
    np.testing.assert_array_equal(enrolled, one_run)
    reports = [release.reports for part in arrays.results for release in part.releases]
    alone = await run_scenario(replace(scenario, window=0), how)
    assert reports == [release.reports for release in alone.releases]


def test_every_window_is_a_study_of_its_own_with_a_fresh_budget() -> None:
    everybody = people(share=1.0)

    result = finished(SUMS, population=everybody)

    assert [(each.first, each.last) for each in result.schedule.windows] == [(1, 2), (3, 4), (5, 5)]
    assert len({part.study.hash for part in result.results}) == 3
    for part in result.results:  # all pay for the first round of each window, and no other
        active = part.active_truth[:, 0]
        assert active[0] == pytest.approx(DEVICES, rel=1e-3)
        assert not active[1:].any()
    assert result.exhausted_fraction == 1.0
    alone = simulate(replace(SUMS, window=0), seed=3, population=everybody)
    assert alone.active_truth[:, 0].astype(bool).tolist() == [True] + [False] * 4


def test_no_noise_is_drawn_for_two_windows() -> None:
    """Nobody is active, so the sums are the noise alone."""
    nobody = people(share=0.0)

    result = finished(SUMS, population=nobody)

    sums = [int(release.sums[0]) for part in result.results for release in part.releases]
    assert len(set(sums)) == ROUNDS
    one = finished(replace(SUMS, window=1), population=nobody)
    assert len({int(part.releases[0].sums[0]) for part in one.results}) == ROUNDS


def test_a_running_count_begins_anew_in_each_window_and_its_states_are_paid_for_again() -> None:
    """Everybody is on from the first round on: a budget of one change is enough for each window."""
    steady = people(share=1.0, devices=300)

    result = finished(COUNT, population=steady)

    for part in result.results:
        assert isinstance(part, RunningResult)
        assert part.design.segment.position == 1
        assert part.active_truth[:, 0].tolist() == [300.0] * len(part.releases)
        assert (part.aftermath.spent > 0).all()  # told anew, paid anew
        assert part.exhausted_fraction == 0.0
    # In one segment over all rounds they pay once, and less than in all windows together.
    alone = simulate(replace(COUNT, window=0), seed=3, population=steady)
    shares = [part.aftermath.spent[0] / part.study.value.budget_units for part in result.results]
    assert alone.aftermath.spent[0] / alone.study.value.budget_units < sum(shares)


def test_what_halted_people_tell_and_what_they_are_is_compared_within_each_window() -> None:
    result = finished(replace(COUNT, halts=0.2))

    for part, window in zip(result.results, result.schedule.windows, strict=True):
        assert isinstance(part, RunningResult)
        assert len(part.halts) == window.rounds
        states = people().values[:, window.first - 1 : window.last, 0]
        np.testing.assert_array_equal(part.truth[:, 0], states.sum(axis=0))
    # Both studies of each window count.
    halts = [part.design.halts for part in result.results if isinstance(part, RunningResult)]
    budgets = [part.study.value.budget for part in result.results]
    budgets += [each.budget for each in halts if each is not None]
    assert result.lifetime.budget == pytest.approx(math.hypot(*budgets))
    assert result.promises[0].epsilon <= 1.0


def test_what_is_promised_grows_with_the_windows_that_somebody_stays_for() -> None:
    result = finished(SUMS)

    promises = result.promises
    assert [each.windows for each in promises] == [1, 2, 3]
    assert 0.999 < promises[0].epsilon <= 1.0 < promises[1].epsilon < promises[2].epsilon < 3.0
    mus = [part.study.value.budget for part in result.results]
    assert result.lifetime.budget == pytest.approx(math.hypot(*mus))
    assert "over all rounds of 3 windows" in result.statement
    assert "only the promise over all windows" in result.statement


def test_silence_promises_nothing_in_any_number_of_windows() -> None:
    summary = finished(replace(SUMS, refusal=Refusal.SILENT)).summary()

    assert summary["statement"].startswith("Nothing is promised")
    assert {each["epsilon"] for each in summary["over_windows"]} == {None}


@pytest.mark.parametrize("scenario", [SUMS, COUNT], ids=["sums", "counts"])
def test_whoever_has_to_trust_the_collector_reads_so_whatever_is_asked(scenario: Scenario) -> None:
    told = "trusted          the collector: one report on its own is only "
    folder = Path("runs/x")

    windows = finished(scenario)
    alone = simulate(replace(scenario, window=0), seed=3, population=people())
    local = finished(replace(scenario, view=View.LOCAL))

    assert told in report_windows(windows, folder)
    assert told in report(alone, folder)
    assert told not in report_windows(local, folder)
    assert "its store and its backups are trusted" in windows.statement
    assert "backups" not in local.statement


def test_windows_that_promise_nothing_together_are_refused_after_the_first_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    changes = ("data.devices=20", "data.periods=64", "epsilon=8", "window=1")
    command = ["simulate", "states", "--out", str(folder)]
    for change in changes:
        command += ["--set", change]

    assert main(command) == 2

    error = capsys.readouterr().err
    assert "delta must be above" in error
    assert "over 64 windows" in error
    assert not folder.exists() or not list(folder.iterdir())


# ---- the command -----------------------------------------------------------------------------


def test_the_command_writes_each_window_and_what_all_of_them_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    changes = ("rounds=5", "window=2", "presence.late=0.1", "minimum_cohort=20000")
    command = ["simulate", "cdnow", "--out", str(folder)]
    for change in changes:
        command += ["--set", change]

    assert main(command) == 0

    text = capsys.readouterr().out
    assert all(len(line) <= 100 for line in text.splitlines() if str(folder) not in line)
    assert "  in 3 windows     (1.81379, 1e-06), from 0.409985-GDP\n" in text
    summary = json.loads((folder / "summary.json").read_text())
    assert [each["windows"] for each in summary["over_windows"]] == [1, 2, 3]
    assert [(each["first"], each["last"]) for each in summary["windows"]] == [
        (1, 2),
        (3, 4),
        (5, 5),
    ]
    with (folder / "releases.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["window"], row["number"]) for row in rows] == [
        ("1", "1"),
        ("1", "2"),
        ("2", "1"),
        ("2", "2"),
        ("3", "1"),
    ]
    for row in rows:
        assert float(row["enrolled_low"]) < float(row["enrolled_high"])
        assert int(row["reports"]) < int(row["enrolled"]) == 23570
    for number in (1, 2, 3):
        files = {path.name for path in (folder / f"window-{number}").iterdir()}
        assert files == {"plot.png", "releases.csv", "study.json", "summary.json"}
    assert (folder / "plot.png").stat().st_size > 10_000


def test_a_run_with_fewer_windows_leaves_none_of_an_earlier_one(tmp_path: Path) -> None:
    def run(*changes: str) -> set[str]:
        command = ["simulate", "cdnow", "--quiet", "--out", str(tmp_path), "--set", "rounds=3"]
        for change in changes:
            command += ["--set", change]
        assert main(command) == 0
        return {path.name for path in tmp_path.iterdir()}

    above = {"plot.png", "releases.csv", "summary.json"}
    assert run("window=1") == above | {"window-1", "window-2", "window-3"}
    (tmp_path / "window-3" / "notes.txt").write_text("somebody's own")

    assert run("window=2") == above | {"window-1", "window-2", "window-3"}
    assert {path.name for path in (tmp_path / "window-3").iterdir()} == {"notes.txt"}
    (tmp_path / "window-3" / "notes.txt").unlink()
    (tmp_path / "window-3").rmdir()
    own = tmp_path / "window-91"  # of a run that somebody made here by itself
    own.mkdir()
    (own / "summary.json").write_text("{}")
    assert run() == above | {"study.json", "window-91"}
    assert [path.name for path in own.iterdir()] == ["summary.json"]


def test_a_window_longer_than_the_run_is_one_clear_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate", "cdnow", "--set", "rounds=5", "--set", "window=6"]) == 2

    error = capsys.readouterr().err
    assert error == "demur: error: window must be an integer >= 1 and <= 5, got 6\n"


def test_each_way_to_run_says_which_scenarios_it_is_for() -> None:
    with pytest.raises(ParameterError, match=r"^window must be 0; windowed_run.simulate_windows"):
        simulate(SUMS, population=people())
    with pytest.raises(ParameterError, match=r"^window must be an integer >= 1"):
        finished(replace(SUMS, window=0))
