"""A round as a running collector holds it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import anyio

from demur_proto.errors import NotFoundError, ParameterError
from demur_proto.mechanisms.base import Mechanism
from demur_proto.queries.registry import mechanism_for, room_of
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.wire.definition import Defined
from demur_proto.wire.hmacs import PreparedKey, prepare_key

SHORTEST_HASH = 8  #: bytes, 16 digits, by which a round may be named


class Bell:
    """Wakes everyone who waits for news."""

    def __init__(self) -> None:
        self._next: anyio.Event | None = None  # there is none while nobody waits

    @property
    def next(self) -> anyio.Event:
        """The next news. Take it before looking, or news may slip in between."""
        if self._next is None:
            self._next = anyio.Event()
        return self._next

    def ring(self) -> None:
        """There is news."""
        if self._next is not None:
            self._next.set()
            self._next = None


@dataclass(slots=True, repr=False)
class LiveRound:
    """A round as the collector runs it."""

    study: Defined[Study]
    asked: Defined[Round]
    mechanism: Mechanism
    open_access: bool  #: its reports are taken from anybody
    digest_key: PreparedKey | None  #: destroyed when the round closes; lost, it can only close
    void: bool = False  #: its key was lost: what it has counted must not be released
    open: bool = True
    released: bool = False
    conflicts: int = 0  #: reports refused as CONFLICT by this process
    alarm_at: int = 1  #: how many of them are the next line in the log
    news: Bell = field(default_factory=Bell)  #: rings when reports were counted, and at the end
    capacity: int = field(init=False)  #: reports that fit before a sum could leave 64 bits
    report_bytes: int = field(init=False)  #: of the words of one report

    def __post_init__(self) -> None:
        self.capacity = room_of(self.mechanism)
        word_type = self.asked.value.word_type
        self.report_bytes = word_type.report_bytes(self.mechanism.report_length)

    @property
    def answerable(self) -> bool:
        """Whether reports are counted."""
        return self.open and self.digest_key is not None

    @property
    def number(self) -> int:
        """The round's number within its study."""
        return self.asked.value.number


def find_round(rounds: Mapping[bytes, LiveRound], begins: bytes) -> LiveRound:
    """The one round whose hash begins with these bytes.

    Args:
        rounds: all, by their hashes.
        begins: the hash, or its first `SHORTEST_HASH` bytes or more.

    Raises:
        NotFoundError: there is none.
        ParameterError: there are several.
    """
    if begins in rounds:
        return rounds[begins]
    found = []
    if len(begins) >= SHORTEST_HASH:
        found = [each for known, each in rounds.items() if known.startswith(begins)]
    if not found:
        raise NotFoundError(f"there is no round {begins.hex()[:16]}")
    if len(found) > 1:
        raise ParameterError("round", begins.hex(), f"longer: {len(found)} rounds begin so")
    return found[0]


# Which studies and rounds a running collector knows of.


class Register:
    """Studies in the order in which they were fixed, and their rounds in order of their numbers."""

    def __init__(self) -> None:
        self._studies: dict[bytes, Defined[Study]] = {}
        self._rounds: dict[bytes, list[LiveRound]] = {}  # by study
        self._by_hash: dict[bytes, LiveRound] = {}

    def __contains__(self, known: bytes) -> bool:
        """Whether this is the hash of a study or a round."""
        return known in self._by_hash or known in self._studies

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
            number = len(self._studies)
            if study_hash:
                missing = f"there is no study {study_hash.hex()[:16]}; this collector has {number}"
            elif number:
                missing = f"there is no study without a hash: this collector has {number}, name one"
            else:
                missing = "there is no study yet; a first question makes one"
            raise NotFoundError(missing) from None

    def studies(self) -> list[Defined[Study]]:
        """Every study."""
        return list(self._studies.values())

    def find(self, round_hash: bytes) -> LiveRound:
        """A round by its hash.

        Raises:
            NotFoundError: there is no such round.
        """
        try:
            return self._by_hash[round_hash]
        except KeyError:
            raise NotFoundError(f"there is no round {round_hash.hex()[:16]}") from None

    def find_begun(self, begins: bytes) -> LiveRound:
        """The one round whose hash begins with these bytes; see `find_round`.

        Raises:
            NotFoundError, ParameterError: there is none, or there are several.
        """
        return find_round(self._by_hash, begins)

    def rounds(self, study_hash: bytes) -> list[LiveRound]:
        """The rounds of a study; it grows as they open.

        Raises:
            NotFoundError: as `study`.
        """
        return self._rounds[self.study(study_hash).hash]

    def every_round(self) -> Collection[LiveRound]:
        """Those of all studies, in the order in which they were taken up."""
        return self._by_hash.values()

    def take_up_study(self, study: Defined[Study]) -> None:
        """Know of a study."""
        self._studies[study.hash] = study
        self._rounds[study.hash] = []

    def take_up_round(
        self,
        study: Defined[Study],
        asked: Defined[Round],
        key: bytes | None,
        *,
        open_access: bool,
    ) -> LiveRound:
        """Know of a round, the next of its study.

        Args:
            study: a known one.
            asked: the round.
            key: that of its digests; None: it is lost.
            open_access: its reports are taken from anybody.
        """
        live = LiveRound(
            study=study,
            asked=asked,
            mechanism=mechanism_for(study.value, asked.value, kept=True),
            open_access=open_access,
            digest_key=None if key is None else prepare_key(key),
        )
        self._rounds[study.hash].append(live)
        self._by_hash[asked.hash] = live
        return live
