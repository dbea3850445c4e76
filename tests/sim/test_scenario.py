"""Scenarios as values, and as files."""

import copy
import dataclasses
import pickle
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from demur_proto.errors import DataError, ParameterError
from demur_proto.study import Measure, Policy, View
from demur_sim.datasets.activity import read_activity
from demur_sim.people.opening import population_of
from demur_sim.scenario import Data, Refusal, Scenario, list_scenarios, load_scenario
from scenario_kit import flat, totals, write

OF_HISTOGRAMS, OF_SUMS = {"categories"}, {"clip", "grid_exponent", "on_grid"}
OF_COUNTS = {"first_segment", "factorisation", "admission", "halts"}
OF_MADE_UP_PEOPLE = {"devices", "periods", "seed"}
OF_HISTOGRAM_FILES = {"histogram"}
DOCS = Path(__file__).resolve().parents[2] / "docs" / "scenarios.md"


def keys_of(kind: type[Scenario | Data]) -> set[str]:
    return {item.name for item in dataclasses.fields(kind)}


# ---- values ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": ""}, "name must be 1 to 200 printable characters, got ''"),
        ({"name": 5}, "name must be 1 to 200 printable characters, got 5"),
        ({"title": "a\nb"}, r"title must be 1 to 1000 printable characters, got 'a\nb'"),
        ({"question": None}, "question must be 1 to 1000 printable characters, got None"),
        ({"feature": ""}, "feature must be 1 to 100 printable characters, got ''"),
        ({"parameters": 5}, "parameters must be a table of numbers, got 5"),
        (
            {"parameters": {"threshold": "x"}},
            "parameters.threshold must be a finite number, got 'x'",
        ),
        ({"parameters": {"threshold": True}}, "parameters.threshold must be a finite number, got"),
        (
            {"parameters": {"threshold": float("nan")}},
            "parameters.threshold must be a finite number, got nan",
        ),
        ({"parameters": {"big": 10**400}}, "parameters.big must be a finite number, got 1000"),
        ({"parameters": {"period": 1.0}}, "parameters.period must be left out: rounds set it, got"),
        ({"epsilon": -1.0}, "epsilon must be a finite number > 0, got -1.0"),
        ({"epsilon": float("inf")}, "epsilon must be a finite number > 0, got inf"),
        ({"epsilon": "1"}, "epsilon must be a finite number > 0, got '1'"),
        ({"epsilon": True}, "epsilon must be a finite number > 0, got True"),
        ({"epsilon": 10**400}, "epsilon must be a finite number > 0, got 1000"),
        ({"delta": 0.0}, "delta must be between 0 and 1, both excluded, got 0.0"),
        ({"delta": 1}, "delta must be between 0 and 1, both excluded, got 1"),
        ({"delta": float("nan")}, "delta must be between 0 and 1, both excluded, got nan"),
        ({"measure": "renyi"}, "measure must be gdp or zcdp or pure or answers, got 'renyi'"),
        ({"budget": 0}, "budget must be an integer >= 1"),
        ({"budget": 1.5}, "budget must be an integer >= 1"),
        ({"view": "global"}, "view must be local or aggregate, got 'global'"),
        ({"view": []}, "view must be local or aggregate, got []"),
        ({"policy": "stop"}, "policy must be skip or retire or clip, got 'stop'"),
        ({"refusal": "loud"}, "refusal must be cover or silent, got 'loud'"),
        ({"rounds": -1}, "rounds must be an integer >= 0"),
        ({"minimum_cohort": -1}, "minimum_cohort must be an integer >= 0"),
        ({"dishonest": -1}, "dishonest must be an integer >= 0"),
        (
            {"minimum_cohort": 5, "dishonest": 5},
            "dishonest must be an integer >= 0 and <= 4, got 5",
        ),
        ({"clip": 0.0}, "clip must be a finite number > 0, got 0.0"),
        ({"grid_exponent": 0.5}, "grid_exponent must be an integer >= -900 and <= 900, got 0.5"),
        ({"grid_exponent": 3}, "grid_exponent must be such that "),
        ({"grid_exponent": -900}, "grid_exponent must be such that "),
        ({"clip": 0.3}, "grid_exponent must be such that 2^it divides clip 0.3, got -7"),
        ({"on_grid": False}, "grid_exponent must be at most -14 for clip 1.0 and dimension 1"),
        ({"on_grid": 1}, "on_grid must be true or false, got 1"),
        ({"shuffle": "no"}, "shuffle must be true or false, got 'no'"),
        ({"sampler": "exact"}, "sampler must be fast, got 'exact'"),
        ({"data": None}, "data must be a Data, got None"),
    ],
)
def test_a_scenario_is_valid_from_birth(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        Scenario(**{"name": "mine", **wrong})

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"csv": ""}, "data.csv must be 1 to 4096 printable characters, got ''"),
        ({"csv": 5}, "data.csv must be 1 to 4096 printable characters, got 5"),
        ({"csv": "x", "person": None}, "data.person must be 1 to 4096 printable characters"),
        ({"csv": "x", "start": "May"}, "data.start must be a day as yyyy-mm-dd, got 'May'"),
        (
            {"csv": "x", "start": "2026-01-02", "end": "2026-01-01"},
            "data.end must be 0 to 99,999 days after start 2026-01-02, got '2026-01-01'",
        ),
        ({"start": "2026-01-02"}, "data.start must be left out where there is no data.csv, got"),
        ({"amount": "usd"}, "data.amount must be left out where there is no data.csv, got 'usd'"),
        ({"person": "id"}, "data.person must be left out where there is no data.csv, got 'id'"),
        ({"period_days": 0}, "data.period_days must be an integer >= 1 and <= 366, got 0"),
        ({"csv": "x", "period_days": "7"}, "data.period_days must be an integer >= 1"),
        (
            {"devices": 5, "periods": 2, "period_days": 7},
            "data.period_days must be left out where there are made-up people, whose periods have no",
        ),
        ({"devices": -1}, "data.devices must be an integer >= 0"),
        ({"devices": "5", "periods": 2}, "data.devices must be an integer >= 0"),
        ({"devices": 5}, "data.periods must be an integer >= 1"),
        ({"devices": 5, "periods": 2, "seed": -1}, "data.seed must be an integer >= 0"),
        (
            {"devices": 5, "periods": 2, "csv": "x"},
            "data.devices must be left out where there is a data.csv, got 5",
        ),
        ({"periods": 2}, "data.periods must be left out where there is no data.devices, got 2"),
        ({"seed": 2}, "data.seed must be left out where there is no data.devices, got 2"),
    ],
)
def test_data_are_valid_from_birth(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        Data(**wrong)

    assert str(caught.value).startswith(message)


def test_a_scenario_is_a_value_that_travels() -> None:
    given = {"threshold": 5}
    scenario = Scenario(name="mine", feature="amount_at_least", parameters=given, epsilon=2)

    given["threshold"] = 6

    assert scenario.parameters == {"threshold": 5.0}
    assert isinstance(scenario.epsilon, float)
    for copied in (pickle.loads(pickle.dumps(scenario)), copy.deepcopy(scenario)):
        assert copied == scenario
        assert hash(copied) == hash(scenario)
    assert dataclasses.replace(scenario, budget=3).budget == 3


def test_choices_may_be_given_as_texts() -> None:
    texts: dict[str, Any] = {"view": "local", "measure": "zcdp", "policy": "retire"}

    scenario = Scenario(name="mine", refusal=Refusal("silent"), **texts)

    assert scenario.view is View.LOCAL
    assert scenario.measure is Measure.ZCDP
    assert scenario.policy is Policy.RETIRE
    assert scenario.refusal is Refusal.SILENT


# ---- files -----------------------------------------------------------------------------------


def test_shipped_scenarios_are_listed_by_the_name_they_give_themselves() -> None:
    listed = list_scenarios()

    assert ("cdnow", "CD buyers, day by day") in listed
    assert [load_scenario(name).name for name, _ in listed] == [name for name, _ in listed]


def test_the_cdnow_scenario_says_everything_and_says_the_defaults() -> None:
    import demur_sim.scenario

    file = Path(demur_sim.scenario.__file__).parent / "scenarios" / "cdnow.toml"
    scenario = load_scenario("cdnow")

    assert tomllib.loads(file.read_text()).keys() == keys_of(Scenario) - OF_HISTOGRAMS - OF_COUNTS
    assert scenario == Scenario(
        name="cdnow",
        title="CD buyers, day by day",
        question="Did this device's owner buy a CD today?",
    )


def test_the_telemetry_scenario_says_everything_that_a_histogram_can_say() -> None:
    import demur_sim.scenario

    file = Path(demur_sim.scenario.__file__).parent / "scenarios" / "telemetry.toml"
    table = tomllib.loads(file.read_text())
    scenario = load_scenario("telemetry")

    assert table.keys() == keys_of(Scenario) - OF_SUMS - OF_COUNTS
    assert table["data"].keys() == OF_MADE_UP_PEOPLE
    assert (scenario.categories, scenario.data.devices, scenario.data.periods) == (64, 10**6, 100)
    assert (scenario.mechanism, scenario.beside) == ("oue", "hadamard")


def test_the_states_scenario_says_everything_that_a_running_count_can_say() -> None:
    import demur_sim.scenario

    file = Path(demur_sim.scenario.__file__).parent / "scenarios" / "states.toml"
    table = tomllib.loads(file.read_text())
    scenario = load_scenario("states")

    unsaid = OF_HISTOGRAMS | {"mechanism", "clip", "on_grid"}
    assert table.keys() == keys_of(Scenario) - unsaid
    assert table["data"].keys() == OF_MADE_UP_PEOPLE
    assert (scenario.data.devices, scenario.data.periods) == (10**6, 1024)
    assert (scenario.view, scenario.budget, scenario.halts) == (View.LOCAL, 4, 0.0)


def test_a_file_with_a_name_only_has_the_defaults(folder: Path) -> None:
    file = write(folder, '\ufeffname = "mine"\r\n')

    assert load_scenario(file) == load_scenario(str(file)) == Scenario(name="mine")


def test_a_csv_is_found_beside_its_toml_and_dates_need_no_quotes(folder: Path) -> None:
    file = write(
        folder,
        'name = "mine"\nepsilon = 2\n[data]\ncsv = "visits.csv"\nstart = 2026-01-04\n'
        'person = "visitor"\ndate = "day"\nend = "2026-01-08"',
    )

    scenario = load_scenario(file)
    people = population_of(scenario)

    assert scenario.data.csv == str(folder / "visits.csv")
    assert scenario.data.start == "2026-01-04"
    assert scenario.epsilon == 2.0
    assert totals(people, "active") == [0, 2, 0, 1, 0]


def test_an_absolute_csv_stays_where_it_is(folder: Path, tmp_path_factory: Any) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    file = write(elsewhere, f"name = 'mine'\ndata.csv = '{folder / 'visits.csv'}'")

    assert load_scenario(file).data.csv == str(folder / "visits.csv")


def test_the_example_in_the_docs_is_a_scenario_that_says_everything(folder: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    events, _ = re.findall(r"```text\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (folder / "visits.csv").write_text(events)

    scenario = load_scenario(write(folder, example))
    people = population_of(scenario)

    table = tomllib.loads(example)
    assert table.keys() == keys_of(Scenario) - OF_HISTOGRAMS - OF_COUNTS
    assert table["data"].keys() == keys_of(Data) - OF_MADE_UP_PEOPLE - OF_HISTOGRAM_FILES
    assert people.periods == 365
    assert sum(totals(people, "amount_at_least", threshold=30.0)) == 1


def test_the_histogram_in_the_docs_is_one(tmp_path: Path) -> None:
    _, histogram = re.findall(r"```text\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "activity.csv").write_text(histogram)

    assert read_activity(tmp_path / "activity.csv").most == 12


def test_the_docs_list_every_key_with_its_default() -> None:
    rows = re.findall(
        r"^\| `([\w.]+)` \| [^|]+ \| (?:`(.*?)`)? ?\|", DOCS.read_text("utf-8"), re.MULTILINE
    )
    documented = {key: tomllib.loads(f"v = {text}")["v"] if text else None for key, text in rows}

    defaults = {**flat(Scenario(name="mine")), "name": None}
    assert {key: documented[key] for key in documented if key in defaults} == defaults


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epsilom = 1.0", "key in {} must be one of the 45 known names (did you mean epsilon?), "),
        ("epsilom = 1.0", "(did you mean epsilon?), got 'epsilom'"),
        ("csv = 'x'", "(did you mean data.csv?), got 'csv'"),
        ("[data]\nCSV = 'x'", "(did you mean data.csv?), got 'data.CSV'"),
        ("zzz = 1", "key in {} must be one of the 45 known names, got 'zzz'"),
        ("[scenario]\nepsilon = 1", "key in {} must be one of "),
        ("epsilon = 'big'", "epsilon in {} must be a finite number > 0, got 'big'"),
        ("epsilon = true", "epsilon in {} must be a finite number > 0, got True"),
        ("delta = 2.0", "delta in {} must be between 0 and 1, both excluded, got 2.0"),
        ("budget = '5'", "budget in {} must be an integer >= 1"),
        ("on_grid = 'yes'", "on_grid in {} must be true or false, got 'yes'"),
        ("view = 1", "view in {} must be local or aggregate, got 1"),
        ("title = 5", "title in {} must be 1 to 1000 printable characters, got 5"),
        ("data = 5", "data in {} must be a table, got 5"),
        ("parameters = [1]", "parameters in {} must be a table, got [1]"),
        ("[parameters]\nthreshold = 'x'", "parameters.threshold in {} must be a finite number"),
        ("[parameters]\na.b = 1", "parameters.a in {} must be a finite number, got {{'b': 1}}"),
        ("[data]\ncsv = 5", "data.csv in {} must be 1 to 4096 printable characters, got 5"),
        (
            "data.csv = 'x'\ndata.start = 2026-01-01T00:00:00",
            "data.start in {} must be 1 to 4096 printable characters, got datetime.datetime(",
        ),
        ("[data]\nstart = 2026-01-01", "data.start in {} must be left out where there is no"),
    ],
)
def test_a_wrong_key_or_value_is_one_line_that_names_it_and_the_file(
    folder: Path, text: str, message: str
) -> None:
    file = write(folder, f"name = 'mine'\n{text}\n")

    with pytest.raises(ParameterError) as caught:
        load_scenario(file)

    assert message.format(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scenario_without_a_name_is_refused(folder: Path) -> None:
    file = write(folder, "epsilon = 1.0")

    with pytest.raises(ParameterError, match=r"^name in .*mine\.toml must be given, got None$"):
        load_scenario(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name = 'x'\nepsilon = = 1\n", "at line 2"),
        (b"name = 'x'\nname = 'y'\n", "at line 2"),
        (b"name = 'x", "at end of document"),
        (b"name = '\xff'", "can't decode byte 0xff"),
        (b"rounds = " + b"9" * 5000, "limit"),
        (b"rounds = " + b"[" * 5000, "recursion"),
    ],
)
def test_what_is_not_toml_is_one_line_with_file_and_line(
    folder: Path, content: bytes, message: str
) -> None:
    file = folder / "mine.toml"
    file.write_bytes(content)

    with pytest.raises(DataError) as caught:
        load_scenario(file)

    assert str(caught.value).startswith(f"{file}: expected TOML: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(folder: Path) -> None:
    gone = folder / "gone.toml"

    with pytest.raises(DataError) as missing:
        load_scenario(str(gone))
    with pytest.raises(DataError) as directory:
        load_scenario(folder)

    assert str(missing.value) == f"{gone}: cannot be read: No such file or directory"
    assert str(directory.value) == f"{folder}: cannot be read: Is a directory"


def test_an_unknown_name_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ParameterError) as caught:
        load_scenario("cdnwo")

    names = ", ".join(name for name, _ in list_scenarios())
    assert str(caught.value) == (
        f"scenario must be one of {names} (did you mean cdnow?), "
        "or the path of a TOML file, got 'cdnwo'"
    )
