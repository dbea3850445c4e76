"""From exact sums to a release."""

import math

import numpy.typing as npt

from demur_proto.arrays import fixed_floats, fixed_integers
from demur_proto.definition import Defined
from demur_proto.mechanisms.base import CONFIDENCE
from demur_proto.mechanisms.of_round import guarantee_for, mechanism_for
from demur_proto.release import Release, Withheld
from demur_proto.round import Round
from demur_proto.study import Study


def make_release(
    study: Defined[Study],
    asked: Defined[Round],
    sums: npt.ArrayLike,
    *,
    reports: int,
    open_access: bool = False,
) -> Release:
    """The release of a round, or its empty shell below the study's minimum cohort.

    Args:
        study: the contract.
        asked: the round.
        sums: what the mechanism's tallies add up to, exactly [s].
        reports: how many were counted.
        open_access: they were taken from anybody.
    """
    mechanism = mechanism_for(study.value, asked.value)
    statement = guarantee_for(study.value, asked.value.query, open_access=open_access).statement
    if reports < study.value.minimum_cohort:
        return Release(
            study_hash=study.hash,
            round_hash=asked.hash,
            number=asked.value.number,
            reports=reports,
            withheld=Withheld.BELOW_MINIMUM_COHORT,
            sums=fixed_integers([]),
            estimate=fixed_floats([]),
            standard_error=fixed_floats([]),
            half_width=fixed_floats([]),
            confidence=math.nan,
            guarantee=statement,
        )
    kept = fixed_integers(sums)
    result = mechanism.estimate(kept, reports=reports)
    return Release(
        study_hash=study.hash,
        round_hash=asked.hash,
        number=asked.value.number,
        reports=reports,
        withheld=Withheld.NOTHING,
        sums=kept,
        estimate=result.estimate,
        standard_error=result.standard_error,
        half_width=result.half_width,
        confidence=CONFIDENCE,
        guarantee=statement,
    )
