"""From the exact sums of a segment's rounds to the running count, with its error."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demur_proto.arrays import Vector
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.everyone import sampling_factors
from demur_proto.mechanisms.base import TWO_SIDED_QUANTILE, Estimate
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries import CountingQuery
from demur_proto.running.factorisations import factors_of
from demur_proto.running.segments import MOST_DEVICES, Admission, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTotal:
    """What was added up in one round. It is public once the round is released."""

    sum: int  #: of all words, grid steps; exact
    reports: int  #: how many there were; >= 1

    def __post_init__(self) -> None:
        check_integer("sum", self.sum, -(1 << 63), (1 << 63) - 1)
        check_integer("reports", self.reports, 1, MOST_DEVICES)


def running_estimate(
    query: CountingQuery,
    mechanism: GaussianLinear,
    totals: Sequence[RoundTotal],
    *,
    energy: int,
    added: bool = False,
) -> Estimate:
    """The running count after its rounds 1 … t: Ŝ_t = Σ_τ B[t, τ]·(n/n_τ)·Y_τ.

    Y_τ is the exact sum of the n_τ reports of round τ, n the cohort; where more came than the cohort,
    the factor is 1. Unbiased for the sum of the states that people have taken up, as long as who is
    missing in a round has nothing to do with their data, and with whether they took a change up in that
    round: as where reports are lost on their way, or the same people are missing for good. A device
    that was not reached takes a change up later, and then tells it whole; scaled up for those who
    were not reached as well, such changes count n/n_τ times. Its variance has two parts:

        noise     γ² Σ_τ B[t, τ]² (n/n_τ)² n_τ ((σ_i/γ)² + 1/12)
        sampling  at most γ² · min(R·(Σ_τ |B[t, τ]| a_τ)², E·Σ_τ B[t, τ]² a_τ²)

    a_τ² = n²(1 − n_τ/n)/(n_τ/n·(n − 1)) is the factor by which the mean of squared words becomes the
    variance of a scaled-up sum of n_τ out of n (`sampling_factors`); R = (bound/γ)² is the most
    that one squared word can be, and E the most that all of a person's can add up to. The bound holds
    however the missing of one round go together with those of another (Minkowski, Cauchy–Schwarz).
    Without losses the second part is 0, and the error exact.

    **Halt counts are not scaled up.** Who is missing from one may be so because of what it asks: a device
    whose ledger is in doubt has given less than its value, and takes no part. So everybody who is missing
    counts at worst. The estimate lies in the middle of what they may be worth, and its half width
    has the other half besides the noise:

        Ŝ_t = Σ_τ B[t, τ]·Y_τ + ½ M,  M = min(n, max(C)·Σ_τ |B[t, τ]|·(n − n_τ))

    A change that was taken up adds B[t, τ]·C[τ, s] ≥ 0 by each word, and 1 by all of them together; a word
    that is missing takes away no more than its own part, which is at most |B[t, τ]|·max(C). Whoever
    has a change to tell and has not told it is missing at t, where that is at least 1.
    So Ŝ_t + half width is a bound H⁺ for how many of the n ever halted, whoever is missing and why.
    It is tight where few words are missing: the same device adds anew in each round in which it is.

    Where the count has gone through segments before, B has a block for each on its diagonal and below
    it, in every row, their last rows: what they counted in the end is frozen, and adds.

    Args:
        query: of round t.
        mechanism: its noise.
        totals: of rounds 1 … t, in order, those of earlier segments too.
        energy: E, what a person's squared words can add up to, grid steps²; 1 to 2^62.
        added: whoever is missing is added at worst, as in a halt count, whose bound is 1.

    Returns:
        One estimate, in units of the state. Under admission `halt` there is no interval.

    Raises:
        ParameterError: there are more or fewer totals.

    Source: the variance of a sum in sampling without replacement: Cochran 1977,
    "Sampling Techniques", Theorem 2.2.
    """
    place = query.segment.place
    if len(totals) != place:
        raise ParameterError("totals", f"{len(totals)} of them", f"{place}, one for each round")
    check_integer("energy", energy, 1, 1 << 62)
    cohort = query.segment.cohort
    solution = solution_of(query.segment, exponent=query.noise.grid_exponent)
    reports = np.array([total.reports for total in totals], dtype=np.float64)
    if added:
        return _added(query, mechanism, solution, totals)
    scale = np.maximum(1.0, cohort / reports)
    sums = np.array([total.sum for total in totals], dtype=np.float64)
    weights: Vector = solution * scale
    share = mechanism.noise_steps**2 + 1 / 12
    noise = math.fsum(weights * weights * reports) * share
    sampling = _sampling(solution, reports, cohort, radius=mechanism.squared_radius, energy=energy)
    error = math.sqrt(noise + sampling)
    interval = query.admission is Admission.COMMIT
    return Estimate(
        estimate=np.array([math.fsum(weights * sums)]),
        standard_error=np.array([error]),
        half_width=np.array([TWO_SIDED_QUANTILE * error] if interval else []),
    )


def _added(
    query: CountingQuery, mechanism: GaussianLinear, solution: Vector, totals: Sequence[RoundTotal]
) -> Estimate:
    """The count, with everybody who was missing at worst; see `running_estimate`."""
    cohort = query.segment.cohort
    reports = np.array([total.reports for total in totals], dtype=np.float64)
    sums = np.array([total.sum for total in totals], dtype=np.float64)
    share = mechanism.noise_steps**2 + 1 / 12
    error = math.sqrt(math.fsum(solution * solution * reports) * share)
    largest = math.sqrt(mechanism.squared_radius)  # no word of one change is above the bound, 1
    lost = largest * math.fsum(np.abs(solution) * np.maximum(0.0, cohort - reports))
    missing = min(float(cohort), lost)
    return Estimate(
        estimate=np.array([math.fsum(solution * sums) + missing / 2]),
        standard_error=np.array([error]),
        half_width=np.array([TWO_SIDED_QUANTILE * error + missing / 2]),
    )


def solution_of(segment: Segment, *, exponent: int) -> Vector:
    """B[t, 1 … t] of a round of a running count: how the sums of all rounds so far add up to it.

    Args:
        segment: of the round.
        exponent: of the grid.

    Returns:
        [t], t its place in the count; units of the state per grid step.

    Raises:
        ParameterError: the exponent is outside its range.

    >>> second = Segment(horizon=2, cohort=9).after(1)
    >>> solution_of(second, exponent=-1).tolist()
    [0.25, 0.5]
    >>> solution_of(second.doubled(), exponent=-1).tolist()  # that is frozen, and another follows
    [0.25, 0.5, 0.5]
    """
    ends = [(horizon, horizon) for horizon in segment.earlier]
    return np.concatenate(
        [
            factors_of(segment.factorisation, horizon=horizon, exponent=exponent).solution(position)
            for horizon, position in [*ends, (segment.horizon, segment.position)]
        ]
    )


def _sampling(solution: Vector, reports: Vector, cohort: int, *, radius: int, energy: int) -> float:
    """The most that lost reports can add to the variance, units of the state squared."""
    each = np.abs(solution) * sampling_factors(reports, cohort=cohort)
    return min(radius * math.fsum(each) ** 2, energy * math.fsum(each * each))
