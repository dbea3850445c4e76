"""From the noisy sum of a gradient round to what a step is taken along."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from demur_proto.arrays import Integers, Vector, fixed_floats, fixed_integers
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError, StateError
from demur_proto.mechanisms.base import CONFIDENCE, Estimate, Mechanism
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries import CountingQuery
from demur_proto.queries.halt_count import check_payable
from demur_proto.queries.registry import mechanism_for
from demur_proto.release import Estimand, Release, Withheld
from demur_proto.round import Round
from demur_proto.running.estimates import RoundTotal, running_estimate
from demur_proto.running.following import check_next, counting_of
from demur_proto.study import Purpose, Study
from demur_proto.wire.definition import Defined
from demur_server.collector.open_rounds import LiveRound
from demur_server.store.base import Store

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


# From exact sums to a release.


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
    statement = asked.value.query.guarantee_in(study.value, open_access=open_access).statement
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
        raise ParameterError("query", type(query).__name__, "a RunningCount or a HaltCount")
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


# What a running count needs of the rounds before: their releases, which never change.


class Segments:
    """Finds the rounds of a running count, and keeps what they released.

    Args:
        store: where releases are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._releases: dict[bytes, Release] = {}  # of running counts, by their round

    def waits(self, asked: Round, rounds: Sequence[LiveRound]) -> bool:
        """Whether the position before is open, as far as this collector knows."""
        query = counting_of(asked)
        before = [] if query is None else rounds_before(query, rounds, number=asked.number)
        return bool(before) and not before[-1].released

    def check(self, study: Study, asked: Round, rounds: Sequence[LiveRound]) -> None:
        """Refuse a round that does not go on with its count, and a halt count that some could not pay for.

        Args:
            study: the contract.
            asked: the round that is to open.
            rounds: all of its study so far, in order.

        Raises:
            ParameterError: it differs from the count's other rounds; or, in a halt count, a change in
                each of the study's counts costs more than the study's budget.
            StateError: it is not the count's next position, or the one before it is open.
        """
        query = counting_of(asked)
        if query is None:
            return
        before = rounds_before(query, rounds, number=asked.number)
        check_next(asked, [each.asked.value for each in before])
        check_payable(study, asked, [each.asked.value for each in rounds])
        if self.waits(asked, rounds):
            raise StateError(
                f"round {asked.number} cannot open before round {before[-1].number} of its running "
                "count is closed"
            )

    async def earlier(self, asking: LiveRound, rounds: Sequence[LiveRound]) -> list[Release]:
        """The releases of the rounds before this one in its count, in order; none where it has none.

        Raises:
            StorageError: they cannot be read.
        """
        query = counting_of(asking.asked.value)
        if query is None:
            return []
        before = rounds_before(query, rounds, number=asking.number)
        unknown = [each for each in before if each.asked.hash not in self._releases]
        if unknown:
            for release in await self._store.releases(
                asking.study.hash, from_number=unknown[0].number
            ):
                self._releases[release.round_hash] = release
        found = [self._releases.get(each.asked.hash) for each in before]
        if query.segment.over:
            for each in before:
                self._releases.pop(each.asked.hash, None)  # until another segment goes on with them
        return [release for release in found if release is not None]


def rounds_before(
    query: CountingQuery, rounds: Sequence[LiveRound], *, number: int
) -> list[LiveRound]:
    """The rounds of a running count before that of this number, in order."""
    found = []
    for each in rounds[query.segment.count - 1 :]:
        other = counting_of(each.asked.value)
        if other is None or other.segment.count != query.segment.count:
            continue
        if each.number < number:
            found.append(each)
    return found
