"""Models, and which of them a round names."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# Parameters look random: trying to compress them is time lost.
POSTGRES_RULES = ("ALTER TABLE models ALTER COLUMN definition SET STORAGE EXTERNAL",)


def upgrade() -> None:
    """Make the table, and the column, which is empty for every round there is."""
    key = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "models",
        sa.Column("id", key, primary_key=True),
        sa.Column("hash", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("definition", sa.LargeBinary, nullable=False),
    )
    op.add_column("rounds", sa.Column("model_hash", sa.LargeBinary))
    if op.get_bind().dialect.name == "postgresql":
        for rule in POSTGRES_RULES:
            op.execute(rule)
