"""`demur plan`: what it prints and keeps, that its scenario runs, and how it fails."""

import csv
import json
import re
from pathlib import Path

import pytest

from command_kit import Captured, demur
from demur_sim.scenario import Kind, load_scenario

ACTIVE = "active_rounds,people\n0,300\n1,200\n3,60\n12,40\n"
CHANGES = "changes,people\n0,300\n1,200\n3,60\n12,40\n"
FILES = ["curve.csv", "plan.json", "plot.png", "scenario.toml"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two histograms in the current folder, into which results go."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "active.csv").write_text(ACTIVE)
    (tmp_path / "changes.csv").write_text(CHANGES)


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_plan_is_told_in_a_page_and_kept_in_a_folder(capsys: Captured, tmp_path: Path) -> None:
    code, out, err = demur(capsys, "plan", "active.csv", "--rounds", "24", "--set", "view=local")

    folder = tmp_path / "runs" / "active-plan"
    assert (code, err) == (0, "")
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "for 600 people and 24 rounds" in out
    assert "(1, 1e-06), unit one device, neighbour zero-out, view local" in out
    assert "taken to be public" in out
    for row in ("linear", "prefix square_root", "prefix tree", "prefix identity", "everyone pays"):
        assert re.search(rf"^  {row} .* [\d,.]+", out, re.MULTILINE), row
    assert re.search(r"^  randomised response .* times as much$", out, re.MULTILINE)

    found, rows = json.loads((folder / "plan.json").read_text()), read_rows(folder / "curve.csv")
    best = [row for row in rows if row["best"] == "1"]
    assert "taken to be public" in found["model"]["statement"]
    assert len(best) == len(found["asked"]) == 5
    for line, told in zip(best, found["asked"], strict=True):
        assert (line["kind"], line["factorisation"]) == (told["kind"], told["factorisation"] or "")
        assert (int(line["budget"]), float(line["error"])) == (told["budget"], told["error"])
        same = [each for each in rows if each["kind"] == line["kind"]]
        same = [each for each in same if each["factorisation"] == line["factorisation"]]
        assert float(line["error"]) == min(float(each["error"]) for each in same)


@pytest.mark.parametrize(
    ("model", "kind", "more"),
    [
        ("active.csv", Kind.LINEAR, ("--rounds", "24", "--people", "800")),
        ("changes.csv", Kind.PREFIX, ("--rounds", "24", "--people", "800")),
        ("cdnow", Kind.LINEAR, ("--rounds", "4")),
    ],
)
def test_the_scenario_of_a_plan_runs_unchanged(
    capsys: Captured, tmp_path: Path, model: str, kind: Kind, more: tuple[str, ...]
) -> None:
    planned = demur(capsys, "plan", model, *more, "--out", "here", "--json")
    simulated = demur(capsys, "simulate", "here/scenario.toml", "--out", "elsewhere", "--json")

    found, summary = json.loads(planned[1]), json.loads(simulated[1])
    scenario = load_scenario(tmp_path / "here" / "scenario.toml")
    assert [(each[0], each[2]) for each in (planned, simulated)] == [(0, ""), (0, "")]
    assert found == json.loads((tmp_path / "here" / "plan.json").read_text())
    assert found["best"] == found["asked"][0]
    for key in ("epsilon", "delta", "view", "in_measure", "per_report_mu"):
        assert found["guarantee"][key] == summary["guarantee"][key], key
    assert (scenario.kind, scenario.budget) == (kind, found["best"]["budget"])
    assert (summary["devices"], summary["rounds"]) == (found["people"], found["rounds"])
    assert summary["sigma"] == pytest.approx(found["best"]["noise"])
    assert summary["rmse"]["worst_case_all_rounds"] == pytest.approx(
        found["worst_cases"][0]["error"],
        rel=1e-4,  # grids differ
    )


def test_quiet_prints_nothing(capsys: Captured, tmp_path: Path) -> None:
    ended = demur(capsys, "plan", "changes.csv", "--rounds", "12", "--quiet")

    assert ended == (0, "", "")
    assert (tmp_path / "runs" / "changes-plan" / "plan.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ((), 2, "model"),
        (("nosuch",), 2, "cdnow.*'nosuch'"),
        (("gone.csv", "--rounds", "5"), 1, "gone.csv: cannot be read"),
        (("active.csv",), 2, "how many rounds"),
        (("active.csv", "--rounds", "two"), 2, "--rounds.*'two'"),
        (("active.csv", "--rounds", "0"), 2, "data.periods.*>= 1.* got 0"),
        (("active.csv", "--rounds", "11"), 2, "at least 12, the most active_rounds.* got 11"),
        (("active.csv", "--rounds", "24", "--people", "0"), 2, "people must be.*>= 1.* got 0"),
        (("active.csv", "--rounds", "24", "--set", "epsilon=0"), 2, "epsilon in --set.*> 0, got 0"),
        (("active.csv", "--rounds", "24", "--set", "delta=1.5"), 2, "delta in --set.* got 1.5"),
        (("active.csv", "--rounds", "24", "--set", "view=all"), 2, "view in --set.* got 'all'"),
        (("negative.csv", "--rounds", "24"), 1, "negative.csv:2: .*>= 0.* got '-1'"),
        (("empty.csv", "--rounds", "24"), 1, "empty.csv:1: .*found an empty file"),
        (("cdnow", "--rounds", "547"), 2, "rounds.* <= 546, got 547"),
        (("cdnow", "--set", "feature=events"), 2, "on_grid.*false for 'events'"),
        (("telemetry",), 2, "kind must be linear or prefix, to be planned, got 'histogram'"),
        (("digits",), 2, "kind in digits"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    capsys: Captured, tmp_path: Path, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    (tmp_path / "negative.csv").write_text("active_rounds,people\n1,-1\n")
    (tmp_path / "empty.csv").write_text("")

    ended, out, err = demur(capsys, "plan", *arguments)

    assert (ended, out) == (code, "")
    assert err.startswith("demur: error: ")
    assert err.count("\n") == 1
    assert re.search(expected, err)
    assert not (tmp_path / "runs").exists()
