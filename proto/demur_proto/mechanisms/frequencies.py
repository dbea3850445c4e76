"""How many people hold each category: the server half that all categorical mechanisms share."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from demur_proto.arrays import Integers, Vector, Words
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import CONFIDENCE, Estimate
from demur_proto.mechanisms.count_intervals import count_intervals

MOST_REPORTS = 1 << 53  #: of one round, so that counts are floats
MOST_CATEGORIES = 1 << 20
LEAST_CONFIDENCE, MOST_CONFIDENCE = 0.5, 1 - 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequencies:
    """Unbiased counts from support counts.

    A report supports some categories. It supports its person's own with probability p, and each other
    one with probability q < p, whatever the person's category is, and also where there is none. So with
    c_v reports that support v out of n,

        n̂_v = (c_v − nq)/(p − q)

    is unbiased for the number of people who gave category v; a cover report, of the null symbol,
    adds nothing to any estimate in the mean.

    Raises:
        ParameterError: not 0 ≤ q < p ≤ 1.

    Source: Wang et al. 2017, USENIX Security, "pure" protocols, equations (1) and (2).

    >>> honest = Frequencies(own=Fraction(3, 4), other=Fraction(1, 4))
    >>> honest.estimate(np.array([60, 40]), reports=100).estimate
    array([70., 30.])
    """

    own: Fraction  #: p
    other: Fraction  #: q

    def __post_init__(self) -> None:
        if not (type(self.own) is Fraction and 0 < self.own <= 1):
            raise ParameterError("own", self.own, "a Fraction > 0 and <= 1")
        if not (type(self.other) is Fraction and 0 <= self.other < self.own):
            raise ParameterError("other", self.other, "a Fraction >= 0 and below own")

    def variance(self, count: float, *, reports: int) -> float:
        """Variance of n̂_v where `count` of the people behind `reports` reports gave v.

            ( n_v p(1 − p) + (n − n_v) q(1 − q) ) / (p − q)²

        >>> Frequencies(own=Fraction(3, 4), other=Fraction(1, 4)).variance(0.0, reports=100)
        75.0
        """
        check_integer("reports", reports, 1, MOST_REPORTS)
        number = isinstance(count, float | int) and not isinstance(count, bool)
        if not (number and 0 <= count <= reports):
            raise ParameterError("count", count, f"between 0 and {reports}")
        own, other = self._variances
        return count * own + (reports - count) * other

    def estimate(
        self, supports: Integers, *, reports: int, confidence: float = CONFIDENCE
    ) -> Estimate:
        """Support counts [k] to estimates; their errors have the estimate itself plugged in.

        The intervals are those of `count_intervals`: from 0 to n, with whole numbers as ends, and not
        symmetric around the estimate, which may be below 0. Each holds with the confidence. All k of
        them hold at once with a confidence of 1 − k(1 − confidence) at least.

        Args:
            supports: c_v [k], integers from 0 to `reports`.
            reports: n; >= 1.
            confidence: of each interval; 0.5 to 1 − 1e-9.

        Raises:
            ParameterError: an argument is outside its range, or there is no report.
        """
        check_integer("reports", reports, 1, MOST_REPORTS)
        if supports.ndim != 1 or supports.dtype.kind not in "iu":
            raise ParameterError("supports", f"{supports.dtype} {supports.shape}", "integers [k]")
        if supports.size and not (supports.min() >= 0 and supports.max() <= reports):
            raise ParameterError("supports", "a larger or negative count", f"within 0..{reports}")
        if not isinstance(confidence, float) or not (
            LEAST_CONFIDENCE <= confidence <= MOST_CONFIDENCE
        ):
            raise ParameterError("confidence", confidence, "a float from 0.5 to 1 - 1e-9")
        # nq and p − q are correctly rounded once each: an error of n/2^53 beside a standard error of
        # √(nq(1 − q)) or more.
        shift, gap = float(reports * self.other), float(self.own - self.other)
        counts: Vector = (supports.astype(np.float64) - shift) / gap
        own, other = self._variances
        held = np.clip(counts, 0.0, float(reports))
        errors = np.sqrt(held * own + (reports - held) * other)
        low, high = count_intervals(
            supports.astype(np.int64, copy=False),
            reports=reports,
            own=self.own,
            other=self.other,
            confidence=confidence,
        )
        return Estimate(estimate=counts, standard_error=errors, low_end=low, high_end=high)

    @property
    def _variances(self) -> tuple[float, float]:
        """What a person with the category, and one without, adds to the variance."""
        squared = (self.own - self.other) ** 2
        return (
            float(self.own * (1 - self.own) / squared),
            float(self.other * (1 - self.other) / squared),
        )


def check_categories(categories: int) -> None:
    """Refuse what is not a number of categories from 2 to 2²⁰."""
    check_integer("categories", categories, 2, MOST_CATEGORIES)


def fits(reports: Words, *, length: int) -> bool:
    """Whether these are integers of shape [n, length], as reports of so many words are."""
    return reports.ndim == 2 and reports.shape[1] == length and reports.dtype.kind in "iu"


def check_reports(reports: Words, *, length: int) -> None:
    """Refuse what are not reports of so many words."""
    if not fits(reports, length=length):
        found = f"{reports.dtype} {reports.shape}"
        raise ParameterError("reports", found, f"integers of shape [n, {length}]")


def check_sums(sums: Integers, *, length: int) -> None:
    """Refuse what are not so many counts."""
    if sums.shape != (length,) or sums.dtype.kind not in "iu":
        raise ParameterError("sums", f"{sums.dtype} {sums.shape}", f"integers of shape [{length}]")
    if sums.min() < 0:
        raise ParameterError("sums", "a negative count", ">= 0")


def tally_indices(reports: Words, *, size: int) -> Integers:
    """How often each index below `size` came among reports [n, 1] of one index each [size].

    Raises:
        ParameterError: the reports are not of that shape, or hold another number.

    >>> tally_indices(np.array([[2], [0], [2]]), size=4)
    array([1, 0, 2, 0])
    """
    check_reports(reports, length=1)
    if reports.size and not (reports.min() >= 0 and reports.max() < size):
        raise ParameterError("reports", "another number", f"indices from 0 to {size - 1}")
    counts: Integers = np.bincount(reports[:, 0], minlength=size)
    return counts


def check_symbol(symbol: int, categories: int) -> None:
    """Refuse what is not a symbol: 0 for null, or a category plus 1.

    The error does not repeat the symbol, which is secret.
    """
    if type(symbol) is not int or not 0 <= symbol <= categories:
        raise ParameterError("symbol", "another value", f"an integer from 0 to {categories}")
