"""Unary encodings: one bit for each category, every bit flipped on its own."""

import math
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from demur_proto.accounting.divergences import Level, apart_levels
from demur_proto.arrays import Flags, Integers, Words
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.categorical import (
    Categorical,
    Frequencies,
    check_categories,
    check_range,
    check_reports,
    check_symbols,
    fits,
)
from demur_proto.mechanisms.thresholds import WHOLE, Threshold, check_epsilon, keep_threshold
from demur_proto.samplers.base import BitSource

WORDS = 1 << 14  #: drawn or counted at a time, so that all passes over them stay in the cache

PackedCodes = np.ndarray[
    tuple[int, int], np.dtype[np.uint64]
]  # shape [n, ⌈k/64⌉], lowest bit first


class Flip(StrEnum):
    """How likely a bit is to change."""

    SYMMETRIC = "symmetric"  #: SUE: zeros and ones alike
    OPTIMISED = "optimised"  #: OUE: ones by a fair coin, so that zeros change as rarely as may be


@dataclass(frozen=True, slots=True, kw_only=True)
class UnaryEncoding(Categorical):
    """Report a code of k bits: one's category's bit set, all others not, each flipped at random.

        OUE: a one stays with probability p = 1/2, a zero becomes one with q = 1/(e^ε + 1)
        SUE: p = e^(ε/2)/(e^(ε/2) + 1), q = 1 − p

    as integer thresholds. The code of null has no bit set. Neighbour: zero-out, the category replaced
    by null, so one bit differs, and a report costs ln((e^ε + 1)/2) (OUE) or ε/2 (SUE) as pure DP.
    Two categories differ in two bits, and no likelihood ratio exceeds e^ε, exactly. Accounting is
    all or nothing: a category costs what every other one costs, null costs 0.

    A report is k words, 0 or 1; they travel packed, eight to a byte.

    Raises:
        ParameterError: a field is outside its range.

    Source: Erlingsson, Pihur & Korolova 2014, arXiv:1407.6981 (symmetric); Wang et al. 2017, USENIX
    Security, section 4.3 (optimised).

    >>> mechanism = UnaryEncoding(categories=3, epsilon=math.log(3))
    >>> round(float(mechanism.frequencies.own), 12), round(float(mechanism.frequencies.other), 12)
    (0.5, 0.25)
    >>> round(math.exp(mechanism.charge_renyi(1, order=math.inf)), 9)  # (e^ε + 1)/2
    2.0
    """

    flip: Flip = Flip.OPTIMISED
    one: Threshold = field(init=False, repr=False)  #: p
    zero: Threshold = field(init=False, repr=False)  #: q

    def __post_init__(self) -> None:
        check_categories(self.categories)
        check_epsilon(self.epsilon)
        if not isinstance(self.flip, Flip):
            raise ParameterError("flip", self.flip, "a Flip")
        if self.flip is Flip.OPTIMISED:
            one = Threshold(numerator=WHOLE // 2)
            zero = keep_threshold(self.epsilon, others=1).complement()
        else:
            one = keep_threshold(self.epsilon / 2, others=1)
            zero = one.complement()
        object.__setattr__(self, "one", one)
        object.__setattr__(self, "zero", zero)

    @property
    def report_length(self) -> int:
        """Words in one report: a bit for each category."""
        return self.categories

    @property
    def code_width(self) -> int:
        """Words of 64 bits in one packed report: ⌈k/64⌉."""
        return -(-self.categories // 64)

    @property
    def sums_length(self) -> int:
        """Numbers that the server keeps: how often each bit was set."""
        return self.categories

    @property
    def frequencies(self) -> Frequencies:
        """How reports support categories: p and q, exactly."""
        return Frequencies(own=self.one.probability, other=self.zero.probability)

    def randomise(self, words: Words, sampler: BitSource) -> Words:
        """Device half, after the decision: symbols [n, 1] to codes [n, k].

        Raises:
            ParameterError: the words are no symbols.
        """
        symbols = check_symbols(words, categories=self.categories)
        return unpacked(self.draw(symbols, sampler), categories=self.categories)

    def draw(self, symbols: Integers, source: BitSource) -> PackedCodes:
        """`randomise` with 64 bits to a word: symbols [n], each from 0 to k, to codes [n, ⌈k/64⌉].

        Bit c % 64 of word c // 64 is category c's; bits past the last category are 0.

        Raises:
            ParameterError: a symbol is none.
        """
        check_range("symbols", symbols, categories=self.categories)
        width = self.code_width
        codes: PackedCodes = np.empty((len(symbols), width), dtype=np.uint64)
        padding = 64 * width - self.categories
        rows = max(1, WORDS // width)
        for at in range(0, len(symbols), rows):
            own = symbols[at : at + rows]
            part = self.zero.draw_bits(source, len(own) * width)
            ones = self.one.draw(source, len(own)).astype(np.uint64)
            # Null goes the same way, with an empty mask: nothing takes longer or shorter for it.
            held = (own > 0).astype(np.uint64)
            category = np.maximum(own, 1) - 1
            place = np.arange(0, len(part), width) + (category >> 6)
            shift = (category & 63).astype(np.uint64)
            mask = held << shift
            part[place] = (part[place] & ~mask) | (ones << shift & mask)
            block = part.reshape(len(own), width)
            if padding:
                block[:, -1] &= ~np.uint64(0) >> np.uint64(padding)
            codes[at : at + rows] = block
        return codes

    def valid(self, reports: Words) -> Flags:
        """Server half: which reports [n, k] hold nothing but zeros and ones [n]."""
        if not fits(reports, length=self.report_length):
            return np.zeros(len(reports), dtype=np.bool_)
        inside: Flags = ((reports == 0) | (reports == 1)).all(axis=1)
        return inside

    def tally(self, reports: Words) -> Integers:
        """Server half: how often each bit of codes [n, k] is set [k]; exact.

        Raises:
            ParameterError: the reports are not of that shape.
        """
        check_reports(reports, length=self.report_length)
        sums: Integers = reports.sum(axis=0, dtype=np.int64)
        return sums

    def tally_codes(self, codes: PackedCodes) -> Integers:
        """`tally` of packed codes [n, ⌈k/64⌉]; exact.

        Raises:
            ParameterError: the codes are not of that shape.
        """
        if codes.ndim != 2 or codes.shape[1] != self.code_width or codes.dtype != np.uint64:
            found = f"{codes.dtype} {codes.shape}"
            raise ParameterError("codes", found, f"64-bit words of shape [n, {self.code_width}]")
        sums: Integers = np.zeros(self.categories, dtype=np.int64)
        rows = max(1, WORDS // self.code_width)
        for at in range(0, len(codes), rows):
            sums += bit_counts(codes[at : at + rows], categories=self.categories)
        return sums

    @property
    def _levels(self) -> tuple[Level, ...]:
        """A category against null: its own bit set, or not; no other bit differs."""
        if self.flip is Flip.OPTIMISED:
            return half_levels(self.epsilon)
        whole = math.exp(self.epsilon / 2) + 1
        return (
            Level(mass=1 / whole, log_ratio=self.epsilon / 2),
            Level(mass=(whole - 1) / whole, log_ratio=-self.epsilon / 2),
        )


def half_levels(epsilon: float) -> tuple[Level, ...]:
    """A fair coin against one that shows its other side e^ε times as often.

        ln(p/q) = ln((e^ε + 1)/2) on the rare side, ln((e^(−ε) + 1)/2) on the other

    The pair of OUE and of Hadamard response, the same two laws in both.

    >>> [round(math.exp(level.log_ratio), 9) for level in half_levels(math.log(3))]
    [2.0, 0.666666667]
    """
    check_epsilon(epsilon)
    rare = 1 / (math.exp(epsilon) + 1)
    return (
        Level(mass=rare, log_ratio=math.log1p(math.expm1(epsilon) / 2)),
        Level(mass=1 - rare, log_ratio=math.log1p(math.expm1(-epsilon) / 2)),
    )


def unpacked(codes: PackedCodes, *, categories: int) -> Words:
    """Packed codes [n, ⌈k/64⌉] to words [n, k], 0 or 1.

    >>> unpacked(np.array([[5]], dtype=np.uint64), categories=3)
    array([[1, 0, 1]])
    """
    octets = codes.astype("<u8", copy=False).view(np.uint8)
    bits = np.unpackbits(octets, axis=1, count=categories, bitorder="little")
    return bits.astype(np.int64)


def bit_counts(codes: PackedCodes, *, categories: int) -> Integers:
    """How often each bit of packed codes [n, ⌈k/64⌉] is set [k].

    Bits are added up as bytes, at most 255 rows at a time, which cannot overflow.

    >>> bit_counts(np.array([[5], [1]], dtype=np.uint64), categories=3)
    array([2, 0, 1])
    """
    octets = codes.astype("<u8", copy=False).view(np.uint8)
    bits = np.unpackbits(octets, axis=1, count=categories, bitorder="little")
    whole = len(bits) // 255 * 255
    groups = bits[:whole].reshape(-1, 255, categories).sum(axis=1, dtype=np.uint8)
    counts: Integers = groups.sum(axis=0, dtype=np.int64)
    counts += bits[whole:].sum(axis=0, dtype=np.int64)
    return counts


# Categorical mechanisms at two categories, neither of them null: what tells two people apart.
#
# No device is charged by these: a charge is against null. They are for whoever compares mechanisms,
# and for published curves.

MOST_OUTPUTS = 1 << 53


def unary_pair_levels(epsilon: float, *, flip: Flip) -> tuple[Level, ...]:
    """Codes of one category against those of another: both bits tell, if they differ.

    >>> [round(level.mass, 3) for level in unary_pair_levels(math.log(3), flip=Flip.OPTIMISED)]
    [0.125, 0.375, 0.5]
    """
    check_epsilon(epsilon)
    if flip is Flip.OPTIMISED:  # a fair bit, and one that is set with 1/(e^ε + 1)
        return half_pair_levels(epsilon)
    if flip is Flip.SYMMETRIC:  # two bits, each wrong with 1/(e^(ε/2) + 1)
        return apart_levels(epsilon, apart=1 / (math.exp(epsilon / 2) + 1) ** 2)
    raise ParameterError("flip", flip, "a Flip")


def half_pair_levels(epsilon: float) -> tuple[Level, ...]:
    """Hadamard response, or OUE, at two categories: on half of all outputs they agree.

    >>> [round(level.mass, 3) for level in half_pair_levels(math.log(3))]
    [0.125, 0.375, 0.5]
    """
    check_epsilon(epsilon)
    return apart_levels(epsilon, apart=0.5 / (math.exp(epsilon) + 1))


def block_pair_levels(
    epsilon: float, *, outputs: int, size: int, same_block: bool
) -> tuple[Level, ...]:
    """Hadamard response in blocks, at two categories.

    A category has `size` of all outputs on which it is likely, e^ε times as much as elsewhere: half of
    one block. Two categories of one block share half of theirs, those of different blocks none.

    Args:
        epsilon: ε, nats; 1e-9 to 50.
        outputs: K; 2 to 2^53.
        size: s; even where blocks are shared, 1 to K/2.
        same_block: whether both categories have the same block.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Acharya, Sun & Zhang 2019, arXiv:1802.04705, section 5.

    >>> levels = block_pair_levels(math.log(3), outputs=8, size=2, same_block=True)
    >>> [round(level.mass, 3) for level in levels]
    [0.083, 0.25, 0.667]
    """
    check_epsilon(epsilon)
    check_integer("outputs", outputs, 2, MOST_OUTPUTS)
    check_integer("size", size, 1, outputs // 2)
    if type(same_block) is not bool:
        raise ParameterError("same_block", same_block, "True or False")
    if same_block and size % 2:
        raise ParameterError("size", size, "even, to share half of it")
    alone = size // 2 if same_block else size
    return apart_levels(epsilon, apart=alone / (size * math.exp(epsilon) + outputs - size))
