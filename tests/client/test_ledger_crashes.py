"""A ledger whose process is killed anywhere, or whose log is cut off anywhere."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import ledger_crash
from demur_client.ledger.counter import FileCounter
from demur_client.ledger.file import LedgerFile
from ledger_crash import DAMAGED, FINAL, KILLED, story_of
from ledger_kit import quick_folder
from ledger_model import READING, STUDIES, Event, Model, differences, modelled

FRAME = 24 + 4096  #: of SQLite's log: a header and a page
HEADER = 32  #: of the log
STRIDE = 3  #: as many steps from one kill to the next in the suite; long tests take every step
SUITE_POINTS = 60
LONG_POINTS = 500


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=quick_folder(tmp_path)) as folder:
        yield Path(folder)


def opened(folder: Path) -> LedgerFile:
    return LedgerFile(folder / "ledger", counter=FileCounter(folder / "counter"))


def sent_in(folder: Path) -> list[tuple[int, int, bytes]]:
    lines = [line.split() for line in (folder / "log").read_text().splitlines()]
    return [
        (int(line[1]), int(line[2]), bytes.fromhex(line[3])) for line in lines if line[0] == "sent"
    ]


def read_in(folder: Path) -> list[set[tuple[int, int]]]:
    """For which rounds each process has read data, one process after the other."""
    lives = (folder / "log").read_text().split("started\n")[1:]
    words = [[line.split() for line in life.splitlines()] for life in lives]
    return [
        {(int(line[-2]), int(line[-1])) for line in life if line[:2] == READING.split()}
        for life in words
    ]


def check_killed(folder: Path, story: tuple[Event, ...]) -> list[int]:
    """All that was done is kept, and of what was under way all or nothing: so many events."""
    done = (folder / "log").read_text().count("done\n")
    sent = sent_in(folder)
    with opened(folder) as ledger:
        assert ledger.trusted
        possible = [modelled(story[: done + more]) for more in (0, 1)]
        found = [differences(ledger, model) for model in possible]
        assert [] in found, found
        for which, number in set.union(*read_in(folder)):
            if all(number not in model.sides[which].answers for model in possible):
                forgotten = possible[1].sides[which].forgotten
                assert forgotten or ledger.begun(STUDIES[which].hash, number) is not None
        for which, number, content in sent:
            if number not in possible[1].sides[which].answers:
                continue  # forgotten, or about to be
            assert number in {row.number for row in ledger.history(STUDIES[which].hash)}
            sealed = ledger.sealed(STUDIES[which].hash, number)
            if sealed is not None and sealed.report is not None:
                assert sealed.report.SerializeToString() == content
    return [done + more for more in (0, 1) if not found[more]]


def check_final(folder: Path, story: tuple[Event, ...], kept: list[int]) -> None:
    """It has ended as if nothing had happened, but that rounds under way were covered for nothing.

    No round was answered in two ways, nor read for by two processes.
    """
    sent = sent_in(folder)
    assert len({(which, number) for which, number, _ in sent}) == len(set(sent))
    assert {(e.which, e.number) for e in story if e.verb == "seal"} == {each[:2] for each in sent}
    with opened(folder) as ledger:
        assert ledger.trusted
        possible = [modelled(story, stopped=stopped) for stopped in kept]
        assert [] in [differences(ledger, model) for model in possible]
    first, second = read_in(folder)
    assert {each for each in first & second if not possible[0].sides[each[0]].forgotten} == set()


def run_killing(base: Path, seed: int, length: int, *, stride: int) -> list[Path]:
    """Kill a story at every so many steps: where its ledgers are, but for the ends of the names."""
    kit = Path(ledger_crash.__file__).parent
    numbers = map(str, (seed, length, stride))
    done = subprocess.run(
        [sys.executable, "-m", "ledger_crash", str(base), *numbers],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(kit), *sys.path]))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [
        folder.with_name(folder.name.removesuffix(f"-{KILLED}"))
        for folder in base.glob(f"{seed}-*-{KILLED}")
    ]


def kill_everywhere(base: Path, seed: int, length: int, *, stride: int = 1) -> int:
    """Kill a story at every step, or every so many; at how many it was."""
    story = story_of(seed, length)
    points = run_killing(base, seed, length, stride=stride)
    for folder in points:
        kept = check_killed(folder.with_name(f"{folder.name}-{KILLED}"), story)
        check_final(folder.with_name(f"{folder.name}-{FINAL}"), story, kept)
    return len(points)


def test_killed_at_any_step_it_goes_on_as_if_nothing_had_happened(quick: Path) -> None:
    assert kill_everywhere(quick, 0, 0, stride=STRIDE) >= SUITE_POINTS


def test_killed_anywhere_in_setting_a_damaged_ledger_aside_it_stays_in_doubt(quick: Path) -> None:
    points = run_killing(quick, DAMAGED, 0, stride=5)

    for folder in points:
        for state in (KILLED, FINAL):
            with opened(folder.with_name(f"{folder.name}-{state}")) as ledger:
                assert not ledger.trusted
                assert not any(ledger.remaining_units(study.hash) for study in STUDIES)
                assert ledger.studies() == [STUDIES[0]]
                assert ledger.identity is not None
    assert len(points) >= 20


# ---- a log that is cut off -------------------------------------------------------------------


class Recorded:
    """A story without forgetting, which empties the log; and after each of its events how long the log was and what the counter said."""

    def __init__(self, folder: Path, story: tuple[Event, ...]) -> None:
        self.folder = folder
        self.story = tuple(event for event in story if event.verb != "forget")
        self.lengths: list[int] = []
        self.counters: list[bytes] = []
        with opened(folder) as ledger:
            ledger._connection.execute("PRAGMA wal_autocheckpoint=0")
            self._record()
            for event in self.story:
                event.to_ledger(ledger)
                self._record()
            self.database = (folder / "ledger").read_bytes()
            self.log = (folder / "ledger-wal").read_bytes()

    def _record(self) -> None:
        self.lengths.append((self.folder / "ledger-wal").stat().st_size)
        self.counters.append((self.folder / "counter").read_bytes())

    def cuts(self) -> list[int]:
        """At the end of every frame, and within it."""
        ends = range(HEADER, len(self.log) + 1, FRAME)
        cuts = [end - part for end in ends for part in (FRAME - 12, FRAME - 24, FRAME // 2, 0)]
        return [max(cut, 0) for cut in cuts]

    def kept(self, cut: int) -> int:
        """How many events a log of this length tells of; -1 where it is not even made."""
        return sum(length <= cut for length in self.lengths) - 1

    def lay_out(self, folder: Path, cut: int, *, counter: bytes | None) -> None:
        """What a disk holds that has lost the rest of the log."""
        folder.mkdir()
        (folder / "ledger").write_bytes(self.database)
        (folder / "ledger-wal").write_bytes(self.log[:cut])
        if counter is not None:
            (folder / "counter").write_bytes(counter)


def check_cuts(recorded: Recorded, base: Path) -> int:
    """Every beginning of a log is a ledger as it once was, or known to be none."""
    for cut in recorded.cuts():
        kept = recorded.kept(cut)
        for name, counter in {
            "without": None,
            "now": recorded.counters[kept] if kept >= 0 else None,
            "later": recorded.counters[-1],
        }.items():
            folder = base / f"{name}-{cut}"
            recorded.lay_out(folder, cut, counter=counter)
            with opened(folder) as ledger:
                if name == "later":
                    assert ledger.trusted == (kept == len(recorded.story))
                    assert ledger.trusted or not any(
                        ledger.remaining_units(study.hash) for study in STUDIES
                    )
                else:
                    wanted = modelled(recorded.story[:kept]) if kept >= 0 else Model()
                    assert ledger.trusted
                    assert differences(ledger, wanted) == []
            shutil.rmtree(folder)
    return len(recorded.cuts())


def test_every_beginning_of_the_log_is_a_ledger_as_it_once_was(quick: Path) -> None:
    (quick / "story").mkdir()

    assert check_cuts(Recorded(quick / "story", story_of(0, 0)), quick) >= SUITE_POINTS


# ---- at length -------------------------------------------------------------------------------


@pytest.mark.long
def test_device_ledgers_killed_at_hundreds_of_steps_of_many_stories(quick: Path) -> None:
    points, seed = 0, -1
    while points < LONG_POINTS:
        seed += 1
        points += kill_everywhere(quick, seed, 10 + seed)
    assert seed  # more than the one story


@pytest.mark.long
def test_device_ledgers_cut_off_at_hundreds_of_places_of_many_stories(quick: Path) -> None:
    points = seed = 0
    while points < LONG_POINTS:
        seed += 1
        (quick / f"story-{seed}").mkdir()
        recorded = Recorded(quick / f"story-{seed}", story_of(seed, 20 + seed))
        (quick / f"cuts-{seed}").mkdir()
        points += check_cuts(recorded, quick / f"cuts-{seed}")
