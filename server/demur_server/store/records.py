"""Everything that is not hot, written once for every database.

Each function takes the connection of a link. Those that write are called inside a transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sqlalchemy as sa

from demur_proto.arrays import Integers
from demur_proto.definition import ROUND_TAG, STUDY_TAG, Defined, hash_definition
from demur_proto.errors import NotFoundError, StateError, StorageError
from demur_proto.release import Release
from demur_proto.round import ModelQuery, Round
from demur_proto.study import Study
from demur_proto.v1 import release_pb2
from demur_server.store.base import Counted, KeptRound, Totals
from demur_server.store.inserting import insert_once
from demur_server.store.models import hold_model
from demur_server.store.packing import checksum
from demur_server.store.restores import last_mark
from demur_server.store.schema import commits, releases, rounds, studies, totals


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """What decides how a round is counted."""

    id: int
    hash: bytes
    number: int
    sums_length: int
    shards: int
    open_access: bool
    closed: bool

    @property
    def checksum(self) -> int:
        """Over everything but the id, which the database chooses."""
        numbers = (self.number, self.sums_length, self.shards)
        return checksum(self.hash, *numbers, self.open_access, self.closed)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TotalsRow:
    """What one shard has counted of a round."""

    seq: int
    reports: int
    conflicts: int
    sums: Integers  #: empty once the round's release is kept


def no_round(round_hash: bytes) -> NotFoundError:
    """The error for a round that does not exist."""
    return NotFoundError(f"there is no round {round_hash.hex()[:16]}")


# ---- studies and rounds ------------------------------------------------------------------------


def add_study(sql: sa.Connection, study: Defined[Study]) -> None:
    """Keep a study; again, it changes nothing.

    Raises:
        StateError: the store came back from a backup, and the study might be one that was made
            since. Asked the same again, its devices would answer the same again.
    """
    known = sql.scalar(sa.select(studies.c.id).where(studies.c.hash == study.hash))
    mark = last_mark(sql)
    if known is None and mark is not None and mark not in study.value.name:
        raise StateError(
            f"this collector came back from a backup and does not know which studies were made "
            f"since: put {mark} into the name of a new one, which no other has"
        )
    values = {"hash": study.hash, "definition": study.definition, "ended": False}
    insert_once(sql, studies, values)


def study_definitions(sql: sa.Connection) -> list[bytes]:
    """The definitions of all studies, in the order in which they were fixed.

    Raises:
        StorageError: one is damaged.
    """
    found = sql.execute(sa.select(studies.c.hash, studies.c.definition).order_by(studies.c.id))
    definitions = []
    for study_hash, definition in found:
        if hash_definition(STUDY_TAG, bytes(definition)) != bytes(study_hash):
            raise StorageError("a study is damaged in the store; restore a backup")
        definitions.append(bytes(definition))
    return definitions


def add_round(
    sql: sa.Connection,
    asked: Defined[Round],
    *,
    sums_length: int,
    open_access: bool,
    shards: int,
) -> None:
    """Keep a round, open and empty; again, it changes nothing.

    Raises:
        NotFoundError: its study, or the model that it names, is not kept.
        StateError: its study has another round of this number, or came back from a backup.
    """
    study_hash = asked.value.study_hash
    wanted = sa.select(studies.c.id, studies.c.ended).where(studies.c.hash == study_hash)
    study = sql.execute(wanted).first()
    if study is None:
        raise NotFoundError(f"there is no study {study_hash.hex()[:16]}")
    study_id, ended = study
    number = asked.value.number
    if ended and find_round(sql, asked.hash) is None:
        raise StateError(
            f"study {study_hash.hex()[:16]} came back from a backup and has ended: which rounds it "
            f"had since is not known; ask in a new study, with {last_mark(sql)} in its name"
        )
    values: dict[str, Any] = {
        "hash": asked.hash,
        "study_id": study_id,
        "number": number,
        "definition": asked.definition,
        "sums_length": sums_length,
        "shards": shards,
        "open_access": open_access,
        "closed": False,
        "checksum": checksum(asked.hash, number, sums_length, shards, open_access, False),
    }
    query = asked.value.query
    if isinstance(query, ModelQuery):
        if find_round(sql, asked.hash) is None:
            hold_model(sql, query.model_hash)
        values["model_hash"] = query.model_hash
    added = insert_once(sql, rounds, values)
    row = find_round(sql, asked.hash)
    if row is None:
        raise StateError(f"round {number} cannot open: the study has another one")
    if added:
        sums = bytes(8 * sums_length)
        for shard in range(shards):
            check = checksum(sums, row.id, shard, 0, 0, 0)
            numbers = {"seq": 0, "reports": 0, "conflicts": 0, "sums": sums, "checksum": check}
            sql.execute(totals.insert().values(round_id=row.id, shard=shard, **numbers))


def kept_rounds(sql: sa.Connection, *, shard: int) -> list[KeptRound]:
    """Every round, by study and number, with what this shard has counted.

    Raises:
        StorageError: one is damaged.
    """
    found = sql.execute(
        sa.select(
            studies.c.hash.label("study_hash"),
            *_ROW,
            rounds.c.definition,
            totals.c.reports,
            releases.c.round_id.is_not(None).label("released"),
        )
        .join(studies, studies.c.id == rounds.c.study_id)
        .outerjoin(totals, (totals.c.round_id == rounds.c.id) & (totals.c.shard == shard))
        .outerjoin(releases, releases.c.round_id == rounds.c.id)
        .order_by(rounds.c.study_id, rounds.c.number)
    )
    kept = []
    for found_row in found:
        row = _round_row(found_row)
        definition = bytes(found_row.definition)
        if hash_definition(ROUND_TAG, definition) != row.hash:
            raise damaged(row)
        kept.append(
            KeptRound(
                study_hash=bytes(found_row.study_hash),
                round_hash=row.hash,
                definition=definition,
                open_access=row.open_access,
                shards=row.shards,
                mine=found_row.reports or 0,
                closed=row.closed,
                released=found_row.released,
            )
        )
    return kept


_ROW = (
    rounds.c.id,
    rounds.c.hash,
    rounds.c.number,
    rounds.c.sums_length,
    rounds.c.shards,
    rounds.c.open_access,
    rounds.c.closed,
    rounds.c.checksum,
)


def all_rounds(sql: sa.Connection) -> list[RoundRow]:
    """Every round.

    Raises:
        StorageError: one is damaged.
    """
    return [_round_row(row) for row in sql.execute(sa.select(*_ROW))]


def find_round(sql: sa.Connection, round_hash: bytes) -> RoundRow | None:
    """A round by its hash.

    Raises:
        StorageError: it is damaged.
    """
    row = sql.execute(sa.select(*_ROW).where(rounds.c.hash == round_hash)).first()
    return None if row is None else _round_row(row)


def _round_row(found: Any) -> RoundRow:
    row = RoundRow(
        id=found.id,
        hash=bytes(found.hash),
        number=found.number,
        sums_length=found.sums_length,
        shards=found.shards,
        open_access=found.open_access,
        closed=found.closed,
    )
    if row.checksum != found.checksum:
        raise damaged(row)
    return row


def mark_closed(sql: sa.Connection, row: RoundRow) -> None:
    """Close a round, for ever."""
    closed = replace(row, closed=True)
    values = {"closed": True, "checksum": closed.checksum}
    sql.execute(rounds.update().where(rounds.c.id == row.id).values(values))


# ---- totals ------------------------------------------------------------------------------------


def shard_totals(sql: sa.Connection, row: RoundRow, *, shard: int) -> TotalsRow:
    """What one shard has counted of a round.

    Raises:
        StorageError: the row is missing or damaged.
    """
    found = sql.execute(
        totals.select().where(totals.c.round_id == row.id, totals.c.shard == shard)
    ).all()
    if len(found) != 1:
        raise damaged(row)
    return _checked(row, found[0])


def all_totals(sql: sa.Connection, row: RoundRow, *, closed: bool) -> Totals:
    """What all shards have counted of a round.

    Raises:
        StorageError: a row is missing or damaged.
    """
    found = sql.execute(totals.select().where(totals.c.round_id == row.id)).all()
    if len(found) != row.shards:
        raise damaged(row)
    shards = [_checked(row, each) for each in found]
    return Totals(
        reports=sum(each.reports for each in shards),
        conflicts=sum(each.conflicts for each in shards),
        sums=np.sum([each.sums for each in shards], axis=0, dtype=np.int64),
        closed=closed,
    )


def all_counted(sql: sa.Connection, row: RoundRow) -> Counted:
    """How many reports all shards have counted of a round."""
    numbers = sa.select(sa.func.sum(totals.c.reports), sa.func.sum(totals.c.conflicts))
    reports, conflicts = sql.execute(numbers.where(totals.c.round_id == row.id)).one()
    return Counted(reports=int(reports), conflicts=int(conflicts), closed=row.closed)


def void_round(sql: sa.Connection, row: RoundRow) -> None:
    """Forget what an open round has counted, on every shard, and which reports that were."""
    delete_commits(sql, row.id)
    for found in sql.execute(totals.select().where(totals.c.round_id == row.id)).all():
        sums = bytes(len(found.sums))
        check = checksum(sums, row.id, found.shard, 0, 0, 0)
        empty = {"seq": 0, "reports": 0, "conflicts": 0, "sums": sums, "checksum": check}
        mine = (totals.c.round_id == row.id, totals.c.shard == found.shard)
        sql.execute(totals.update().where(*mine).values(empty))


def delete_commits(sql: sa.Connection, round_id: int) -> None:
    """Forget which reports of a round were counted."""
    sql.execute(commits.delete().where(commits.c.round_id == round_id))


def forget_sums(sql: sa.Connection, row: RoundRow) -> None:
    """Keep the numbers of reports, and nothing of what they said."""
    for found in sql.execute(totals.select().where(totals.c.round_id == row.id)).all():
        numbers = (found.seq, found.reports, found.conflicts)
        check = checksum(b"", row.id, found.shard, *numbers)
        sql.execute(
            totals.update()
            .where(totals.c.round_id == row.id, totals.c.shard == found.shard)
            .values(sums=b"", checksum=check)
        )


def _checked(row: RoundRow, found: Any) -> TotalsRow:
    sums = bytes(found.sums)
    numbers = (found.seq, found.reports, found.conflicts)
    check = checksum(sums, row.id, found.shard, *numbers)
    if check != found.checksum or len(sums) not in (0, 8 * row.sums_length):
        raise damaged(row)
    return TotalsRow(
        seq=found.seq,
        reports=found.reports,
        conflicts=found.conflicts,
        sums=np.frombuffer(sums, dtype="<i8").astype(np.int64),
    )


def damaged(row: RoundRow) -> StorageError:
    """The error for content that is not what was written."""
    return StorageError(f"round {row.number} is damaged in the store; restore a backup")


# ---- releases ----------------------------------------------------------------------------------


def add_release(sql: sa.Connection, release: Release) -> Release:
    """Keep a release unless its round has one; what is kept is returned.

    Raises:
        NotFoundError: no such round.
        StateError: the round is open.
    """
    row = find_round(sql, release.round_hash)
    if row is None:
        raise no_round(release.round_hash)
    if not row.closed:
        raise StateError(f"round {release.number} is still open")
    message = release.message().SerializeToString(deterministic=True)
    values = {"round_id": row.id, "message": message, "checksum": checksum(message, row.id)}
    if insert_once(sql, releases, values):
        forget_sums(sql, row)
        return release
    [kept] = find_releases(sql, rounds.c.id == row.id)
    return kept


def find_releases(sql: sa.Connection, *conditions: sa.ColumnElement[bool]) -> Sequence[Release]:
    """The releases of the rounds that fit, by number.

    Raises:
        StorageError: one is damaged.
    """
    found = sql.execute(
        sa.select(rounds.c.id, rounds.c.number, releases.c.message, releases.c.checksum)
        .join(releases, releases.c.round_id == rounds.c.id)
        .where(*conditions)
        .order_by(rounds.c.number)
    )
    kept = []
    for round_id, number, message, check in found:
        if checksum(bytes(message), round_id) != check:
            raise StorageError(f"the release of round {number} is damaged; restore a backup")
        kept.append(Release.of(release_pb2.Release.FromString(bytes(message))))
    return kept


def of_study(study_hash: bytes, *, from_number: int) -> tuple[sa.ColumnElement[bool], ...]:
    """The condition for a study's rounds from a number on."""
    study_id = sa.select(studies.c.id).where(studies.c.hash == study_hash).scalar_subquery()
    return rounds.c.study_id == study_id, rounds.c.number >= from_number
