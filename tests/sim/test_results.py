"""What a run leaves behind: the summary, the files, and nothing that only looks like a result."""

import dataclasses
import hashlib
import json
import math
import re
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demur_proto.errors import DataError
from demur_sim.people.populations import ArrayPopulation
from demur_sim.results.base import Result
from demur_sim.results.files import save
from demur_sim.results.sums import LinearResult
from demur_sim.run import simulate
from demur_sim.scenario import Refusal, Scenario, load_scenario
from results_kit import broken, read_json, read_rows

DEVICES, ROUNDS = 500, 400
FILES = {"summary.json", "releases.csv", "study.json", "plot.png"}
PNG = b"\x89PNG\r\n\x1a\n"


@cache
def run() -> Result:
    """500 people, each with a one in a tenth of 400 rounds, who can afford 20 of them."""
    rng = np.random.default_rng(3)
    values = (rng.random((DEVICES, ROUNDS)) < 0.1).astype(float)
    scenario = Scenario(name="many", title="Many rounds", feature="value", budget=20)
    return simulate(scenario, population=ArrayPopulation(values), workers=1)


@cache
def thinning(seed: int = 0) -> Result:
    """Silence from the second one on, so that two of three rounds have too few reports."""
    values = np.array([[1.0, 1.0, 1.0]] * 20 + [[1.0, 0.0, 0.0]] * 10)
    scenario = Scenario(
        name="thinning",
        feature="value",
        budget=1,
        minimum_cohort=30,
        refusal=Refusal.SILENT,
        grid_exponent=-8,
    )
    return simulate(scenario, seed=seed, population=ArrayPopulation(values), workers=1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "many-0"
    save(run(), folder)
    return folder


# ---- the contract ----------------------------------------------------------------------------

CONTRACT: dict[str, Any] = {
    "scenario": str,
    "seed": int,
    "fidelity": str,
    "workers": int,
    "devices": int,
    "rounds": int,
    "reports": int,
    "guarantee": {
        "epsilon": float,
        "delta": float,
        "unit": str,
        "neighbour": str,
        "view": str,
        "statement": str,
        "per_report_mu": float,
    },
    "sigma": float,
    "local_sigma": float,
    "budget": {"value": int, "measure": str},
    "rmse": {"individual": float, "worst_case_all_rounds": float},
    "answered_rounds": {"individual": int, "worst_case_same_noise": int},
    "simulator_truth": {"exhausted_fraction": float},
    "wall_s": float,
    "reports_per_s": float,
    "peak_rss_mb": float,
    "releases_sha256": str,
}


def test_the_summary_has_the_keys_that_other_tools_read(saved: Path) -> None:
    summary = read_json(saved / "summary.json")

    assert broken(summary, CONTRACT) == []
    assert summary == json.loads(json.dumps(run().summary()))
    assert (summary["scenario"], summary["seed"], summary["fidelity"]) == ("many", 0, "cohort")
    assert (summary["devices"], summary["rounds"]) == (DEVICES, ROUNDS)
    assert summary["reports"] == DEVICES * ROUNDS
    assert summary["budget"]["value"] == 20
    assert summary["wall_s"] > 0
    assert summary["reports_per_s"] > 0
    assert summary["peak_rss_mb"] > 10


def test_a_broken_contract_would_be_noticed(saved: Path) -> None:
    summary = read_json(saved / "summary.json")
    del summary["sigma"]
    summary["rmse"]["individual"] = None
    summary["seed"] = True

    problems = broken(summary, CONTRACT)

    assert len(problems) == 3


def test_the_guarantee_names_unit_neighbour_and_view_and_admits_the_simulated_noise(
    saved: Path,
) -> None:
    summary, study = read_json(saved / "summary.json"), read_json(saved / "study.json")

    statement = summary["guarantee"]["statement"]
    for words in ("Unit: one device", "Neighbour: zero-out", "View: aggregate", "is simulated:"):
        assert words in statement
    assert study["statement"] == statement
    assert (study["epsilon"], study["delta"]) == (1.0, 1e-6)
    assert study["per_report_mu"] == summary["guarantee"]["per_report_mu"]
    assert f"{study['per_report_mu']:.2g}-GDP" in statement


def test_the_study_file_holds_the_bytes_whose_hash_devices_pin(saved: Path) -> None:
    study = read_json(saved / "study.json")

    defining = bytes.fromhex(study["definition"])

    assert hashlib.sha256(b"demur.study.v1\x00" + defining).hexdigest() == study["hash"]


# ---- the numbers -----------------------------------------------------------------------------


def test_the_hash_of_the_releases_follows_from_the_table_of_releases(saved: Path) -> None:
    sums = [int(row["sum"]) for row in read_rows(saved)]

    digest = hashlib.sha256(struct.pack(f"<{len(sums)}q", *sums)).hexdigest()

    assert read_json(saved / "summary.json")["releases_sha256"] == digest


def test_the_error_follows_from_the_table_of_releases(saved: Path) -> None:
    rows = read_rows(saved)

    errors = [float(row["estimate"]) - float(row["simulator_truth_everyone"]) for row in rows]
    mean_square = math.fsum(error * error for error in errors) / len(errors)

    assert read_json(saved / "summary.json")["rmse"]["individual"] == pytest.approx(
        math.sqrt(mean_square), rel=1e-12
    )
    for row in rows:
        assert float(row["estimate"]) == int(row["sum"]) / 128
        middle = (float(row["low"]) + float(row["high"])) / 2
        assert middle == pytest.approx(float(row["estimate"]), abs=1e-9)
        half = 1.959963984540054 * float(row["standard_error"])
        assert (float(row["high"]) - float(row["low"])) / 2 == pytest.approx(half, abs=1e-9)
        assert row["estimand"] == "S_active"


def test_intervals_cover_the_people_who_contributed_as_often_as_they_say(saved: Path) -> None:
    rows = read_rows(saved)

    covered = [
        float(row["low"]) <= float(row["simulator_truth_active"]) <= float(row["high"])
        for row in rows
    ]

    error = math.sqrt(0.95 * 0.05 / ROUNDS)
    assert abs(np.mean(covered) - 0.95) <= 3 * error
    # About the active ones, and not about everyone: half of the people run out half-way.
    lost = [float(r["simulator_truth_everyone"]) - float(r["simulator_truth_active"]) for r in rows]
    assert min(lost) == 0
    assert max(lost) > 30


def test_the_noise_has_the_standard_error_that_it_is_said_to_have(saved: Path) -> None:
    rows, sigma = read_rows(saved), read_json(saved / "summary.json")["sigma"]

    errors = [float(row["estimate"]) - float(row["simulator_truth_active"]) for row in rows]

    # A sample variance of n normals has relative standard error √(2/n).
    mean_square = math.fsum(error * error for error in errors) / ROUNDS
    assert abs(mean_square / sigma**2 - 1) <= 4 * math.sqrt(2 / ROUNDS)
    assert {float(row["standard_error"]) for row in rows} == {sigma}


def test_alternatives_are_those_of_the_same_guarantee() -> None:
    summary = run().summary()

    # 400 answers at the full clip instead of 20 need √20 times the noise.
    assert summary["rmse"]["worst_case_all_rounds"] == pytest.approx(
        summary["sigma"] * math.sqrt(ROUNDS / 20), rel=1e-4
    )
    # Each device alone with the noise of all: √500 times the sum's.
    assert summary["local_sigma"] == pytest.approx(summary["sigma"] * math.sqrt(DEVICES), rel=1e-3)
    assert summary["answered_rounds"] == {"individual": ROUNDS, "worst_case_same_noise": 20}


def test_cdnow_answers_every_day_at_a_fifth_of_the_worst_case_error() -> None:
    scenario = load_scenario("cdnow")

    summaries = [simulate(scenario, seed=seed).summary() for seed in range(5)]

    ratios = [s["rmse"]["worst_case_all_rounds"] / s["rmse"]["individual"] for s in summaries]
    assert min(ratios) >= 4.9
    assert sum(ratios) / len(ratios) >= 5.1
    for summary in summaries:
        assert summary["answered_rounds"] == {"individual": 546, "worst_case_same_noise": 15}
        assert summary["rmse"]["worst_case_all_rounds"] == pytest.approx(98.7, abs=0.05)
        assert summary["sigma"] == pytest.approx(16.4, abs=0.05)
        assert summary["simulator_truth"]["exhausted_fraction"] == pytest.approx(0.0153, abs=5e-5)
        assert (summary["devices"], summary["rounds"]) == (23_570, 546)
        assert summary["guarantee"]["per_report_mu"] == pytest.approx(9.4, abs=0.05)
    assert len({summary["releases_sha256"] for summary in summaries}) == 5


# ---- the files -------------------------------------------------------------------------------


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_leaves_exactly_its_four_files(saved: Path) -> None:
    assert names(saved) == FILES
    assert b"\r" not in (saved / "releases.csv").read_bytes()


def test_the_picture_is_a_picture(saved: Path) -> None:
    data = (saved / "plot.png").read_bytes()

    assert data.startswith(PNG)
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (1210, 825)
    assert 20_000 < len(data) < 1_000_000


def test_a_round_below_the_minimum_cohort_has_empty_cells_and_still_a_picture(
    tmp_path: Path,
) -> None:
    save(thinning(), tmp_path)

    first, *others = read_rows(tmp_path)
    assert first["withheld"] == "nothing"
    assert first["sum"]
    assert [row["withheld"] for row in others] == ["below_minimum_cohort"] * 2
    for row in others:
        numbers = [row[key] for key in ("sum", "estimate", "standard_error", "low", "high")]
        assert numbers == [""] * 5
        assert row["reports"] == "10"
    summary = read_json(tmp_path / "summary.json")
    assert summary["answered_rounds"]["individual"] == 1
    # The hash is that of what was released, which is one sum.
    released = hashlib.sha256(struct.pack("<q", int(first["sum"]))).hexdigest()
    assert summary["releases_sha256"] == released
    error = abs(float(first["estimate"]) - 30)
    assert summary["rmse"]["individual"] == pytest.approx(error)
    assert (tmp_path / "plot.png").read_bytes().startswith(PNG)


def test_where_nothing_was_released_there_is_no_error_and_no_nan(tmp_path: Path) -> None:
    shown = thinning()
    assert isinstance(shown, LinearResult)
    withheld = dataclasses.replace(
        shown,
        releases=shown.releases[1:],
        truth=shown.truth[1:],
        clipped_truth=shown.clipped_truth[1:],
        aftermath=dataclasses.replace(shown.aftermath, contributed=shown.aftermath.contributed[1:]),
    )

    save(withheld, tmp_path)

    summary = read_json(tmp_path / "summary.json")
    assert summary["rmse"]["individual"] is None
    assert summary["answered_rounds"]["individual"] == 0
    assert (tmp_path / "plot.png").read_bytes().startswith(PNG)


def test_files_are_replaced_whole(tmp_path: Path) -> None:
    save(thinning(seed=0), tmp_path)
    opened = {name: (tmp_path / name).open("rb") for name in FILES}
    before = contents(tmp_path)

    save(thinning(seed=1), tmp_path)

    for name, file in opened.items():
        with file:
            assert file.read() == before[name]  # whoever reads on, reads the old one to its end
    assert read_json(tmp_path / "summary.json")["seed"] == 1
    assert names(tmp_path) == FILES


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """No file of this process may grow beyond the limit: the disk is full, as it were."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_half_way_leaves_the_earlier_result_whole(tmp_path: Path) -> None:
    save(thinning(), tmp_path)
    before = contents(tmp_path)
    assert len(before["plot.png"]) > 10_000 > len(before["study.json"])

    with file_size_limit(10_000), pytest.raises(DataError, match=r"^cannot write results to "):
        save(thinning(), tmp_path)

    assert contents(tmp_path) == before


def test_a_disk_that_is_full_half_way_leaves_nothing_that_looks_like_a_result(
    tmp_path: Path,
) -> None:
    with file_size_limit(10_000), pytest.raises(DataError, match="File too large"):
        save(thinning(), tmp_path)

    assert names(tmp_path) == set()


def test_a_failure_between_two_files_leaves_no_summary_beside_them(tmp_path: Path) -> None:
    save(thinning(seed=0), tmp_path)
    (tmp_path / "plot.png").unlink()
    (tmp_path / "plot.png").mkdir()  # so it cannot be replaced by a file

    with pytest.raises(DataError, match=re.escape(str(tmp_path / "plot.png"))):
        save(thinning(seed=1), tmp_path)

    assert names(tmp_path) == FILES - {"summary.json"}


@pytest.mark.parametrize("folder", ["taken", "taken/deeper"])
def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path, folder: str) -> None:
    (tmp_path / "taken").write_text("a file\n")

    with pytest.raises(DataError, match=r"^cannot write results to .*taken.*: \w+"):
        save(run(), tmp_path / folder)

    assert (tmp_path / "taken").read_text() == "a file\n"


def test_the_interval_holds_where_everybody_is_clipped() -> None:
    everybody = ArrayPopulation(np.full((200_000, 20), 50.0))
    scenario = Scenario(
        name="rich", feature="value", clip=1.0, budget=20, on_grid=False, grid_exponent=-16
    )

    result = simulate(scenario, population=everybody, seed=1)

    half_widths = np.array([release.half_width for release in result.releases])
    off = np.abs(result.estimates[:, 0] - 200_000)
    assert (off <= half_widths).all()
    assert (off > 1.96 * result.sigma).mean() > 0.5  # so most fail without the allowance for it
