"""The settings of the tables, against the published ones and against what budgets hold."""

import importlib.util
import json
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from demur_proto.study import Policy
from demur_sim.engine.float_cohort import FloatPrice

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    """The benchmark, which no package holds."""
    path = ROOT / "benchmarks" / "paper_tables.py"
    spec = importlib.util.spec_from_file_location("paper_tables", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["paper_tables"] = module
    spec.loader.exec_module(module)
    return module


def test_there_are_18_cells_and_each_has_a_name(tables: ModuleType) -> None:
    cells = list(tables.cells())

    assert len(cells) == len({cell.name for cell in cells}) == 18
    assert cells[0].name == "0.3/tuned/without"
    assert sum(cell.paper is not None for cell in cells) == len(tables.PAPER)


def test_tuned_settings_are_the_published_ones(tables: ModuleType) -> None:
    golden = json.loads((ROOT / "tests" / "golden" / "accounting.json").read_text())["mnist"]
    tuned: list[Any] = [cell for cell in tables.cells() if cell.setting == "tuned"]

    assert len(golden) == 3
    for row in golden:
        for cell in (one for one in tuned if one.epsilon == row["target_eps"]):
            assert (cell.sigma, cell.clip) == (row["sigma"], row["C"])
            assert (cell.rate, cell.fitting) == (row["eta"], row["k"])
            assert cell.simple_epsilon == pytest.approx(row["eps_simple"], rel=1e-12)
            assert cell.study(60_000).epsilon == pytest.approx(row["eps_cks"], rel=1e-8)
            assert cell.study(60_000).budget == pytest.approx(row["rho_zcdp"], rel=1e-15)


def test_every_cell_of_a_table_makes_the_same_promise(tables: ModuleType) -> None:
    for epsilon in (0.3, 0.5, 1.0):
        rhos = {
            Fraction(cell.fitting) / Fraction(cell.sigma) ** 2
            for cell in tables.cells()
            if cell.epsilon == epsilon
        }
        assert len(rhos) == 1


def test_every_budget_holds_exactly_as_many_full_answers_as_it_says(tables: ModuleType) -> None:
    for cell in tables.cells():
        study = cell.study(60_000)
        price = FloatPrice(
            clip=cell.clip, budget_norm=study.budget_norm, budget_units=study.budget_units
        )
        assert price.limit // price.full == cell.fitting
        assert study.policy is (Policy.CLIP if cell.filtering else Policy.RETIRE)
        assert (cell.steps > cell.fitting) is cell.filtering


def test_a_run_under_other_settings_is_in_no_table_and_no_run_goes_on_from_it(
    tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "OUT", tmp_path)
    cell = next(one for one in tables.cells() if one.name == "0.3/clip/with")
    mine = tables.Run(cell, 1, people=None, threads=1)
    row = json.dumps({"accuracy": 0.5, "seed": 1})
    for name in ("sigma", "clip", "rate", "fitting"):
        other = replace(cell, **{name: getattr(cell, name) * 2})
        his = tables.Run(other, 1, people=None, threads=1)
        assert his.common != mine.common
        his.result.write_text(row)
    tables.Run(replace(cell, steps=7), 1, people=None, threads=1).result.write_text(row)

    assert "50.00" not in tables.table()

    mine.result.write_text(row)

    assert tables.table().count("50.00") == 1


def test_a_promise_says_that_tuning_is_no_part_of_it(tables: ModuleType) -> None:
    for cell in tables.cells():
        assert "is not part of the promise" in tables.statement(cell.study(60_000))


def test_a_wrong_cell_is_told_in_one_line(
    tables: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        tables.main(["--cells", "0.4"])

    assert "no cell is called like that" in capsys.readouterr().err.splitlines()[-1]


def test_missing_data_are_told_in_one_line(
    tables: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tables, "OUT", tmp_path)

    assert tables.main(["--data", str(tmp_path), "--cells", "0.3/tuned"]) == 1

    [line] = capsys.readouterr().err.splitlines()
    assert "train-images-idx3-ubyte.gz is not there" in line
