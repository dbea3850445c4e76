"""`demur ask` and the blocking face of an analyst, against one running collector."""

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from demur_client.connection import connected
from demur_proto.credentials import DeviceCredential, read_token
from demur_proto.definition import Defined
from demur_proto.errors import DemurError, ParameterError, StorageError
from demur_proto.study import design_study
from demur_server.admin import make_tokens
from demur_server.analyst import Analyst, list_studies
from demur_server.ask_command import add_commands
from demur_server.choosing import read_features
from demur_server.store.side_door import sqlite_door
from serve_kit import DEADLINE_S, Server, answer, enrolled, serving, start

NEW = ("--minimum-cohort", "2", "--grid-exponent", "-7", "--answers", "3", "--on-grid")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("ask") / "data") as made:
        yield made


@pytest.fixture(scope="module")
async def pair(server: Server) -> list[DeviceCredential]:
    """Two devices."""
    with sqlite_door(server.folder / "store.sqlite") as door:
        texts = make_tokens(door, count=2)
    return await enrolled(server.devices, *map(read_token, texts))


async def asked(server: Server, *words: str) -> tuple[int, str, str]:
    """`demur ask` while nothing else waits: its status and what it said."""
    process = start("ask", "--folder", str(server.folder), *words)
    out, err = await anyio.to_thread.run_sync(lambda: process.communicate(timeout=DEADLINE_S))
    return process.returncode, out, err


async def answered(
    server: Server, pair: list[DeviceCredential], name: str, *words: str, rounds: int = 0
) -> tuple[int, str, str]:
    """`demur ask` while two devices answer 64 and 128 grid steps to the round after these."""
    result: list[tuple[int, str, str]] = []

    async def ask() -> None:
        result.append(await asked(server, *words))

    async with connected(server.devices) as channel, anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        study = await fixed(server, name)
        for device, word in zip(pair, (64, 128), strict=True):
            await answer(channel, device, study, word=word, after_round=rounds)
    return result[0]


async def fixed(server: Server, name: str) -> Defined[Any]:
    """The study of this name, once there is one."""
    with anyio.fail_after(DEADLINE_S):
        while True:
            for study, _ in await list_studies(server.analysts, credential=server.analyst):
                if study.value.name == name:
                    return study
            await anyio.sleep(0.1)


async def test_a_question_makes_its_study_and_the_next_one_goes_on_with_it(
    server: Server, pair: list[DeviceCredential]
) -> None:
    question = ("active", "period=3", "--study", "visits", "--on-grid")

    status, out, err = await answered(server, pair, "visits", *question, *NEW)
    again, as_json, _ = await answered(server, pair, "visits", *question, "--json", rounds=1)

    assert (status, again, err) == (0, 0, "")
    assert out.startswith("active period=3: 1.5 ± ")
    assert "95% interval for the sum over the people whose devices could afford" in out
    assert "round 1, 2 reports" in out
    assert "(1, 1e-06)-differential privacy" in out
    assert "zero-out" in out
    release = json.loads(as_json)
    assert (release["round"], release["reports"], release["estimate"]) == (2, 2, [1.5])
    assert release["study_name"] == "visits"
    assert server.analyst.text not in out + as_json + err


async def test_a_round_without_enough_reports_says_that_it_stays_open(server: Server) -> None:
    words = ("active", "--study", "quiet", *NEW, "--timeout", "0.2")

    status, out, err = await asked(server, *words)

    assert (status, out) == (1, "")
    assert err == "error: round 1 did not get 2 reports within 0.2 s; it stays open\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["active", "--study", "none"], "there are 0 studies 'none' of "),
        (["active", "--target", "127.0.0.1:1"], "lost the collector"),
    ],
)
async def test_a_question_that_cannot_be_put_ends_in_one_line(
    words: list[str], said: str, server: Server
) -> None:
    status, out, err = await asked(server, *words)

    assert (status, out) == (1, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (["period=3"], ParameterError, r"^feature must be a name first, then its parameters"),
        (["active", "period=x"], ParameterError, r"^parameter period must be a number, got 'x'"),
        (["active", "--credential", "none"], StorageError, "the credential none cannot be read"),
        (["active", "--key", "none"], ParameterError, r"^--ca must be given with"),
        (["active"], ParameterError, r"^--target must be given, as no collector runs on the fol"),
    ],
)
def test_what_cannot_be_asked_is_said_before_anybody_is_called(
    words: list[str], kind: type[DemurError], said: str, tmp_path: Path
) -> None:
    target = [] if words == ["active"] else ["--target", "127.0.0.1:1"]
    parser = argparse.ArgumentParser(prog="demur")
    add_commands(parser.add_subparsers())
    options = parser.parse_args(["ask", *words, "--folder", str(tmp_path), *target])

    with pytest.raises(kind, match=said):
        options.run(options)


async def test_a_study_keeps_its_contract(server: Server) -> None:
    kept = design_study(
        name="kept", epsilon=1.0, delta=1e-6, answers=3, minimum_cohort=2, grid_exponent=-7
    )
    async with Analyst.create(server.analysts, kept, credential=server.analyst):
        pass

    status, _, err = await asked(server, "active", "--study", "kept", "--epsilon", "2")

    assert (status, err) == (2, "error: --epsilon must be 1.0, as the study 'kept' says, got 2.0\n")


def test_features_are_read_with_their_parameters() -> None:
    one, two = read_features(["active", "period=3", "threshold=-0.5", "amount"])

    assert (one.name, dict(one.parameters)) == ("active", {"period": 3.0, "threshold": -0.5})
    assert (two.name, dict(two.parameters)) == ("amount", {})


# ---- in a notebook ---------------------------------------------------------------------------

ASK = """
import sys, numpy as np
from demur_proto.credentials import NamedSecret
from demur_proto.errors import DemurError
from demur_proto.round import Feature
from demur_proto.study import design_study
from demur_server.data_folder import find_listening, read_secret_file
from demur_server.notebook import open_notebook
from pathlib import Path
folder = Path(sys.argv[1])
target, secret = find_listening(folder).analyst, read_secret_file(folder / "analyst.credential")
study = design_study(
    name=sys.argv[2], epsilon=1.0, delta=1e-6, answers=3, minimum_cohort=2, grid_exponent=-7
)
x = Feature(name="x")
"""
TWICE = """
with open_notebook(target, study, credential=secret) as notebook:
    release = notebook.ask(x, on_grid=True)
    estimates, errors = release.array()
    print(estimates.tolist(), errors.shape, errors[0] == release.standard_error[0])
    for seen in notebook.watch():
        print(seen.number, tuple(seen.sums.tolist()))
        break
with open_notebook(target, sys.argv[2], credential=secret) as notebook:
    print(notebook.open(x, on_grid=True).value.number)
    try:
        notebook.ask(x, on_grid=True, timeout_s=0.1)
    except DemurError as error:
        print(error)
"""
INTERRUPTED = """
with open_notebook(target, study, credential=secret) as notebook:
    try:
        print("asking", flush=True)
        notebook.ask(x, on_grid=True, timeout_s=60)
    except KeyboardInterrupt:
        print("interrupted")
    try:
        print("watching", flush=True)
        for each in notebook.watch():
            pass
    except KeyboardInterrupt:
        print("interrupted")
    print(notebook.open(x, on_grid=True).value.number)
"""


def notebook(server: Server, name: str, script: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", ASK + script, str(server.folder), name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def test_a_notebook_asks_watches_and_goes_on_without_a_loop_of_its_own(
    server: Server, pair: list[DeviceCredential]
) -> None:
    process = notebook(server, "notes", TWICE)
    async with connected(server.devices) as channel:
        study = await fixed(server, "notes")
        for device, word in zip(pair, (64, 128), strict=True):
            await answer(channel, device, study, word=word)
    out, err = await anyio.to_thread.run_sync(lambda: process.communicate(timeout=DEADLINE_S))

    assert (process.returncode, err) == (0, "")
    assert out.splitlines() == [
        "[1.5] (1,) True",
        "1 (192,)",
        "2",
        "round 3 did not get 2 reports within 0.1 s; it stays open",
    ]


def test_an_interrupt_ends_the_call_that_waits_and_nothing_else(server: Server) -> None:
    process = notebook(server, "stopped", INTERRUPTED)
    watchdog = threading.Timer(DEADLINE_S, process.kill)
    watchdog.start()
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if line.strip() in ("asking", "watching"):
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    watchdog.cancel()

    assert (process.returncode, err) == (0, "")
    # The first round was opened, whatever became of the call that waited for its release.
    assert lines == ["asking", "interrupted", "watching", "interrupted", "2"]
