"""Every example runs as it stands, in an empty folder, and says what is true."""

import csv
import json
import re
import runpy
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demur_client.ledger.file import LedgerFile
from demur_proto.queries import Feature, Linear
from demur_proto.study import View, design_study
from demur_proto.wire.definition import define_study
from demur_server.admin.admin import make_tokens
from demur_server.blocking import BlockingAnalyst
from demur_server.store.inspect import sqlite_door
from demur_sim.datasets.events import load_cdnow
from serve_kit import serving

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
FIDELITIES = ["cohort", "processes"]
STANDARD_ERRORS = 1.959963984540054  # in the half-width of a 95 % interval


def run(folder: Path, *arguments: str) -> str:
    """What Python prints, started in an empty folder."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def run_example(name: str, folder: Path, *arguments: str) -> str:
    output = run(folder, str(EXAMPLES / name), *arguments)
    assert not list(folder.iterdir())
    return output


def example(name: str) -> dict[str, Any]:
    """What a script defines, without its main part."""
    return runpy.run_path(str(EXAMPLES / name))


def numbers(pattern: str, text: str) -> list[tuple[float, ...]]:
    """The groups of every match, as numbers."""
    found = [match.groups() for match in re.finditer(pattern, text)]
    assert found, f"nothing in the output matches {pattern!r}"
    return [tuple(float(group.replace(",", "")) for group in groups) for groups in found]


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_own_data_py_releases_the_totals_of_its_array(fidelity: str, tmp_path: Path) -> None:
    minutes = example("own_data.py")["riders"]().values[:, :, 0]
    truth = np.minimum(minutes, 60.0).sum(axis=0)

    output = run_example("own_data.py", tmp_path, "--fidelity", fidelity)

    days = numbers(r"day (\d+): ([\d,]+) ± ([\d,]+) minutes", output)
    assert [day for day, _, _ in days] == [1, 2, 3]
    for day, estimate, half_width in days:  # nobody is refused so early: the interval is for truth
        assert abs(estimate - truth[int(day) - 1]) <= 5 * half_width / STANDARD_ERRORS
    [(answered, worst)] = numbers(r"days answered: (\d+), in the worst case (\d+)", output)
    assert (answered, worst) == (60, 5)
    [(error, average, worst_error)] = numbers(
        r"error: ([\d,]+) minutes .* is ([\d,]+) on average; ([\d,]+) in the worst case", output
    )
    assert average == pytest.approx(truth.mean(), abs=1)
    assert 3 * error < worst_error
    for word in ("Unit: one device", "Neighbour: zero-out", "View: aggregate", "are trusted"):
        assert word in output


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_own_data_toml_counts_the_riders_of_its_file(fidelity: str, tmp_path: Path) -> None:
    days: dict[str, set[str]] = defaultdict(set)
    with (EXAMPLES / "own_data.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            days[row["day"]].add(row["rider"])
    riders = set().union(*days.values())

    command = ["simulate", str(EXAMPLES / "own_data.toml"), "--fidelity", fidelity, "--json"]
    summary = json.loads(run(tmp_path, "-m", "demur_sim.cli", *command))

    assert (summary["devices"], summary["rounds"]) == (len(riders), 28)
    assert summary["answered_rounds"] == {"individual": 28, "worst_case_same_noise": 3}
    assert 2 * summary["rmse"]["individual"] < summary["rmse"]["worst_case_all_rounds"]
    with (tmp_path / "runs" / "riders-0" / "releases.csv").open(encoding="utf-8") as file:
        releases = list(csv.DictReader(file))
    counts = [float(release["simulator_truth_everyone"]) for release in releases]
    assert counts == [len(days[day]) for day in sorted(days)]


def test_adaptive_py_asks_what_its_earlier_answers_suggest(tmp_path: Path) -> None:
    # With this seed no count is so close to half of the buyers that rounding hides its side.
    output = run_example("adaptive.py", tmp_path, "--seed", "1")

    releases = numbers(r"release +(\d+): (\d+) ± \d+ people", output)
    assert [number for number, _ in releases] == [*range(1, 22)]
    counts = [count for _, count in releases]
    [(day,)] = numbers(r"busiest day: (\d+)", output)
    assert counts[int(day) - 50] == max(counts[:14])
    low, high, asked = 0.0, 80.0, []
    for count in counts[15:]:  # the search, once more, from what was printed
        asked.append((low + high) / 2)
        low, high = (asked[-1], high) if 2 * count > counts[14] else (low, asked[-1])
    shares = numbers(r"spent +([\d.]+) dollars or more", output)
    assert [dollars for (dollars,) in shares] == sorted(asked)


def test_adaptive_py_learns_the_truth_from_more_questions_than_its_budget_pays(
    tmp_path: Path,
) -> None:
    output = run_example("adaptive.py", tmp_path)

    [(day, buyers, half_width)] = numbers(r"busiest day: (\d+), with (\d+) ± (\d+)", output)
    period = {"period": day}
    bought = load_cdnow().evaluate(Feature(name="active", parameters=period), slice(None))
    amounts = load_cdnow().evaluate(Feature(name="amount", parameters=period), slice(None))
    spent = amounts[bought > 0]
    assert abs(buyers - len(spent)) <= 5 * half_width / STANDARD_ERRORS
    for dollars, share, doubt in numbers(r"spent +([\d.]+) .* +(\d+)% ± (\d+)%", output):
        assert abs(share / 100 - (spent >= dollars).mean()) <= 5 * doubt / 100 / STANDARD_ERRORS
    [(typical,)] = numbers(r"at least about (\d+) dollars", output)
    assert np.quantile(spent, 0.35) < typical < np.quantile(spent, 0.65)
    [(questions, refused, devices)] = numbers(r"(\d+) questions; (\d+) of (\d+) devices", output)
    assert (questions, devices) == (21, 23_570)
    assert refused < 0.001 * devices


@pytest.mark.parametrize("name", ["own_data.py", "adaptive.py"])
def test_an_example_prints_the_same_at_both_fidelities(name: str, tmp_path: Path) -> None:
    in_cohort, in_processes = (
        run_example(name, tmp_path, "--fidelity", fidelity, "--seed", "3")
        for fidelity in FIDELITIES
    )

    assert in_cohort == in_processes


@pytest.mark.alone
def test_device_py_enrols_and_answers_every_round_of_a_running_collector(tmp_path: Path) -> None:
    study = design_study(
        name="visits", epsilon=1.0, delta=1e-6, answers=3, minimum_cohort=2, view=View.LOCAL
    )
    today = Feature(name="active", parameters={"period": 3})
    with serving(tmp_path / "data", longest_s=120.0) as server:
        with sqlite_door(server.folder / "store.sqlite") as door:
            tokens = make_tokens(door, count=2)
        commands = [
            [sys.executable, str(EXAMPLES / "device.py"), server.devices, str(tmp_path / name)]
            for name in ("one", "other")
        ]
        for command, token in zip(commands, tokens, strict=True):
            Path(command[-1]).write_text(token)
        with ExitStack() as running:
            for command, days in zip(commands, (["3", "5"], []), strict=True):
                device = running.enter_context(subprocess.Popen([*command, "--active", *days]))
                running.callback(device.kill)
            with BlockingAnalyst.connect(
                server.analysts, study, credential=server.analyst
            ) as notebook:
                known = notebook.ask(Linear([today], on_grid=True))
                unknown = notebook.ask(Linear([Feature(name="other")]))
        again = subprocess.run(commands[0], capture_output=True, text=True, timeout=60, check=False)

    assert (known.reports, unknown.reports) == (2, 2)
    for release, truth in ((known, 1), (unknown, 0)):
        assert abs(release.estimate[0] - truth) <= 5 * release.standard_error[0]
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.startswith("error: not let in")  # its token is used
    assert again.stderr.count("\n") == 1


@pytest.mark.alone
def test_embed_py_answers_while_its_app_runs_and_remembers_when_it_starts_again(
    tmp_path: Path,
) -> None:
    study = design_study(
        name="visits", epsilon=1.0, delta=1e-6, answers=3, minimum_cohort=1, view=View.LOCAL
    )
    command = [sys.executable, str(EXAMPLES / "embed.py")]
    with serving(tmp_path / "data", longest_s=120.0) as server:
        with sqlite_door(server.folder / "store.sqlite") as door:
            [token] = make_tokens(door, count=1)
        (tmp_path / "token").write_text(token)
        command += [server.devices, "token"]
        with (
            BlockingAnalyst.connect(server.analysts, study, credential=server.analyst) as notebook,
            subprocess.Popen(
                command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as device,
        ):
            asked = Feature(name="active", parameters={"period": 3.0})
            assert notebook.ask(Linear([asked], on_grid=True)).reports == 1
            out, _ = device.communicate("\n", timeout=60)
        again = subprocess.run(  # its token is used, and it needs none
            command,
            cwd=tmp_path,
            input="\n",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    said = "the app is running; Enter ends it\n"
    assert (device.returncode, out) == (again.returncode, again.stdout) == (0, said)

    with LedgerFile(tmp_path / "ledger.sqlite") as ledger:
        answers = ledger.history(define_study(study).hash)
    assert [(row.number, row.given) for row in answers] == [(1, True)]


def test_the_source_of_device_py_knows_one_feature() -> None:
    diary = example("device.py")["Diary"]([3, 5])

    values = [diary.evaluate(Feature(name="active", parameters={"period": day})) for day in (3, 4)]

    assert [value.tolist() for value in values] == [[[1.0]], [[0.0]]]
    with pytest.raises(KeyError):
        diary.evaluate(Feature(name="other"))
