"""What the tests of `demur admin` share: a store with a round of every kind."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demur_proto.queries import Feature, Linear
from demur_proto.round import round_of
from demur_proto.study import Study
from demur_proto.wire.definition import Defined, define_round
from demur_proto.wire.words import encode_words
from demur_server.collector.collector import Collector
from demur_server.collector.keys import KeyFolder
from demur_server.store.base import Store

Capture = pytest.CaptureFixture[str]
Admin = Callable[..., tuple[int, str]]
REPORTS = {1: (5, 6, 7), 2: (1,), 3: (1000, 2000, 3000)}  #: words by round; the third stays open
REPORT_ID, DEVICE = b"\xaa", b"\xbb"


@asynccontextmanager
async def filled(store: Store, keys: Path, study: Defined[Study]) -> AsyncIterator[Collector]:
    """A collector that released one round, withheld the next, and has the third open."""
    collector = Collector(store, keys=KeyFolder(keys))
    await collector.create_study(study.definition)
    try:
        for number, words in REPORTS.items():
            feature = Feature(name="active", parameters={"period": float(number)})
            asked = define_round(round_of(study, Linear([feature], on_grid=True), number=number))
            await collector.open_round(asked.definition)
            await collector.intake.submit(
                asked.hash,
                b"".join(REPORT_ID * 15 + bytes([who]) for who in range(len(words))),
                encode_words(np.array(words).reshape(-1, 1), asked.value.word_type),
                devices=b"".join(DEVICE * 15 + bytes([who]) for who in range(len(words))),
            )
            if number < 3:
                await collector.close_round(asked.hash)
        yield collector
    finally:
        await store.close()


def spoil(folder: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(folder / "store.sqlite", isolation_level=None)) as connection:
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement, values)
