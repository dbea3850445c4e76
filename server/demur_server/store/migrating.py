"""Bringing a database to the schema of today."""

from pathlib import Path

import sqlalchemy as sa

from demur_proto.errors import UnsupportedError
from demur_server.store.schema import HEAD, metadata

VERSIONS = Path(__file__).parent / "migrations"
TABLES = {  # reflection would ask the same, slowly; a store opens often in a bad hour
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table'",
    "postgresql": "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()",
}


def bring_up_to_date(sql: sa.Connection, *, name: str) -> None:
    """Apply the migrations that a database lacks, inside the caller's transaction.

    Args:
        sql: a connection in the middle of a transaction.
        name: of the database, for messages.

    Raises:
        UnsupportedError: the schema is newer than this version, or not demur's.
    """
    tables = set(sql.exec_driver_sql(TABLES[sql.dialect.name]).scalars())
    revision = None
    if "alembic_version" in tables:
        revision = sql.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    elif tables & set(metadata.tables):
        raise UnsupportedError(f"{name} has tables of something else; give demur one of its own")
    if revision == HEAD:
        return
    # Rarely needed, and slow to import.
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(VERSIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    script = ScriptDirectory.from_config(config)
    if revision is not None and revision not in [each.revision for each in script.walk_revisions()]:
        raise UnsupportedError(
            f"{name} has schema {revision}, which this version does not know; it knows up to "
            f"{HEAD}, so use the newer demur that made it"
        )

    def steps(current: object, _context: object) -> object:
        return script._upgrade_revs("head", current)  # type: ignore[arg-type]

    with EnvironmentContext(config, script, fn=steps) as environment:
        environment.configure(connection=sql, target_metadata=metadata, transactional_ddl=True)
        with environment.begin_transaction():  # the caller's is left alone
            environment.run_migrations()


# Everything in one database, row by row into another of the same schema.

CHUNK = 64  #: rows at a time: one may be as large as a commit


def copy_rows(source: sa.Connection, destination: sa.Connection) -> None:
    """Copy every row of every table, inside the callers' transactions.

    Where the destination numbers rows itself, it goes on after the largest number.
    """
    for table in metadata.sorted_tables:
        found = source.execute(table.select(), execution_options={"yield_per": CHUNK})
        for rows in found.mappings().partitions(CHUNK):
            destination.execute(table.insert(), [dict(row) for row in rows])
        if destination.dialect.name == "postgresql" and table.name in NUMBERED:
            largest = destination.scalar(sa.select(sa.func.max(table.c.id)))
            sequence = sa.func.pg_get_serial_sequence(table.name, "id")
            if largest is not None:
                destination.execute(sa.select(sa.func.setval(sequence, largest)))


NUMBERED = frozenset({"studies", "rounds", "models", "restores"})
