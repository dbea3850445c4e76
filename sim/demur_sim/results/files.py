"""The files that keep a run."""

import csv
import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from demur_proto.errors import DataError
from demur_proto.everyone import EveryoneInterval
from demur_proto.release import Estimand, Withheld
from demur_sim.comparison.beside import Beside
from demur_sim.results.base import Result
from demur_sim.results.histograms import HistogramResult
from demur_sim.results.running import RunningResult
from demur_sim.results.sums import LinearResult
from demur_sim.results.windows import WindowedResult

NUMBERS = ("estimate", "standard_error", "low", "high")
ENROLLED = ("enrolled_low", "enrolled_high")
BESIDE = "beside.csv"  #: only where there are other designs
OF_A_RUN = ("summary.json", "releases.csv", BESIDE, "study.json", "plot.png")
TRUTHS = ("estimand", "simulator_truth_everyone", "simulator_truth_active")


def save(result: Result, folder: Path) -> None:
    """Write a run's files; see `write_files`.

    Raises:
        DataError: a file cannot be written.
    """
    others = _beside(result)
    more = {BESIDE: lambda path: _write_beside(result, others, path)} if others else {}
    write_files(
        {
            "releases.csv": lambda path: _write_releases(result, path),
            **more,
            "study.json": lambda path: write_json(_study_json(result), path),
            "plot.png": lambda path: _draw(result, path),
            "summary.json": lambda path: write_json(result.summary(), path),
        },
        folder,
        gone=[*([] if others else [BESIDE]), *of_windows(folder, after=0)],
    )


def write_files(
    files: Mapping[str, Callable[[Path], object]], folder: Path, *, gone: Collection[str] = ()
) -> None:
    """Write a run's files: all aside, then each renamed, in this order.

    A folder without the last of them, `summary.json` of a run, holds no whole result. An earlier
    result stays whole while the new one is computed and written aside; its last file goes before the
    first one is replaced, so that no summary ever stands beside another run's files.

    Args:
        files: how to write each, by name.
        folder: made if need be.
        gone: files that another run may have left and this one does not have.

    Raises:
        DataError: a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=folder) as aside:
            for name, write in files.items():
                write(Path(aside) / name)
            with _alone_in(folder):
                for name in (list(files)[-1], *gone):
                    (folder / name).unlink(missing_ok=True)
                for name in gone:
                    _leave_out(folder / name)
                for name in files:
                    (Path(aside) / name).replace(folder / name)
    except OSError as error:
        where = error.filename2 or error.filename or folder
        raise DataError(f"cannot write results to {where}: {error.strerror or error}") from None


def of_windows(folder: Path, *, after: int) -> list[str]:
    """Files that a run left in folders of windows, of those with a number above `after`.

    Only what its `summary.json` counts: another folder of such a name may be somebody's own.
    """
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        windows = len(summary["windows"])
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [f"window-{each}/{name}" for each in range(after + 1, windows + 1) for name in OF_A_RUN]


def _leave_out(path: Path) -> None:
    """Remove the folder of a window from which all files are gone, unless somebody else has some there."""
    if path.parent.name.startswith("window-"):
        with suppress(OSError):
            path.parent.rmdir()


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other runs from replacing files in the same folder meanwhile."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)  # and so unlock


def _draw(result: Result, path: Path) -> None:
    from demur_sim.results import plots  # matplotlib takes a while to load

    if isinstance(result, HistogramResult):
        plots.draw_histograms(result, path)
    elif isinstance(result, LinearResult):
        plots.draw(result, path)
    elif isinstance(result, RunningResult):
        plots.draw_running_count(result, path)


def write_json(content: dict[str, Any], path: Path) -> None:
    """Write JSON for people and programs; it knows no NaN."""
    text = json.dumps(content, indent=2, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _write_releases(result: Result, path: Path) -> None:
    write_rows(release_rows(result), path)


def write_rows(rows: Iterable[Sequence[object]], path: Path) -> None:
    """Write a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def release_rows(result: Result) -> Iterator[list[object]]:
    """The lines of `releases.csv`, names first."""
    there = [] if result.turnout is None else ["enrolled"]
    if isinstance(result, HistogramResult):
        yield [
            *("number", "mechanism", "category", "reports", "withheld", *NUMBERS, *TRUTHS, *there),
            *(ENROLLED if result.scaled else ()),
        ]
        for each in result.side_by_side:
            for row, release in enumerate(each.releases):
                for category in range(each.query.categories):
                    about = (release.number, each.query.mechanism, category)
                    counted = (release.reports, release.withheld)
                    numbers = _numbers(each, row, category)
                    yield [*about, *counted, *numbers, *_enrolled(each, row, category)]
        return
    bounds = result.everyone if isinstance(result, RunningResult) else ()
    yield [
        *("number", "coordinate", "reports", "withheld", "sum", *NUMBERS, *TRUTHS),
        *(["everyone_low", "everyone_high"] if bounds else []),
        *there,
        *(ENROLLED if result.scaled else ()),
    ]
    for row, release in enumerate(result.releases):
        for coordinate in range(result.truth.shape[1]):
            counted = (release.reports, release.withheld)
            total = release.sums[coordinate] if release.sums.size else ""
            numbers = _numbers(result, row, coordinate)
            both = _bounds(bounds[row]) if bounds else []
            more = _enrolled(result, row, coordinate)
            yield [release.number, coordinate, *counted, total, *numbers, *both, *more]


def _enrolled(result: Result, row: int, column: int) -> list[object]:
    """Of how many devices, and the interval for all of them, where they come and go."""
    if result.turnout is None:
        return []
    numbers: list[object] = [result.enrolled[row]]
    if result.scaled:
        found = result.scaled[row]
        if found is None:
            return [*numbers, "", ""]
        numbers += found.interval_at(column)
    return numbers


def _beside(result: Result) -> Sequence[Beside]:
    """The other designs of a run that may have some."""
    return result.beside if isinstance(result, LinearResult | RunningResult) else ()


def _write_beside(result: Result, others: Sequence[Beside], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["number", "design", "estimate", "standard_error", TRUTHS[1]])
        for row, release in enumerate(result.releases):
            for each in others:
                numbers = (each.estimates[row], each.standard_errors[row], result.truth[row, 0])
                rows.writerow([release.number, each.name, *numbers])


def _numbers(result: Result, row: int, column: int) -> list[object]:
    """What one round says of one coordinate or category, beside the truth."""
    numbers: list[object] = [""] * len(NUMBERS)
    release, estimand = result.releases[row], "S_active"
    if release.withheld is Withheld.NOTHING:
        ends = release.interval_at(column) if release.has_interval else ("", "")
        numbers = [result.estimates[row, column], result.standard_errors[row, column], *ends]
        if not release.has_interval:
            estimand = "" if release.estimand is Estimand.NOTHING else str(release.estimand)
    return [*numbers, estimand, result.truth[row, column], result.active_truth[row, column]]


def _bounds(interval: EveryoneInterval | None) -> list[object]:
    return ["", ""] if interval is None else [interval.low, interval.high]


def _study_json(result: Result) -> dict[str, Any]:
    study = result.study.value
    return {
        "name": study.name,
        "hash": result.study.hash.hex(),
        "definition": result.study.definition.hex(),
        "unit": "device",
        "neighbour": "zero-out",
        "view": str(study.view),
        "measure": str(study.measure),
        "mechanism_family": str(study.mechanism_family),
        "budget": study.budget,
        "budget_units": study.budget_units,
        "policy": str(study.policy),
        "epsilon": study.epsilon,
        "delta": study.delta,
        "minimum_cohort": study.minimum_cohort,
        "dishonest": study.dishonest,
        "horizon": study.horizon,
        **result.study_details(),
        "sampler": result.scenario.sampler,
        "refusal": str(result.scenario.refusal),
        "statement": result.statement,
    }


# The files that keep a run over several windows: those of every window, and three over all of them.


def window_folder(folder: Path, number: int) -> Path:
    """Where the files of one window are; windows count from 1."""
    return folder / f"window-{number}"


def save_windows(result: WindowedResult, folder: Path) -> None:
    """Write the files of every window into a folder of its own, then those of all together.

    A `summary.json` above says that all of it is there, as `result_files.write_files` has it.

    Raises:
        DataError: a file cannot be written.
    """
    gone = [BESIDE, "study.json", *of_windows(folder, after=len(result.results))]
    (folder / "summary.json").unlink(missing_ok=True)
    for number, part in enumerate(result.results, start=1):
        save(part, window_folder(folder, number))
    write_files(
        {
            "releases.csv": lambda path: write_rows(_rows(result), path),
            "plot.png": lambda path: _draw_windows(result, path),
            "summary.json": lambda path: write_json(result.summary(), path),
        },
        folder,
        gone=gone,
    )


def _rows(result: WindowedResult) -> Iterator[list[object]]:
    """The lines of all windows, with the window first."""
    for number, part in enumerate(result.results, start=1):
        names, *rows = release_rows(part)
        if number == 1:
            yield ["window", *names]
        for row in rows:
            yield [number, *row]


def _draw_windows(result: WindowedResult, path: Path) -> None:
    from demur_sim.results import plots  # matplotlib takes a while to load

    plots.draw_windows(result, path)
