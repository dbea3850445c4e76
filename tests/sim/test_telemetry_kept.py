"""What a run of the scenario telemetry leaves in files."""

import dataclasses
import hashlib
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demur_sim.people.populations import ArrayPopulation
from demur_sim.results.files import save
from demur_sim.results.histograms import HistogramResult
from demur_sim.results.report import report
from demur_sim.run import simulate
from demur_sim.scenario import Refusal
from results_kit import broken, read_json, read_rows
from telemetry_kit import DEVICES, PNG, counts, of_an_array, run, whole

CONTRACT: dict[str, Any] = {
    "scenario": str,
    "kind": str,
    "devices": int,
    "rounds": int,
    "reports": int,
    "guarantee": {"epsilon": float, "delta": float, "view": str, "per_report_epsilon": float},
    "sigma": float,
    "budget": {"value": int, "measure": str, "unit": str},
    "rmse": {"individual": float, "worst_case_all_rounds": float},
    "answered_rounds": {"individual": int, "worst_case_same_noise": int},
    "mechanism": {
        "name": str,
        "categories": int,
        "epsilon_per_answer": float,
        "report_bytes": int,
    },
    "worst_case": {"epsilon_per_answer": float, "standard_error": float, "ratio": float},
    "simulator_truth": {
        "exhausted_fraction": float,
        "rmse_active": float,
        "rmse_theory": float,
        "error_over_theory": float,
        "coverage": float,
    },
    "totals": list,
    "beside": {
        "mechanism": {"name": str, "report_bytes": int},
        "worst_case": {"ratio": float},
        "simulator_truth": {"error_over_theory": float, "coverage": float},
        "sigma": float,
        "rmse": float,
        "releases_sha256": str,
    },
    "releases_sha256": str,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "telemetry-0"
    save(whole(), folder)
    return folder


def test_the_summary_has_the_keys_that_other_tools_read(saved: Path) -> None:
    summary = read_json(saved / "summary.json")

    assert broken(summary, CONTRACT) == []
    assert summary == json.loads(json.dumps(whole().summary()))
    assert (summary["kind"], summary["rounds"], summary["devices"]) == ("histogram", 100, DEVICES)
    assert summary["mechanism"]["name"] == "oue"
    assert summary["beside"]["mechanism"]["name"] == "hadamard"
    # 64 bits, and one index below 128 as a 32-bit word.
    assert summary["mechanism"]["report_bytes"] == 8
    assert summary["beside"]["mechanism"]["report_bytes"] == 4
    assert len(summary["totals"]) == 10


def test_the_summary_follows_from_the_table_of_releases(saved: Path) -> None:
    summary, rows = read_json(saved / "summary.json"), read_rows(saved)
    assert len(rows) == 2 * 100 * 64

    for name, told in (("oue", summary), ("hadamard", summary["beside"])):
        mine = [row for row in rows if row["mechanism"] == name]
        active = np.array([float(row["simulator_truth_active"]) for row in mine])
        errors = np.array([float(row["estimate"]) for row in mine]) - active
        low = np.array([float(row["low"]) for row in mine])
        high = np.array([float(row["high"]) for row in mine])
        truth = told["simulator_truth"]
        assert truth["rmse_active"] == pytest.approx(math.sqrt((errors**2).mean()), rel=1e-9)
        assert truth["coverage"] == ((low <= active) & (active <= high)).mean()
        assert {row["estimand"] for row in mine} == {"S_active"}
    first = summary["totals"][0]
    mine = [
        row
        for row in rows
        if row["mechanism"] == "oue" and int(row["category"]) == first["category"]
    ]
    assert first["estimate"] == pytest.approx(sum(float(row["estimate"]) for row in mine))
    variance = sum(float(row["standard_error"]) ** 2 for row in mine)
    assert first["standard_error"] == pytest.approx(math.sqrt(variance))
    everyone = sum(float(row["simulator_truth_everyone"]) for row in mine)
    assert first["simulator_truth_everyone"] == everyone


def test_the_hash_of_the_releases_is_that_of_the_sums(saved: Path) -> None:
    sums = [number for release in whole().releases for number in release.sums]

    digest = hashlib.sha256(struct.pack(f"<{len(sums)}q", *sums)).hexdigest()

    assert read_json(saved / "summary.json")["releases_sha256"] == digest


def test_the_guarantee_names_unit_neighbour_and_view_and_admits_the_seed(saved: Path) -> None:
    summary, study = read_json(saved / "summary.json"), read_json(saved / "study.json")

    statement = summary["guarantee"]["statement"]
    for words in ("Unit: one device", "Neighbour: zero-out", "View: local", "follows from a seed"):
        assert words in statement
    assert "floating point" not in statement
    assert study["statement"] == statement
    assert (study["epsilon"], study["delta"], study["measure"]) == (4.0, 1e-6, "zcdp")
    assert (study["mechanism"], study["categories"]) == ("oue", 64)
    # Ten answers fit the budget, and no eleventh.
    assert 10 * study["weight"] <= study["budget_units"] < 11 * study["weight"]
    # One report of OUE against nothing: ln((e^ε + 1)/2).
    expected = math.log((math.exp(study["epsilon_per_answer"]) + 1) / 2)
    assert study["per_report_epsilon"] == pytest.approx(expected, rel=1e-9)
    assert summary["guarantee"]["per_report_mu"] is None


@pytest.mark.parametrize("beside", ["hadamard", ""])
def test_the_picture_is_a_picture(tmp_path: Path, beside: str) -> None:
    save(run("rounds=3", f"beside={beside}"), tmp_path)

    data = (tmp_path / "plot.png").read_bytes()

    assert data.startswith(PNG)
    assert struct.unpack(">II", data[16:24]) == (1210, 825)
    assert 20_000 < len(data) < 1_000_000
    assert {path.name for path in tmp_path.iterdir()} == {
        *("summary.json", "study.json", "releases.csv", "plot.png")
    }


def thinning(*, minimum_cohort: int) -> HistogramResult:
    """Twenty people of whom ten fall silent on the second day and all on the third."""
    values = np.array([[0.0, 1.0, 0.0]] * 10 + [[1.0, np.nan, 1.0]] * 10)
    days = np.where(np.isnan(values), -1.0, values)  # no category, whatever it is
    scenario = of_an_array(
        categories=2,
        mechanism="krr",
        beside="sue",
        budget=1,
        minimum_cohort=minimum_cohort,
        refusal=Refusal.SILENT,
    )
    return counts(simulate(scenario, population=ArrayPopulation(days), workers=1))


def test_a_round_below_the_minimum_cohort_has_empty_cells_and_still_a_picture(
    tmp_path: Path,
) -> None:
    result = thinning(minimum_cohort=20)

    save(result, tmp_path)

    rows = [row for row in read_rows(tmp_path) if row["mechanism"] == "krr"]
    assert [row["withheld"] for row in rows] == ["nothing"] * 2 + ["below_minimum_cohort"] * 4
    for row in rows[2:]:
        assert [row[key] for key in ("estimate", "standard_error", "low", "high")] == [""] * 4
    assert [row["reports"] for row in rows] == ["20", "20", "10", "10", "0", "0"]
    summary = read_json(tmp_path / "summary.json")
    assert summary["answered_rounds"]["individual"] == 1
    assert summary["guarantee"]["epsilon"] is None
    assert "Nothing is promised" in summary["guarantee"]["statement"]
    errors = result.estimates[0] - [10, 10]
    assert summary["rmse"]["individual"] == pytest.approx(math.sqrt((errors**2).mean()))
    assert sorted(row["category"] for row in summary["totals"]) == [0, 1]


def test_where_nothing_was_released_there_is_no_error_and_no_nan(tmp_path: Path) -> None:
    shown = thinning(minimum_cohort=20)
    withheld = dataclasses.replace(
        shown,
        beside=None,
        releases=shown.releases[1:],
        truth=shown.truth[1:],
        aftermath=dataclasses.replace(shown.aftermath, contributed=shown.aftermath.contributed[1:]),
    )

    save(withheld, tmp_path)

    summary = read_json(tmp_path / "summary.json")
    assert summary["rmse"]["individual"] is None
    assert summary["simulator_truth"]["coverage"] is None
    assert summary["simulator_truth"]["error_over_theory"] is None
    assert summary["totals"] == []
    assert (tmp_path / "plot.png").read_bytes().startswith(PNG)
    assert "nothing was released" in report(withheld, tmp_path)
