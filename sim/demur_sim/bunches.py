"""Neighbouring blocks that decide about running counts together, in fewer and longer steps.

What is drawn is drawn block by block, as everywhere, so that no release depends on it.
"""

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from demur_client.decision import covered
from demur_proto.arrays import Flags, Integers, Words
from demur_proto.round import Prefix
from demur_proto.study import Policy, Study
from demur_sim.counting_rounds import Counting
from demur_sim.populations import Population
from demur_sim.portions import BLOCK
from demur_sim.presence import BlockTurnout
from demur_sim.round_sums import evaluate_query
from demur_sim.running_block import EVERYBODY, RunningBlock
from demur_sim.scenario import Refusal

BUNCH = 16 * BLOCK  #: people in a bunch


@final
class Bunch:
    """The filters of several blocks side by side, and their running counts.

    Args:
        study: the contract.
        population: everybody.
        people: which of them; whole blocks, and the last one may be smaller.
        refusal: what a refused device does.
        turnouts: of each of the blocks; None where everybody takes part.
    """

    def __init__(
        self,
        study: Study,
        population: Population,
        *,
        people: slice,
        refusal: Refusal,
        turnouts: Sequence[BlockTurnout | None],
    ) -> None:
        self._study = study
        self._population = population
        self._people = people
        self._silent = refusal is Refusal.SILENT
        self._turnouts = [turnout for turnout in turnouts if turnout is not None]
        devices = people.stop - people.start
        self.remaining: Integers = np.full(devices, study.budget_units, dtype=np.int64)
        self.refused: Flags = np.zeros(devices, dtype=np.bool_)
        self.covered: Flags = np.zeros(devices, dtype=np.bool_)  # see `Device.ever_covered`
        self.running: dict[int, RunningBlock] = {}  # by the first round of a count
        self._answered: tuple[Counting, Words, Flags] | None = None

    def places(self) -> list[slice]:
        """Where each of the blocks is in these arrays."""
        devices = len(self.refused)
        return [slice(at, min(at + BLOCK, devices)) for at in range(0, devices, BLOCK)]

    def contribution(self, counting: Counting, place: slice, *, number: int) -> tuple[Words, Flags]:
        """What one of the blocks put in [n, 1], zero for cover; and who of it sends [n].

        Of people who do not take part it means nothing.

        The first one that is asked decides for all of them, and what is left is kept until the last
        one has asked.

        Args:
            counting: of the round, one object for all blocks.
            place: of the block, as `places` has it.
            number: of the round.
        """
        if self._answered is None or self._answered[0] is not counting:
            self._answered = (counting, *self._answer(counting, number))
        _, words, sent = self._answered
        if place.stop == len(self.refused):
            self._answered = None
        return words[place], sent[place]

    def _answer(self, counting: Counting, number: int) -> tuple[Words, Flags]:
        query, segment = counting.step.query, counting.step.query.segment
        if isinstance(query, Prefix):
            values = evaluate_query(query, self._population, self._people)
        else:
            values = counting.flags[self._people].astype(np.float64)[:, None]
        here: slice | Integers = EVERYBODY
        if self._turnouts:
            here = np.flatnonzero(np.concatenate([each.of(number)[0] for each in self._turnouts]))
        if segment.count not in self.running:
            self.running[segment.count] = RunningBlock(len(self.refused))
        running = self.running[segment.count]
        words, given, whole = running.answer(
            counting.step,
            values,
            here,
            remaining=self.remaining,
            refused=self.refused,
            budget_units=counting.budget_units,
            retire=self._study.policy is not Policy.SKIP,
        )
        self.covered |= ~whole
        if segment.over:
            running.begin()
        sent = given if self._silent else np.ones_like(given)
        return words if given.all() else covered(words, given), sent

    def held(self, weights: Mapping[int, int]) -> Integers:
        """What is held for words to come, budget units; weights by the first round of a count."""
        held: Integers = np.zeros_like(self.remaining)
        for count, running in self.running.items():
            held += weights[count] * running.planned
        return held
