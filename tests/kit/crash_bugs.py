"""Bugs to plant in a collector process, so that a test can show that it would find them."""

import secrets
from collections.abc import Callable
from typing import Any

from demur_server.collector.keys import KeyFolder
from demur_server.store import records
from demur_server.store.base import Counting, Totals
from demur_server.store.link import Link
from demur_server.store.postgres import PostgresLink
from demur_server.store.sqlite import SqliteLink
from demur_server.store.worker import Clerk


def acknowledge_before_commit() -> None:
    """Each commit happens when the next one is due."""
    for kind in (SqliteLink, PostgresLink):
        _replace(kind, "count", _hasty(kind.count))


def _hasty(original: Callable[..., set[int]]) -> Callable[..., set[int]]:
    waiting: dict[int, Any] = {}

    def count(link: Any, changes: Any) -> set[int]:
        due = waiting.pop(id(link), None)
        waiting[id(link)] = changes
        return original(link, due) if due else set()

    return count


def forget_the_index_on_reopen() -> None:
    """Sums and numbers are read again, and who sent what is not."""
    original = Clerk._recalled

    def recalled(self: Clerk, link: Link, row: records.RoundRow) -> Counting:
        empty = Counting(sums_length=0)
        empty.reports = original(self, link, row).reports
        return empty

    _replace(Clerk, "_recalled", recalled)


def forget_the_key_on_reopen() -> None:
    """A round's digests are compared under another key after a restart."""

    def find(self: KeyFolder, round_hash: bytes) -> bytes:
        return secrets.token_bytes(32)

    _replace(KeyFolder, "find", find)


def publish_one_shard() -> None:
    """Whoever closes a round reads only what it has counted itself."""
    original = Clerk.close_round

    def close_round(self: Clerk, link: Link, round_hash: bytes, *, void: bool) -> Totals:
        original(self, link, round_hash, void=void)
        row = self._row(link, round_hash)
        mine = records.shard_totals(link.sql, row, shard=link.shard)
        return Totals(reports=mine.reports, conflicts=mine.conflicts, sums=mine.sums, closed=True)

    _replace(Clerk, "close_round", close_round)


def count_what_conflicts() -> None:
    """Other bytes under a known id are added to the sums all the same."""
    original = Counting.admit

    def admit(self: Counting, batch: Any, **options: Any) -> Any:
        dispositions, fresh = original(self, batch, **options)
        for row, disposition in enumerate(dispositions):
            if disposition == 3:
                self.sums += batch.tally(batch.words[[row]])
        return dispositions, fresh

    _replace(Counting, "admit", admit)


def _replace(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


BUGS: dict[str, Callable[[], None]] = {
    bug.__name__: bug
    for bug in (
        acknowledge_before_commit,
        forget_the_index_on_reopen,
        forget_the_key_on_reopen,
        publish_one_shard,
        count_what_conflicts,
    )
}
