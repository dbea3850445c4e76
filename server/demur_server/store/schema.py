"""The one schema of every database. `migrations` brings a database there step by step.

Nothing here is a time: what a store decides never depends on a clock. Reports and devices appear
only as 16-byte ids, packed by the commit that counted them, and only while their round is open.
"""

import secrets
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from demur_proto.errors import StorageError

HEAD = "0002"  #: the newest migration

metadata = sa.MetaData()
_Key = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite numbers rows by INTEGER only

studies = sa.Table(
    "studies",
    metadata,
    sa.Column("id", _Key, primary_key=True),
    sa.Column("hash", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("definition", sa.LargeBinary, nullable=False),
    sa.Column("ended", sa.Boolean, nullable=False),  # it came back from a backup: no more rounds
)

rounds = sa.Table(
    "rounds",
    metadata,
    sa.Column("id", _Key, primary_key=True),
    sa.Column("hash", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("study_id", _Key, sa.ForeignKey("studies.id"), nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("definition", sa.LargeBinary, nullable=False),
    sa.Column("sums_length", sa.BigInteger, nullable=False),
    sa.Column("shards", sa.Integer, nullable=False),  # among which its devices are divided
    sa.Column("open_access", sa.Boolean, nullable=False),
    sa.Column("closed", sa.Boolean, nullable=False),
    sa.Column("checksum", sa.BigInteger, nullable=False),
    sa.Column("model_hash", sa.LargeBinary),  # of the model it names, if it is about one
    sa.UniqueConstraint("study_id", "number"),
)

models = sa.Table(
    "models",
    metadata,
    sa.Column("id", _Key, primary_key=True),  # in the order in which they came
    sa.Column("hash", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("definition", sa.LargeBinary, nullable=False),
)

totals = sa.Table(
    "totals",
    metadata,
    sa.Column("round_id", _Key, sa.ForeignKey("rounds.id"), primary_key=True),
    sa.Column("shard", sa.Integer, primary_key=True),
    sa.Column("seq", sa.BigInteger, nullable=False),  # of the shard's last commit, 0 before any
    sa.Column("reports", sa.BigInteger, nullable=False),
    sa.Column("conflicts", sa.BigInteger, nullable=False),
    sa.Column("sums", sa.LargeBinary, nullable=False),  # int64, little-endian; empty once released
    sa.Column("checksum", sa.BigInteger, nullable=False),
)

commits = sa.Table(
    "commits",
    metadata,
    sa.Column("round_id", _Key, primary_key=True),
    sa.Column("shard", sa.Integer, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("records", sa.LargeBinary, nullable=False),  # sorted {id, digest, device}
    sa.Column("checksum", sa.BigInteger, nullable=False),
)

releases = sa.Table(
    "releases",
    metadata,
    sa.Column("round_id", _Key, sa.ForeignKey("rounds.id"), primary_key=True),
    sa.Column("message", sa.LargeBinary, nullable=False),
    sa.Column("checksum", sa.BigInteger, nullable=False),
)

devices = sa.Table(
    "devices",
    metadata,
    sa.Column("id", sa.LargeBinary, primary_key=True),
    sa.Column("revoked", sa.Text),  # why, in public
)
# Asked for every second, of perhaps millions of devices.
sa.Index(
    "devices_revoked",
    devices.c.revoked,
    sqlite_where=devices.c.revoked.is_not(None),
    postgresql_where=devices.c.revoked.is_not(None),
)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("hash", sa.LargeBinary, primary_key=True),
    sa.Column("nonce_hash", sa.LargeBinary),  # with which it was used
    sa.Column("device_id", sa.LargeBinary),  # for whom
)

credentials = sa.Table(
    "credentials",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("hash", sa.LargeBinary, nullable=False, unique=True),
)

restores = sa.Table(
    "restores",
    metadata,
    sa.Column("id", _Key, primary_key=True),
    sa.Column("mark", sa.Text, nullable=False, unique=True),  # names of new studies hold the last
)


# What a store that came back from a backup must not do again.
#
# It does not know which rounds and studies there were since. A device answers a round once and sends
# the same bytes whenever it is asked the same; so a round that was released and is asked once more,
# by a collector that knows nothing of it, could be released a second time with a few more reports, and
# the difference of the two sums is these few people's. Therefore no study that came back has another
# round, and the name of a new one holds a random mark, so that it is none that there was.


def end_studies(sql: sa.Connection) -> str:
    """End every study, for ever, and ask new ones for a mark in their names; the mark.

    Inside a transaction.
    """
    mark = f"r{secrets.token_hex(4)}"
    sql.execute(studies.update().values(ended=True))
    sql.execute(restores.insert().values(mark=mark))
    return mark


def last_mark(sql: sa.Connection) -> str | None:
    """What the names of new studies must hold; None: the store never came back from a backup."""
    newest = sa.select(restores.c.mark).order_by(restores.c.id.desc()).limit(1)
    found: str | None = sql.scalar(newest)
    return found


def ended_studies(sql: sa.Connection) -> set[bytes]:
    """The hashes of the studies that have no more rounds."""
    found = sql.execute(sa.select(studies.c.hash).where(studies.c.ended))
    return {bytes(study_hash) for (study_hash,) in found}


# Adding a row that may be there already, in every database.


def insert_once(sql: sa.Connection, table: sa.Table, values: Mapping[str, Any]) -> bool:
    """Add a row unless one has its key; whether it was added."""
    if sql.dialect.name == "sqlite":
        statement: Any = sqlite.insert(table).values(values).on_conflict_do_nothing()
    else:
        statement = postgresql.insert(table).values(values).on_conflict_do_nothing()
    # Without the option a driver may say -1, and "not known" must not be taken for "added".
    added = sql.execute(statement, execution_options={"preserve_rowcount": True}).rowcount
    if added not in (0, 1):
        raise StorageError("the database does not say whether a row was added")
    return bool(added)
