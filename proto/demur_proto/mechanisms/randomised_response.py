"""Randomised response, k-ary and binary: the symbol itself, or another one."""

import math
from dataclasses import dataclass, field

import numpy as np

from demur_proto.accounting.divergences import Level
from demur_proto.arrays import Integers, Values, Words
from demur_proto.checks import check_integer
from demur_proto.mechanisms.categorical import (
    MOST_CATEGORIES,
    Frequencies,
    OneIndex,
    Symbols,
    categories_of,
    check_categories,
    encode_categories,
    tally_indices,
)
from demur_proto.mechanisms.thresholds import (
    Threshold,
    check_epsilon,
    keep_threshold,
    narrow_below,
)
from demur_proto.samplers.base import BitSource, Sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class KaryRandomisedResponse(OneIndex):
    """Report one's symbol with probability p, or else any other one, all equally likely.

    Symbols are the k categories and null, k + 1 in all, on both sides:

        p = e^ε/(e^ε + k) as an integer threshold, q = (1 − p)/k

    Neighbour: zero-out, the category replaced by null. Between category and null, and between two
    categories alike, no likelihood ratio exceeds e^ε, exactly. Accounting is all or nothing: a
    category costs what every other one costs, null costs 0.

    A report is one word, the symbol. Good while k is below about 3e^ε; the variance grows with k.
    One question with yes and no for an answer is `BinaryRandomisedResponse`, a round of one category.

    Raises:
        ParameterError: a field is outside its range.

    Source: Kairouz, Bonawitz & Ramage 2016, arXiv:1602.07387.

    >>> mechanism = KaryRandomisedResponse(categories=3, epsilon=math.log(9))
    >>> round(float(mechanism.frequencies.own), 12), round(float(mechanism.frequencies.other), 12)
    (0.75, 0.083333333333)
    >>> round(mechanism.charge_renyi(1, order=math.inf) - math.log(9), 12)
    0.0
    """

    keep: Threshold = field(init=False, repr=False)  #: p

    def __post_init__(self) -> None:
        check_categories(self.categories)
        check_epsilon(self.epsilon)
        object.__setattr__(self, "keep", keep_threshold(self.epsilon, others=self.categories))

    @property
    def indices(self) -> int:
        """How many symbols there are: the categories and null."""
        return self.categories + 1

    @property
    def sums_length(self) -> int:
        """Numbers that the server keeps: how often each category was reported."""
        return self.categories

    @property
    def frequencies(self) -> Frequencies:
        """How reports support categories: p and q, exactly."""
        own = self.keep.probability
        return Frequencies(own=own, other=(1 - own) / self.categories)

    def _drawn(self, own: Symbols, source: BitSource) -> Symbols:
        kept = self.keep.draw(source, len(own))
        other: Symbols = narrow_below(self.categories, source, len(own)).view(np.int32)
        other += other >= own  # the others, without one's own
        np.copyto(other, own, where=kept)
        return other

    def tally(self, reports: Words) -> Integers:
        """Server half: how often each category was reported [k]; exact.

        Raises:
            ParameterError: the reports are not symbols [n, 1].
        """
        return tally_indices(reports, size=self.indices)[1:]

    @property
    def _levels(self) -> tuple[Level, ...]:
        """A category against null: the category itself, null, and all others together."""
        return response_levels(self.epsilon, options=self.indices)


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryRandomisedResponse(KaryRandomisedResponse):
    """Answer one question, yes or no, and tell the truth with probability p = e^ε/(e^ε + 1).

    It is randomised response with one category, "yes", and "no" for null. So "no" is the reference:
    it costs 0, a cover report is a "no" told the same way, and what is counted is "yes" among those
    who could still answer. Where "no" is to be counted too, and told from silence, it takes
    `KaryRandomisedResponse` with two categories.

    Source: Warner 1965, J. Am. Stat. Assoc. 60, 63-69.

    >>> mechanism = BinaryRandomisedResponse(epsilon=math.log(3))
    >>> round(float(mechanism.frequencies.own), 12), round(float(mechanism.frequencies.other), 12)
    (0.75, 0.25)
    """

    categories: int = field(init=False, default=1, repr=False)

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        object.__setattr__(self, "keep", keep_threshold(self.epsilon, others=1))

    def encode(self, values: Values, sampler: Sampler) -> tuple[Words, Integers]:
        """Device half, before the decision: 1 for yes, 0 for no [n, 1], to symbols [n, 1].

        Anything else counts as a failed evaluation, and is a no.
        """
        return encode_categories(categories_of(values, categories=1), categories=1)


def response_levels(epsilon: float, *, options: int) -> tuple[Level, ...]:
    """Randomised response over so many options, at one of them against another.

    >>> [round(level.mass, 3) for level in response_levels(math.log(3), options=3)]
    [0.2, 0.6, 0.2]
    """
    check_epsilon(epsilon)
    check_integer("options", options, 2, MOST_CATEGORIES + 1)
    whole = math.exp(epsilon) + (options - 1)
    pair = (
        Level(mass=1 / whole, log_ratio=epsilon),
        Level(mass=math.exp(epsilon) / whole, log_ratio=-epsilon),
    )
    if options == 2:
        return pair
    return (*pair, Level(mass=(options - 2) / whole, log_ratio=0.0))
