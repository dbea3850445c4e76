"""How a ledger's file is found, and what becomes of one that cannot be believed."""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from demur_client.ledger import schema
from demur_client.ledger.chain import Broken, row_of
from demur_client.ledger.changes import Change, Made
from demur_client.ledger.counter import Mark, sync_folder
from demur_client.ledger.owner import Owner
from demur_client.ledger.purse import LifetimeCap
from demur_client.ledger.replay import Found, replay, salvage

MISSING = "the ledger was gone"
DAMAGED = "the ledger was damaged"
OLD = "an older ledger was put in its place"
LOGS = ("-wal", "-shm")  #: what SQLite puts beside a file, by its name


def open_file(
    path: Path,
    owner: Owner,
    *,
    mark: Mark | None,
    caps: Iterable[LifetimeCap],
    secret: bytes,
) -> tuple[sqlite3.Connection, Found]:
    """The file with what it holds; a new one, in doubt, in place of one that cannot be believed.

    Args:
        path: of the file.
        owner: of the file.
        mark: how far the counter says that it had come.
        caps: for its book.
        secret: of the device, where none can be read.

    Raises:
        DemurError: as `LedgerFile`.
    """
    _finish(path, owner)
    connection = schema.connect(path)
    try:
        found, doubt = _look(connection, path, caps)
        if found is None:
            doubt = doubt or (MISSING if owner.made or mark else "")
        elif not found.agrees(mark):
            found, doubt = None, OLD
        doubt = owner.doubt or doubt
        if found is not None and (found.book.doubt or not doubt):
            return connection, found
        if not doubt:
            first = Mark.first()
            made = Made(secret=secret, start=first.digest)
            _begin(connection, path, [made], after=first)
            return connection, replay(connection, caps)
    except BaseException:
        connection.close()
        raise
    connection.close()
    _replace(path, owner, doubt=doubt, mark=mark, secret=secret)
    connection = schema.connect(path)
    schema.make_durable(connection)
    return connection, replay(connection, caps)


def set_aside(path: Path) -> Iterator[Path]:
    """The files that were set aside in favour of this one."""
    return (each for each in path.parent.iterdir() if each.name.startswith(f"{path.name}.aside-"))


def _look(
    connection: sqlite3.Connection, path: Path, caps: Iterable[LifetimeCap]
) -> tuple[Found | None, str]:
    """What the file holds, or None and why: nothing where it is empty."""
    try:
        with schema.reading(path):
            version = schema.version_of(connection, path)
            if version == 0:
                return None, ""
            schema.make_durable(connection)
            if version < len(schema.STEPS):
                with schema.changing(connection):
                    schema.migrate(connection, version, schema.STEPS)
            schema.check_pages(connection)
            return replay(connection, caps), ""
    except Broken:
        return None, DAMAGED


def _begin(
    connection: sqlite3.Connection, path: Path, changes: Iterable[Change], *, after: Mark
) -> None:
    """Fill an empty file."""
    with schema.reading(path):
        schema.make_durable(connection)
        with schema.changing(connection):
            schema.migrate(connection, 0, schema.STEPS)
            for change in changes:
                row = row_of(change, after=after)
                schema.add_row(connection, row)
                after = row.mark


def _replace(path: Path, owner: Owner, *, doubt: str, mark: Mark | None, secret: bytes) -> None:
    """Put a new file in place of this one, which is set aside.

    The doubt is noted first: a half of what follows must not be taken for a whole ledger.
    """
    owner.remember(doubt)
    saved = salvage(path)
    after = saved.head
    if mark is not None:
        after = Mark(number=max(mark.number, after.number), digest=mark.digest)
    new = _new(path)
    with schema.reading(path):
        for suffix in ("", *LOGS):
            Path(f"{new}{suffix}").unlink(missing_ok=True)
    made = Made(secret=saved.secret or secret, start=after.digest, doubt=doubt)
    connection = schema.connect(new)
    try:
        _begin(connection, new, [made, *saved.changes], after=after)
    finally:
        connection.close()  # which brings all of it into the file itself
    with schema.reading(path):
        number = 1 + sum(not file.name.endswith(LOGS) for file in set_aside(path))
        if path.stat().st_size == 0:
            path.unlink()  # made to look into, where there was none
        for suffix in (*LOGS, ""):
            if Path(f"{path}{suffix}").exists():
                os.replace(f"{path}{suffix}", f"{path}.aside-{number}{suffix}")
        os.replace(new, path)
        sync_folder(path.parent)


def _finish(path: Path, owner: Owner) -> None:
    """End a replacement that a crash has interrupted between its last two steps."""
    with schema.reading(path):
        if owner.doubt and not path.exists() and _new(path).exists():
            os.replace(_new(path), path)
            sync_folder(path.parent)


def _new(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")
