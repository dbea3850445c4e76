"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# What must never happen, refused by the database itself whatever a program does.
SQLITE_RULES = (
    (
        "CREATE TRIGGER studies_stay_ended BEFORE UPDATE ON studies"
        " WHEN OLD.ended AND NOT NEW.ended"
        " BEGIN SELECT RAISE(ABORT, 'a study that has ended never goes on'); END"
    ),
    (
        "CREATE TRIGGER rounds_stay_closed BEFORE UPDATE ON rounds"
        " WHEN OLD.closed AND NOT NEW.closed"
        " BEGIN SELECT RAISE(ABORT, 'a closed round never opens again'); END"
    ),
    (
        "CREATE TRIGGER releases_never_change BEFORE UPDATE ON releases"
        " BEGIN SELECT RAISE(ABORT, 'a release never changes'); END"
    ),
    (
        "CREATE TRIGGER releases_stay BEFORE DELETE ON releases"
        " BEGIN SELECT RAISE(ABORT, 'a release never changes'); END"
    ),
)
POSTGRES_RULES = (
    (
        "CREATE FUNCTION demur_refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION '%', TG_ARGV[0]; END $$"
    ),
    (
        "CREATE TRIGGER studies_stay_ended BEFORE UPDATE ON studies FOR EACH ROW"
        " WHEN (OLD.ended AND NOT NEW.ended)"
        " EXECUTE FUNCTION demur_refuse('a study that has ended never goes on')"
    ),
    (
        "CREATE TRIGGER rounds_stay_closed BEFORE UPDATE ON rounds FOR EACH ROW"
        " WHEN (OLD.closed AND NOT NEW.closed)"
        " EXECUTE FUNCTION demur_refuse('a closed round never opens again')"
    ),
    (
        "CREATE TRIGGER releases_never_change BEFORE UPDATE OR DELETE ON releases FOR EACH ROW"
        " EXECUTE FUNCTION demur_refuse('a release never changes')"
    ),
    # Sums, ids and estimates look random: trying to compress them is time lost at every commit.
    "ALTER TABLE totals ALTER COLUMN sums SET STORAGE EXTERNAL",
    "ALTER TABLE commits ALTER COLUMN records SET STORAGE EXTERNAL",
    "ALTER TABLE releases ALTER COLUMN message SET STORAGE EXTERNAL",
)


def upgrade() -> None:
    """Make every table."""
    key = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "studies",
        sa.Column("id", key, primary_key=True),
        sa.Column("hash", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("definition", sa.LargeBinary, nullable=False),
        sa.Column("ended", sa.Boolean, nullable=False),
    )
    op.create_table(
        "rounds",
        sa.Column("id", key, primary_key=True),
        sa.Column("hash", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("study_id", key, sa.ForeignKey("studies.id"), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("definition", sa.LargeBinary, nullable=False),
        sa.Column("sums_length", sa.BigInteger, nullable=False),
        sa.Column("shards", sa.Integer, nullable=False),
        sa.Column("open_access", sa.Boolean, nullable=False),
        sa.Column("closed", sa.Boolean, nullable=False),
        sa.Column("checksum", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("study_id", "number"),
    )
    op.create_table(
        "totals",
        sa.Column("round_id", key, sa.ForeignKey("rounds.id"), primary_key=True),
        sa.Column("shard", sa.Integer, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("reports", sa.BigInteger, nullable=False),
        sa.Column("conflicts", sa.BigInteger, nullable=False),
        sa.Column("sums", sa.LargeBinary, nullable=False),
        sa.Column("checksum", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "commits",
        sa.Column("round_id", key, primary_key=True, autoincrement=False),
        sa.Column("shard", sa.Integer, primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True),
        sa.Column("records", sa.LargeBinary, nullable=False),
        sa.Column("checksum", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "releases",
        sa.Column("round_id", key, sa.ForeignKey("rounds.id"), primary_key=True),
        sa.Column("message", sa.LargeBinary, nullable=False),
        sa.Column("checksum", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "devices",
        sa.Column("id", sa.LargeBinary, primary_key=True),
        sa.Column("revoked", sa.Text),
    )
    revoked = sa.text("revoked IS NOT NULL")
    op.create_index(
        "devices_revoked", "devices", ["revoked"], sqlite_where=revoked, postgresql_where=revoked
    )
    op.create_table(
        "tokens",
        sa.Column("hash", sa.LargeBinary, primary_key=True),
        sa.Column("nonce_hash", sa.LargeBinary),
        sa.Column("device_id", sa.LargeBinary),
    )
    op.create_table(
        "credentials",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False, unique=True),
    )
    op.create_table(
        "restores",
        sa.Column("id", key, primary_key=True),
        sa.Column("mark", sa.Text, nullable=False, unique=True),
    )
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    for rule in SQLITE_RULES if on_sqlite else POSTGRES_RULES:
        op.execute(rule)
