"""The files that keep a run over several windows: those of every window, and three over all of them."""

from collections.abc import Iterator
from pathlib import Path

from demur_sim.result_files import (
    BESIDE,
    of_windows,
    release_rows,
    save,
    write_files,
    write_json,
    write_rows,
)
from demur_sim.windowed_results import WindowedResult


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
            "plot.png": lambda path: _draw(result, path),
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


def _draw(result: WindowedResult, path: Path) -> None:
    from demur_sim import windowed_plots  # matplotlib takes a while to load

    windowed_plots.draw(result, path)
