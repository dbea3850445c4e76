"""From exact sums to a release."""

import math
from collections.abc import Sequence

import numpy.typing as npt

from demur_proto.arrays import Integers, fixed_floats, fixed_integers
from demur_proto.continual.estimates import RoundTotal, running_estimate
from demur_proto.definition import Defined
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import CONFIDENCE, Estimate, Mechanism
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.mechanisms.of_round import guarantee_for, mechanism_for
from demur_proto.release import Estimand, Release, Withheld
from demur_proto.round import CountingQuery, Round
from demur_proto.study import Purpose, Study


def make_release(
    study: Defined[Study],
    asked: Defined[Round],
    sums: npt.ArrayLike,
    *,
    reports: int,
    open_access: bool = False,
    earlier: Sequence[Release] = (),
) -> Release:
    """The release of a round, or its empty shell below the study's minimum cohort.

    A running count needs all of its rounds: once one of them published nothing, all that follow are
    withheld as well. Nobody could tell what changed in between.

    Args:
        study: the contract.
        asked: the round.
        sums: what the mechanism's tallies add up to, exactly [s].
        reports: how many were counted.
        open_access: they were taken from anybody.
        earlier: of the rounds before this one in a running count, in order.
    """
    mechanism = mechanism_for(study.value, asked.value, kept=True)
    statement = guarantee_for(study.value, asked.value.query, open_access=open_access).statement
    withheld = _withheld(study.value, asked.value, reports, earlier)
    if withheld is not Withheld.NOTHING:
        return Release(
            study_hash=study.hash,
            round_hash=asked.hash,
            number=asked.value.number,
            reports=reports,
            withheld=withheld,
            sums=fixed_integers([]),
            estimate=fixed_floats([]),
            standard_error=fixed_floats([]),
            half_width=fixed_floats([]),
            confidence=math.nan,
            estimand=Estimand.NOTHING,
            guarantee=statement,
        )
    kept = fixed_integers(sums)
    result = _estimate(study.value, asked.value, mechanism, kept, reports, earlier)
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
        low_end=result.low_end,
        high_end=result.high_end,
        confidence=CONFIDENCE if result.has_interval else math.nan,
        estimand=_estimand(asked.value, result),
        guarantee=statement,
    )


def running_count(study: Study, asked: Round, totals: Sequence[RoundTotal]) -> Estimate:
    """The running count after its rounds so far; in a halt count with whoever was missing added.

    Args:
        study: the contract.
        asked: the last of them.
        totals: of all of them, in order.

    Raises:
        ParameterError: it asks for something else, or there are more or fewer totals.
    """
    query = asked.query
    if not isinstance(query, CountingQuery):
        raise ParameterError("query", type(query).__name__, "a Prefix or a HaltCount")
    energy = max(1, study.budget_units // asked.weight)  # all that one person can ever have sent
    # A halt count in another study is from before there were studies for them: what was released of it
    # must still follow from its sums.
    added = study.purpose is Purpose.HALTS
    return running_estimate(
        query, GaussianLinear.of(study, query), totals, energy=energy, added=added
    )


def _estimand(asked: Round, result: Estimate) -> Estimand:
    """What an estimate is unbiased for: without an interval, nothing or values that budgets shrunk."""
    if result.has_interval:
        return Estimand.S_ACTIVE
    return Estimand.NOTHING if isinstance(asked.query, CountingQuery) else Estimand.S_SHRUNK


def _withheld(study: Study, asked: Round, reports: int, earlier: Sequence[Release]) -> Withheld:
    """Why there are no numbers to publish, if there are none."""
    if reports < study.minimum_cohort:
        return Withheld.BELOW_MINIMUM_COHORT
    if isinstance(asked.query, CountingQuery):
        published = [each for each in earlier if each.withheld is Withheld.NOTHING]
        if len(published) < asked.query.segment.place - 1:
            return Withheld.SEGMENT_BROKEN
    return Withheld.NOTHING


def _estimate(
    study: Study,
    asked: Round,
    mechanism: Mechanism,
    sums: Integers,
    reports: int,
    earlier: Sequence[Release],
) -> Estimate:
    if not isinstance(asked.query, CountingQuery):
        return mechanism.estimate(sums, reports=reports)
    totals = [RoundTotal(sum=int(each.sums[0]), reports=each.reports) for each in earlier]
    totals.append(RoundTotal(sum=int(sums[0]), reports=reports))
    return running_count(study, asked, totals)
