"""Models as rows: kept while an open round names them, and for a while before one does.

Each function takes the connection of a link. Those that write are called inside a transaction.
"""

import sqlalchemy as sa

from demur_proto.definition import hash_definition
from demur_proto.errors import StorageError
from demur_proto.models.definition import MODEL_TAG
from demur_server.store.base import MOST_WAITING, no_model
from demur_server.store.inserting import insert_once
from demur_server.store.schema import models, rounds


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
