"""`demur simulate telemetry`."""

import json
from pathlib import Path

import pytest

from demur_sim.cli import main
from results_kit import read_json

CUT = ("simulate", "telemetry", "--set", "data.devices=2000", "--set", "rounds=2")


@pytest.mark.usefixtures("_elsewhere")
def test_a_person_reads_what_came_of_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(CUT) == 0

    out = capsys.readouterr().out
    for words in (
        "Failures, by component",
        "2,000 devices, 2 rounds, fidelity cohort, seed 0",
        "(4, 1e-06), unit one device, neighbour zero-out, view local",
        "oue: noise       standard error 177 of a count",
        "hadamard: error",
        "8 bytes a report",
        "in theory",
        "largest totals (truth)",
        "in the worst case",
        "runs/telemetry-0/plot.png",
    ):
        assert words in out
    assert max(map(len, out.splitlines())) <= 100
    assert (tmp_path / "runs" / "telemetry-0" / "summary.json").is_file()


@pytest.mark.usefixtures("_elsewhere")
def test_a_program_reads_one_object(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main((*CUT, "--json", "--out", "here", "--set", "mechanism=subset")) == 0

    summary = json.loads(capsys.readouterr().out)
    assert summary == read_json(tmp_path / "here" / "summary.json")
    assert summary["mechanism"]["name"] == "subset"


@pytest.mark.usefixtures("_elsewhere")
def test_the_scenario_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("simulate", "--list")) == 0

    assert "telemetry      Failures, by component\n" in capsys.readouterr().out


@pytest.mark.usefixtures("_elsewhere")
@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("mechanism=rappor", "mechanism in --set must be krr or sue or oue or blh or olh"),
        ("beside=oue", "beside in --set must be krr or sue or blh"),
        ("categories=0", "categories in --set must be an integer >= 1"),
        ("view=aggregate", "view in --set must be local where kind is histogram"),
        ("measure=gdp", "measure in --set must be pure or zcdp or answers where kind is histogram"),
        ("policy=clip", "policy in --set must be skip or retire where kind is histogram"),
        ("on_grid=false", "on_grid in --set must be left out where kind is histogram"),
        ("kind=linear", "categories in telemetry must be left out where kind is linear"),
        ("feature=active", "feature must be one of event, got 'active'"),
        ("rounds=101", "rounds must be an integer >= 0 and <= 100, got 101"),
        ("minimum_cohort=2001", "minimum_cohort must be <= the number of devices, 2000, got 2001"),
        ("data.devices=-1", "data.devices in --set must be an integer >= 0"),
        ("data.periods=0", "data.periods in --set must be an integer >= 1"),
    ],
)
def test_bad_usage_is_one_line_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, override: str, expected: str
) -> None:
    code = main((*CUT, "--set", override))

    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    (line,) = captured.err.splitlines()
    assert line.startswith("demur: error: ")
    assert expected in line
    assert not [*tmp_path.iterdir()]
