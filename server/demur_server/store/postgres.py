"""PostgreSQL: one database, one collector or several, each counting a shard of the devices.

A shard has one writer. Its fence is a session advisory lock on the very connection that commits:
whoever has lost the connection has lost the fence with it, and cannot commit any more. The lock is
only free again once the old session is over, so by then it is settled what that session committed.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import psycopg
import sqlalchemy as sa

from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError, StateError, StorageError
from demur_server.store.link import Change, checksum
from demur_server.store.migrating import bring_up_to_date

LOCKS = 0x64656D75  #: the class of our advisory locks: "demu"
MIGRATING = -1  #: the lock that whoever changes the schema takes
FENCE_WAIT_S = 1.0  #: how long a session that has just ended may take to give its lock back
SETTINGS = {
    "synchronous_commit": "on",  # a commit returns when it is on the disk, whatever the default is
    "lock_timeout": "10s",
    "statement_timeout": "300s",  # the largest release there is takes a tenth of this
    "idle_in_transaction_session_timeout": "60s",
    # A collector whose machine died holds its fence no longer than this takes to notice.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
COUNT = """
WITH open AS (SELECT id FROM rounds WHERE id = %(round)s AND NOT closed FOR SHARE),
counted AS (
    UPDATE totals SET seq = %(seq)s, reports = %(reports)s, conflicts = %(conflicts)s,
        sums = %(sums)s, checksum = %(totals_check)s
    FROM open WHERE totals.round_id = open.id AND shard = %(shard)s AND seq = %(before)s
    RETURNING totals.round_id
)"""
COUNT_REPORTS = f"""{COUNT}
INSERT INTO commits (round_id, shard, seq, records, checksum)
SELECT round_id, %(shard)s, %(seq)s, %(records)s, %(check)s FROM counted"""
COUNT_CONFLICTS = f"{COUNT} SELECT round_id FROM counted"
CLOSED_AMONG = "SELECT id FROM rounds WHERE id = ANY(%s) AND closed"

Connection = psycopg.Connection[tuple[object, ...]]
Connect = Callable[..., Connection]


class PostgresDatabase:
    """A database that several collectors may share.

    Args:
        conninfo: where it is, as libpq takes it: `postgresql://user@host/name`, or `host=... dbname=...`.
            A password is better kept in PGPASSFILE. No pooler may stand in between: a lock belongs
            to a session.
        shard: which part of the devices is counted here: those whose id starts with a byte that is
            this modulo `shards`.
        shards: how many collectors share the database.
        connection: makes the driver's connection; tests put faults in between.

    Raises:
        ParameterError: there is no such shard.
        StorageError: the address cannot be understood.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        shard: int = 0,
        shards: int = 1,
        connection: Connect = psycopg.connect,
    ) -> None:
        check_integer("shards", shards, 1, 256)
        check_integer("shard", shard, 0, shards - 1)
        try:
            parts = psycopg.conninfo.conninfo_to_dict(conninfo)
        except psycopg.Error:
            raise ParameterError(  # never what came: it may hold a password
                "database", "something else", "an address: postgresql://user@host/name"
            ) from None
        self.name = f"PostgreSQL {parts.get('dbname', '')!s} at {parts.get('host', 'localhost')!s}"
        self._conninfo = conninfo
        self._shard = shard
        self._shards = shards
        self._connection = connection

    def connect(self) -> "PostgresLink":
        """Make a link, take the fence, and bring the schema up to date."""
        options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
        try:
            raw = self._connection(
                self._conninfo,
                autocommit=True,
                connect_timeout=5,
                tcp_user_timeout=10_000,
                options=options,
            )
        except psycopg.Error as error:
            raise StorageError(f"{self.name} is out of reach: {_explain(error)}") from None
        try:
            self._check_durable(raw)
            self._take_fence(raw)
            link = PostgresLink(raw, shard=self._shard, shards=self._shards)
            with link.transaction():
                raw.execute("SELECT pg_advisory_xact_lock(%s, %s)", (LOCKS, MIGRATING))
                bring_up_to_date(link.sql, name=self.name)
        except BaseException as error:
            raw.close()
            if isinstance(error, PostgresLink.trouble):
                raise StorageError(f"{self.name}: {_explain(error)}") from None
            raise
        return link

    def close(self) -> None:
        """Nothing is held but the link."""

    def _take_fence(self, raw: Connection) -> None:
        until = time.monotonic() + FENCE_WAIT_S
        while True:
            [taken] = raw.execute(
                "SELECT pg_try_advisory_lock(%s, %s)", (LOCKS, self._shard)
            ).fetchone() or (False,)
            if taken:
                return
            if time.monotonic() >= until:
                raise StateError(
                    f"shard {self._shard} of {self.name} has another collector; stop that one, "
                    "or give this one a shard of its own"
                )
            time.sleep(0.005)

    def _check_durable(self, raw: Connection) -> None:
        [fsync] = raw.execute("SHOW fsync").fetchone() or ("off",)
        if fsync != "on":
            raise StorageError(
                f"{self.name} runs with fsync off and would forget what it confirmed"
            )


class PostgresLink:
    """A session that holds the fence of its shard."""

    trouble: tuple[type[Exception], ...] = (psycopg.Error, sa.exc.SQLAlchemyError)

    def __init__(self, raw: Connection, *, shard: int, shards: int) -> None:
        self._raw = raw
        self.shard = shard
        self.shards = shards
        engine = sa.create_engine(
            "postgresql+psycopg://",
            creator=lambda: raw,
            poolclass=sa.StaticPool,
            pool_reset_on_return=None,  # a link is never used again
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,
        )
        self.sql = engine.connect()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block or nothing."""
        self._raw.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        try:
            yield
            self._raw.execute("COMMIT")
        except BaseException:
            with suppress(psycopg.Error):  # the connection may be gone
                self._raw.execute("ROLLBACK")
            raise

    def count(self, changes: Sequence[Change]) -> set[int]:
        """Keep changes in one durable transaction, except those of closed rounds.

        The round's row is locked against closing until the commit, so that nothing is counted after
        a close, on any shard.
        """
        if len(changes) == 1:  # a statement on its own is a transaction
            return self._count_one(changes[0])
        with self.transaction():
            return set().union(*map(self._count_one, changes))

    def _count_one(self, change: Change) -> set[int]:
        numbers = (change.seq, change.reports, change.conflicts)
        values = {
            "round": change.round_id,
            "shard": self.shard,
            "seq": change.seq,
            "before": change.seq - 1 if change.records else change.seq,
            "reports": change.reports,
            "conflicts": change.conflicts,
            "sums": change.sums,
            "totals_check": checksum(change.sums, change.round_id, self.shard, *numbers),
            "records": change.records,
            "check": checksum(change.records, change.round_id, self.shard, change.seq),
        }
        statement = COUNT_REPORTS if change.records else COUNT_CONFLICTS
        if self._raw.execute(statement, values).rowcount == 1:
            return set()
        if self.closed_among([change.round_id]):
            return {change.round_id}
        raise StorageError("somebody else has written to this shard")

    def closed_among(self, round_ids: Sequence[int]) -> set[int]:
        """Which of these rounds somebody else has closed."""
        found = self._raw.execute(CLOSED_AMONG, (list(round_ids),)).fetchall()
        return {int(str(round_id)) for (round_id,) in found}

    def commits(self, round_id: int) -> Iterator[tuple[int, bytes, int]]:
        """This shard's commits to a round, in order."""
        with self._raw.cursor(binary=True) as cursor:
            cursor.execute(
                "SELECT seq, records, checksum FROM commits WHERE round_id = %s AND shard = %s"
                " ORDER BY seq",
                (round_id, self.shard),
            )
            yield from cursor

    def lock_round(self, round_id: int) -> None:
        """Wait out every commit to a round."""
        self._raw.execute("SELECT 1 FROM rounds WHERE id = %s FOR UPDATE", (round_id,))

    def scrub(self) -> bool:
        """PostgreSQL gives no means to overwrite what was deleted."""
        return True

    def explain(self, error: Exception) -> str:
        """One line."""
        return _explain(error)

    def close(self) -> None:
        """End the session, and with it the fence."""
        with suppress(psycopg.Error, sa.exc.SQLAlchemyError):
            self.sql.close()
        with suppress(psycopg.Error):
            self._raw.close()


def _explain(error: BaseException) -> str:
    """The first line only: the others may quote values."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    primary = cause.diag.message_primary if isinstance(cause, psycopg.Error) else None
    text = primary or str(cause)
    return text.splitlines()[0] if text else type(cause).__name__
