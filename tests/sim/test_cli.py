"""The command `demur`: what it prints where, and how it fails."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from command_kit import Captured, demur

DEADLINE_S = 30.0
SHORT = ("simulate", "cdnow", "--set", "rounds=2")
COMMAND = (sys.executable, "-m", "demur_sim.cli")
EVENTS = "customer_id,date\n1,2026-01-05\n2,2026-01-06\n1,2026-01-06\n"

# Runs `demur` where the modules named first cannot be found, as if an extra were not installed.
WITHOUT = """
import sys
from demur_sim.cli import main

missing = sys.argv[1].split(",")

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results go into `runs` of the current folder: an empty one."""
    monkeypatch.chdir(tmp_path)


def process(*command: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, **options
    )


def in_one_line(err: str) -> str:
    """The only line there is, without its beginning."""
    (line,) = err.splitlines()
    assert line.startswith("demur: error: ")
    return line.removeprefix("demur: error: ")


def only(path: Path) -> Path:
    (entry,) = path.iterdir()
    return entry


# ---- success ---------------------------------------------------------------------------------


def test_json_is_one_object_on_stdout_and_the_same_as_the_file(tmp_path: Path) -> None:
    options = ("--fidelity", "processes", "--workers", "1", "--seed", "3")

    done = process(*COMMAND, *SHORT, *options, "--json", "--out", "here")

    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    summary = json.loads(line)
    assert (summary["scenario"], summary["seed"]) == ("cdnow", 3)
    assert (summary["fidelity"], summary["workers"]) == ("processes", 1)
    assert summary == json.loads((tmp_path / "here" / "summary.json").read_text())


def test_a_person_reads_what_came_of_it_and_where_it_is(tmp_path: Path, capsys: Captured) -> None:
    code, out, err = demur(capsys, *SHORT, "--seed", "7")

    assert (code, err) == (0, "")  # no progress bar in a pipe
    folder = tmp_path / "runs" / "cdnow-7"
    assert json.loads((folder / "summary.json").read_text())["seed"] == 7
    for words in (
        "CD buyers",
        "23,570 devices, 2 rounds, fidelity cohort, seed 7",
        "(1, 1e-06), unit one device, neighbour zero-out, view aggregate",
        "9.4-GDP",
        "runs/cdnow-7/summary.json",
        "runs/cdnow-7/plot.png",
    ):
        assert words in out
    assert max(map(len, out.splitlines())) <= 100


def test_shipped_scenarios_are_listed_for_people_and_for_programs(capsys: Captured) -> None:
    code, out, err = demur(capsys, "simulate", "--list")
    assert (code, err) == (0, "")
    assert re.search(r"^cdnow +CD buyers, day by day$", out, re.MULTILINE)

    code, out, err = demur(capsys, "simulate", "--list", "--json")
    assert (code, err) == (0, "")
    assert {"name": "cdnow", "title": "CD buyers, day by day"} in json.loads(out)


def test_the_version_is_one_line(capsys: Captured) -> None:
    code, out, err = demur(capsys, "--version")

    assert (code, err) == (0, "")
    assert re.fullmatch(r"demur \d+\.\d+\.\d+\S*\n", out)


def test_help_explains_every_command_and_option(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    code, out, err = demur(capsys, "--help")
    assert (code, err) == (0, "")
    assert re.search(r"^ +simulate +\w", out, re.MULTILINE)
    assert re.search(r"^ +serve +\w", out, re.MULTILINE)

    code, out, err = demur(capsys, "simulate", "--help")
    assert (code, err) == (0, "")
    options = (
        "list",
        "fidelity",
        "workers",
        "seed",
        "set",
        "beside",
        "port",
        "out",
        "json",
        "quiet",
        "debug",
    )
    for option in options:
        assert re.search(rf"^ +--{option}\b[^\n]*(\n {{10,}}|  +)\w", out, re.MULTILINE), option
    assert max(map(len, out.splitlines())) <= 80


def test_a_scenario_of_ones_own_runs_from_its_file(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "own.csv").write_text(EVENTS)
    (tmp_path / "own.toml").write_text(
        'name = "my/own"\nview = "local"\nbudget = 1\n[data]\ncsv = "own.csv"\n'
    )

    code, out, err = demur(capsys, "simulate", "own.toml", "--json")

    assert (code, err) == (0, "")
    assert (json.loads(out)["devices"], json.loads(out)["rounds"]) == (2, 2)
    assert only(tmp_path / "runs").name == "my-own-0"  # one folder, whatever the name


# ---- failure ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "COMMAND"),
        (("nosuch",), "'nosuch'"),
        (("--nosuch",), "COMMAND|--nosuch"),
        (("simulate",), "which scenario"),
        (("simulate", "nosuch"), "cdnow.*'nosuch'"),
        (("simulate", "cdnow", "--nosuch"), "--nosuch"),
        (("simulate", "cdnow", "more"), "more"),
        (("simulate", "cdnow", "--workers", "two"), "--workers.*'two'"),
        (("simulate", "cdnow", "--workers", "0"), "workers must be.* got 0"),
        (("simulate", "cdnow", "--seed", "-1"), "seed must be.* got -1"),
        (("simulate", "cdnow", "--seed"), "--seed"),
        (("simulate", "cdnow", "--fidelity", "real"), "'real'.*cohort.*processes"),
        (
            ("simulate", "cdnow", "--fidelity", "processes", "--port", "70000"),
            "port must be.* got 70000",
        ),
        (("simulate", "cdnow", "--port", "5000"), "--port needs --fidelity processes or device"),
        (("train", "digits", "--port", "5000"), "--port needs --fidelity processes "),
        (("train", "digits", "--fidelity", "device"), "device.*from 'cohort', 'processes'"),
        (("simulate", "cdnow", "--set", "epsilon"), "key=value"),
        (("simulate", "cdnow", "--set", "epsylon=1"), r"epsilon\?.*'epsylon'"),
        (("simulate", "cdnow", "--set", "epsilon=0"), "epsilon.*> 0, got 0"),
        (("simulate", "cdnow", "--set", "epsilon=-1"), "epsilon.* got -1"),
        (("simulate", "cdnow", "--set", "epsilon=nan"), "epsilon.* got nan"),
        (("simulate", "cdnow", "--set", "delta=0.0"), "delta.* got 0.0"),
        (("simulate", "cdnow", "--set", "delta=1.0"), "delta.* got 1.0"),
        (("simulate", "cdnow", "--set", "budget=0"), "budget.* got 0"),
        (("simulate", "cdnow", "--set", "rounds=547"), "rounds.* <= 546, got 547"),
        (("simulate", "cdnow", "--set", "view=secret"), "view.*local.*aggregate.*'secret'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_usage_is_one_line_and_exit_status_2(
    capsys: Captured, tmp_path: Path, arguments: Sequence[str], expected: str
) -> None:
    code, out, err = demur(capsys, *arguments)

    assert (code, out) == (2, "")
    assert re.search(expected, in_one_line(err))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "people.csv: .*No such file"),
        ("", "people.csv"),
        ("customer_id,date\n", "people.csv"),
        ("customer_id\n1\n", "people.csv:1: .*date"),
        ("customer_id,date\n1,2026-01-05\n1,2026-13-01\n", "people.csv:3: .*2026-13-01"),
        ("customer_id,date\n-1,2026-01-05\n", "people.csv:2: .*-1"),
        ("customer_id,date\n1\n", "people.csv:2: "),
    ],
)
def test_bad_data_is_one_line_with_its_place_and_exit_status_1(
    capsys: Captured, tmp_path: Path, content: str | None, expected: str
) -> None:
    if content is not None:
        (tmp_path / "people.csv").write_text(content)

    code, out, err = demur(capsys, "simulate", "cdnow", "--set", "data.csv=people.csv", "--json")

    assert (code, out) == (1, "")
    assert re.search(expected, in_one_line(err))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("toml", "code", "expected"),
    [
        ("name = = 1\n", 1, "own.toml.*line 1"),
        ("name = 'x'\nepsylon = 1\n", 2, "own.toml.*epsilon"),
        ("name = 'x'\nbudget = 0\n", 2, "budget in own.toml.* got 0"),
        ("epsilon = 1\n", 2, "name in own.toml"),
        ("name = 'x'\n[data]\ncsv = 'gone.csv'\n", 1, "gone.csv"),
    ],
)
def test_a_bad_scenario_file_is_one_line(
    capsys: Captured, tmp_path: Path, toml: str, code: int, expected: str
) -> None:
    (tmp_path / "own.toml").write_text(toml)

    ended, out, err = demur(capsys, "simulate", "own.toml")

    assert (ended, out) == (code, "")
    assert re.search(expected, in_one_line(err))


def test_results_that_cannot_be_written_are_one_line(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")

    code, out, err = demur(capsys, *SHORT, "--out", "taken")

    assert (code, out) == (1, "")
    assert in_one_line(err) == "cannot write results to taken: File exists"


@pytest.mark.parametrize("where", ["before", "after"])
def test_debug_shows_the_traceback_above_the_line(capsys: Captured, where: str) -> None:
    wrong = ("simulate", "cdnow", "--set", "epsilon=0")

    code, out, err = demur(
        capsys, *(("--debug", *wrong) if where == "before" else (*wrong, "--debug"))
    )

    assert (code, out) == (2, "")
    traceback, _, last = err.rstrip().rpartition("\n")
    assert traceback.startswith("Traceback (most recent call last)")
    assert in_one_line(last).startswith("epsilon in --set must be")


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        # Before the run, which would find no data: a result that cannot be drawn is lost work.
        ("matplotlib", ("simulate", "cdnow", "--set", "data.csv=gone.csv"), "sim"),
        ("grpc_health", SHORT, "server|sim"),
        ("grpc_health", ("serve",), "server"),
    ],
)
def test_a_missing_extra_is_one_line_that_says_how_to_install_it(
    tmp_path: Path, missing: str, arguments: Sequence[str], extra: str
) -> None:
    done = process(sys.executable, "-c", WITHOUT, missing, *arguments)

    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        rf"`demur {arguments[0]}` needs {missing}\S*; "
        rf"install it with: pip install 'demur\[({extra})\]'",
        in_one_line(done.stderr),
    )
    assert not [*tmp_path.iterdir()]


def test_help_and_version_need_no_extra() -> None:
    everything = "anyio,grpc,google,numpy,grpc_health,matplotlib,sklearn,tqdm"

    for option in ("--help", "--version"):
        done = process(sys.executable, "-c", WITHOUT, everything, option)

        assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_who_leaves_is_not_complained_about() -> None:
    with subprocess.Popen(
        [*COMMAND, "simulate", "--list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as writing:
        assert writing.stdout is not None
        writing.stdout.close()
        writing.stdout = None

        _, err = writing.communicate(timeout=DEADLINE_S)

    assert (writing.returncode, err) == (1, "")


# ---- on a terminal ---------------------------------------------------------------------------


def read_all(terminal: int) -> bytes:
    """Everything that appears on a terminal until the last process has left it."""
    seen = b""
    while True:
        try:
            more = os.read(terminal, 1 << 16)
        except OSError:  # what Linux says at the end
            return seen
        if not more:
            return seen
        seen += more


@contextmanager
def on_a_terminal(
    *arguments: str, columns: int = 100
) -> "Iterator[tuple[int, subprocess.Popen[str]]]":
    """A command whose stderr is a terminal: our end of it, and the process."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", columns and 24, columns, 0, 0))
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=theirs, text=True
    ) as running:
        os.close(theirs)
        watchdog = threading.Timer(DEADLINE_S, running.kill)
        watchdog.start()
        try:
            yield ours, running
        finally:
            running.kill()
            watchdog.cancel()
            os.close(ours)


def seen_on_a_terminal(*arguments: str, columns: int = 100) -> tuple[int, str, str]:
    """Exit status, stdout, and what the terminal showed."""
    with on_a_terminal(*arguments, columns=columns) as (terminal, running):
        seen = read_all(terminal).decode()
        out, _ = running.communicate(timeout=DEADLINE_S)
        return running.returncode, out, seen


# round 10/546:   2%|2       | 236k/12.9M [00:00<00:02, 1.9M reports/s]
BAR = re.compile(r"round \d+/546: +\d+%\|[^\r]*\[\d\d:\d\d<\d\d:\d\d, +[\d.]+[kM]? reports/s\]")


def test_a_terminal_shows_progress_with_rate_and_time_left_until_an_error_on_a_line_of_its_own() -> (
    None
):
    with on_a_terminal("simulate", "cdnow", "--workers", "1") as (terminal, running):
        seen = ""
        while not BAR.search(seen):
            seen += os.read(terminal, 1 << 16).decode()

        running.send_signal(signal.SIGINT)

        seen += read_all(terminal).decode()
        assert running.wait(timeout=DEADLINE_S) == 1
    assert max(map(len, seen.replace("\n", "\r").split("\r"))) <= 100
    assert seen.endswith("\r\ndemur: error: interrupted; nothing was kept\r\n")


def test_a_terminal_that_does_not_know_its_size_shows_progress_to_the_end() -> None:
    command = ("simulate", "cdnow", "--set", "rounds=100", "--workers", "1")

    code, out, seen = seen_on_a_terminal(*command, columns=0)

    assert code == 0
    assert "CD buyers" in out
    assert "round 100/100: 100%" in seen
    assert seen.endswith("\r\n")


def test_quiet_says_nothing_even_on_a_terminal(tmp_path: Path) -> None:
    assert seen_on_a_terminal(*SHORT, "--quiet") == (0, "", "")
    assert only(tmp_path / "runs").name == "cdnow-0"
