"""Collector processes are killed again and again, and every report still counts exactly once.

Each seed is a story of its own (`crash_story.py`): real processes on a data folder with real keys,
credentials and proofs, five of which end in the middle of something; clients that lose, repeat and
reorder what they send, and conflict with themselves; and in the end sums that must be exact. A
failure comes with everything that happened. To repeat one:

    pytest tests/server/test_crashes.py -k postgres-7
    pytest tests/server/test_crashes.py -m long -k sqlite-1234
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash_book import Broken
from crash_bugs import BUGS
from crash_line import RATES
from crash_places import Place, PostgresHome, SqliteHome
from crash_process import fork_server
from crash_story import tell_story
from store_kit import PostgresServer, quick_folder

DATABASES = ("sqlite", "postgres")
SEEDS = range(20)
MANY_SEEDS = range(1000, 1500)
A_FEW = 12  #: stories within which a planted bug is found; the rarest shows in every second


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    fork_server()
    with quick_folder() as made:
        yield made


@pytest.fixture(scope="module")
async def on_sqlite(folder: Path) -> Place:
    return await SqliteHome.prepared(folder / "sqlite")


@pytest.fixture(scope="module")
async def on_postgres(folder: Path, postgres: PostgresServer) -> Place:
    return await PostgresHome.prepared(folder / "postgres", postgres)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    made: Place = request.getfixturevalue(f"on_{request.param}")
    return made


@pytest.fixture(scope="module")
def happened() -> Counter[str]:
    """What happened in the stories of this module."""
    return Counter()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("place", DATABASES, indirect=True)
async def test_a_collector_that_is_killed_counts_every_report_once(
    place: Place, seed: int, happened: Counter[str]
) -> None:
    told = await tell_story(place, seed)

    happened["stories"] += 1
    happened.update(told.ended)
    happened.update(told.faults)


def test_kills_and_faults_fall_on_everything_that_a_collector_does(happened: Counter[str]) -> None:
    if happened["stories"] < len(DATABASES) * len(SEEDS):
        pytest.skip("not every story was told")

    for doing in ("starting", "opening", "counting", "closing"):
        assert happened[doing] >= 8  # about 40 to 100
    assert set(happened) >= set(RATES) | {"sessions ended", "database killed"}


@pytest.mark.long
@pytest.mark.parametrize("seed", MANY_SEEDS)
@pytest.mark.parametrize("place", DATABASES, indirect=True)
async def test_a_collector_that_is_killed_counts_every_report_once_for_long(
    place: Place, seed: int
) -> None:
    await tell_story(place, seed)


# ---- bugs that the stories must find -----------------------------------------------------------


async def find(place: Place, bug: str) -> None:
    for seed in range(A_FEW):
        try:
            await tell_story(place, seed, bug=bug)
        except Broken:
            return
    pytest.fail(f"{A_FEW} stories did not find {bug}", pytrace=False)


@pytest.mark.parametrize("bug", ["acknowledge_before_commit", "forget_the_index_on_reopen"])
@pytest.mark.parametrize("place", DATABASES, indirect=True)
async def test_the_stories_find_a_planted_bug(place: Place, bug: str) -> None:
    await find(place, bug)


# What a shard leaves out can only be missed where there are several.
@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "bug"),
    [
        (kind, bug)
        for kind in DATABASES
        for bug in BUGS
        if (kind, bug) != ("sqlite", "publish_one_shard")
    ],
    indirect=["place"],
)
async def test_the_stories_find_planted_bugs_in_a_collector(place: Place, bug: str) -> None:
    await find(place, bug)
