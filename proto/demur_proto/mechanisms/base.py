"""What every mechanism is made of: a device half, a charge and a server half.

A value becomes integer words in which zero is the reference, "nothing"; the filter decides; a
refusal multiplies the words by zero; only then is anything random drawn around them. So a cover
report takes the same path as any other, whatever the mechanism.
"""

from dataclasses import dataclass, field
from typing import Protocol

from demur_proto.accounting.intervals import Intervals, no_numbers
from demur_proto.arrays import Flags, Integers, Values, Vector, Words, fixed_floats
from demur_proto.errors import ParameterError
from demur_proto.samplers.base import Sampler

CONFIDENCE = 0.95  #: of the intervals around estimates
TWO_SIDED_QUANTILE = 1.959963984540054  #: of the standard normal at CONFIDENCE


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimate(Intervals):
    """What the sums of one round say about the people who contributed: arrays, read-only.

    `low` and `high` are the interval of each; both are empty where there is none.

    Raises:
        ParameterError: there are intervals of both kinds, or not one for each estimate.
    """

    estimate: Vector = field(repr=False)  #: per coordinate, data units
    standard_error: Vector = field(repr=False)  #: per coordinate, or one that all share; likewise
    half_width: Vector = field(repr=False, default_factory=no_numbers)
    """Likewise, where the interval is estimate ± this; empty where it is another, or there is none."""
    low_end: Vector = field(repr=False, default_factory=no_numbers)
    """Per coordinate, the lower end of an interval that has no middle in the estimate; else empty."""
    high_end: Vector = field(repr=False, default_factory=no_numbers)  #: likewise, the upper end

    def __post_init__(self) -> None:
        for name in self.__slots__:
            object.__setattr__(self, name, fixed_floats(getattr(self, name)))
        if not self.intervals_fit:
            raise ParameterError(
                "half_width",
                f"{self.half_width.size} beside {self.low_end.size} and {self.high_end.size} ends",
                "one for each estimate or for all, or ends for each, or neither",
            )


class Mechanism(Protocol):
    """Both halves of a mechanism, over arrays: one device is an array of one row."""

    @property
    def report_length(self) -> int:
        """Words in one report, w."""

    @property
    def sums_length(self) -> int:
        """Numbers that the server keeps for a round, s; tallies of reports add up to them."""

    @property
    def largest(self) -> int:
        """The largest squared norm that `encode` gives."""

    def sound(self, values: Values) -> Flags:
        """Which rows of values [n, d] are valid values [n]; `encode` makes the others the reference.

        Secret. A value may be that there is nothing, such as no category.

        Raises:
            ParameterError: the values are not of shape [n, d].
        """

    def encode(self, values: Values, sampler: Sampler) -> tuple[Words, Integers]:
        """Device half, before the decision: values [n, d] to words, zero for the reference.

        A row that is no valid value counts as an evaluation error and becomes the reference.

        Returns:
            words [n, e], and what each costs in units of the round's weight [n]; 0 exactly for the
            reference.

        Raises:
            ParameterError: the values are not of shape [n, d].
        """

    def randomise(self, words: Words, sampler: Sampler) -> Words:
        """Device half, after the decision: words [n, e] to reports [n, w]."""

    def valid(self, reports: Words) -> Flags:
        """Server half: which reports [n, w] this mechanism could have made [n]."""

    def tally(self, reports: Words) -> Integers:
        """Server half: what valid reports [n, w] add to the round's sums [s]; exact."""

    def estimate(self, sums: Integers, *, reports: int) -> Estimate:
        """Server half: the exact sums [s] of `reports` reports, as estimates with intervals.

        Raises:
            ParameterError: the sums are not of shape [s], or there is no report.
        """
