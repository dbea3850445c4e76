"""Everything in one database, row by row into another of the same schema."""

import sqlalchemy as sa

from demur_server.store.schema import metadata

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
