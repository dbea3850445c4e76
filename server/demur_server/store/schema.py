"""The one schema of every database. `migrations` brings a database there step by step.

Nothing here is a time: what a store decides never depends on a clock. Reports and devices appear
only as 16-byte ids, packed by the commit that counted them, and only while their round is open.
"""

import sqlalchemy as sa

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
