"""Who may do what, as kept in a database.

Each function takes the connection of a link. Those that write are called inside a transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sqlalchemy as sa

from demur_proto.arrays import Integers
from demur_proto.errors import NotFoundError, StateError, StorageError
from demur_proto.models.definition import MODEL_TAG
from demur_proto.queries import ModelQuery
from demur_proto.release import Release
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.v1 import release_pb2
from demur_proto.wire.definition import ROUND_TAG, STUDY_TAG, Defined
from demur_proto.wire.hmacs import hash_definition
from demur_server.store.base import (
    MOST_WAITING,
    Counted,
    DeviceState,
    KeptRound,
    NamedCredential,
    Role,
    Totals,
    no_model,
)
from demur_server.store.link import checksum
from demur_server.store.schema import (
    commits,
    credentials,
    devices,
    insert_once,
    last_mark,
    models,
    releases,
    rounds,
    studies,
    tokens,
    totals,
)


def add_token(sql: sa.Connection, token_hash: bytes) -> None:
    """Keep an unused token; again, it changes nothing."""
    insert_once(sql, tokens, {"hash": token_hash})


def redeem_token(
    sql: sa.Connection, token_hash: bytes, *, nonce_hash: bytes, device_id: bytes
) -> bool:
    """Use a token up and enrol a device with it; see `Store.redeem_token`."""
    mine = tokens.c.hash == token_hash
    row = sql.execute(tokens.select().where(mine).with_for_update()).first()
    if row is None:
        return False
    if row.nonce_hash is None:
        sql.execute(tokens.update().where(mine).values(nonce_hash=nonce_hash, device_id=device_id))
        insert_once(sql, devices, {"id": device_id})
        return True
    return bool((bytes(row.nonce_hash), bytes(row.device_id)) == (nonce_hash, device_id))


def device_state(sql: sa.Connection, device_id: bytes) -> DeviceState | None:
    """What is known about a device."""
    row = sql.execute(sa.select(devices.c.revoked).where(devices.c.id == device_id)).first()
    if row is None:
        return None
    return DeviceState.ENROLLED if row.revoked is None else DeviceState.REVOKED


def revoke_device(sql: sa.Connection, device_id: bytes, reason: str) -> None:
    """Refuse a device from now on; the first reason is kept.

    In a store that came back from a backup any id can be revoked: devices that were enrolled since
    are not known there, and their credentials follow from the master key all the same.

    Raises:
        NotFoundError: it was never enrolled.
    """
    if device_state(sql, device_id) is None:
        if last_mark(sql) is None:
            raise NotFoundError(f"there is no device {device_id.hex()}")
        insert_once(sql, devices, {"id": device_id})
    sql.execute(
        devices.update()
        .where(devices.c.id == device_id, devices.c.revoked.is_(None))
        .values(revoked=reason)
    )


def all_devices(sql: sa.Connection) -> list[tuple[bytes, str | None]]:
    """Every device by id; with the reason if it is revoked."""
    found = sql.execute(devices.select())
    return sorted((bytes(row.id), row.revoked) for row in found)


def revoked_devices(sql: sa.Connection) -> dict[bytes, str]:
    """Every revoked device with the reason."""
    found = sql.execute(devices.select().where(devices.c.revoked.is_not(None)))
    return {bytes(row.id): row.revoked for row in found}


def add_credential(sql: sa.Connection, credential: NamedCredential) -> None:
    """Keep a named credential.

    Raises:
        StateError: there is one of this name.
    """
    values = {
        "name": credential.name,
        "role": credential.role.value,
        "hash": credential.credential_hash,
    }
    if not insert_once(sql, credentials, values):
        raise StateError(f"there is a credential {credential.name!r} already")


def remove_credential(sql: sa.Connection, name: str) -> None:
    """Forget a named credential.

    Raises:
        NotFoundError: there is none of this name.
    """
    if not sql.execute(credentials.delete().where(credentials.c.name == name)).rowcount:
        raise NotFoundError(f"there is no credential {name!r}")


def all_credentials(sql: sa.Connection) -> list[NamedCredential]:
    """Every named credential, by name.

    Raises:
        StorageError: one has an unknown role.
    """
    try:
        kept = [
            NamedCredential(name=row.name, role=Role(row.role), credential_hash=bytes(row.hash))
            for row in sql.execute(credentials.select())
        ]
    except ValueError:
        raise StorageError("a credential has a role that this version does not know") from None
    return sorted(kept, key=lambda each: each.name)  # databases differ in how they sort text


# Models as rows: kept while an open round names them, and for a while before one does.
#
# Each function takes the connection of a link. Those that write are called inside a transaction.


def add_model(sql: sa.Connection, model_hash: bytes, definition: bytes) -> None:
    """Keep a model; again, it changes nothing. Forget the oldest of too many that wait."""
    insert_once(sql, models, {"hash": model_hash, "definition": definition})
    waiting = (
        sa.select(models.c.id)
        .where(~_named_by_open_round(models.c.hash))
        .order_by(models.c.id.desc())
        .offset(MOST_WAITING)
    )
    too_many = list(sql.scalars(waiting))
    if too_many:
        sql.execute(models.delete().where(models.c.id.in_(too_many)))


def find_model(sql: sa.Connection, model_hash: bytes) -> bytes | None:
    """The definition of a model.

    Raises:
        StorageError: it is damaged.
    """
    found = sql.scalar(sa.select(models.c.definition).where(models.c.hash == model_hash))
    if found is None:
        return None
    definition = bytes(found)
    if hash_definition(MODEL_TAG, definition) != model_hash:
        raise StorageError("a model is damaged in the store; restore a backup")
    return definition


def hold_model(sql: sa.Connection, model_hash: bytes) -> None:
    """See that a model is kept, and that nobody forgets it before this transaction ends.

    Raises:
        NotFoundError: it is not kept.
    """
    held = sa.select(models.c.id).where(models.c.hash == model_hash).with_for_update()
    if sql.scalar(held) is None:
        raise no_model(model_hash)


def forget_model(sql: sa.Connection, round_id: int) -> None:
    """Forget the model that a round, closed by now, names, unless an open round names it too."""
    model_hash = sql.scalar(sa.select(rounds.c.model_hash).where(rounds.c.id == round_id))
    if model_hash is None:
        return
    # Whoever opens a round about it now holds it until that round can be seen below.
    sql.execute(sa.select(models.c.id).where(models.c.hash == model_hash).with_for_update())
    sql.execute(
        models.delete().where(
            models.c.hash == model_hash, ~_named_by_open_round(sa.literal(model_hash))
        )
    )


def _named_by_open_round(model_hash: sa.ColumnElement[bytes]) -> sa.ColumnElement[bool]:
    return sa.exists().where(rounds.c.model_hash == model_hash, sa.not_(rounds.c.closed))


# Everything that is not hot, written once for every database.
#
# Each function takes the connection of a link. Those that write are called inside a transaction.


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
