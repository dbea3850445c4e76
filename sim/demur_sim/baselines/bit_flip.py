"""dBitFlipPM: some bits of a histogram, remembered and sent as they are."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from demur_proto.arrays import Flags, Integers, Vector, Words
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.symbols import check_range
from demur_proto.mechanisms.thresholds import check_epsilon
from demur_sim.baselines.chains import (
    MOST_CATEGORIES,
    Noise,
    largest_own,
    log_up,
    response,
    run_memoised,
)
from demur_sim.baselines.design import Estimates, Protection, check_horizon, odds_of
from demur_sim.baselines.memo import Memo

UNSENT = -1  #: in a report, for a category whose bit this device does not tell


@dataclass(frozen=True, slots=True, kw_only=True)
class BitFlip:
    """Tell d bits of k: whether one's category is the one or other of d that were drawn beforehand.

    A device draws d of k categories without regard to its data, for good. For each of them, and
    for all other values together, it draws d bits once: a bit that is set stays with probability
    p = e^(ε/2)/(e^(ε/2) + 1), one that is not becomes one with q = 1 − p. It sends, round after round, the
    bits of the present value as they are, so no number of reports tells more of a value than
    one. A change of the value shows as soon as a bit differs, and nothing makes that deniable.

    Raises:
        ParameterError: a field is outside its range, or d above k.

    Source: Ding, Kulkarni & Yekhanin 2017, arXiv:1712.01524, d-bit flip with permanent memoisation.
    With e^(ε/2) = 3:

    >>> round(float(BitFlip(horizon=8, epsilon=2 * math.log(3)).noise.own), 9)
    0.75
    """

    horizon: int  #: T; from 1 to 2^20
    categories: int = 1  #: k, null not counted; from 1 to 200
    bits: int = 1  #: d; from 1 to k
    epsilon: float  #: ε between two categories, by two bits; nats
    noise: Noise = field(init=False)  #: p and q

    def __post_init__(self) -> None:
        check_horizon(self.horizon)
        check_integer("categories", self.categories, 1, MOST_CATEGORIES)
        check_integer("bits", self.bits, 1, self.categories)
        check_epsilon(self.epsilon)
        most = odds_of(self.epsilon)
        own = largest_own(lambda p: p * p <= most * (1 - p) ** 2)
        object.__setattr__(self, "noise", response(own, others=1))

    @property
    def guarantee(self) -> Protection:
        """Exact: none for who changes, if there is more than one round to change between."""
        steady = self.noise.bit_epsilon
        pair = steady if self.bits == 1 else log_up(self.noise.two_bits)
        return Protection(
            rounds=self.horizon,
            epsilon=math.inf if self.horizon > 1 else steady,
            delta=0.0,
            pair_epsilon=math.inf if self.horizon > 1 else pair,
            pair_delta=0.0,
            report_epsilon=steady,
            steady_epsilon=steady,
            steady_pair_epsilon=pair,
            reference="there is no category in any round, which for yes and no is always no",
        )

    def memo(self, people: int, *, rng: np.random.Generator) -> Memo:
        """What so many new devices remember [n, d + 2, d].

        Row 0: which categories they tell, from 1. Row 1: the bits of null and of all categories that
        they do not tell. Row j + 1: those of the j-th that they do.
        """
        check_integer("people", people, 1)
        d = self.bits
        order = rng.random((people, self.categories)).argsort(axis=1)[:, :d] + 1
        bits = rng.random((people, d + 1, d)) < float(self.noise.other)
        for j in range(d):
            bits[:, j + 1, j] = rng.random(people) < float(self.noise.own)
        return Memo(kept=np.concatenate([order[:, None, :], bits], axis=1).astype(np.uint8))

    def reports(self, symbols: Integers, memo: Memo, *, rng: np.random.Generator) -> Words:
        """Device half: symbols [n], 0 for null, to reports [n, k] of one round; nothing is drawn."""
        del rng
        check_range("symbols", symbols, categories=self.categories)
        people = len(symbols)
        memo.check((people, self.bits + 2, self.bits), below=MOST_CATEGORIES + 1)
        told = memo.kept[:, 0].astype(np.int64) - 1
        if told.min() < 0 or told.max() >= self.categories or memo.kept[:, 1:].max() > 1:
            raise ParameterError("memo", "other numbers", f"of {self.categories} categories")
        mine = told == (symbols - 1)[:, None]
        row = np.where(mine.any(axis=1), mine.argmax(axis=1) + 2, 1)
        reports: Words = np.full((people, self.categories), UNSENT, dtype=np.int64)
        who = np.arange(people)
        reports[who[:, None], told] = memo.kept[who, row]
        return reports

    def frequencies(self, reports: Words) -> tuple[Vector, Vector]:
        """Server half: reports [n, k] to fractions [k] and their standard errors [k].

            f = k/(d n) Σ over who tells it of (bit − q)/(p − q)

        A bit's part X in n f has E X = 1 or 0 and E X² = (k/d) (v/(p − q)² + that), v = p(1 − p) = q(1 − q);
        the error takes f, cut to between 0 and 1, for the fraction.
        """
        people = len(reports)
        own, other = float(self.noise.own), float(self.noise.other)
        told = reports != UNSENT
        more = self.categories / self.bits
        parts = np.where(told, reports - other, 0.0).sum(axis=0) / (own - other)
        estimate = more * parts / people
        share = np.clip(estimate, 0, 1)
        spread = more * (own * other / (own - other) ** 2 + share) - share
        return estimate, np.sqrt(spread / people)

    def estimates(
        self, states: Iterable[Flags], *, rng: np.random.Generator, memo: Memo | None = None
    ) -> Estimates:
        """Run it; see `Baseline`. `memo` is what the devices remember of an earlier run."""
        return run_memoised(self, states, rng=rng, memo=memo)
