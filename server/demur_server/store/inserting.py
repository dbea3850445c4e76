"""Adding a row that may be there already, in every database."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from demur_proto.errors import StorageError


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
