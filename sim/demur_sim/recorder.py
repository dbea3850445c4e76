"""Records what a watcher of the network sees of each device: no words, no ids."""

import numpy as np

from demur_proto.arrays import Integers
from demur_proto.errors import StateError
from demur_sim.observer import Messages


class Recorder:
    """Messages of a fixed set of devices, round by round."""

    def __init__(self, *, devices: int) -> None:
        self._devices = devices
        self._rounds: dict[int, _Row] = {}

    def received(self, round_number: int) -> None:
        """A round reached these devices; it counts as watched even if none of them answers."""
        self._row(round_number)

    def sent(self, round_number: int, people: Integers, *, size_bytes: int, time_s: float) -> None:
        """These devices each sent a message of this size, this long after the round came."""
        row = self._row(round_number)
        row.sent[people] = True
        row.size_bytes[people] = size_bytes
        row.time_s[people] = time_s

    def answered(self, round_number: int, people: Integers, dispositions: Integers) -> None:
        """The collector answered them."""
        self._row(round_number).status[people] = dispositions

    def messages(self) -> Messages:
        """All of it, rounds in order.

        Raises:
            StateError: no round was watched.
        """
        if not self._rounds:
            raise StateError("no round was watched, so there are no messages")
        rows = [self._rounds[number] for number in sorted(self._rounds)]
        return Messages(
            sent=np.stack([row.sent for row in rows], axis=1),
            size_bytes=np.stack([row.size_bytes for row in rows], axis=1),
            status=np.stack([row.status for row in rows], axis=1),
            time_s=np.stack([row.time_s for row in rows], axis=1),
        )

    def _row(self, round_number: int) -> "_Row":
        return self._rounds.setdefault(round_number, _Row(self._devices))


class _Row:
    """One round."""

    def __init__(self, devices: int) -> None:
        self.sent = np.zeros(devices, dtype=np.bool_)
        self.size_bytes = np.zeros(devices, dtype=np.int32)
        self.status = np.zeros(devices, dtype=np.int8)
        self.time_s = np.full(devices, np.nan)
