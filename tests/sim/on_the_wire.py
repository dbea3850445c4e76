"""What a watcher of the network keeps of one real device."""

import math
import time

import numpy as np

from demur_sim.engine.worker import Recorder


class OnTheWire:
    """A watcher of one device, who writes down what `Recorder` keeps of all."""

    def __init__(self, recorder: Recorder, index: int) -> None:
        self._recorder = recorder
        self._who = np.array([index])
        self._received_s = math.nan

    def received(self, round_number: int) -> None:
        self._recorder.received(round_number)
        self._received_s = time.monotonic()

    def sent(self, round_number: int, *, size_bytes: int) -> None:
        waited = time.monotonic() - self._received_s
        self._recorder.sent(round_number, self._who, size_bytes=size_bytes, time_s=waited)

    def answered(self, round_number: int, *, disposition: int) -> None:
        self._recorder.answered(round_number, self._who, np.array([disposition]))
