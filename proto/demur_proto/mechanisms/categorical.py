"""What mechanisms for one of k categories share: symbols, an all-or-nothing charge, estimates."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from demur_proto.arrays import Flags, Integers, Values, Words
from demur_proto.bits import BitSource
from demur_proto.finite_pairs import Level, levels_renyi, levels_zcdp
from demur_proto.mechanisms.base import CONFIDENCE, Estimate
from demur_proto.mechanisms.frequencies import Frequencies, check_sums, check_symbol
from demur_proto.mechanisms.symbols import check_one_column, encode_categories
from demur_proto.noise import Sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Categorical(ABC):
    """A mechanism for one of k categories, each of which costs the same; nothing costs nothing.

    Its words are symbols [n, 1]: 0 is null, category c is c + 1. A symbol is secret, and so is what
    it costs.
    """

    categories: int  #: k; 2 to 2^20
    epsilon: float  #: ε of a report between two categories, nats; 1e-9 to 50

    @property
    @abstractmethod
    def report_length(self) -> int:
        """Words in one report."""

    @property
    @abstractmethod
    def sums_length(self) -> int:
        """Numbers that the server keeps for a round."""

    @property
    @abstractmethod
    def frequencies(self) -> Frequencies:
        """How reports support categories, and so how far estimates are off."""

    @property
    @abstractmethod
    def _levels(self) -> tuple[Level, ...]:
        """Reports about a category against those about null."""

    @property
    def largest(self) -> int:
        """The largest charge that `encode` gives, in round weights."""
        return 1

    @property
    def largest_charge(self) -> float:
        """The largest ρ that a round may ask for a category, nats: what it costs, unless overridden."""
        return self.charge_zcdp(1)

    def sound(self, values: Values) -> Flags:
        """Every row [n]: whoever gives what is no category has none, and that is a value as well.

        Raises:
            ParameterError: the values are not of shape [n, 1].
        """
        check_one_column(values)
        return np.ones(len(values), dtype=np.bool_)

    def encode(self, values: Values, sampler: Sampler) -> tuple[Words, Integers]:
        """Device half, before the decision: categories [n, 1] to symbols [n, 1]; see `symbols`."""
        return encode_categories(values, categories=self.categories)

    @abstractmethod
    def randomise(self, words: Words, sampler: BitSource) -> Words:
        """Device half, after the decision: symbols [n, 1] to reports [n, w].

        Raises:
            ParameterError: the words are no symbols.
        """

    @abstractmethod
    def valid(self, reports: Words) -> Flags:
        """Server half: which reports [n, w] this mechanism could have made [n]."""

    @abstractmethod
    def tally(self, reports: Words) -> Integers:
        """Server half: what valid reports [n, w] add to the round's sums; exact.

        Raises:
            ParameterError: the reports are not of that shape.
        """

    def estimate(self, sums: Integers, *, reports: int, confidence: float = CONFIDENCE) -> Estimate:
        """Server half: support counts [k] of n reports to people with each; see `Frequencies`.

        Raises:
            ParameterError: the sums are not k counts, or there is no report.
        """
        check_sums(sums, length=self.sums_length)
        return self.frequencies.estimate(sums, reports=reports, confidence=confidence)

    def charge_renyi(self, symbol: int, *, order: float) -> float:
        """D_α of releasing this symbol against null, nats, rounded up. Secret.

        Args:
            symbol: 0 for null, or a category plus 1.
            order: α; 1 (KL) or more, or infinite.

        Raises:
            ParameterError: an argument is outside its range.
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
