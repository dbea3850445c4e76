"""A round as a running collector holds it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio

from demur_proto.definition import Defined
from demur_proto.errors import NotFoundError, ParameterError
from demur_proto.hmacs import PreparedKey
from demur_proto.mechanisms.base import Mechanism
from demur_proto.mechanisms.of_round import room_of
from demur_proto.round import Round
from demur_proto.study import Study

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
