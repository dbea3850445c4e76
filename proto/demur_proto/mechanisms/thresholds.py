"""Probabilities as integer thresholds: t of 2¹²⁸, so that what a likelihood ratio is can be proven.

A uniform integer u below 2¹²⁸ is below t with probability t/2¹²⁸ exactly. Its digits are drawn as they
are needed: 32 bits decide but once in 2³², then 64 more, then the last 32. A float appears nowhere.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from demur_proto.arrays import Bits, Flags, Integers
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.samplers.base import BitSource

BITS = 128  #: of a threshold: ε = 50 still leaves e^(−50) 55 binary digits
WHOLE = 1 << BITS
LEAST_EPSILON = 1e-9  #: nats; below, p and q would be too close to estimate anything
MOST_EPSILON = 50.0  #: nats; above, it would promise nothing
MOST_BOUND = 1 << 31  #: of `uniform_below`

FULL_PASSES = 6  #: of `draw_bits` before it looks which words are done: 37 % then are

_GUARD = 320  # binary digits of `exp_below` while it works


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """The probability t/2¹²⁸.

    Raises:
        ParameterError: t is not an integer from 0 to 2¹²⁸.

    >>> Threshold(numerator=1 << 126).probability
    Fraction(1, 4)
    """

    numerator: int  #: t

    def __post_init__(self) -> None:
        check_integer("numerator", self.numerator, 0, WHOLE)

    @property
    def probability(self) -> Fraction:
        """t/2¹²⁸, exactly."""
        return Fraction(self.numerator, WHOLE)

    def complement(self) -> "Threshold":
        """The probability 1 − t/2¹²⁸."""
        return Threshold(numerator=WHOLE - self.numerator)

    def draw(self, source: BitSource, count: int) -> Flags:
        """Independent flags [count], each set with this probability, exactly."""
        check_integer("count", count, 0)
        if self.numerator == WHOLE:
            return np.ones(count, dtype=np.bool_)
        first = self.numerator >> (BITS - 32)
        digits = halves(source, count)
        flags: Flags = digits < first
        tied = np.flatnonzero(digits == first)
        if tied.size:
            flags[tied] = self.after_tie(source, tied.size)
        return flags

    def draw_bits(self, source: BitSource, count: int) -> Bits:
        """Words [count] of 64 independent bits, each set with this probability, exactly.

        All bits compare u and t at once, one binary digit of each a pass from the highest on. A bit
        is settled when the digits differ, so every pass leaves half as many open, and only words
        with an open bit go on.
        """
        check_integer("count", count, 0)
        if self.numerator == WHOLE:
            return np.full(count, ~np.uint64(0), dtype=np.uint64)
        result: Bits = np.zeros(count, dtype=np.uint64)
        found = result  # of those words that still have an open bit, in the order of `rows`
        rows: Integers | None = None  # which they are; None for all
        open_bits: Bits = np.full(count, ~np.uint64(0), dtype=np.uint64)
        rest, passes = self.numerator, 0
        while rest and open_bits.size:
            digit, rest, passes = rest >> (BITS - 1), (rest << 1) & (WHOLE - 1), passes + 1
            random = source.words(open_bits.size)
            if digit:  # a zero in u makes it smaller, and settles the bit as set
                settled = ~random
                settled &= open_bits
                found |= settled
                open_bits &= random
            else:
                open_bits &= ~random
            if passes >= FULL_PASSES and passes % 2 == 0:
                going = np.flatnonzero(open_bits)
                if rows is not None:
                    result[rows] = found
                rows = going if rows is None else rows[going]
                found, open_bits = found[going], open_bits[going]
        if rows is not None:
            result[rows] = found
        return result  # where u = t so far, and nothing but zeros are left of t, u is not below

    def after_tie(self, source: BitSource, count: int) -> Flags:
        """Whether u is below t [count], given that their first 32 bits are the same."""
        middle = np.uint64((self.numerator >> 32) & ((1 << 64) - 1))
        last = self.numerator & ((1 << 32) - 1)
        digits = source.words(count)
        flags: Flags = digits < middle
        tied = np.flatnonzero(digits == middle)
        if tied.size:
            flags[tied] = halves(source, tied.size) < last
        return flags


def exp_below(exponent: float) -> Fraction:
    """A rational just below e^x: relative distance under 2⁻²⁵⁰.

    Every term of the series is positive and every division rounds down, so nothing can carry the
    result above; the argument is halved until the series is short, and the result squared.

    Args:
        exponent: x; 0 ≤ x ≤ 50.

    Raises:
        ParameterError: it is outside its range.

    >>> below = exp_below(1.0)
    >>> float(below) == math.e, below < Fraction(271828182845904523536029, 10**23)
    (True, True)
    """
    if not (_is_number(exponent) and 0 <= exponent <= MOST_EPSILON):
        raise ParameterError("exponent", exponent, f"between 0 and {MOST_EPSILON:g}")
    halvings = 8
    x = int(Fraction(exponent) * (1 << _GUARD)) >> halvings
    term = total = 1 << _GUARD
    power = 1
    while term:
        term = (term * x >> _GUARD) // power
        total += term
        power += 1
    for _ in range(halvings):
        total = total * total >> _GUARD
    return Fraction(total, 1 << _GUARD)


def keep_threshold(epsilon: float, *, others: int | Fraction) -> Threshold:
    """The largest threshold that may keep a symbol, so that no likelihood ratio exceeds e^ε.

    A symbol is kept with probability p = t/2¹²⁸, or becomes one of `others` different ones with
    (1 − p)/others each; t is the largest integer with p·others/(1 − p) ≤ `exp_below`(ε), so at
    most e^ε.

    Args:
        epsilon: ε, nats; above 0 and at most 50.
        others: how many symbols there are besides, or by what ratio they are more; above 0 and at
            most 2³¹.

    Raises:
        ParameterError: an argument is outside its range.

    >>> keep = keep_threshold(1.0, others=1)
    >>> odds = keep.probability / keep.complement().probability
    >>> float(odds) == math.e, odds <= exp_below(1.0)
    (True, True)
    """
    if not (_is_number(epsilon) and 0 < epsilon <= MOST_EPSILON):
        raise ParameterError("epsilon", epsilon, f"above 0 and at most {MOST_EPSILON:g} nats")
    if not (type(others) in (int, Fraction) and 0 < others <= MOST_BOUND):
        raise ParameterError("others", others, "an exact ratio above 0 and at most 2^31")
    odds = exp_below(epsilon)
    return Threshold(numerator=math.floor(WHOLE * odds / (odds + others)))


def uniform_below(bound: int, source: BitSource, count: int) -> Integers:
    """Independent integers [count], each uniform on 0 to bound − 1, exactly.

    The high half of 32 random bits times the bound; the few low halves that would favour some
    results are drawn again.

    Args:
        bound: 1 to 2³¹.
        source: of the bits.
        count: how many.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Lemire 2019, arXiv:1805.10941, Algorithm 5.
    """
    return narrow_below(bound, source, count).astype(np.int64)


Halves = np.ndarray[tuple[int], np.dtype[np.uint32]]  # shape [n], uniform half words


def narrow_below(bound: int, source: BitSource, count: int) -> Halves:
    """`uniform_below` as 32-bit integers."""
    check_integer("bound", bound, 1, MOST_BOUND)
    random = halves(source, count)
    if bound & (bound - 1) == 0:  # a power of two: its high bits
        shift = 33 - bound.bit_length()
        return random >> np.uint32(shift) if shift < 32 else np.zeros_like(random)
    product = np.multiply(random, np.uint64(bound), dtype=np.uint64)
    low = product.astype(np.uint32)
    product >>= np.uint64(32)
    result = product.astype(np.uint32)
    again = np.flatnonzero(low < np.uint32((1 << 32) % bound))
    if again.size:
        result[again] = narrow_below(bound, source, again.size)
    return result


def halves(source: BitSource, count: int) -> Halves:
    """Independent uniform half words [count]."""
    check_integer("count", count, 0)
    words = source.words((count + 1) // 2)
    return words.view(np.uint32)[:count]


def check_epsilon(epsilon: float) -> None:
    """Refuse an ε that is no float from 1e-9 to 50 nats; NaN too."""
    if not (_is_number(epsilon) and LEAST_EPSILON <= epsilon <= MOST_EPSILON):
        raise ParameterError(
            "epsilon", epsilon, f"between {LEAST_EPSILON:g} and {MOST_EPSILON:g} nats"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)
