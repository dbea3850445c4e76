from pathlib import Path

import pytest

from scenario_kit import EVENTS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "visits.csv").write_text(EVENTS)
    return tmp_path
