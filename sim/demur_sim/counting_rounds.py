"""Rounds of running counts as a cohort sees them: each goes on with its count."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from demur_proto.arrays import Flags
from demur_proto.continual.following import check_follows, counting_of
from demur_proto.errors import ParameterError
from demur_proto.round import CountingQuery, HaltCount, Round
from demur_sim.running_block import Step

Flagged = Callable[[], Flags]
"""Who of a cohort's people ever answered some study with less than their value [devices]."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Counting:
    """What all blocks need of a round of a running count."""

    step: Step
    budget_units: int  #: T, worked out once: it takes exact fractions
    flags: Flags  #: who halted in the other study, of a halt count [devices]; else of nobody


@final
class CountingRounds:
    """What has been asked in each running count so far.

    Args:
        beside: of other studies of the same people, by their hash, who halted in them.
        devices: how many people.
        budget_units: T of their study.
    """

    def __init__(self, beside: Mapping[bytes, Flagged], *, devices: int, budget_units: int) -> None:
        self._beside = beside
        self._devices = devices
        self._budget_units = budget_units
        self._last: dict[int, Round] = {}  # of each count, by its first round

    def of(self, asked: Round) -> Counting | None:
        """What a round needs if it asks for a running count, after checking it as a device does.

        Raises:
            ParameterError: it does not go on with its count, or these people are not in the study
                of which it counts halts; or it passes over a position, which a collector never does.
        """
        query = counting_of(asked)
        if query is None:
            return None
        count = query.segment.count
        if count in self._last:
            check_follows(asked, self._last[count])
        _check_no_gap(query, self._last.get(count))
        flags: Flags = np.zeros(self._devices, dtype=np.bool_)
        if isinstance(query, HaltCount):
            if query.halted_study not in self._beside:
                name = query.halted_study.hex()[:16]
                raise ParameterError("halted_study", name, "a study that these people are in")
            flags = self._beside[query.halted_study]()
        self._last[count] = asked
        step = Step.of(query, weight=asked.weight)
        return Counting(step=step, budget_units=self._budget_units, flags=flags)

    def go_on(self, last: Round) -> None:
        """Go on after this round, as if it had been asked here."""
        query = counting_of(last)
        if query is not None:
            self._last[query.segment.count] = last

    def weights(self) -> dict[int, int]:
        """The weight of each count's rounds, by its first round."""
        return {first: asked.weight for first, asked in self._last.items()}


def _check_no_gap(query: CountingQuery, last: Round | None) -> None:
    """Refuse a round that does not follow at once: arrays keep no account of words never asked for."""
    before = None if last is None else counting_of(last)
    if query.segment.place != (1 if before is None else before.segment.place + 1):
        due = 1 if before is None else before.segment.following().position
        expected = f"{due}: a cohort is asked at every one"
        raise ParameterError("position", query.segment.position, expected)
