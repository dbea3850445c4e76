"""docs/device.md is one story, and it happens as it is told: every block, in order, in one folder.

`demur …` runs in this process, `demur … &` in one of its own, `kill %N` ends the Nth of those. What
cannot happen here is looked at instead: `pip install` names what is installed.
"""

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.test_readme import ROOT, Block, commands, read

from demur_sim.cli import main

pytestmark = pytest.mark.alone  # evaluations have the lowest priority

PAGE = ROOT / "docs" / "device.md"
PORT = "7001"  # on the page
DEADLINE_S = 60.0
LIVING = """
from demur_proto.transport.channels import ClientTls
from demur_proto.transport.credentials import read_token

tls = ClientTls.read(Path("certs/ca.pem"))
read_rides = lambda: {5: 11.5}
main("localhost:7001", read_token(Path("other").read_text()), tls)
"""


class Story:
    """Runs blocks in a folder, and remembers what is running."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.port = free_port()
        self.jobs: list[subprocess.Popen[str]] = []
        self.said: dict[str, str] = {}  #: by command, its first two or three words
        self._capsys = capsys

    def tell(self, block: Block) -> None:
        text = block.text.replace(PORT, self.port)
        match block.info:
            case ("toml", name):
                (self.folder / name).write_text(text, encoding="utf-8")
            case ("python",):
                subprocess.run([sys.executable, "-c", text], cwd=self.folder, check=True)
            case ("python", "no-run"):
                self.live(text)
            case ("sh", "no-run"):
                for command in commands(block):
                    self.do(command.replace(PORT, self.port))
            case other:
                pytest.fail(f"{block}: no test knows what to do with {other}")

    def do(self, command: str) -> None:
        match shlex.split(command):
            case ["kill", job]:
                process = self.jobs[int(job.removeprefix("%")) - 1]
                process.send_signal(signal.SIGTERM)
                assert process.wait(DEADLINE_S) == 0, job
            case ["demur", *words, "&"]:
                self.start("-m", "demur_sim.cli", *words)
            case ["demur", *words]:
                assert main(words) == 0, self._capsys.readouterr().err
                self.said[" ".join(words[: 2 if words[0] == "device" else 1])] = (
                    self._capsys.readouterr().out
                )
            case _:
                pytest.fail(f"`{command}` is not run by this test")

    def start(self, *words: str) -> None:
        command = [sys.executable, *words]
        job = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, text=True)
        self.jobs.append(job)
        if "serve" in words:
            assert job.stdout is not None
            assert any("listening on" in line for line in job.stdout)

    def live(self, text: str) -> None:
        """A device in a program, and one more question, which both devices answer."""
        self.do("demur admin tokens --count 1 --folder collector --out other")
        self.start("-c", text + LIVING.replace(PORT, self.port))
        self.do(
            "demur ask km period=5 --study rides --folder collector --ca certs/ca.pem --reports 2 "
            "--clip 32 --json"
        )


@contextmanager
def story(folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Story]:
    told = Story(folder, capsys)
    try:
        yield told
    finally:
        for job in told.jobs:
            job.kill()
            job.communicate()


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def test_the_page_happens_as_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    with story(tmp_path, capsys) as told:
        for block in read(PAGE).blocks:
            told.tell(block)

    assert told.said["device try"] == "km(period=5) = 11.5\n"
    assert json.loads(told.said["ask"])["reports"] == 2
    assert "round 1 reached, 0 to be sent" in told.said["device status"]
    assert re.search(r"rode\(period=5\), .*\n +answered; .*; acked", told.said["device explain"])
    assert "User=ada" in told.said["device unit"]
    assert told.said["device forget"].startswith("forgot every study and the collector")
