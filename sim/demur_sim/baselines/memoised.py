"""Memoised answers, given again and again through fresh noise: RAPPOR and its relatives.

A device draws an answer to each value it may have once, and keeps it (first noise). In every round
it sends the answer to its present value through fresh noise (second noise), so that the same answer does
not look the same. What one report shows is the chain of both, what all reports of a value show the
first noise alone. When a value changes, another answer takes over: how often that is, and when, is
hidden by the second noise only, and comes out in time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from demur_proto.arrays import Flags, Integers, Vector, Words
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.symbols import check_range
from demur_proto.mechanisms.unary import Flip
from demur_proto.outward import ceil_float
from demur_sim.baselines.chains import (
    Noise,
    bits_chain,
    check_memoised,
    frequencies_of,
    largest_own,
    log_up,
    response,
    run_memoised,
    symbols_chain,
)
from demur_sim.baselines.design import Estimates, Protection, odds_of
from demur_sim.baselines.memo import Memo

REFERENCE = "there is no category in any round, which for yes and no is always no"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoisedUnary:
    """L-SUE and L-OSUE: a code of a bit for each category, remembered bit by bit.

        first noise: SUE, p₁ = e^(ε∞/2)/(e^(ε∞/2) + 1), q₁ = 1 − p₁, or OUE, p₁ = ½, q₁ = 1/(e^ε∞ + 1)
        second noise: a bit is kept with probability p₂, turned with q₂ = 1 − p₂
        chain: p = p₁p₂ + (1 − p₁)q₂,  q = q₁p₂ + (1 − q₁)q₂,  p(1 − q)/((1 − p)q) = e^ε₁

    p₂ is the largest that keeps ε₁, as a multiple of 2^-53; so are p₁ and q₁. `forever` and `once` are
    between two categories, as in the papers. By zero-out one bit differs, and each costs less.

    Raises:
        ParameterError: a field is outside its range, or ε₁ is not below ε∞.

    Source: Erlingsson, Pihur & Korolova 2014, arXiv:1407.6981 (basic RAPPOR, which is L-SUE); Arcolezi,
    Couchot, Al Bouna & Xiao 2022, arXiv:2111.04636 (L-OSUE). With e^(ε∞/2) = 3, p₁ is ¾; a chain with
    p = 3/5 has (3/2)² = e^ε₁:

    >>> from math import log
    >>> design = MemoisedUnary(
    ...     horizon=8, forever=2 * log(3), once=2 * log(1.5), first=Flip.SYMMETRIC
    ... )
    >>> round(float(design.kept.own), 9), round(float(design.chain.own), 9)
    (0.75, 0.6)
    """

    horizon: int  #: T; from 1 to 2^20
    categories: int = 1  #: k, null not counted; from 1 to 200
    forever: float  #: ε∞, of any number of reports about one category; nats
    once: float  #: ε₁, of one report; nats
    first: Flip  #: symmetric for L-SUE, optimised for L-OSUE
    kept: Noise = field(init=False)  #: p₁ and q₁
    fresh: Noise = field(init=False)  #: p₂ and q₂

    def __post_init__(self) -> None:
        check_memoised(self.horizon, self.categories, forever=self.forever, once=self.once)
        if not isinstance(self.first, Flip):
            raise ParameterError("first", self.first, "a Flip")
        kept = _first_noise(self.first, odds_of(self.forever))
        most = odds_of(self.once)
        own = largest_own(lambda p: bits_chain(kept, response(p, others=1)).two_bits <= most)
        object.__setattr__(self, "kept", kept)
        object.__setattr__(self, "fresh", response(own, others=1))

    @property
    def chain(self) -> Noise:
        """The chain of both noises, p and q: what one report shows."""
        return bits_chain(self.kept, self.fresh)

    @property
    def guarantee(self) -> Protection:
        """Bounds for who changes: k bits in each of T reports, given what is remembered."""
        anybody = ceil_float(self.horizon * self.categories * Fraction(self.fresh.bit_epsilon))
        steady = self.kept.bit_epsilon
        pair = steady if self.categories == 1 else log_up(self.kept.two_bits)
        return Protection(
            rounds=self.horizon,
            epsilon=anybody,
            delta=0.0,
            pair_epsilon=anybody,
            pair_delta=0.0,
            report_epsilon=self.chain.bit_epsilon,
            steady_epsilon=min(steady, anybody),
            steady_pair_epsilon=min(pair, anybody),
            reference=REFERENCE,
        )

    def memo(self, people: int, *, rng: np.random.Generator) -> Memo:
        """What so many new devices remember: a code for null and each category [n, k + 1, k]."""
        check_integer("people", people, 1)
        k = self.categories
        bits = rng.random((people, k + 1, k)) < float(self.kept.other)
        for category in range(k):
            bits[:, category + 1, category] = rng.random(people) < float(self.kept.own)
        return Memo(kept=bits.astype(np.uint8))

    def reports(self, symbols: Integers, memo: Memo, *, rng: np.random.Generator) -> Words:
        """Device half: symbols [n], 0 for null, to codes [n, k] of one round."""
        check_range("symbols", symbols, categories=self.categories)
        memo.check((len(symbols), self.categories + 1, self.categories), below=2)
        bits = memo.kept[np.arange(len(symbols)), symbols]
        turned = rng.random(bits.shape) >= float(self.fresh.own)
        return (bits ^ turned).astype(np.int64)

    def frequencies(self, reports: Words) -> tuple[Vector, Vector]:
        """Server half: codes [n, k] to fractions [k] and their standard errors [k]."""
        return frequencies_of(reports.sum(axis=0), self.chain, people=len(reports))

    def estimates(
        self, states: Iterable[Flags], *, rng: np.random.Generator, memo: Memo | None = None
    ) -> Estimates:
        """Run it; see `Baseline`. `memo` is what the devices remember of an earlier run."""
        return run_memoised(self, states, rng=rng, memo=memo)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoisedResponse:
    """L-GRR: a symbol, remembered through randomised response and sent through it again.

    Symbols are the k categories and null, s = k + 1 in all. With p₁ = e^ε∞/(e^ε∞ + s − 1) and
    q = (1 − p)/(s − 1) for both noises, one report is the chain

        p = p₁p₂ + (s − 1)q₁q₂,   q = p₁q₂ + q₁p₂ + (s − 2)q₁q₂,   p/q = e^ε₁

    s − 2 symbols lead from one symbol to another by way of a third, and s − 1 lead back by way of
    another. The paper's p₂ leaves them out, so that with more than two symbols a report of its ε₁
    is not ε₁-private; here p₂ is the largest, as a multiple of 2^-53, that is.

    Raises:
        ParameterError: a field is outside its range, or ε₁ is not below ε∞.

    Source: Arcolezi, Couchot, Al Bouna & Xiao 2022, arXiv:2111.04636; the chain is summed above. Two
    symbols, p₁ = ¾: p = 3/5 has the odds 3/2.

    >>> from math import log
    >>> design = MemoisedResponse(horizon=8, forever=log(3), once=log(1.5))
    >>> round(float(design.kept.own), 9), round(float(design.chain.own), 9)
    (0.75, 0.6)
    """

    horizon: int  #: T; from 1 to 2^20
    categories: int = 1  #: k, null not counted; from 1 to 200
    forever: float  #: ε∞, of any number of reports about one symbol; nats
    once: float  #: ε₁, of one report; nats
    kept: Noise = field(init=False)  #: p₁ and q₁
    fresh: Noise = field(init=False)  #: p₂ and q₂

    def __post_init__(self) -> None:
        check_memoised(self.horizon, self.categories, forever=self.forever, once=self.once)
        others = self.categories
        most, most_kept = odds_of(self.once), odds_of(self.forever)
        kept = response(largest_own(lambda p: p * others <= most_kept * (1 - p)), others=others)

        def fits(own: Fraction) -> bool:
            chain = symbols_chain(kept, response(own, others=others), symbols=others + 1)
            return chain.own <= most * chain.other

        object.__setattr__(self, "kept", kept)
        object.__setattr__(self, "fresh", response(largest_own(fits), others=others))

    @property
    def chain(self) -> Noise:
        """The chain of both noises, p and q: what one report shows."""
        return symbols_chain(self.kept, self.fresh, symbols=self.categories + 1)

    @property
    def guarantee(self) -> Protection:
        """Bounds for who changes: each of T reports, given what is remembered."""
        anybody = ceil_float(self.horizon * Fraction(self.fresh.symbol_epsilon))
        steady = min(self.kept.symbol_epsilon, anybody)
        return Protection(
            rounds=self.horizon,
            epsilon=anybody,
            delta=0.0,
            pair_epsilon=anybody,
            pair_delta=0.0,
            report_epsilon=self.chain.symbol_epsilon,
            steady_epsilon=steady,
            steady_pair_epsilon=steady,
            reference=REFERENCE,
        )

    def memo(self, people: int, *, rng: np.random.Generator) -> Memo:
        """What so many new devices remember: a symbol for each symbol [n, k + 1]."""
        check_integer("people", people, 1)
        symbols = np.tile(np.arange(self.categories + 1), (people, 1))
        return Memo(kept=self._response(symbols, self.kept, rng).astype(np.uint8))

    def reports(self, symbols: Integers, memo: Memo, *, rng: np.random.Generator) -> Words:
        """Device half: symbols [n], 0 for null, to symbols [n, 1] of one round."""
        check_range("symbols", symbols, categories=self.categories)
        memo.check((len(symbols), self.categories + 1), below=self.categories + 1)
        own = memo.kept[np.arange(len(symbols)), symbols].astype(np.int64)
        return self._response(own[:, None], self.fresh, rng)

    def frequencies(self, reports: Words) -> tuple[Vector, Vector]:
        """Server half: symbols [n, 1] to fractions [k] and their standard errors [k]."""
        counts = np.bincount(reports[:, 0], minlength=self.categories + 1)[1:]
        return frequencies_of(counts, self.chain, people=len(reports))

    def estimates(
        self, states: Iterable[Flags], *, rng: np.random.Generator, memo: Memo | None = None
    ) -> Estimates:
        """Run it; see `Baseline`. `memo` is what the devices remember of an earlier run."""
        return run_memoised(self, states, rng=rng, memo=memo)

    def _response(self, own: Words, noise: Noise, rng: np.random.Generator) -> Words:
        other = rng.integers(self.categories, size=own.shape)
        other += other >= own
        return np.where(rng.random(own.shape) < float(noise.own), own, other)


def _first_noise(flip: Flip, most: Fraction) -> Noise:
    """SUE or OUE, of the largest e^ε∞ between two categories that is not above `most`."""
    if flip is Flip.SYMMETRIC:
        own = largest_own(lambda p: p * p <= most * (1 - p) ** 2)
        return response(own, others=1)
    quiet = largest_own(lambda p: p <= most * (1 - p))
    return Noise(own=Fraction(1, 2), other=1 - quiet)
