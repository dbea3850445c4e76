"""The collector: studies, rounds and releases, without a socket."""

import logging
import time
from collections.abc import AsyncGenerator
from functools import partial

import anyio

from demur_proto.errors import DemurError, StateError, StorageError
from demur_proto.queries import ModelQuery
from demur_proto.queries.registry import mechanism_for
from demur_proto.release import Release
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.wire.definition import Defined, read_round, read_study, study_hash_of
from demur_server.collector.estimates import Segments, make_release
from demur_server.collector.intake import LARGE_BYTES, Intake
from demur_server.collector.keys import Keys, MemoryKeys
from demur_server.collector.models import Models
from demur_server.collector.open_rounds import Bell, LiveRound, Register
from demur_server.store.base import Counted, KeptRound, Store, Totals

RETRY_S = 1.0  #: how long a close waits for a store in trouble before it tries again

logger = logging.getLogger(__name__)


class Collector:
    """Fixes studies, puts rounds to devices, counts reports and publishes releases.

    Args:
        store: what must not be forgotten.
        keys: what must not be in the store; by default they last as long as the process.
        open_access: take reports from anybody. Then nothing keeps one person from sending many,
            and a minimum cohort counts report ids instead of people.
    """

    def __init__(
        self, store: Store, *, keys: Keys | None = None, open_access: bool = False
    ) -> None:
        self._store = store
        self._keys: Keys = MemoryKeys() if keys is None else keys
        self._open_access = open_access
        self._known = Register()
        self.models = Models(store)  #: what gradient rounds may name
        self._segments = Segments(store)
        self._changing = anyio.Lock()  # studies, rounds and releases change one at a time
        # One bell for each kind of news: a report must not wake every device that is visiting.
        self._opened = Bell()
        self._published = Bell()
        self.intake = Intake(store, self._known.find, open_access=open_access)  #: takes reports

    @property
    def open_access(self) -> bool:
        """Whether reports are taken from anybody."""
        return self._open_access

    async def create_study(self, definition: bytes) -> Defined[Study]:
        """Fix a study; the same definition again changes nothing.

        Raises:
            WireError, UnsupportedError: the bytes define no study that this version does.
        """
        study = read_study(definition)
        async with self._changing:
            with anyio.CancelScope(shield=True):  # store and memory change together
                if study.hash not in self._known:
                    await self._store.add_study(study)
                    self._known.take_up_study(study)
                    logger.info("study %s: fixed", study.hash.hex()[:16])
        return study

    def study(self, study_hash: bytes) -> Defined[Study]:
        """A study by its hash; an empty hash means the only one.

        Raises:
            NotFoundError: there is no such study, or not exactly one.
        """
        return self._known.study(study_hash)

    def studies(self) -> list[Defined[Study]]:
        """Every study, in the order in which they were fixed."""
        return self._known.studies()

    async def open_round(self, definition: bytes) -> Defined[Round]:
        """Put a question to every device; the same definition again changes nothing.

        Raises:
            WireError, UnsupportedError: the bytes define no round that this version answers.
            NotFoundError: its study does not exist, or the model that it names is not kept.
            ParameterError: its study is not for such questions, or it asks for a running count, and
                breaks its segment.
            StateError: its number is not the next one, or its position in its segment is not.
        """
        study = self.study(study_hash_of(definition))
        asked = read_round(definition, study=study)
        async with self._changing:
            if asked.hash in self._known:
                return asked
            rounds = self._known.rounds(study.hash)
            behind = asked.value.number != len(rounds) + 1
            if behind or self._segments.waits(asked.value, rounds):
                await self._catch_up()  # another collector on the same database may be ahead
            if asked.hash in self._known:
                return asked
            if asked.value.number != len(rounds) + 1:
                raise StateError(
                    f"round {asked.value.number} cannot open: the next number is {len(rounds) + 1}"
                )
            mechanism = mechanism_for(study.value, asked.value)
            self._segments.check(study.value, asked.value, rounds)
            if isinstance(asked.value.query, ModelQuery):
                await self.models.check(asked.value.query)
            with anyio.CancelScope(shield=True):  # store and memory change together
                # The key first: a round without one could only be closed.
                key = await anyio.to_thread.run_sync(self._keys.make, asked.hash)
                try:
                    await self._store.add_round(
                        asked, sums_length=mechanism.sums_length, open_access=self._open_access
                    )
                except StateError:  # one that was kept although its opener was told of trouble
                    await self._catch_up()
                    raise
                self._known.take_up_round(study, asked, key, open_access=self._open_access)
        logger.info("study %s: round %d open", study.hash.hex()[:16], asked.value.number)
        self._opened.ring()
        return asked

    async def counted(self, round_hash: bytes) -> Counted:
        """How many reports a round has, and whether it is closed.

        Raises:
            NotFoundError: no such round.
        """
        self._known.find(round_hash)
        return await self._store.counted(round_hash)

    async def totals(self, round_hash: bytes) -> Totals:
        """The same, with the sums so far, which stay inside.

        Raises:
            NotFoundError: no such round.
        """
        self._known.find(round_hash)
        return await self._store.totals(round_hash)

    async def close_round(self, round_hash: bytes, *, after_reports: int = 0) -> Release:
        """Close a round, for ever, and publish its release; again, the same release.

        Args:
            round_hash: the round's, or its beginning; as `find_round`.
            after_reports: wait until this many reports are counted.

        Raises:
            NotFoundError, ParameterError: as `find_round`.
        """
        asking = self._known.find_begun(round_hash)
        while asking.open:
            news = asking.news.next
            if (await self._store.counted(asking.asked.hash)).reports >= after_reports:
                break
            await news.wait()
        async with self._changing:
            with anyio.CancelScope(shield=True):
                release = await self._close(asking)
        return release

    async def _close(self, asking: LiveRound) -> Release:
        """Close, destroy the key, publish. Wherever this stops, doing it again completes it."""
        round_hash = asking.asked.hash
        totals = await self._store.close_round(round_hash, void=asking.void)
        asking.open = False
        asking.digest_key = None
        asking.news.ring()
        if isinstance(asking.asked.value.query, ModelQuery):
            self.models.let_go(asking.asked.value.query)
        await anyio.to_thread.run_sync(self._keys.destroy, round_hash)
        release = await self._store.release(round_hash)
        if release is None:
            rounds = self._known.rounds(asking.study.hash)
            make = partial(
                make_release,
                asking.study,
                asking.asked,
                totals.sums,
                reports=totals.reports,
                open_access=asking.open_access,
                earlier=await self._segments.earlier(asking, rounds),
            )
            large = totals.sums.nbytes > LARGE_BYTES
            made = await anyio.to_thread.run_sync(make) if large else make()
            release = await self._store.add_release(made)
            logger.info(
                "study %s: round %d closed with %d reports, %s withheld",
                asking.study.hash.hex()[:16],
                release.number,
                release.reports,
                release.withheld,
            )
        asking.released = True
        self._published.ring()
        return release

    async def release(self, round_hash: bytes) -> Release:
        """The release of a closed round.

        Raises:
            NotFoundError: no such round.
            StateError: the round is still open.
        """
        asking = self._known.find(round_hash)
        release = await self._store.release(round_hash)
        if release is None:
            raise StateError(f"round {asking.number} is still open")
        return release

    async def open_rounds(
        self, study_hash: bytes, *, after_round: int = 0
    ) -> AsyncGenerator[Defined[Round], None]:
        """Every open round with a larger number, then each new one, without end."""
        rounds = self._known.rounds(study_hash)
        at = min(after_round, len(rounds))
        while True:
            news = self._opened.next
            while at < len(rounds):
                asking = rounds[at]
                at += 1
                if asking.answerable and asking.number > after_round:
                    yield asking.asked
            await news.wait()

    async def watch_releases(
        self, study_hash: bytes, *, from_number: int = 1
    ) -> AsyncGenerator[Release, None]:
        """Every release from a round's number on, as published, then each new one, without end."""
        study = self.study(study_hash)
        seen: set[int] = set()
        while True:
            news = self._published.next
            for release in await self._store.releases(study.hash, from_number=from_number):
                if release.number not in seen:
                    seen.add(release.number)
                    yield release
            while from_number in seen:  # later ones may have been published before it
                seen.remove(from_number)
                from_number += 1
            await news.wait()

    def rounds_opened(self, study_hash: bytes) -> int:
        """How many rounds a study has had."""
        return len(self._known.rounds(study_hash))

    def rounds(self, study_hash: bytes) -> tuple[LiveRound, ...]:
        """The rounds that a study has had, in order."""
        return tuple(self._known.rounds(study_hash))

    async def close_due_rounds(self) -> None:
        """Close each round when the time it names has come; runs until cancelled.

        Only this looks at a clock. One that is set back closes later, and orders nothing.
        """
        while True:
            now_ms = time.time() * 1000
            news = self._opened.next
            todo = [a for a in self._known.every_round() if not a.released]
            due_ms = [(a.asked.value.close_unix_ms, a) for a in todo if a.asked.value.close_unix_ms]
            for asking in [a for close_ms, a in due_ms if close_ms <= now_ms]:
                try:
                    await self.close_round(asking.asked.hash)
                except StorageError as error:
                    logger.error("round %d is due and cannot close: %s", asking.number, error)
            waits = [
                (close_ms - now_ms) / 1000 if close_ms > now_ms else RETRY_S
                for close_ms, a in due_ms
                if not a.released
            ]
            with anyio.move_on_after(min(waits) if waits else None):
                await news.wait()

    async def refresh(self) -> None:
        """Take up what the store has and this collector does not know; again, changes nothing.

        Call it before serving, so that a restart goes on where the last process stopped: rounds
        that were open count on, and those that were being closed are published. Where several
        collectors share a database, `follow` repeats it.

        An open round whose key is gone, or that was opened with the other kind of access, can only
        be closed: its reports are answered TRY_LATER, and it is not put to devices any more. Without
        its key it is withheld: only an old copy of a store has lost it, and its round may have been
        released since. Two releases that differ by a few reports would show what these said. Where
        several collectors share a database, one that has counted nothing of a round may have had no
        key for it yet, and makes one.

        Raises:
            StorageError: the store or the keys cannot be read.
            WireError, UnsupportedError: the store has a study or round that this version cannot do.
        """
        async with self._changing:
            await self._catch_up()

    async def _catch_up(self) -> None:
        """`refresh`, by whoever may change studies and rounds."""
        with anyio.CancelScope(shield=True):
            for definition in await self._store.studies():
                study = read_study(definition)
                if study.hash not in self._known:
                    self._known.take_up_study(study)
            kept = await self._store.rounds()
            for each in kept:
                await self._take_up(each)
            open_now = {each.round_hash for each in kept if not each.closed}
            for stray in await anyio.to_thread.run_sync(self._keys.rounds):
                if stray not in open_now:
                    await anyio.to_thread.run_sync(self._keys.destroy, stray)

    async def follow(self, *, every_s: float = 1.0) -> None:
        """Keep up with other collectors on the same database; runs until cancelled."""
        while True:
            await anyio.sleep(every_s)
            try:
                await self.refresh()
            except DemurError as error:
                logger.error("cannot follow the other collectors: %s", error)
            for asking in self._known.every_round():
                if asking.open:
                    asking.news.ring()  # others may have counted

    async def _take_up(self, kept: KeptRound) -> None:
        """Bring what is known about one round up to what the store says."""
        if kept.round_hash in self._known:
            asking = self._known.find(kept.round_hash)
        else:
            study = self._known.study(kept.study_hash)
            asked = read_round(kept.definition, study=study)
            key = None if kept.closed else await self._key_of(asked, kept)
            usable = key if kept.open_access == self._open_access else None
            asking = self._known.take_up_round(study, asked, usable, open_access=kept.open_access)
            asking.open = not kept.closed
            # Most likely this is an old copy of a store whose round has been released since.
            asking.void = key is None and asking.open
            self._opened.ring()
        if kept.closed and not asking.released:
            if not kept.released:
                await self._close(asking)
                return
            asking.open = False
            asking.released = True
            asking.digest_key = None  # `refresh` destroys what is left of it
            asking.news.ring()
            self._published.ring()

    async def _key_of(self, asked: Defined[Round], kept: KeptRound) -> bytes | None:
        """The digest key of an open round; None: it is lost."""
        number = asked.value.number
        key = await anyio.to_thread.run_sync(self._keys.find, asked.hash)
        if key is None and kept.shards > 1 and not kept.mine:  # another shard may have opened it
            key = await anyio.to_thread.run_sync(self._keys.make, asked.hash)
        if key is None:
            logger.error(
                "round %d can only be closed, and will be withheld: its digest key is gone", number
            )
        elif kept.open_access != self._open_access:
            logger.error("round %d can only be closed: it was opened with other access", number)
        return key
