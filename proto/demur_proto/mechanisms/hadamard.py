"""Hadamard response: an index on which one's category's row of a Hadamard matrix is likely +1."""

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from demur_proto.accounting.divergences import Level
from demur_proto.arrays import Integers, Words
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import CONFIDENCE, Estimate
from demur_proto.mechanisms.categorical import (
    Frequencies,
    OneIndex,
    Symbols,
    check_categories,
    check_sums,
    tally_indices,
)
from demur_proto.mechanisms.thresholds import (
    Threshold,
    check_epsilon,
    halves,
    keep_threshold,
)
from demur_proto.mechanisms.unary import half_levels
from demur_proto.samplers.base import BitSource


@dataclass(frozen=True, slots=True, kw_only=True)
class HadamardResponse(OneIndex):
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

    >>> import math
    >>> mechanism = HadamardResponse(categories=4, epsilon=math.log(3))
    >>> mechanism.sums_length, round(float(mechanism.frequencies.own), 12)
    (8, 0.75)
    >>> round(math.exp(mechanism.charge_renyi(1, order=math.inf)), 9)  # (e^ε + 1)/2
    2.0
    """

    keep: Threshold = field(init=False, repr=False)  #: p

    def __post_init__(self) -> None:
        check_categories(self.categories)
        check_epsilon(self.epsilon)
        object.__setattr__(self, "keep", keep_threshold(self.epsilon, others=1))

    @property
    def indices(self) -> int:
        """K, the power of two above k."""
        return 1 << self.categories.bit_length()

    @property
    def sums_length(self) -> int:
        """Numbers that the server keeps: how often each index was reported."""
        return self.indices

    @property
    def frequencies(self) -> Frequencies:
        """How reports support categories: p, and one half, exactly."""
        return Frequencies(own=self.keep.probability, other=Fraction(1, 2))

    def _drawn(self, own: Symbols, source: BitSource) -> Symbols:
        """Indices for symbols [n].

        A uniform index lies in the wanted half or in the other; flipping the lowest bit that s has
        maps one half onto the other, one to one. Null has no bit to flip.
        """
        shift = np.uint32(33 - self.indices.bit_length())
        wanted = self.keep.draw(source, len(own))
        index: Symbols = (halves(source, len(own)) >> shift).view(np.int32)
        odd = (np.bitwise_count(index & own) & np.uint8(1)).view(np.bool_)  # H[s, y] = −1
        lowest = own & -own
        lowest *= odd == wanted
        index ^= lowest
        return index

    def tally(self, reports: Words) -> Integers:
        """Server half: how often each index was reported [K]; exact.

        Raises:
            ParameterError: the reports are not indices [n, 1].
        """
        return tally_indices(reports, size=self.indices)

    def estimate(self, sums: Integers, *, reports: int, confidence: float = CONFIDENCE) -> Estimate:
        """Server half: index counts [K] of n reports to people with each category [k].

        Raises:
            ParameterError: the sums are not K counts that add up to n, or there is no report.
        """
        check_sums(sums, length=self.sums_length)
        check_integer("reports", reports, 1)
        if int(sums.sum()) != reports:
            raise ParameterError("sums", int(sums.sum()), f"{reports} in all, one for each report")
        supports = (reports + walsh_hadamard(sums)[1 : self.categories + 1]) // 2
        return self.frequencies.estimate(supports, reports=reports, confidence=confidence)

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
