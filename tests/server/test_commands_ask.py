"""`demur ask` and the blocking face of an analyst, against one running collector."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from demur_client.connection import connected
from demur_proto.accounting.histograms import epsilon_for_answers
from demur_proto.errors import ParameterError, StateError
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import Feature, Histogram
from demur_proto.release import Release, Withheld
from demur_proto.study import design_study
from demur_proto.transport.credentials import DeviceCredential, read_token
from demur_proto.wire.definition import Defined, read_round
from demur_server.admin.admin import make_tokens
from demur_server.analyst import Analyst
from demur_server.analyst_calls import list_studies
from demur_server.commands.question import next_running
from demur_server.store.inspect import sqlite_door
from demur_server.store.records import kept_rounds
from serve_kit import DEADLINE_S, Server, answer, enrolled, serving, start

K = ("--categories", "4")
NEW = ("--minimum-cohort", "2", "--grid-exponent", "-7", "--answers", "3", "--on-grid")
SOON = ("--answer-after-ms", "50")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # It serves this whole module, which may take long on a busy machine.
    with serving(tmp_path_factory.mktemp("ask") / "data", longest_s=120.0) as made:
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
    server: Server,
    pair: list[DeviceCredential],
    name: str,
    *options: str,
    rounds: int = 0,
    words: tuple[int, int] = (64, 128),
) -> tuple[int, str, str]:
    """`demur ask` while two devices answer these words to the round after these."""
    result: list[tuple[int, str, str]] = []

    async def ask() -> None:
        result.append(await asked(server, *options))

    async with connected(server.devices) as channel, anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        study = await fixed(server, name)
        for device, word in zip(pair, words, strict=True):
            await answer(channel, device, study, word=word, after_round=rounds)
    return result[0]


async def closed(server: Server, *words: str) -> tuple[int, str, str]:
    """`demur close`."""
    process = start("close", *words, "--folder", str(server.folder))
    out, err = await anyio.to_thread.run_sync(lambda: process.communicate(timeout=DEADLINE_S))
    return process.returncode, out, err


async def listed_rounds(server: Server, name: str) -> tuple[int, str, str]:
    """`demur admin rounds --json`."""
    process = start("admin", "rounds", "--json", "--study", name, "--folder", str(server.folder))
    out, err = await anyio.to_thread.run_sync(lambda: process.communicate(timeout=DEADLINE_S))
    return process.returncode, out, err


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
    question = ("active", "period=3", "--study", "visits", "--on-grid", "--weights", "1")

    status, out, err = await answered(server, pair, "visits", *question, *NEW)
    again, as_json, _ = await answered(server, pair, "visits", *question, "--json", rounds=1)

    assert (status, again, err) == (0, 0, "")
    assert out.startswith("active period=3: 1.5 ± ")
    assert (
        "95% interval for S_active: the sum over the people whose devices could still pay;" in out
    )
    assert "round 1, 2 reports" in out
    assert "(1, 1e-06)-differential privacy" in out
    assert "zero-out" in out
    release = json.loads(as_json)
    assert (release["round"], release["reports"], release["estimate"]) == (2, 2, [1.5])
    assert release["study_name"] == "visits"
    assert server.analyst.text not in out + as_json + err


@pytest.mark.parametrize("more", [(), K], ids=["sum", "histogram"])
async def test_a_question_may_say_when_devices_send(server: Server, more: tuple[str, ...]) -> None:
    name = f"slots of {len(more)}"
    new = ("--minimum-cohort", "2", "--timeout", "0.2", "--answer-after-ms", "150")

    status, _, err = await asked(server, "active", "--study", name, *new, *more)
    study = await fixed(server, name)
    with sqlite_door(server.folder / "store.sqlite") as door, door.looking() as sql:
        [kept] = [each for each in kept_rounds(sql, shard=0) if each.study_hash == study.hash]

    assert status == 1
    assert "it stays open" in err
    assert read_round(kept.definition, study=study).value.answer_after_ms == 150


async def test_a_round_without_enough_reports_says_that_it_stays_open(server: Server) -> None:
    words = ("active", "--study", "quiet", *NEW, *SOON, "--timeout", "0.2")

    status, out, err = await asked(server, *words)

    assert (status, out) == (1, "")
    assert err == "error: round 1 did not get 2 reports within 0.2 s; it stays open\n"


async def test_a_round_that_was_left_open_is_closed_by_its_hash_and_again_tells_the_same(
    server: Server, pair: list[DeviceCredential]
) -> None:
    await asked(server, "active", "--study", "left", *NEW, *SOON, "--timeout", "0.2", "--on-grid")
    _, listed, _ = await listed_rounds(server, "left")
    [line] = json.loads(listed)
    study = await fixed(server, "left")
    async with connected(server.devices) as channel:
        for device in pair:
            await answer(channel, device, study, word=128)

    early = await closed(server, line["round"], "--reports", "3", "--timeout", "0.2")
    first = await closed(server, line["round"][:16])
    again = await closed(server, line["round"], "--json")
    unknown = await closed(server, "00" * 32)
    wrong = await closed(server, "1234")

    assert (line["state"], early[0], first[0], again[0]) == ("open", 1, 0, 0)
    assert early[2] == "error: the round did not get 3 reports within 0.2 s; it stays open\n"
    assert first[1].startswith(f"round {line['round'][:16]}: 2 ± ")
    assert "(1, 1e-06)-differential privacy" in first[1]
    assert json.loads(again[1])["estimate"] == [2.0]
    assert (unknown[0], wrong[0]) == (1, 2)
    assert unknown[2] == f"error: there is no round {'0' * 16}\n"
    assert "16 or more of its digits" in wrong[2]


async def test_a_histogram_makes_its_study_and_is_counted_by_category(
    server: Server, pair: list[DeviceCredential]
) -> None:
    question = ("app", "period=3", "--study", "apps", "--categories", "4", "--mechanism", "krr")
    new = ("--minimum-cohort", "2", "--epsilon", "8", "--answers", "2")

    status, out, err = await answered(server, pair, "apps", *question, *new, words=(1, 4))
    options = ("--question-epsilon", "0.5", "--json")
    again, as_json, _ = await answered(
        server, pair, "apps", *question, *options, rounds=1, words=(3, 3)
    )
    _, listed, _ = await listed_rounds(server, "apps")

    assert (status, again, err) == (0, 0, "")
    assert out.splitlines()[0] == "app period=3:"
    shown = [line.split(":")[0].strip() for line in out.splitlines()[1:5]]
    assert shown == [f"category {at}" for at in range(4)]
    assert "95% interval for S_active: the number of people in each, of those whose devices " in out
    assert "(8, 1e-06)-differential privacy" in out
    release = json.loads(as_json)
    assert (release["round"], release["reports"], len(release["estimate"])) == (2, 2, 4)
    assert max(release["estimate"]) == release["estimate"][2]  # symbol 3 is category 2
    lines = json.loads(listed)
    assert [(each["asks"], each["estimates"]) for each in lines] == [
        ("histogram: app period=3", 4)
    ] * 2


async def test_without_an_epsilon_of_its_own_a_histogram_costs_its_part_of_the_budget(
    server: Server,
) -> None:
    words = ("app", "--study", "parts", "--categories", "8", "--mechanism", "oue")
    new = ("--minimum-cohort", "2", "--answers", "3", *SOON, "--timeout", "0.2")

    status, _, err = await asked(server, *words, *new)
    async with Analyst.resume(server.analysts, "parts", credential=server.analyst) as analyst:
        study = analyst.study.value
    largest = epsilon_for_answers(study, mechanism=Randomiser.OUE, categories=8, answers=3)

    assert (status, err[:14]) == (1, "error: round 1")
    assert (study.view, study.measure, study.maximum_dimension) == ("local", "answers", 8)
    with sqlite_door(server.folder / "store.sqlite") as door, door.looking() as sql:
        [kept] = [
            read_round(each.definition, study=analyst.study).value
            for each in kept_rounds(sql, shard=0)
            if each.study_hash == analyst.study.hash
        ]
    assert isinstance(kept.query, Histogram)
    assert kept.query.epsilon == largest
    assert 3 * kept.weight <= study.budget_units < 4 * kept.weight


async def test_a_running_count_goes_on_by_itself_in_segments_twice_as_long(
    server: Server, pair: list[DeviceCredential]
) -> None:
    question = ("online", "day=1", "--running", "--study", "online")
    new = ("--minimum-cohort", "2", "--segment", "1", "--answers", "2", "--view", "local")
    one = 1 << 14  # a state of 1, in grid steps

    status, out, err = await answered(server, pair, "online", *question, *new, words=(one, one))
    again, as_json, _ = await answered(
        server, pair, "online", *question, "--json", rounds=1, words=(0, -one)
    )
    async with Analyst.resume(server.analysts, "online", credential=server.analyst) as analyst:
        going = await analyst.next_of("online")
        missing = await analyst.next_of("another")

        async def asked_now(**given: Any) -> Release:
            state = Feature(name="online")
            query = await next_running(analyst, state, given)
            return await analyst.ask(query, reports=0, timeout_s=DEADLINE_S)

        with pytest.raises(ParameterError, match="--bound must be 1, as the count says; --anew be"):
            await asked_now(bound=2)
        mistyped = Feature(name="onlin")
        with pytest.raises(
            ParameterError, match=r"^question must be online, which this study coun"
        ):
            await next_running(analyst, mistyped, {})
        withheld = await asked_now()
        with pytest.raises(StateError, match=r"^round 3 of the running count was withheld"):
            await asked_now()
        anew = await asked_now(anew=True, segment=3)

    assert (status, again, err) == (0, 0, "")
    assert out.startswith("online day=1: 2 ± ")
    assert json.loads(as_json)["estimate"] == [1.0]  # 2 are frozen, and one has changed
    assert missing is None
    assert going is not None
    assert (going.segment.horizon, going.segment.position, going.segment.earlier) == (2, 2, (1,))
    assert (withheld.number, withheld.withheld) == (3, Withheld.BELOW_MINIMUM_COHORT)
    assert (anew.number, anew.withheld) == (4, Withheld.BELOW_MINIMUM_COHORT)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["active", "--study", "none"], "there is no study 'none'; the collector has "),
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


async def test_a_study_keeps_its_contract(server: Server) -> None:
    kept = design_study(
        name="kept", epsilon=1.0, delta=1e-6, answers=3, minimum_cohort=2, grid_exponent=-7
    )
    async with Analyst.create(server.analysts, kept, credential=server.analyst):
        pass

    status, _, err = await asked(server, "active", "--study", "kept", "--epsilon", "2")

    assert (status, err) == (2, "error: --epsilon must be 1.0, as the study 'kept' says, got 2.0\n")


# ---- in a notebook ---------------------------------------------------------------------------

ASK = """
import sys, numpy as np
from demur_proto.transport.credentials import NamedSecret
from demur_proto.errors import DemurError
from demur_proto.queries import Feature, HaltCount, Histogram, Linear, RunningCount
from demur_proto.study import design_study
from demur_server.admin.data_folder import find_listening, read_secret_file
from demur_server.blocking import BlockingAnalyst
from pathlib import Path
folder = Path(sys.argv[1])
target, secret = find_listening(folder).analyst, read_secret_file(folder / "analyst.credential")
study = design_study(
    name=sys.argv[2], epsilon=1.0, delta=1e-6, answers=3, minimum_cohort=2, grid_exponent=-7
)
x = Feature(name="x")
"""
TWICE = """
with BlockingAnalyst.connect(target, study, credential=secret) as notebook:
    release = notebook.ask(Linear([x], on_grid=True))
    estimates, errors = release.array()
    print(estimates.tolist(), errors.shape, errors[0] == release.standard_error[0])
    for seen in notebook.watch():
        print(seen.number, tuple(seen.sums.tolist()))
        break
with BlockingAnalyst.connect(target, sys.argv[2], credential=secret) as notebook:
    print(notebook.open(Linear([x], on_grid=True)).value.number)
    try:
        notebook.ask(Linear([x], on_grid=True), timeout_s=0.1)
    except DemurError as error:
        print(error)
"""
HISTOGRAM = """
import threading, asyncio
from demur_proto.accounting.histograms import design_histogram_study
from demur_proto.mechanisms.registry import Randomiser
study = design_histogram_study(
    name=sys.argv[2], epsilon=8.0, delta=1e-6, minimum_cohort=2, categories=4
)
how = dict(categories=4, mechanism=Randomiser.KRR, epsilon=0.5)

async def cell():  # a notebook has a loop of its own
    with BlockingAnalyst.connect(target, study, credential=secret) as notebook:
        release = notebook.ask(Histogram(x, **how))
        print(len(release.estimate), release.reports)
        print(notebook.open(Histogram(x, **how)).value.number)
        numbers = []
        threads = [
            threading.Thread(
                target=lambda: numbers.append(notebook.open(Histogram(x, **how)).value.number)
            )
            for _ in range(4)
        ]
        for each in threads: each.start()
        for each in threads: each.join()
        print(sorted(numbers))
        for wrong in (dict(reports=-1), dict(timeout_s=float("nan")), dict(timeout_s=0)):
            try:
                notebook.ask(Histogram(x, **how), **wrong)
            except DemurError as error:
                print(error)
        print(notebook.open(Histogram(x, **how)).value.number)

asyncio.run(cell())
"""
RUNNING = """
from dataclasses import replace
from demur_proto.running.segments import Segment
from demur_proto.study import Purpose
study = design_study(name=sys.argv[2], epsilon=1.0, delta=1e-6, answers=3, minimum_cohort=2)
other = bytes(32)
halts = replace(study, name=sys.argv[2] + " halts", purpose=Purpose.HALTS)
with BlockingAnalyst.connect(target, study, credential=secret) as notebook:
    print(notebook.next_of("x"))
    segment = Segment(horizon=2, cohort=2)
    for verb in (notebook.open, notebook.ask):
        for wrong in ("x", x):
            try:
                verb(wrong)
            except DemurError as error:
                print(error)
    asked = notebook.open(RunningCount(x, segment))
    try:
        notebook.next_of("x")
    except DemurError as error:
        print(str(error).replace(asked.hash.hex(), "HASH"))
    print(notebook.close(asked).withheld)
    release = notebook.ask(RunningCount(x, segment.following(1)), reports=0)
    print(release.number, release.withheld)
with BlockingAnalyst.connect(target, halts, credential=secret) as notebook:
    print(notebook.ask(HaltCount(other, segment), reports=0).number)
    print(notebook.open(HaltCount(other, segment.following(1))).value.query.segment.position)
"""
INTERRUPTED = """
with BlockingAnalyst.connect(target, study, credential=secret) as notebook:
    try:
        print("asking", flush=True)
        notebook.ask(Linear([x], on_grid=True), timeout_s=60)
    except KeyboardInterrupt:
        print("interrupted")
    try:
        print("watching", flush=True)
        for each in notebook.watch():
            pass
    except KeyboardInterrupt:
        print("interrupted")
    print(notebook.open(Linear([x], on_grid=True)).value.number)
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


async def test_a_notebook_asks_histograms_inside_a_running_loop_and_from_many_threads(
    server: Server, pair: list[DeviceCredential]
) -> None:
    process = notebook(server, "counts", HISTOGRAM)
    async with connected(server.devices) as channel:
        study = await fixed(server, "counts")
        for device in pair:
            await answer(channel, device, study, word=1)
    out, err = await anyio.to_thread.run_sync(lambda: process.communicate(timeout=DEADLINE_S))

    assert (process.returncode, err) == (0, "")
    assert out.splitlines() == [
        "4 2",
        "2",
        "[3, 4, 5, 6]",
        "reports must be an integer >= 0 and <= 9223372036854775807, got -1",
        "timeout_s must be a finite number > 0, got nan",
        "timeout_s must be a finite number > 0, got 0",
        "7",
    ]


async def test_a_notebook_asks_running_counts(server: Server) -> None:
    process = notebook(server, "running", RUNNING)
    out, err = await anyio.to_thread.run_sync(lambda: process.communicate(timeout=DEADLINE_S))

    assert (process.returncode, err) == (0, "")
    assert out.splitlines() == [
        "None",
        *2
        * (
            "query must be a query, as Linear([Feature(name)]) is one, got 'str'",
            "query must be a query, as Linear([Feature(name)]) is one, got 'Feature'",
        ),
        "round 1 of the running count is open; close it first: demur close HASH",
        "below_minimum_cohort",
        "2 below_minimum_cohort",
        "1",
        "2",
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
