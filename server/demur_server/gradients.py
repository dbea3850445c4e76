"""From the noisy sum of a gradient round to what a step is taken along."""

from dataclasses import dataclass, field

import numpy as np

from demur_proto.arrays import Vector
from demur_proto.checks import check_integer
from demur_proto.errors import StateError
from demur_proto.release import Release, Withheld

MOST_PEOPLE = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanGradient:
    """A mean over the whole cohort, of which those who could not afford an answer are nothing."""

    gradient: Vector = field(repr=False)  #: [d], data units
    standard_error: float  #: of each coordinate, data units


def mean_gradient(release: Release, *, cohort: int) -> MeanGradient:
    """The noisy sum of clipped gradients over n, the public cohort.

        ĝ = Ŝ/n

    n is never the number of people who contributed: that number is secret, and dividing by it would
    need another answer about everybody. So as budgets run out ĝ shrinks, as the paper's does.

    Args:
        release: of a gradient round.
        cohort: n, fixed and public before the round, such as the number of enrolled devices; >= 1.

    Raises:
        ParameterError: the cohort is outside its range.
        StateError: the release withholds the sum.

    Source: Feldman & Zrnic 2021, arXiv:2008.11193, Algorithm "filtered-gd".
    """
    check_integer("cohort", cohort, 1, MOST_PEOPLE)
    if release.withheld is not Withheld.NOTHING:
        raise StateError(f"round {release.number} has no sum: only {release.reports} reports came")
    sums: Vector = np.array(release.estimate, dtype=np.float64)
    return MeanGradient(
        gradient=sums / cohort, standard_error=release.standard_error_at(0) / cohort
    )
