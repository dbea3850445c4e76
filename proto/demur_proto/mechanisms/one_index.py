"""What mechanisms share whose report is one index, drawn many at a time on narrow integers."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from demur_proto.arrays import Flags, Integers, Words
from demur_proto.bits import BitSource
from demur_proto.mechanisms.categorical import Categorical
from demur_proto.mechanisms.frequencies import fits
from demur_proto.mechanisms.symbols import check_range, check_symbols

ROWS = 1 << 14  #: drawn at a time, so that all passes over them stay in the processor's cache

Symbols = np.ndarray[tuple[int], np.dtype[np.int32]]  # shape [n]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneIndex(Categorical):
    """A categorical mechanism that reports an index from 0 on."""

    @property
    @abstractmethod
    def indices(self) -> int:
        """How many there are."""

    @property
    def report_length(self) -> int:
        """Words in one report: the index."""
        return 1

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
        """Indices for symbols [n] into `out` [n]."""
        for at in range(0, len(symbols), ROWS):
            own = symbols[at : at + ROWS].astype(np.int32, copy=False)
            out[at : at + ROWS] = self._drawn(own, source)

    @abstractmethod
    def _drawn(self, own: Symbols, source: BitSource) -> Symbols:
        """Indices for a few symbols [n]."""

    def valid(self, reports: Words) -> Flags:
        """Server half: which reports [n, 1] are indices [n]."""
        if not fits(reports, length=self.report_length):
            return np.zeros(len(reports), dtype=np.bool_)
        inside: Flags = (reports[:, 0] >= 0) & (reports[:, 0] < self.indices)
        return inside
