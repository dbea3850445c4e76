from pathlib import Path

import pytest

from scenario_kit import EVENTS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "visits.csv").write_text(EVENTS)
    return tmp_path


@pytest.fixture
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command leaves goes into an empty folder."""
    monkeypatch.chdir(tmp_path)
