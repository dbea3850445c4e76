"""What a run of the scenario states leaves in files, and what its command says."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demur_proto.arrays import Values
from demur_proto.errors import ParameterError
from demur_sim.cli import main
from demur_sim.results.files import save
from demur_sim.results.report import report
from demur_sim.scenario import Scenario
from results_kit import read_json, read_rows
from states_kit import DEVICES, bought, counted, small

# ---- what is kept ----------------------------------------------------------------------------


def column(rows: list[dict[str, str]], name: str) -> Values:
    return np.array([float(row[name]) for row in rows])


def test_the_summary_follows_from_the_table_of_releases(tmp_path: Path) -> None:
    result = bought()

    save(result, tmp_path)

    summary, rows = read_json(tmp_path / "summary.json"), read_rows(tmp_path)
    truth = summary["simulator_truth"]
    everyone, told = (column(rows, f"simulator_truth_{each}") for each in ("everyone", "active"))
    estimate, low, high = (column(rows, name) for name in ("estimate", "low", "high"))
    rmse = math.sqrt(np.mean((estimate - everyone) ** 2)) / DEVICES
    assert len(rows) == 48
    assert truth["fraction_rmse"] == pytest.approx(rmse, rel=1e-9)
    assert truth["fraction_rmse_truncation"] == pytest.approx(
        math.sqrt(np.mean((told - everyone) ** 2)) / DEVICES, rel=1e-9
    )
    assert truth["coverage"] == ((low <= told) & (told <= high)).mean()
    low, high = column(rows, "everyone_low"), column(rows, "everyone_high")
    assert truth["everyone_coverage"] == ((low <= everyone) & (everyone <= high)).mean()
    assert truth["exhausted_fraction"] == result.exhausted_fraction
    assert summary["fraction"]["noise_between_two_people"] == 2 * summary["fraction"]["noise"]
    assert (summary["kind"], summary["segment"]["factorisation"]) == ("prefix", "square_root")
    assert summary["halts"]["at_most"] > summary["halts"]["estimate"]
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    study = read_json(tmp_path / "study.json")
    assert study["halts"]["budget"] < study["budget"]
    assert max(map(len, report(result, Path("runs/x")).splitlines())) <= 100
    assert "of those for everyone" in report(result, tmp_path)


def test_under_halt_nothing_has_an_interval(tmp_path: Path) -> None:
    result = counted(small("admission=halt", "budget=1", "halts=0.2", "rounds=8"))

    save(result, tmp_path)

    rows = read_rows(tmp_path)
    assert {(row["low"], row["high"], row["estimand"]) for row in rows} == {("", "", "")}
    truth = read_json(tmp_path / "summary.json")["simulator_truth"]
    assert "coverage" not in truth
    assert "everyone_coverage" not in truth
    assert "intervals" not in report(result, tmp_path)


# ---- the command -----------------------------------------------------------------------------


CUT = ("simulate", "states", "--set", "data.devices=2000", "--set", "rounds=3")


@pytest.mark.usefixtures("_elsewhere")
def test_a_person_reads_what_came_of_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(CUT) == 0

    out = capsys.readouterr().out
    for words in (
        "People who are on",
        "2,000 devices, 3 rounds, fidelity cohort, seed 0",
        "(1, 1e-06), unit one device, neighbour zero-out, view local",
        "square_root, 4 changes each",
        "hold the states as told",
        "if everyone paid for their state each round",
        "runs/states-0/plot.png",
    ):
        assert words in out
    assert max(map(len, out.splitlines())) <= 100
    assert (tmp_path / "runs" / "states-0" / "summary.json").is_file()


@pytest.mark.usefixtures("_elsewhere")
@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("factorisation=wavelet", "factorisation in --set must be square_root or tree or identity"),
        ("admission=never", "admission in --set must be commit or halt"),
        ("grid_exponent=-7", "grid_exponent in --set must be from -20 to -14 where kind is prefix"),
        ("clip=2.0", "clip in --set must be left out where kind is prefix"),
        ("on_grid=false", "on_grid in --set must be left out where kind is prefix"),
        ("policy=clip", "policy in --set must be skip or retire where kind is prefix"),
        ("halts=1", "halts in --set must be at least 0 and below 1"),
        ("mechanism=krr", "mechanism in --set must be left out where kind is prefix"),
        ("rounds=1025", "rounds must be an integer >= 0 and <= 1024, got 1025"),
        ("feature=active", "feature must be one of state, got 'active'"),
        ("data.periods=16385", "periods must be an integer >= 1 and <= 16384"),
        ("budget=0", "budget in --set must be an integer >= 1"),
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


@pytest.mark.parametrize("name", ["factorisation", "admission", "halts"])
def test_other_kinds_have_none_of_this(name: str) -> None:
    value: Any = {"factorisation": "tree", "admission": "halt", "halts": 0.5}[name]

    with pytest.raises(ParameterError, match=f"{name} must be left out where kind is linear"):
        Scenario(name="mine", **{name: value})


def test_who_falls_silent_is_not_counted_as_well() -> None:
    with pytest.raises(
        ParameterError, match=r"halts .* must be 0 where refused devices fall silent"
    ):
        small("halts=0.5", "refusal=silent")
