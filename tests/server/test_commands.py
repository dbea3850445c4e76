"""`demur serve`, mostly as a process of its own."""

import argparse
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from demur_client.agent import fetch_study
from demur_client.connection import connected
from demur_proto.definition import Defined
from demur_proto.errors import StateError
from demur_proto.study import Study
from demur_server.analyst import Analyst
from demur_server.commands import add_commands

DEADLINE_S = 10.0
COMMAND = """
import argparse, sys
from demur_server.commands import add_commands
parser = argparse.ArgumentParser(prog="demur")
add_commands(parser.add_subparsers())
options = parser.parse_args()
sys.exit(options.run(options))
"""


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demur")
    add_commands(parser.add_subparsers())
    return parser.parse_args(words)


@contextmanager
def serving(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`demur serve` in a process, and its first line; it is killed if it outlives the block."""
    command = [sys.executable, "-c", COMMAND, "serve", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        watchdog = threading.Timer(DEADLINE_S, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()
            watchdog.cancel()


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_serve_says_where_it_listens_serves_and_stops_cleanly_when_told(
    number: signal.Signals, study: Defined[Study]
) -> None:
    with serving("--json") as (process, line):
        listening = json.loads(line)
        async with (
            Analyst.create(listening["analyst"], study.value),
            connected(listening["collector"]) as channel,
        ):
            fetched = await fetch_study(channel)
        process.send_signal(number)
        status, out, err = ended(process)

    assert set(listening) == {"collector", "analyst"}
    assert fetched == study
    assert (status, out, err) == (0, "", "")


def test_without_json_the_line_is_for_people() -> None:
    with serving() as (process, line):
        process.terminate()
        status, out, err = ended(process)

    assert re.fullmatch(
        r"listening on 127\.0\.0\.1:\d+ for devices, 127\.0\.0\.1:\d+ for analysts\n", line
    )
    assert (status, out, err) == (0, "", "")


@pytest.mark.parametrize("option", ["--port", "--analyst-port"])
def test_a_port_in_use_is_one_clear_error(option: str, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = parsed("serve", option, str(port))

        with pytest.raises(StateError, match=f"^port {port} on 127.0.0.1 is in use; choose"):
            options.run(options)

    assert capfd.readouterr() == ("", "")


def test_a_port_that_was_asked_for_is_the_one_that_is_served() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]

    with serving("--json", "--port", str(port)) as (process, line):
        process.terminate()
        status, _, _ = ended(process)

    assert json.loads(line)["collector"] == f"127.0.0.1:{port}"
    assert status == 0


@pytest.mark.parametrize("port", ["-1", "65536", "http", "1.5", "٣"])
def test_what_is_no_port_is_bad_usage(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed("serve", f"--port={port}")

    assert caught.value.code == 2
    assert f"'{port}' is not a port from 0 to 65535" in capsys.readouterr().err


def test_the_help_says_that_nothing_is_kept_and_nobody_is_authenticated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed("serve", "--help")

    told = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0
    assert "keeps everything in memory" in told
    assert "authenticates nobody" in told
    assert "127.0.0.1 only" in told


def test_the_module_costs_nothing_to_import() -> None:
    check = (
        "import sys, demur_server.commands;"
        "sys.exit(any(name in sys.modules for name in ('grpc', 'numpy', 'anyio', 'google')))"
    )

    run = subprocess.run([sys.executable, "-c", check], timeout=DEADLINE_S, check=False)

    assert run.returncode == 0
