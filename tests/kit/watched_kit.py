"""People of whom something could show: importable from the processes that tests start."""

import time
from dataclasses import dataclass
from typing import final

import numpy as np

from demur_proto.arrays import Values
from demur_proto.queries import Feature

KINDS = ("active", "exhausted", "erring", "late")
ROUNDS = 5


@final
@dataclass(frozen=True)
class Person:
    """Somebody of one kind: a data source, and a population of one."""

    kind: str
    slot_s: float
    devices: int = 1
    periods: int = ROUNDS
    features: tuple[str, ...] = ("x",)

    def evaluate(self, feature: Feature, devices: slice = slice(0, 1)) -> Values:
        if self.kind == "erring":
            raise LookupError("no such row")
        if self.kind == "late":
            time.sleep(1.5 * self.slot_s)
        always = self.kind != "active"
        return np.array([[float(always or feature.parameters["period"] == 1)]])

    def part(self, devices: slice) -> "Person":
        raise NotImplementedError

    def shuffled(self, rng: np.random.Generator) -> "Person":
        raise NotImplementedError


@final
@dataclass(frozen=True)
class People:
    """As many of each kind as there are, for processes of their own."""

    kinds: tuple[str, ...]
    slot_s: float
    periods: int = ROUNDS
    features: tuple[str, ...] = ("x",)

    @property
    def devices(self) -> int:
        return len(self.kinds)

    def evaluate(self, feature: Feature, devices: slice) -> Values:
        return np.ones((len(range(self.devices)[devices]), 1))

    def part(self, devices: slice) -> Person:
        [kind] = self.kinds[devices]
        return Person(kind, self.slot_s)

    def shuffled(self, rng: np.random.Generator) -> "People":
        raise NotImplementedError
