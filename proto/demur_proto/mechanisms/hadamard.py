"""Hadamard response: an index on which one's category's row of a Hadamard matrix is likely +1."""

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from demur_proto.arrays import Flags, Integers, Values, Words
from demur_proto.bits import BitSource
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.finite_pairs import Level, levels_renyi, levels_zcdp
from demur_proto.mechanisms.base import Estimate
from demur_proto.mechanisms.frequencies import (
    Frequencies,
    check_categories,
    check_sums,
    check_symbol,
    fits,
    tally_indices,
)
from demur_proto.mechanisms.randomised_response import Symbols
from demur_proto.mechanisms.symbols import check_range, check_symbols, encode_categories
from demur_proto.mechanisms.thresholds import (
    Threshold,
    check_epsilon,
    halves,
    keep_threshold,
)
from demur_proto.mechanisms.unary import half_levels
from demur_proto.noise import Sampler

ROWS = 1 << 14  #: drawn at a time, so that all passes over them stay in the processor's cache


@dataclass(frozen=True, slots=True, kw_only=True)
class HadamardResponse:
    """Report an index y below K, the power of two above k, with row s of H likely +1 there.

    H is Sylvester's matrix, H[s, y] = (−1)^(ones in the binary s AND y). For symbol s, y is uniform on
    the half where H[s, y] = +1 with probability

        p = e^ε/(e^ε + 1) as an integer threshold,

    and uniform on the other half otherwise. Row 0 is +1 everywhere: for null, y is uniform. Two rows
    agree on half of all y, so what supports one category says nothing of another: q = 1/2, and
    cover reports debias to 0.

    Neighbour: zero-out, the category replaced by null: a report costs ln((e^ε + 1)/2) as pure DP, as
    OUE does. Between two categories no likelihood ratio exceeds e^ε, exactly. Accounting is all or
    nothing: a category costs what every other one costs, null costs 0.

    A report is one word, y; the server adds up how often each y came, K numbers.

    Raises:
        ParameterError: a field is outside its range.

    Source: Acharya, Sun & Zhang 2019, arXiv:1802.04705.

    >>> mechanism = HadamardResponse(categories=4, epsilon=math.log(3))
    >>> mechanism.sums_length, round(float(mechanism.frequencies.own), 12)
    (8, 0.75)
    """

    categories: int  #: k; 2 to 2^20
    epsilon: float  #: ε between two categories, nats; 1e-9 to 50
    keep: Threshold = field(init=False, repr=False)  #: p

    def __post_init__(self) -> None:
        check_categories(self.categories)
        check_epsilon(self.epsilon)
        object.__setattr__(self, "keep", keep_threshold(self.epsilon, others=1))

    @property
    def report_length(self) -> int:
        """Words in one report: the index."""
        return 1

    @property
    def sums_length(self) -> int:
        """K, the numbers that the server keeps: how often each index was reported."""
        return 1 << self.categories.bit_length()

    @property
    def largest(self) -> int:
        """The largest charge that `encode` gives, in round weights."""
        return 1

    @property
    def frequencies(self) -> Frequencies:
        """How reports support categories: p, and one half, exactly."""
        return Frequencies(own=self.keep.probability, other=Fraction(1, 2))

    def encode(self, values: Values, sampler: Sampler) -> tuple[Words, Integers]:
        """Device half, before the decision: categories [n, 1] to symbols [n, 1]; see `symbols`."""
        return encode_categories(values, categories=self.categories)

    def randomise(self, words: Words, sampler: BitSource) -> Words:
        """Device half, after the decision: symbols [n, 1] to indices [n, 1].

        Raises:
            ParameterError: the words are no symbols.
        """
        symbols = check_symbols(words, categories=self.categories)
        reports: Integers = np.empty(len(symbols), dtype=np.int64)
        self._draw(symbols, sampler, out=reports)
        return reports[:, None]

    def draw(self, symbols: Symbols, source: BitSource) -> Symbols:
        """`randomise` on narrow integers: symbols [n], each from 0 to k, to indices [n].

        Raises:
            ParameterError: a symbol is none.
        """
        check_range("symbols", symbols, categories=self.categories)
        indices: Symbols = np.empty(len(symbols), dtype=np.int32)
        self._draw(symbols, source, out=indices)
        return indices

    def _draw(
        self, symbols: Symbols | Integers, source: BitSource, *, out: Symbols | Integers
    ) -> None:
        """Indices for symbols [n] into `out` [n].

        A uniform index lies in the wanted half or in the other; flipping the lowest bit that s has
        maps one half onto the other, one to one. Null has no bit to flip.
        """
        shift = np.uint32(33 - self.sums_length.bit_length())
        for at in range(0, len(symbols), ROWS):
            own = symbols[at : at + ROWS].astype(np.int32, copy=False)
            wanted = self.keep.draw(source, len(own))
            index = (halves(source, len(own)) >> shift).view(np.int32)
            odd = (np.bitwise_count(index & own) & np.uint8(1)).view(np.bool_)  # H[s, y] = −1
            lowest = own & -own
            lowest *= odd == wanted
            index ^= lowest
            out[at : at + ROWS] = index

    def valid(self, reports: Words) -> Flags:
        """Server half: which reports [n, 1] are indices [n]."""
        if not fits(reports, length=self.report_length):
            return np.zeros(len(reports), dtype=np.bool_)
        inside: Flags = (reports[:, 0] >= 0) & (reports[:, 0] < self.sums_length)
        return inside

    def tally(self, reports: Words) -> Integers:
        """Server half: how often each index was reported [K]; exact.

        Raises:
            ParameterError: the reports are not indices [n, 1].
        """
        return tally_indices(reports, size=self.sums_length)

    def estimate(self, sums: Integers, *, reports: int) -> Estimate:
        """Server half: index counts [K] of n reports to people with each category [k].

        Raises:
            ParameterError: the sums are not K counts that add up to n, or there is no report.
        """
        check_sums(sums, length=self.sums_length)
        check_integer("reports", reports, 1)
        if int(sums.sum()) != reports:
            raise ParameterError("sums", int(sums.sum()), f"{reports} in all, one for each report")
        supports = (reports + walsh_hadamard(sums)[1 : self.categories + 1]) // 2
        return self.frequencies.estimate(supports, reports=reports)

    def charge_renyi(self, symbol: int, *, order: float) -> float:
        """D_α of releasing this symbol against null, nats, rounded up. Secret.

        Args:
            symbol: 0 for null, or a category plus 1.
            order: α; 1 (KL) or more, or infinite.

        Raises:
            ParameterError: an argument is outside its range.

        >>> mechanism = HadamardResponse(categories=2, epsilon=1.0)
        >>> round(mechanism.charge_renyi(1, order=math.inf), 9)  # ln((e + 1)/2)
        0.620114507
        """
        check_symbol(symbol, self.categories)
        charge = levels_renyi(self._levels, order=order)
        return charge if symbol else 0.0

    def charge_zcdp(self, symbol: int) -> float:
        """ρ of releasing this symbol against null, nats, rounded up. Secret."""
        check_symbol(symbol, self.categories)
        return levels_zcdp(self._levels) if symbol else 0.0

    def charge_pure(self, symbol: int) -> float:
        """ε of releasing this symbol against null, nats, rounded up. Secret."""
        return self.charge_renyi(symbol, order=math.inf)

    @property
    def _levels(self) -> tuple[Level, ...]:
        """A category against null: the two halves, p and 1 − p against one half each."""
        return half_levels(self.epsilon)


def walsh_hadamard(counts: Integers) -> Integers:
    """Σ_y H[s, y] counts[y] for every s [K], K a power of two; exact.

    >>> walsh_hadamard(np.array([3, 1, 0, 0]))
    array([4, 2, 4, 2])
    """
    result = counts.astype(np.int64)
    width = 1
    while width < len(result):
        pairs = result.reshape(-1, 2, width)
        result = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).ravel()
        width *= 2
    return result
