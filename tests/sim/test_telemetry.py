"""Histograms of made-up people, end to end: what is released, how far off, and what is kept."""

import csv
import dataclasses
import hashlib
import json
import math
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demur_proto.arrays import Integers
from demur_proto.errors import ParameterError
from demur_proto.release import Withheld
from demur_proto.round import Feature, Randomiser
from demur_sim.cli import main
from demur_sim.histogram_results import HistogramResult
from demur_sim.linear_results import LinearResult
from demur_sim.populations import ArrayPopulation
from demur_sim.report import report
from demur_sim.result_files import save
from demur_sim.results import Result
from demur_sim.run import simulate
from demur_sim.scenario import Refusal, Scenario, load_scenario
from demur_sim.scenario_people import population_of

PNG = b"\x89PNG\r\n\x1a\n"
DEVICES, PERIODS = 10_000, 12  # three blocks, the last one smaller


def small(*overrides: str) -> Scenario:
    """The shipped scenario, cut to size."""
    size = (f"data.devices={DEVICES}", f"data.periods={PERIODS}")
    return load_scenario("telemetry", overrides=[*size, *overrides])


def of_an_array(**fields: Any) -> Scenario:
    """A histogram of one's own people."""
    needed: dict[str, Any] = {"kind": "histogram", "view": "local", "measure": "zcdp"}
    return Scenario(name="mine", feature="value", **needed, **fields)


def counts(result: Result) -> HistogramResult:
    assert isinstance(result, HistogramResult)
    return result


@cache
def run(*overrides: str, **options: Any) -> HistogramResult:
    return counts(simulate(small(*overrides), **options))


@cache
def whole() -> HistogramResult:
    """Both mechanisms over all of a hundred days: 6,400 estimates each."""
    return run("data.periods=100")


def everything(scenario: Scenario) -> Integers:
    """Each person's symbol on each day [n, periods]: 0 for none, a category plus 1 otherwise."""
    people = population_of(scenario)
    days = [
        people.evaluate(Feature(name="event", parameters={"period": day}), slice(None))
        for day in range(1, people.periods + 1)
    ]
    symbols: Integers = np.nan_to_num(np.concatenate(days, axis=1) + 1).astype(np.int64)
    return symbols


def by_category(symbols: Integers, categories: int) -> Integers:
    """How many people have each category on each day [periods, k]."""
    each = [np.bincount(day, minlength=categories + 1)[1:] for day in symbols.T]
    return np.array(each)


# ---- the same releases -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fidelity", "workers"), [("cohort", 2), ("processes", 1), ("processes", 2)]
)
def test_the_same_seed_releases_the_same_however_real_and_by_however_many(
    fidelity: str, workers: int
) -> None:
    cut = ("rounds=3", "budget=1")
    arrays = run(*cut, workers=1, seed=4)

    other = run(*cut, workers=workers, fidelity=fidelity, seed=4)

    assert len(other.side_by_side) == len(arrays.side_by_side) == 2
    for one, another in zip(arrays.side_by_side, other.side_by_side, strict=True):
        assert one.releases == another.releases
        assert one.study == another.study
        np.testing.assert_array_equal(one.active_truth, another.active_truth)
        np.testing.assert_array_equal(one.aftermath.refused, another.aftermath.refused)
    assert other.exhausted_fraction > 0


def test_another_seed_randomises_the_same_people_otherwise() -> None:
    one, other = run("rounds=3", seed=0), run("rounds=3", seed=1)

    assert one.releases_sha256 != other.releases_sha256
    np.testing.assert_array_equal(one.truth, other.truth)


def test_other_people_are_another_seed_of_the_data() -> None:
    one, other = run("rounds=3"), run("rounds=3", "data.seed=1")

    assert (one.truth != other.truth).any()


def test_the_result_beside_is_what_its_mechanism_releases_alone() -> None:
    beside = run("rounds=3").beside
    alone = run("rounds=3", "mechanism=hadamard", "beside=")

    assert beside is not None
    assert alone.beside is None
    assert beside.releases == alone.releases


# ---- the truth -------------------------------------------------------------------------------


def test_the_truth_is_what_counting_everybody_one_by_one_says() -> None:
    result = run()

    np.testing.assert_array_equal(result.truth, by_category(everything(result.scenario), 64))


@pytest.mark.parametrize("policy", ["skip", "retire"])
def test_people_contribute_their_first_events_and_then_nothing(policy: str) -> None:
    result = run("budget=2", f"policy={policy}")
    symbols = everything(result.scenario)

    affordable = np.cumsum(symbols > 0, axis=1) <= 2

    np.testing.assert_array_equal(result.active_truth, by_category(symbols * affordable, 64))
    assert result.exhausted_fraction == (~affordable).any(axis=1).mean()
    assert 0.01 < result.exhausted_fraction < 0.1
    for each in result.side_by_side:
        np.testing.assert_array_equal(each.active_truth, result.active_truth)


# ---- the error -------------------------------------------------------------------------------


def mean_square_over_theory(result: HistogramResult) -> float:
    return (result.active_rmse / result.theory_rmse) ** 2


@pytest.mark.parametrize("which", [0, 1])
def test_the_error_is_that_of_theory(which: int) -> None:
    result = whole().side_by_side[which]

    # Errors of different categories are uncorrelated under OUE and Hadamard response, and close
    # to normal: the mean of 6,400 squares has a relative standard error of √(2/6400).
    assert abs(mean_square_over_theory(result) - 1) <= 4 * math.sqrt(2 / 6400)


@pytest.mark.parametrize("mechanism", [*Randomiser])
def test_every_mechanism_counts_within_its_theory(mechanism: Randomiser) -> None:
    result = run("beside=", f"mechanism={mechanism}")

    # Squares of 12 · 64 errors, which are uncorrelated up to terms of order 1/64.
    assert abs(mean_square_over_theory(result) - 1) <= 5 * math.sqrt(2 / (12 * 64))
    assert result.answered_rounds == PERIODS == 12


@pytest.mark.parametrize("which", [0, 1])
def test_intervals_hold_the_people_who_contributed_as_often_as_they_say(which: int) -> None:
    result = whole().side_by_side[which]

    assert abs(result.coverage - 0.95) <= 3 * math.sqrt(0.95 * 0.05 / 6400)


@pytest.mark.parametrize("which", [0, 1])
def test_devices_that_have_run_out_move_no_estimate(which: int) -> None:
    exhausted = run("budget=1", "data.periods=60").side_by_side[which]
    assert exhausted.exhausted_fraction > 0.3
    late = slice(30, 60)

    errors = (exhausted.estimates - exhausted.active_truth)[late]

    # The mean over 30 rounds and 64 categories, of uncorrelated errors.
    error = exhausted.sigma / math.sqrt(30 * 64)
    assert abs(errors.mean()) <= 4 * error


def test_standard_errors_are_those_of_textbooks() -> None:
    result = whole()
    e = math.exp(result.query.epsilon)

    # Wang et al. 2017, section 4.3: variance n·4e^ε/(e^ε − 1)² for a category that nobody has.
    assert result.sigma == pytest.approx(math.sqrt(DEVICES * 4 * e) / (e - 1), rel=1e-9)
    # Acharya, Sun & Zhang 2019 with a share of one half: ((e^ε + 1)/(e^ε − 1))².
    assert result.beside is not None
    other = math.exp(result.beside.query.epsilon)
    expected = math.sqrt(DEVICES) * (other + 1) / (other - 1)
    assert result.beside.sigma == pytest.approx(expected, rel=1e-9)


def test_a_filter_on_each_device_is_worth_the_root_of_the_rounds_over_the_budget() -> None:
    for result in whole().side_by_side:
        # For small ε, noise grows as the root of how many answers have to fit: √(100/10).
        ratio = result.worst_case_sigma / result.sigma
        assert ratio == pytest.approx(math.sqrt(100 / 10), rel=0.03)
        assert result.worst_case_rounds == result.scenario.budget == 10
        assert result.answered_rounds == 100


# ---- what is kept ----------------------------------------------------------------------------

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


def broken(content: Any, contract: Any, where: str = "summary") -> list[str]:
    """Which keys of the contract are missing, or hold another type."""
    if not isinstance(contract, Mapping):
        return [] if type(content) is contract else [f"{where}: {content!r}"]
    return [
        problem
        for key in contract
        for problem in (
            broken(content[key], contract[key], f"{where}.{key}")
            if key in content
            else [f"{where}.{key} is missing"]
        )
    ]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "telemetry-0"
    save(whole(), folder)
    return folder


def read_json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def read_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "releases.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


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


def test_one_of_ones_own_arrays_may_hold_categories_and_nothing() -> None:
    values = np.array([[0.0, 2.0], [1.0, -1.0], [1.0, 0.5], [7.0, 3.0]])
    scenario = of_an_array(categories=3, mechanism="oue", budget=2)

    result = simulate(scenario, population=ArrayPopulation(values))

    assert result.truth.tolist() == [[1, 2, 0], [0, 0, 1]]
    np.testing.assert_array_equal(result.truth, result.active_truth)
    assert all(release.withheld is Withheld.NOTHING for release in result.releases)


def test_progress_counts_the_rounds_of_both_studies() -> None:
    seen: list[tuple[int, int, int]] = []

    simulate(small("rounds=2"), progress=lambda *done: seen.append(done))

    assert seen == [(n, 4, n * DEVICES) for n in (1, 2, 3, 4)]


# ---- the command -----------------------------------------------------------------------------


@pytest.fixture
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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
        ("categories=1", "categories in --set must be an integer >= 2"),
        ("view=aggregate", "view in --set must be local where kind is histogram"),
        ("measure=gdp", "measure in --set must be zcdp where kind is histogram"),
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


def test_nobody_at_all_is_refused() -> None:
    scenario = of_an_array(categories=3, mechanism="oue")

    with pytest.raises(ParameterError, match="at least one device"):
        simulate(scenario, population=ArrayPopulation(np.zeros((0, 2))))


def test_a_linear_scenario_still_makes_linear_results() -> None:
    scenario = Scenario(name="mine", feature="value", budget=2, grid_exponent=-9)

    result = simulate(scenario, population=ArrayPopulation(np.ones((50, 3))))

    assert isinstance(result, LinearResult)
    assert result.summary()["kind"] == "linear"
