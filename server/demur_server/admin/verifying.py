"""Whether a store holds together: whatever can be told from the store itself."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import sqlalchemy as sa

from demur_proto.errors import DemurError, StorageError
from demur_proto.release import Estimand, Release, Withheld
from demur_proto.round import Round
from demur_proto.running.following import counting_of
from demur_proto.study import Study
from demur_proto.wire.definition import Defined, read_round, read_study
from demur_server.collector.estimates import make_release
from demur_server.store import records
from demur_server.store.link import RECORD_BYTES, checksum, unpack_records
from demur_server.store.schema import commits, rounds, studies, totals


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a check of a store has found."""

    studies: int
    rounds: int
    open_rounds: int
    releases: int
    reports: int  #: counted, over all rounds
    problems: tuple[str, ...]  #: what must not be; none is good
    notes: tuple[str, ...]  #: what may be, and should be known


class _Report:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []


def verify(sql: sa.Connection, *, keys_folder: Path | None) -> Verified:
    """Check a store; inside one snapshot of it.

    - the database's own integrity, where it checks itself (SQLite)
    - every study and round is what its hash says, and rounds are numbered without a gap
    - every checksum; an open round has counted as many reports as it has records, each id and each
      device once; a closed one has none left
    - every release follows from its own sums, by the arithmetic of today, and from as many reports
      as its round has counted

    Args:
        sql: the store.
        keys_folder: where the keys are, to name open rounds that lack theirs; None: not looked at.
    """
    found = _Report()
    _check_database(sql, found)
    known = _check_studies(sql, found)
    counts = {"rounds": 0, "open": 0, "releases": 0, "reports": 0}
    numbers: dict[int, list[int]] = {}
    counts_so_far: dict[tuple[int, int], list[Release]] = {}  # running, by study and first round
    for row in sql.execute(rounds.select().order_by(rounds.c.study_id, rounds.c.number)).all():
        counts["rounds"] += 1
        counts["open"] += not row.closed
        numbers.setdefault(row.study_id, []).append(row.number)
        name = f"round {row.number} of study {row.study_id}"
        try:
            counts["reports"] += _check_counts(sql, row, name, found)
            study = known.get(row.study_id)
            if study is None:
                found.problems.append(f"{name}: its study is missing or damaged")
                continue
            asked = read_round(bytes(row.definition), study=study)
            if asked.hash != bytes(row.hash) or asked.value.number != row.number:
                found.problems.append(f"{name}: its definition is not what its hash says")
                continue
            query = counting_of(asked.value)
            place = row.study_id, 0 if query is None else query.segment.count
            earlier = [] if query is None else counts_so_far.setdefault(place, [])
            release = _check_release(sql, row, name, study, asked, earlier, found)
            counts["releases"] += release is not None
            if release is not None:
                earlier.append(release)
        except DemurError as error:
            found.problems.append(f"{name}: {error}")
        if keys_folder is not None and not row.closed:
            key = keys_folder / "rounds" / f"{bytes(row.hash).hex()}.key"
            if not key.exists():
                found.notes.append(f"{name}: open without its digest key; it can only be closed")
    for study_id, mine in numbers.items():
        if mine != list(range(1, len(mine) + 1)):
            found.problems.append(f"study {study_id}: its rounds are not numbered from 1 on")
    return Verified(
        studies=len(known),
        rounds=counts["rounds"],
        open_rounds=counts["open"],
        releases=counts["releases"],
        reports=counts["reports"],
        problems=tuple(found.problems),
        notes=tuple(found.notes),
    )


def _check_database(sql: sa.Connection, found: _Report) -> None:
    if sql.dialect.name != "sqlite":
        found.notes.append("PostgreSQL does not check its own pages here: see pg_amcheck")
        return
    for line in sql.execute(sa.text("PRAGMA integrity_check")).scalars():
        if line != "ok":
            found.problems.append(f"SQLite: {line}")
    for row in sql.execute(sa.text("PRAGMA foreign_key_check")).all():
        found.problems.append(f"SQLite: a row of {row[0]} refers to nothing")


def _check_studies(sql: sa.Connection, found: _Report) -> dict[int, Defined[Study]]:
    known = {}
    for row in sql.execute(studies.select()).all():
        try:
            study = read_study(bytes(row.definition))
        except DemurError as error:
            found.problems.append(f"study {row.id}: {error}")
            continue
        if study.hash != bytes(row.hash):
            found.problems.append(f"study {row.id}: its definition is not what its hash says")
            continue
        known[row.id] = study
    return known


def _check_counts(sql: sa.Connection, row: sa.Row[tuple[object]], name: str, found: _Report) -> int:
    """How many reports a round has counted."""
    kept = records.find_round(sql, bytes(row.hash))
    if kept is None:
        raise StorageError("it cannot be found by its hash")
    counted = records.all_totals(sql, kept, closed=row.closed)
    ids: set[bytes] = set()
    devices: set[bytes] = set()
    by_shard: dict[int, list[int]] = {}
    packed = 0
    for commit in _commits(sql, row.id):
        content = bytes(commit.records)
        if checksum(content, row.id, commit.shard, commit.seq) != commit.checksum:
            found.problems.append(f"{name}: commit {commit.seq} is damaged; restore a backup")
        by_shard.setdefault(commit.shard, []).append(commit.seq)
        packed += len(content) // RECORD_BYTES
        new_ids, _, new_devices = unpack_records(content)
        ids.update(new_ids)
        devices.update(new_devices)
    if row.closed:
        if packed:
            found.problems.append(
                f"{name}: closed, and what tells its reports apart is still there"
            )
        return counted.reports
    if packed != counted.reports:
        found.problems.append(f"{name}: counts {counted.reports} reports, and records {packed}")
    if len(ids) != packed or len(devices) != packed:
        found.problems.append(f"{name}: has a report or a device twice")
    for shard, last in sql.execute(
        sa.select(totals.c.shard, totals.c.seq).where(totals.c.round_id == row.id)
    ).all():
        if by_shard.get(shard, []) != list(range(1, last + 1)):
            found.problems.append(f"{name}: shard {shard} lacks commits")
    return counted.reports


def _commits(sql: sa.Connection, round_id: int) -> Iterator[sa.Row[tuple[object]]]:
    """One after the other, or a large round would fill memory."""
    wanted = commits.select().where(commits.c.round_id == round_id)
    ordered = wanted.order_by(commits.c.shard, commits.c.seq)
    yield from sql.execute(ordered, execution_options={"yield_per": 64})


def _check_release(
    sql: sa.Connection,
    row: sa.Row[tuple[object]],
    name: str,
    study: Defined[Study],
    asked: Defined[Round],
    earlier: Sequence[Release],
    found: _Report,
) -> Release | None:
    """The release of a round, if it has one."""
    releases = records.find_releases(sql, rounds.c.id == row.id)
    if not releases:
        if row.closed:
            found.notes.append(f"{name}: closed, not yet released; demur serve completes it")
        return None
    [release] = releases
    kept = records.find_round(sql, bytes(row.hash))
    if not row.closed or kept is None:
        found.problems.append(f"{name}: released, and open")
        return release
    counted = records.all_totals(sql, kept, closed=True)
    if counted.sums.size:
        found.problems.append(f"{name}: released, and its sums are still there")
        if release.sums.size and not np.array_equal(counted.sums, release.sums):
            found.problems.append(f"{name}: its release is not of its sums")
    if release.reports != counted.reports:
        found.problems.append(
            f"{name}: released {release.reports} reports, and counted {counted.reports}"
        )
    again = make_release(
        study,
        asked,
        release.sums,
        reports=release.reports,
        open_access=row.open_access,
        earlier=earlier,
    )
    if not _same(again, release):
        found.problems.append(f"{name}: its release does not follow from its sums")
    return release


def _same(one: Release, other: Release) -> bool:
    if one.withheld is not other.withheld:
        return False
    if one.withheld is not Withheld.NOTHING and other.sums.size:
        return False
    one = replace(one, guarantee=other.guarantee)  # versions may put it into other words
    if one.low_end.size > other.low_end.size or one.estimand is Estimand.S_SHRUNK:
        # Earlier versions had symmetric intervals around counts, and some where budgets shrink.
        drawn = ("half_width", "low_end", "high_end", "confidence", "estimand")
        one = replace(one, **{name: getattr(other, name) for name in drawn})
    left = one.message().SerializeToString(deterministic=True)
    right = other.message().SerializeToString(deterministic=True)
    return left == right
