"""What `demur` does in one call: a name, a path, a scenario, a table or an array is all it needs."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from demur_proto.checks import expected_name
from demur_proto.errors import ParameterError
from demur_sim.engine.session import Fidelity, Session
from demur_sim.engine.simulation import open_session as open_scenario
from demur_sim.people.populations import ArrayPopulation, EventLog, Population
from demur_sim.planning.plan import Plan
from demur_sim.planning.plan import plan as plan_scenario
from demur_sim.results.base import Result
from demur_sim.results.files import save as save_result
from demur_sim.results.files import save_windows
from demur_sim.results.windows import WindowedResult
from demur_sim.run import Progress, simulate_windows
from demur_sim.run import simulate as simulate_scenario
from demur_sim.scenario import Data, Scenario, load_scenario
from demur_sim.training.results import TrainingResult
from demur_sim.training.run import run_training
from demur_sim.training.scenario import TrainingScenario, load_training

TABLES = (".csv", ".csv.gz")  #: how the path of a table of events ends
COLUMNS = {"person": "customer_id", "date": "date"}  #: of a table, unless something else is said


def simulate(
    what: Any,
    *,
    person: str | None = None,
    date: str | None = None,
    amount: str | None = None,
    seed: int = 0,
    fidelity: Fidelity | str = Fidelity.COHORT,
    workers: int | None = None,
    progress: Progress | None = None,
    **changes: Any,
) -> Result | WindowedResult:
    """Ask a simulated population round by round, in a script and in a notebook alike.

    Args:
        what: the name of a shipped scenario; the path of a TOML file with one, or of a CSV file with one
            line for each event; a `Scenario`; a long DataFrame of pandas or polars, one row for each
            event; or an array of values [people, periods] or [people, periods, coordinates].
        person: of a table, the column with whose event it is.
        date: of a table, the column with its day.
        amount: of a table, the column with its amount; events have none unless it is said.
        seed: everything random follows from it; >= 0.
        fidelity: arrays in this process, or real processes over gRPC.
        workers: threads (cohort) or worker processes; by default one per core.
        progress: told after every round.
        changes: fields of the scenario to replace, as in `epsilon=0.5` or `data={"devices": 1000}`.

    Raises:
        ParameterError: there is no such scenario or field, or a value is outside its range.
        DataError: the data cannot be read.
        DemurError: see `open_session`.
    """
    scenario, people = _asked(what, person=person, date=date, amount=amount, changes=changes)
    run = simulate_windows if scenario.window else simulate_scenario
    return run(
        scenario,
        seed=seed,
        fidelity=fidelity,
        workers=workers,
        population=people,
        progress=progress,
    )


def open_session(
    what: Any,
    *,
    person: str | None = None,
    date: str | None = None,
    amount: str | None = None,
    seed: int = 0,
    fidelity: Fidelity | str = Fidelity.COHORT,
    workers: int | None = None,
    horizon: int | None = None,
    **changes: Any,
) -> AbstractAsyncContextManager[Session]:
    """A simulated population that you ask yourself: `async with demur.open_session("cdnow") as session`.

    Args:
        what: as of `simulate`.
        person: likewise.
        date: likewise.
        amount: likewise.
        seed: likewise.
        fidelity: likewise.
        workers: likewise.
        horizon: most rounds of the study; by default it has no end.
        changes: likewise.

    Raises:
        ParameterError: there is no such scenario or field, or a value is outside its range.
        DataError: the data cannot be read.
    """
    scenario, people = _asked(what, person=person, date=date, amount=amount, changes=changes)
    return open_scenario(
        scenario,
        seed=seed,
        fidelity=fidelity,
        workers=workers,
        population=people,
        horizon=0 if horizon is None else horizon,
    )


def plan(what: Any, *, people: int | None = None, **changes: Any) -> Plan:
    """Which question and which budget give the least error, worked out from public people.

    Args:
        what: as of `simulate`, in which all data are taken for public.
        people: for how many; by default as many as there are.
        changes: as of `simulate`, with `person`, `date` and `amount`.

    Raises:
        ParameterError: the scenario cannot be planned, or as `simulate`.
        DataError: the data cannot be read.
    """
    columns = {name: changes.pop(name, None) for name in ("person", "date", "amount")}
    scenario, population = _asked(what, **columns, changes=changes)
    return plan_scenario(scenario, people=people, population=population)


def train(
    what: Any,
    *,
    seed: int = 0,
    fidelity: Fidelity | str = Fidelity.COHORT,
    workers: int | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    **changes: Any,
) -> TrainingResult:
    """Train a model on a simulated population.

    Args:
        what: the name of a shipped training, the path of a TOML file with one, or a `TrainingScenario`.
        seed: everything random follows from it; >= 0.
        fidelity: arrays in this process, or real processes over gRPC.
        workers: threads (cohort) or worker processes; by default one per core.
        checkpoint: a file to keep after each step; None for none.
        resume: go on from it.
        changes: fields to replace, as in `epsilon=2.0` or `model={"hidden": 32}`.

    Raises:
        ParameterError: there is no such training or field, or a value is outside its range.
        DataError: the data, or the checkpoint, cannot be read.
    """
    if isinstance(what, TrainingScenario):
        training = _changed(what, changes)
    elif isinstance(what, str | Path):
        training = load_training(what, overrides=_written(changes))
    else:
        expected = "the name of a training, the path of a TOML file or a TrainingScenario"
        raise ParameterError("what", type(what).__name__, expected)
    return run_training(
        training,
        seed=seed,
        fidelity=fidelity,
        workers=workers,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        resume=resume,
    )


def save(result: Result | WindowedResult, folder: str | Path) -> None:
    """Write what a simulation gave: `summary.json`, `releases.csv`, `study.json` and a picture.

    Raises:
        StorageError: the folder cannot be written.
    """
    if isinstance(result, WindowedResult):
        save_windows(result, Path(folder))
    else:
        save_result(result, Path(folder))


def _asked(
    what: Any,
    *,
    person: str | None,
    date: str | None,
    amount: str | None,
    changes: Mapping[str, Any],
) -> tuple[Scenario, Population | None]:
    """The scenario, and its people where it does not say who they are."""
    columns = {"person": person, "date": date, "amount": amount}
    given: dict[str, Any] = {name: column for name, column in columns.items() if column is not None}
    if isinstance(what, str | Path) and str(what).endswith(TABLES):
        data = Data(csv=os.fspath(what), **given)
        return _new(changes, name=Path(what).name, data=data), None
    if _is_frame(what):
        return _new(changes, name="table"), _events(what, **{**COLUMNS, **given})
    if given:
        name, column = next(iter(given.items()))
        raise ParameterError(name, column, "left out; only tables have columns")
    if isinstance(what, Scenario):
        return _changed(what, changes), None
    if isinstance(what, str | Path):
        return load_scenario(what, overrides=_written(changes)), None
    if isinstance(what, np.ndarray | Sequence):
        people = ArrayPopulation(_numbers(what))
        return _new(changes, name="array", feature="value"), people
    expected = "the name of a scenario, the path of a TOML or CSV file, a Scenario, a DataFrame or an array"
    raise ParameterError("what", type(what).__name__, expected)


def _new(changes: Mapping[str, Any], **said: Any) -> Scenario:
    """A scenario of data that were handed over."""
    _check_names(Scenario, changes)
    told = {**said, **changes}
    for name in ("data", "presence"):
        if isinstance(told.get(name), Mapping):
            told[name] = _changed(said.get(name, getattr(_PLAIN, name)), told[name])
    return Scenario(**told)


def _changed(scenario: Any, changes: Mapping[str, Any]) -> Any:
    """A scenario, or a part of one, with some fields replaced."""
    _check_names(type(scenario), changes)
    replaced = dict(changes)
    for name, value in changes.items():
        part = getattr(scenario, name)
        if isinstance(value, Mapping) and is_dataclass(part):
            replaced[name] = _changed(part, value)
    return replace(scenario, **replaced)


def _check_names(kind: Any, changes: Mapping[str, Any]) -> None:
    known = [each.name for each in fields(kind)]
    for name in changes:
        if name not in known:
            raise ParameterError(f"field of {kind.__name__}", name, expected_name(known, name))


_PLAIN = Scenario(name="plain")


def _written(changes: Mapping[str, Any]) -> list[str]:
    """Changes as `--set` takes them.

    >>> _written({"epsilon": 0.5, "data": {"devices": 9}})
    ['epsilon=0.5', 'data.devices=9']
    """
    texts: list[str] = []
    for name, value in changes.items():
        if isinstance(value, Mapping):
            texts += [f"{name}.{each}" for each in _written(value)]
        elif isinstance(value, str | Path):
            texts.append(f"{name}={value}")
        else:
            texts.append(f"{name}={json.dumps(value, default=str)}")
    return texts


def _numbers(what: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    try:
        return np.asarray(what, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParameterError("what", type(what).__name__, "an array of numbers") from None


def _is_frame(what: Any) -> bool:
    """Whether it is a DataFrame, of whatever library."""
    return hasattr(what, "columns") and hasattr(what, "__getitem__")


def _events(frame: Any, *, person: str, date: str, amount: str | None = None) -> EventLog:
    """The events of a long DataFrame.

    Raises:
        ParameterError: it has no such column, no row, or a cell that is empty or no day.
    """
    names = [str(each) for each in frame.columns]
    for role, column in (("person", person), ("date", date), ("amount", amount)):
        if column is not None and column not in names:
            expected = f"a column of the table, {expected_name(names, column)}"
            raise ParameterError(role, column, expected)
    people = np.asarray([str(each) for each in frame[person]])
    if not people.size:
        raise ParameterError("what", "a table without rows", "at least one event")
    for empty in ("nan", "None", "NaT", "<NA>", ""):
        if (people == empty).any():
            raise ParameterError("person", empty, f"somebody in each row of column {person!r}")
    try:
        days = np.asarray(frame[date]).astype("datetime64[D]")
    except (TypeError, ValueError):
        raise ParameterError("date", date, "a column of days, as 2026-01-31 is one") from None
    if np.isnat(days).any():
        raise ParameterError("date", "an empty cell", f"a day in each row of column {date!r}")
    amounts = None if amount is None else _numbers(frame[amount])
    if amounts is not None and not np.isfinite(amounts).all():
        raise ParameterError(
            "amount", "an empty cell", f"a number in each row of column {amount!r}"
        )
    _, device = np.unique(people, return_inverse=True)
    period = (days - days.min()).astype(np.int64) + 1
    return EventLog.of(
        devices=int(device.max()) + 1,
        periods=int(period.max()),
        device=device,
        period=period,
        amount=amounts,
    )
