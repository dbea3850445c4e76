"""`import demur`: what it has, and that a name, a path, a table or an array is all it needs."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import demur
from demur_sim.results.base import Result

RIDES = {
    "rider": ["ada", "ada", "bob", "cy"],
    "day": ["2026-03-01", "2026-03-02", "2026-03-01", "2026-03-03"],
}
PUBLIC = [
    "AccessError",
    "Agent",
    "Analyst",
    "ArrayPopulation",
    "BlockingAnalyst",
    "Collector",
    "ConnectionLost",
    "Data",
    "DataError",
    "DemurError",
    "Device",
    "ErrorCount",
    "Feature",
    "Fidelity",
    "FolderSource",
    "FunctionSource",
    "Gradient",
    "HaltCount",
    "Histogram",
    "Ledger",
    "LedgerFile",
    "Linear",
    "Measure",
    "NotFoundError",
    "OwnerPolicy",
    "ParameterError",
    "Policy",
    "PolicyError",
    "Purpose",
    "Randomiser",
    "Release",
    "RunningCount",
    "Scenario",
    "Segment",
    "ServerConfig",
    "Session",
    "StateError",
    "StorageError",
    "Study",
    "TableSource",
    "TrainingScenario",
    "UnsupportedError",
    "View",
    "Weights",
    "design_study",
    "enrol_device",
    "list_scenarios",
    "load_scenario",
    "load_training",
    "open_session",
    "plan",
    "save",
    "serve",
    "simulate",
    "train",
]


def truth(result: object) -> list[float]:
    assert isinstance(result, Result)
    return [float(each) for each in result.truth.ravel()]


def test_nothing_is_added_to_the_public_names_or_taken_from_them_unnoticed() -> None:
    added, removed = set(demur.__all__) - set(PUBLIC), set(PUBLIC) - set(demur.__all__)

    assert (added, removed) == (set(), set())


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there_with_a_docstring(name: str) -> None:
    value = getattr(demur, name)

    assert value.__name__ == name
    assert value.__doc__
    assert name in dir(demur)


def test_importing_demur_loads_nothing_heavy() -> None:
    loaded = "import sys, demur; print(sorted({n.partition('.')[0] for n in sys.modules}))"

    out = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)

    assert not {"numpy", "grpc", "google", "anyio", "matplotlib"} & set(eval(out.stdout))


def test_a_misspelt_name_suggests_the_nearest() -> None:
    with pytest.raises(AttributeError, match="no attribute 'simulat'; did you mean 'simulate'"):
        _ = demur.simulat


def test_a_missing_library_says_which_extra_has_it() -> None:
    script = (
        "import sys; sys.modules['sqlalchemy'] = None; import demur\n"
        "try: demur.serve\nexcept ModuleNotFoundError as error: print(error)"
    )

    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert out.stdout.strip() == (
        "demur.serve needs sqlalchemy; install it with: pip install 'demur[server]'"
    )


def test_a_shipped_scenario_runs_by_its_name_with_fields_replaced() -> None:
    result = demur.simulate("cdnow", epsilon=0.5, rounds=2, seed=3)
    same = demur.simulate(demur.load_scenario("cdnow"), epsilon=0.5, rounds=2, seed=3)

    assert isinstance(result, Result)
    assert isinstance(same, Result)
    assert (result.scenario.epsilon, len(result.releases)) == (0.5, 2)
    assert result.releases == same.releases


def test_the_path_of_a_csv_file_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "rides.csv"
    lines = [f"{number},{day}" for number, day in zip((1, 1, 2, 3), RIDES["day"], strict=True)]
    file.write_text("\n".join(["rider,day", *lines]) + "\n")

    result = demur.simulate(file, person="rider", date="day", budget=2)

    assert truth(result) == [2.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame(RIDES),
        pd.DataFrame(RIDES).assign(day=pd.to_datetime(RIDES["day"])),
        pl.DataFrame(RIDES),
        pl.DataFrame(RIDES).with_columns(pl.col("day").str.to_date()),
    ],
    ids=["pandas texts", "pandas days", "polars texts", "polars days"],
)
def test_a_long_table_is_enough_whatever_library_made_it(frame: Any) -> None:
    result = demur.simulate(frame, person="rider", date="day")
    log = demur.simulate(frame, person="rider", date="day", feature="events")

    assert truth(result) == [2.0, 1.0, 1.0]
    assert isinstance(log, Result)
    assert log.devices == 3


def test_an_array_is_enough() -> None:
    values = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])

    assert truth(demur.simulate(values)) == [2.0, 1.0]
    assert truth(demur.simulate(values.tolist(), budget=2)) == [2.0, 1.0]


async def test_a_session_is_opened_by_the_name_of_its_scenario() -> None:
    async with demur.open_session("cdnow", rounds=1) as session:
        query = demur.Linear([demur.Feature("active", {"period": 1})], on_grid=True)
        release = await session.ask(query)

    assert release.number == 1


def test_a_plan_and_a_training_are_made_by_their_names() -> None:
    planned = demur.plan("cdnow", rounds=30, people=1000)
    trained = demur.train("digits", epsilon=2.0, steps=2, data={"people": 50}, seed=1)

    assert planned.people == 1000
    assert trained.scenario.epsilon == 2.0


def test_what_was_found_is_saved_with_a_picture(tmp_path: Path) -> None:
    demur.save(demur.simulate("cdnow", rounds=2), tmp_path / "run")

    names = {each.name for each in (tmp_path / "run").iterdir()}
    assert {"summary.json", "releases.csv", "study.json"} <= names
    assert any(name.endswith((".png", ".svg")) for name in names)


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (3, {}, "^what must be the name of a scenario, .*, got 'int'$"),
    (None, {}, "^what must be the name of a scenario"),
    ("cdnov", {}, "did you mean cdnow"),
    ("cdnow", {"epsilom": 1}, r"did you mean epsilon"),
    ("cdnow", {"epsilon": "much"}, "^epsilon in --set must be"),
    ("cdnow", {"person": "rider"}, "^person must be left out; only tables have columns"),
    ([["a"]], {}, "^what must be an array of numbers"),
    (pd.DataFrame(RIDES), {"person": "ridr", "date": "day"}, "did you mean rider"),
    (pd.DataFrame(RIDES), {"person": "rider", "date": "rider"}, "^date must be a column of days"),
    (pd.DataFrame(RIDES).iloc[:0], {"person": "rider", "date": "day"}, "at least one event"),
    (
        pd.DataFrame({**RIDES, "day": [*RIDES["day"][:3], None]}),
        {"person": "rider", "date": "day"},
        "^date must be",
    ),
    (
        pd.DataFrame({**RIDES, "rider": [*RIDES["rider"][:3], None]}),
        {"person": "rider", "date": "day"},
        "^person must be somebody in each row",
    ),
    (demur.Scenario(name="x"), {"epsilom": 1}, "did you mean epsilon"),
    (demur.Scenario(name="x"), {"view": "everybody"}, "^view must be local or aggregate"),
]


@pytest.mark.parametrize(("what", "told", "said"), WRONG, ids=str)
def test_what_cannot_be_simulated_is_refused_in_one_line(
    what: Any, told: dict[str, Any], said: str
) -> None:
    with pytest.raises(demur.ParameterError, match=said) as caught:
        demur.simulate(what, **told)

    assert len(str(caught.value).splitlines()) == 1
