"""What a store that came back from a backup must not do again.

It does not know which rounds and studies there were since. A device answers a round once and sends
the same bytes whenever it is asked the same; so a round that was released and is asked once more,
by a collector that knows nothing of it, could be released a second time with a few more reports, and
the difference of the two sums is these few people's. Therefore no study that came back has another
round, and the name of a new one holds a random mark, so that it is none that there was.
"""

import secrets

import sqlalchemy as sa

from demur_server.store.schema import restores, studies


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
