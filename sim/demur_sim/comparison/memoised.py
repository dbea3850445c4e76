"""What a device remembers: answers that were drawn once for each value, and are given ever after."""

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from demur_proto.accounting.numerics import ceil_float, up
from demur_proto.arrays import Flags, Integers, Vector, Words
from demur_proto.checks import check_integer
from demur_proto.errors import DataError, ParameterError
from demur_proto.mechanisms.categorical import check_range
from demur_proto.mechanisms.thresholds import check_epsilon
from demur_proto.mechanisms.unary import Flip
from demur_sim.comparison.design import (
    Estimates,
    Protection,
    check_horizon,
    checked_rounds,
    largest_probability,
    odds_of,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Memo:
    """Small integers that all devices of a simulation keep: secret, and not to be drawn again.

    A device that draws anew after a restart gives two answers where the promise is about one.

    Raises:
        ParameterError: `kept` is no array of bytes with at least one row.
    """

    kept: npt.NDArray[np.uint8] = field(repr=False)  #: [n, ...], read-only

    def __post_init__(self) -> None:
        kept = np.array(self.kept)
        if kept.dtype != np.uint8 or kept.ndim < 2 or not len(kept):
            raise ParameterError("kept", f"{kept.dtype} {kept.shape}", "bytes of shape [n, ...]")
        kept.flags.writeable = False
        object.__setattr__(self, "kept", kept)

    def save(self, path: Path) -> None:
        """Write it; the file is there as a whole or not at all."""
        new = path.with_name(f"{path.name}.new")
        with new.open("wb") as file:
            np.save(file, self.kept, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Memo":
        """Read it again.

        Raises:
            DataError: it is not there, or not what `save` wrote.
        """
        try:
            with path.open("rb") as file:
                kept = np.load(file, allow_pickle=False)
            return cls(kept=kept)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path}: expected a memo as `Memo.save` writes it: {error}") from None

    def check(self, shape: tuple[int, ...], *, below: int) -> None:
        """Refuse a memo of other devices or of another design.

        Args:
            shape: what it must be, [n, ...].
            below: all numbers in it are smaller.

        Raises:
            ParameterError: it is not that.
        """
        if self.kept.shape != shape or self.kept.max() >= below:
            found = f"numbers to {self.kept.max()} of shape {list(self.kept.shape)}"
            raise ParameterError("memo", found, f"numbers below {below} of shape {list(shape)}")


# Two noises one after the other, as exact fractions: what a report shows, and what its sums say.

MOST_CATEGORIES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """A bit or symbol that is kept with probability `own`, and appears for another with `other`."""

    own: Fraction
    other: Fraction

    @property
    def bit_epsilon(self) -> float:
        """ε of one bit that is set or not, nats, rounded up."""
        return log_up(max(self.own / self.other, (1 - self.other) / (1 - self.own)))

    @property
    def two_bits(self) -> Fraction:
        """e^ε of a bit that is set and one that is not, against the reverse."""
        return self.own / self.other * (1 - self.other) / (1 - self.own)

    @property
    def symbol_epsilon(self) -> float:
        """ε of one symbol against another, nats, rounded up."""
        return log_up(self.own / self.other)


def log_up(ratio: Fraction) -> float:
    """The logarithm of a ratio of at least 1, rounded up.

    >>> round(log_up(Fraction(3)) - math.log(3), 9)
    0.0
    """
    return up(math.log1p(float(ratio - 1)))


def bits_chain(first: Noise, second: Noise) -> Noise:
    """A bit through both: p = p₁p₂ + (1 − p₁)q₂, q = q₁p₂ + (1 − q₁)q₂.

    >>> half = Noise(own=Fraction(3, 4), other=Fraction(1, 4))
    >>> bits_chain(half, half).own
    Fraction(5, 8)
    """
    return Noise(
        own=first.own * second.own + (1 - first.own) * second.other,
        other=first.other * second.own + (1 - first.other) * second.other,
    )


def symbols_chain(first: Noise, second: Noise, *, symbols: int) -> Noise:
    """A symbol of s: p = p₁p₂ + (s − 1)q₁q₂, q = p₁q₂ + q₁p₂ + (s − 2)q₁q₂.

    >>> third = Noise(own=Fraction(1, 2), other=Fraction(1, 4))
    >>> symbols_chain(third, third, symbols=3)
    Noise(own=Fraction(3, 8), other=Fraction(5, 16))
    """
    both = first.other * second.other
    return Noise(
        own=first.own * second.own + (symbols - 1) * both,
        other=first.own * second.other + first.other * second.own + (symbols - 2) * both,
    )


def response(own: Fraction, *, others: int) -> Noise:
    """Randomised response with so many other symbols."""
    return Noise(own=own, other=(1 - own) / others)


def largest_own(fits: Callable[[Fraction], bool]) -> Fraction:
    """The largest multiple of 2^-53 below 1 that fits, if all below do."""
    return Fraction(largest_probability(lambda m: fits(Fraction(m, 1 << 53))))


class Memoised(Protocol):
    """A design whose devices remember."""

    @property
    def horizon(self) -> int:
        """T."""

    def memo(self, people: int, *, rng: np.random.Generator) -> Memo:
        """What so many new devices remember."""

    def reports(self, symbols: Integers, memo: Memo, *, rng: np.random.Generator) -> Words:
        """Device half: symbols [n], 0 for null, to reports [n, w] of one round."""

    def frequencies(self, reports: Words) -> tuple[Vector, Vector]:
        """Server half: reports to fractions [k] and their standard errors [k]."""


def run_memoised(
    design: Memoised, states: Iterable[Flags], *, rng: np.random.Generator, memo: Memo | None
) -> Estimates:
    """A whole run in which yes is the first category and no is null; see `Baseline.estimates`."""
    fractions, errors = [], []
    for state in checked_rounds(states, horizon=design.horizon):
        if memo is None:
            memo = design.memo(len(state), rng=rng)
        reports = design.reports(state.astype(np.int64), memo, rng=rng)
        estimate, error = design.frequencies(reports)
        fractions.append(estimate[0])
        errors.append(error[0])
    return Estimates(fraction=np.array(fractions), standard_error=np.array(errors))


def frequencies_of(counts: Integers, noise: Noise, *, people: int) -> tuple[Vector, Vector]:
    """How often each category was reported [k] to fractions [k] and their standard errors [k].

        f = (count/n − q)/(p − q),   error² = ( f p(1 − p) + (1 − f) q(1 − q) )/( n (p − q)² )

    with f cut to between 0 and 1 in the second: the error is exact where p + q = 1, else estimated.
    """
    own, other = float(noise.own), float(noise.other)
    apart = float(noise.own - noise.other)
    estimate = (counts / people - other) / apart
    share = np.clip(estimate, 0, 1)
    spread = share * own * (1 - own) + (1 - share) * other * (1 - other)
    return estimate, np.sqrt(spread / people) / apart


def check_memoised(horizon: int, categories: int, *, forever: float, once: float) -> None:
    """Refuse what is no design: its rounds, categories, ε∞ and ε₁."""
    check_horizon(horizon)
    check_integer("categories", categories, 1, MOST_CATEGORIES)
    for name, epsilon in (("forever", forever), ("once", once)):
        try:
            check_epsilon(epsilon)
        except ParameterError as error:
            raise ParameterError(name, epsilon, error.expected) from None
    if not once < forever:
        raise ParameterError("once", once, f"below the {forever:g} nats of all reports")


# Memoised answers, given again and again through fresh noise: RAPPOR and its relatives.
#
# A device draws an answer to each value it may have once, and keeps it (first noise). In every round
# it sends the answer to its present value through fresh noise (second noise), so that the same answer does
# not look the same. What one report shows is the chain of both, what all reports of a value show the
# first noise alone. When a value changes, another answer takes over: how often that is, and when, is
# hidden by the second noise only, and comes out in time.

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


# dBitFlipPM: some bits of a histogram, remembered and sent as they are.

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
