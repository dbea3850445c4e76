"""How noisy the sums and running counts of a design are, before and without running it."""

import math

import numpy as np

from demur_proto.arrays import Vector
from demur_proto.mechanisms.gaussian import FEWEST_NOISE_STEPS, GaussianLinear
from demur_proto.study import Study
from demur_sim.scenario import Scenario
from demur_sim.simulation import study_of


def summing(
    scenario: Scenario, study: Study, *, dimension: int = 1, grid_exponent: int | None = None
) -> GaussianLinear:
    """The mechanism of a scenario's sums in a study.

    Args:
        scenario: says what is summed: clip, and whether values lie on the grid.
        study: says with which noise.
        dimension: coordinates of a sum.
        grid_exponent: by default the study's.

    Raises:
        ParameterError: the grid is too coarse for the noise.
    """
    return GaussianLinear(
        dimension=dimension,
        clip=scenario.clip,
        grid_exponent=study.base_grid_exponent if grid_exponent is None else grid_exponent,
        sigma=study.base_sigma,
        shares=study.noise_shares,
        on_grid=scenario.on_grid,
    )


def fine_exponent(study: Study, exponent: int) -> int:
    """This exponent of the grid, or the largest below that is fine enough for a share of the noise."""
    if study.noise_shares == 1:
        return exponent
    share = study.base_sigma / math.sqrt(study.noise_shares)
    return min(exponent, math.floor(math.log2(share / FEWEST_NOISE_STEPS)))


def worst_case_error(
    scenario: Scenario,
    *,
    devices: int,
    rounds: int,
    reports: int | None = None,
    dimension: int = 1,
) -> float:
    """The standard error of a sum where everyone pays for every round, for the same guarantee.

    Args:
        scenario: of sums.
        devices: how many people there are.
        rounds: how many rounds everyone pays for.
        reports: of a round; by default everyone's.
        dimension: coordinates of a sum.

    Returns:
        The standard error, data units.
    """
    study = study_of(scenario, devices=devices, answers=rounds, horizon=rounds)
    exponent = fine_exponent(study, scenario.grid_exponent)  # few answers need little noise
    mechanism = summing(scenario, study, dimension=dimension, grid_exponent=exponent)
    return mechanism.standard_error(devices if reports is None else reports)


def running_errors(mechanism: GaussianLinear, gains: Vector, *, devices: int) -> Vector:
    """The standard errors of a running count of which no report is lost.

    Args:
        mechanism: of every round.
        gains: `noise_gains` of its rounds [rounds].
        devices: how many people there are.

    Returns:
        [rounds], people.

    Source: `running_estimate`, of which this is the first part where all reports come.
    """
    share = devices * (mechanism.noise_steps**2 + 1 / 12)
    errors: Vector = np.sqrt(share * gains)
    return errors
