"""Gradients from real devices, by way of a collector."""

from typing import final

import numpy as np

from demur_proto.arrays import Vector
from demur_proto.asking import next_gradient
from demur_proto.definition import define_round
from demur_proto.errors import NotFoundError, StateError
from demur_proto.gradients import dimension_of
from demur_proto.models.definition import DefinedModel
from demur_proto.release import Release, Withheld
from demur_server.analyst import Analyst


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
        rounds = self._analyst.rounds
        if number > rounds + 1:
            raise StateError(f"step {number} cannot follow the {rounds} rounds of this study")
        if number == rounds + 1:
            return sums_of(
                await self._analyst.ask_gradient(
                    model, clip=self._clip, reports=self._reports, timeout_s=self._timeout_s
                )
            )
        study = self._analyst.study
        asked = define_round(
            next_gradient(
                study, model.hash, number=number, dimension=dimension_of(model), clip=self._clip
            )
        )
        reports = study.value.minimum_cohort if self._reports is None else self._reports
        try:
            release = await self._analyst.close(
                asked, after_reports=reports, timeout_s=self._timeout_s
            )
        except NotFoundError:
            raise StateError(
                f"round {number} of this study asked something else than step {number} does"
            ) from None
        return sums_of(release)


def sums_of(release: Release) -> Vector:
    """The noisy sum that a release publishes [d], data units.

    Raises:
        StateError: it was withheld.
    """
    if release.withheld is not Withheld.NOTHING:
        raise StateError(f"round {release.number} has no sum: only {release.reports} reports came")
    sums: Vector = np.array(release.estimate, dtype=np.float64)
    return sums
