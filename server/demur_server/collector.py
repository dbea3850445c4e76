"""The collector: studies, rounds and releases, without a socket."""

import logging
import secrets
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import anyio
import numpy as np

from demur_proto.definition import (
    REPORT_ID_BYTES,
    Defined,
    read_round,
    read_study,
    study_hash_of,
)
from demur_proto.errors import NotFoundError, StateError, WireError
from demur_proto.hmacs import PreparedKey, hmac_by_message, prepare_key
from demur_proto.mechanisms.base import Mechanism
from demur_proto.mechanisms.of_round import mechanism_for, room_of
from demur_proto.release import Release
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.v1 import report_pb2
from demur_proto.words import decode_words
from demur_server.estimates import make_release
from demur_server.store.base import Batch, Store, Totals

logger = logging.getLogger(__name__)


class _Bell:
    """Wakes everyone who waits for news."""

    def __init__(self) -> None:
        self.next = anyio.Event()  # take it before looking, or news may slip in between

    def ring(self) -> None:
        self.next.set()
        self.next = anyio.Event()


@dataclass(slots=True, repr=False)
class _Asking:
    """A round as the collector runs it."""

    study: Defined[Study]
    asked: Defined[Round]
    mechanism: Mechanism
    room: int  # how many more reports fit before 64-bit sums could overflow
    digest_key: PreparedKey | None  # destroyed when the round closes
    open: bool = True
    news: _Bell = field(default_factory=_Bell)  # rings when reports were counted, and at the end


class Collector:
    """Fixes studies, puts rounds to devices, counts reports and publishes releases."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._studies: dict[bytes, Defined[Study]] = {}
        self._rounds: dict[bytes, list[_Asking]] = {}  # by study, in order of their numbers
        self._by_hash: dict[bytes, _Asking] = {}
        self._changing = anyio.Lock()  # studies, rounds and releases change one at a time
        # One bell for each kind of news: a report must not wake every device that is visiting.
        self._opened = _Bell()
        self._published = _Bell()

    async def create_study(self, definition: bytes) -> Defined[Study]:
        """Fix a study; the same definition again changes nothing.

        Raises:
            WireError, UnsupportedError: the bytes define no study that this version does.
        """
        study = read_study(definition)
        async with self._changing:
            if study.hash not in self._studies:
                await self._store.add_study(study)
                self._studies[study.hash] = study
                self._rounds[study.hash] = []
                logger.info("study %s: fixed", study.hash.hex()[:16])
        return study

    def study(self, study_hash: bytes) -> Defined[Study]:
        """A study by its hash; an empty hash means the only one.

        Raises:
            NotFoundError: there is no such study, or not exactly one.
        """
        if not study_hash and len(self._studies) == 1:
            return next(iter(self._studies.values()))
        try:
            return self._studies[study_hash]
        except KeyError:
            wanted = study_hash.hex()[:16] if study_hash else "(the only one)"
            raise NotFoundError(
                f"there is no study {wanted}; this collector has {len(self._studies)}"
            ) from None

    async def open_round(self, definition: bytes) -> Defined[Round]:
        """Put a question to every device; the same definition again changes nothing.

        Raises:
            WireError, UnsupportedError: the bytes define no round that this version answers.
            NotFoundError: its study does not exist.
            StateError: its number is not the next one.
        """
        study = self.study(study_hash_of(definition))
        asked = read_round(definition, study=study)
        async with self._changing:
            if asked.hash in self._by_hash:
                return asked
            rounds = self._rounds[study.hash]
            if asked.value.number != len(rounds) + 1:
                raise StateError(
                    f"round {asked.value.number} cannot open: the next number is {len(rounds) + 1}"
                )
            mechanism = mechanism_for(study.value, asked.value)
            await self._store.add_round(asked, sums_length=mechanism.sums_length)
            asking = _Asking(
                study=study,
                asked=asked,
                mechanism=mechanism,
                room=room_of(mechanism),
                digest_key=prepare_key(secrets.token_bytes(32)),
            )
            rounds.append(asking)
            self._by_hash[asked.hash] = asking
        logger.info("study %s: round %d open", study.hash.hex()[:16], asked.value.number)
        self._opened.ring()
        return asked

    async def submit(self, round_hash: bytes, report_ids: bytes, words: bytes) -> list[int]:
        """Count reports; one disposition each, in order.

        One bad report never fails the others: words that the round's mechanism could not have made
        render their report INVALID, while ids or words of the wrong length in all make the whole call
        fail.

        Args:
            round_hash: the round they answer.
            report_ids: 16 bytes each.
            words: of each report as the round's word type says, report by report.

        Raises:
            NotFoundError: no such round.
            WireError: the lengths do not fit.
        """
        asking = self._asking(round_hash)
        reports, rest = divmod(len(report_ids), REPORT_ID_BYTES)
        if rest:
            raise WireError(f"report ids are 16 bytes each, got {len(report_ids)} in all")
        asked = asking.asked.value
        length = asking.mechanism.report_length
        rows, sound = decode_words(words, asked.word_type, reports=reports, dimension=length)
        key = asking.digest_key
        if not asking.open or key is None:
            return [report_pb2.DISPOSITION_ROUND_CLOSED] * reports
        identities = [
            report_ids[at : at + REPORT_ID_BYTES]
            for at in range(0, len(report_ids), REPORT_ID_BYTES)
        ]
        size = asked.word_type.report_bytes(length)
        payloads = [words[at : at + size] for at in range(0, len(words), size)]
        valid = asking.mechanism.valid(rows) & sound
        good = range(reports) if valid.all() else np.flatnonzero(valid).tolist()
        batch = Batch(
            report_ids=[identities[i] for i in good],
            digests=hmac_by_message(key, [payloads[i] for i in good]),
            words=rows if len(good) == reports else rows[good],
            tally=asking.mechanism.tally,
        )
        admitted = await self._admit(asking, batch)
        if len(good) == reports:
            return admitted
        dispositions = [int(report_pb2.DISPOSITION_INVALID)] * reports
        for i, disposition in zip(good, admitted, strict=True):
            dispositions[i] = disposition
        return dispositions

    async def _admit(self, asking: _Asking, batch: Batch) -> list[int]:
        # Room is taken before the store is asked and given back after, so that batches on their way
        # at the same time cannot overflow the sums together.
        if len(batch.report_ids) > asking.room:
            return [report_pb2.DISPOSITION_INVALID] * len(batch.report_ids)
        asking.room -= len(batch.report_ids)
        dispositions = await self._store.admit(asking.asked.hash, batch)
        accepted = dispositions.count(report_pb2.DISPOSITION_ACCEPTED)
        asking.room += len(dispositions) - accepted
        conflicts = dispositions.count(report_pb2.DISPOSITION_CONFLICT)
        if conflicts:
            logger.error(
                "round %d: %d reports under a known id carried other bytes",
                asking.asked.value.number,
                conflicts,
            )
        if accepted:
            asking.news.ring()
        return dispositions

    async def totals(self, round_hash: bytes) -> Totals:
        """How many reports a round has, and whether it is closed. Its sums stay inside.

        Raises:
            NotFoundError: no such round.
        """
        self._asking(round_hash)
        return await self._store.totals(round_hash)

    async def close_round(self, round_hash: bytes, *, after_reports: int = 0) -> Release:
        """Close a round, for ever, and publish its release; again, the same release.

        Args:
            round_hash: the round.
            after_reports: wait until this many reports are counted.

        Raises:
            NotFoundError: no such round.
        """
        asking = self._asking(round_hash)
        while asking.open:
            news = asking.news.next
            if (await self._store.totals(round_hash)).reports >= after_reports:
                break
            await news.wait()
        async with self._changing:
            totals = await self._store.close_round(round_hash)
            asking.open = False
            asking.digest_key = None
            asking.news.ring()
            sums = totals.sums.tolist()
            release = await self._store.add_release(
                make_release(asking.study, asking.asked, sums, reports=totals.reports)
            )
        logger.info(
            "study %s: round %d closed with %d reports, %s withheld",
            asking.study.hash.hex()[:16],
            release.number,
            release.reports,
            release.withheld,
        )
        self._published.ring()
        return release

    async def release(self, round_hash: bytes) -> Release:
        """The release of a closed round.

        Raises:
            NotFoundError: no such round.
            StateError: the round is still open.
        """
        asking = self._asking(round_hash)
        number = asking.asked.value.number
        for release in await self._store.releases(asking.study.hash, from_number=number):
            if release.round_hash == round_hash:
                return release
        raise StateError(f"round {number} is still open")

    async def open_rounds(
        self, study_hash: bytes, *, after_round: int = 0
    ) -> AsyncGenerator[Defined[Round], None]:
        """Every open round with a larger number, then each new one, without end."""
        rounds = self._rounds[self.study(study_hash).hash]
        at = min(after_round, len(rounds))
        while True:
            news = self._opened.next
            while at < len(rounds):
                asking = rounds[at]
                at += 1
                if asking.open and asking.asked.value.number > after_round:
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
        return len(self._rounds[self.study(study_hash).hash])

    async def close_due_rounds(self) -> None:
        """Close each round when the time it names has come; runs until cancelled."""
        while True:
            now_ms = time.time() * 1000
            news = self._opened.next
            due = [a for a in self._by_hash.values() if a.open and a.asked.value.close_unix_ms]
            for asking in due:
                if asking.asked.value.close_unix_ms <= now_ms:
                    await self.close_round(asking.asked.hash)
            waits = [a.asked.value.close_unix_ms - now_ms for a in due if a.open]
            with anyio.move_on_after(max(0.0, min(waits) / 1000) if waits else None):
                await news.wait()

    def _asking(self, round_hash: bytes) -> _Asking:
        try:
            return self._by_hash[round_hash]
        except KeyError:
            raise NotFoundError(f"there is no round {round_hash.hex()[:16]}") from None
