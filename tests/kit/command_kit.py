"""Running `demur` inside a test."""

import pytest

from demur_sim.cli import main

Captured = pytest.CaptureFixture[str]


def demur(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    """Run a command here: exit status, stdout, stderr."""
    try:
        code = main(arguments)
    except SystemExit as exited:
        code = int(exited.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err
