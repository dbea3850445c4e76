"""Gradients, and counts beside them, from real devices, by way of a collector."""

from dataclasses import replace
from typing import final

import numpy as np

from demur_proto.arrays import Vector
from demur_proto.errors import NotFoundError, StateError
from demur_proto.models.definition import DefinedModel
from demur_proto.queries import ErrorCount, Gradient, HaltCount
from demur_proto.release import Release, Withheld
from demur_proto.round import Round, round_of
from demur_proto.running.segments import Segment
from demur_proto.wire.definition import define_round
from demur_server.analyst import Analyst
from demur_server.training.optimisers import Count


@final
class AnalystGradients:
    """Asks the devices of one study, one round for each step.

    A round that was opened before, by this process or by one that died, is not asked again: it is
    closed, once it has its reports, or its release is fetched. Closing changes nothing the second time.

    Args:
        analyst: of a study that asks for nothing else.
        clip: ℓ₂ radius of one person's gradient, data units.
        reports: how many to wait for; by default the study's minimum cohort.
        timeout_s: how long to wait for them, seconds.
    """

    def __init__(
        self,
        analyst: Analyst,
        *,
        clip: float,
        reports: int | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        self._analyst = analyst
        self._clip = clip
        self._reports = reports
        self._timeout_s = timeout_s

    async def gradient(self, model: DefinedModel, *, number: int) -> Vector:
        """The noisy sum of clipped gradients [d]; see `GradientSource`.

        Raises:
            StateError: the round of this number asked something else, is not the next one, or did not
                get its reports in time.
            DemurError: the collector refuses, or went away.
        """
        analyst, reports, timeout_s = self._analyst, self._reports, self._timeout_s
        if is_next(analyst, number, what="step"):
            return sums_of(
                await analyst.ask(
                    Gradient.about(model, clip=self._clip), reports=reports, timeout_s=timeout_s
                )
            )
        asked = round_of(
            analyst.study,
            Gradient(model_hash=model.hash, dimension=model.parameters, clip=self._clip),
            number=number,
            answer_after_ms=analyst.answer_after_ms,
        )
        release = await released_before(
            analyst, asked, what="step", reports=reports, timeout_s=timeout_s
        )
        return sums_of(release)


@final
class AnalystErrors:
    """Asks the devices of another study for how many of them a model is wrong, now and then.

    A round that was opened before is not asked again, as in `AnalystGradients`.

    Args:
        analyst: of a study that asks for nothing else.
        on_grid: nobody has more than one example.
        reports: how many to wait for; by default the study's minimum cohort.
        timeout_s: how long to wait for them, seconds.
    """

    def __init__(
        self,
        analyst: Analyst,
        *,
        on_grid: bool = False,
        reports: int | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        self._analyst = analyst
        self._on_grid = on_grid
        self._reports = reports
        self._timeout_s = timeout_s

    async def errors(self, model: DefinedModel, *, number: int, step: int) -> Count:
        """A noisy count; see `ErrorSource`.

        Raises:
            StateError: as `AnalystGradients.gradient`.
            DemurError: likewise.
        """
        analyst, reports, timeout_s = self._analyst, self._reports, self._timeout_s
        if is_next(analyst, number, what="count"):
            release = await analyst.ask(
                ErrorCount.about(model, on_grid=self._on_grid), reports=reports, timeout_s=timeout_s
            )
            return count_of(release, step=step)
        asked = round_of(
            analyst.study,
            ErrorCount(model_hash=model.hash, parameters=model.parameters, on_grid=self._on_grid),
            number=number,
            answer_after_ms=analyst.answer_after_ms,
        )
        release = await released_before(
            analyst, asked, what="count", reports=reports, timeout_s=timeout_s
        )
        return count_of(release, step=step)


@final
class AnalystHalts:
    """Asks the devices of another study how many of them ever gave less than their gradient.

    A round that was opened before is not asked again, as in `AnalystGradients`.

    Args:
        analyst: of a study that asks for nothing else.
        gradients: hash of the study of the gradients.
        horizon: most counts.
        cohort: how many devices are to answer; public.
        reports: how many to wait for; by default the study's minimum cohort.
        timeout_s: how long to wait for them, seconds.
    """

    def __init__(
        self,
        analyst: Analyst,
        gradients: bytes,
        *,
        horizon: int,
        cohort: int,
        reports: int | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        self._analyst = analyst
        self._gradients = gradients
        self._segment = Segment(horizon=horizon, cohort=cohort)
        self._reports = reports
        self._timeout_s = timeout_s

    async def halts(self, *, number: int, step: int) -> Count:
        """A noisy running count; see `HaltSource`.

        Raises:
            StateError: as `AnalystGradients.gradient`.
            DemurError: likewise.
        """
        analyst, reports, timeout_s = self._analyst, self._reports, self._timeout_s
        segment = replace(self._segment, position=number, first_round=1)
        if is_next(analyst, number, what="count"):
            release = await analyst.ask(
                HaltCount(self._gradients, segment), reports=reports, timeout_s=timeout_s
            )
            return count_of(release, step=step)
        asked = round_of(
            analyst.study,
            HaltCount(self._gradients, segment),
            number=number,
            answer_after_ms=analyst.answer_after_ms,
        )
        release = await released_before(
            analyst, asked, what="count", reports=reports, timeout_s=timeout_s
        )
        return count_of(release, step=step)


def is_next(analyst: Analyst, number: int, *, what: str) -> bool:
    """Whether the round of this number is still to be opened.

    Raises:
        StateError: one before it is as well.
    """
    rounds = analyst.rounds
    if number > rounds + 1:
        raise StateError(f"{what} {number} cannot follow the {rounds} rounds of this study")
    return number == rounds + 1


async def released_before(
    analyst: Analyst, asked: Round, *, what: str, reports: int | None, timeout_s: float
) -> Release:
    """The release of a round that was opened before; it is closed, once it has its reports.

    Raises:
        StateError: the round of this number asked something else, or did not get its reports in time.
        DemurError: the collector refuses, or went away.
    """
    wanted = analyst.study.value.minimum_cohort if reports is None else reports
    try:
        return await analyst.close(define_round(asked), after_reports=wanted, timeout_s=timeout_s)
    except NotFoundError:
        raise StateError(
            f"round {asked.number} of this study asked something else than {what} {asked.number} does"
        ) from None


def sums_of(release: Release) -> Vector:
    """The noisy sum that a release publishes [d], data units.

    Raises:
        StateError: it was withheld.
    """
    if release.withheld is Withheld.SEGMENT_BROKEN:
        raise StateError(f"round {release.number} has no count: an earlier one of it was withheld")
    if release.withheld is not Withheld.NOTHING:
        raise StateError(f"round {release.number} has no sum: only {release.reports} reports came")
    sums: Vector = np.array(release.estimate, dtype=np.float64)
    return sums


def count_of(release: Release, *, step: int) -> Count:
    """The noisy count that a release publishes.

    Args:
        release: of an error count.
        step: after which it was asked.

    Raises:
        StateError: it was withheld.
    """
    (value,) = sums_of(release)
    return Count(step=step, value=float(value), standard_error=release.standard_error_at(0))
