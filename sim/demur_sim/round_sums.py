"""What a cohort's answers to one round add up to."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from demur_proto.arrays import Integers, Values, Vector, Words
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import Mechanism
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.mechanisms.unary import UnaryEncoding
from demur_proto.noise import Sampler
from demur_proto.round import GaussianQuery, Histogram, Linear, Prefix, Query
from demur_sim.populations import Population, side_by_side

SUM_DIGITS, PEOPLE_DIGITS = 53, 24  #: of a float, and of how many people's sums are exact


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RoundSum:
    """What a cohort's answers to one round add up to."""

    reports: int
    sums: Integers  #: what the reports add to the round's sums [s]
    contributed: Vector  #: simulator's truth: see `given_sums` and `clipped_sums`


def added(parts: Iterable[RoundSum]) -> RoundSum:
    """Several sums as one; exact. Of the parts only one need be there at a time."""
    reports = 0
    sums: Integers | None = None
    contributed: Vector | None = None
    for part in parts:
        reports += part.reports
        sums = part.sums if sums is None else sums + part.sums
        contributed = part.contributed if contributed is None else contributed + part.contributed
    if sums is None or contributed is None:
        raise ParameterError("parts", "none", "at least one")
    return RoundSum(reports=reports, sums=sums, contributed=contributed)


def given_sums(query: Query, contribution: Words) -> Vector:
    """Simulator's truth: un-noised words added up [d], or how many gave each category [k].

    Of values that lie on the grid, of changes and of categories that is what was contributed; of
    gradients and error counts it is that as shrunk and rounded.
    """
    if isinstance(query, GaussianQuery):
        sums: Vector = contribution.sum(axis=0).astype(np.float64)
        return sums
    symbols: Vector = np.bincount(contribution[:, 0], minlength=query.categories + 1).astype(
        np.float64
    )
    return symbols[1:]  # without those who gave none


def clipped_sums(mechanism: GaussianLinear, values: Values) -> Vector:
    """Simulator's truth: values clipped, neither shrunk nor rounded, added up [d], grid steps: S_active.

    Each is taken to a fraction of a step so fine that sums of up to 2²⁴ people are exact in any order, and
    so the same at every fidelity.

    Args:
        mechanism: of the round.
        values: of the people whose devices answered with data [n, d], data units.
    """
    digits = math.isqrt(mechanism.squared_radius).bit_length()
    fine = max(0, SUM_DIGITS - PEOPLE_DIGITS - digits)
    steps = np.rint(np.ldexp(mechanism.clipped(values), fine))
    sums: Vector = np.ldexp(steps.sum(axis=0), -fine)
    return sums


def randomised_tally(mechanism: Mechanism, words: Words, sampler: Sampler) -> Integers:
    """`randomise`, then `tally`, without ever spreading the bits of a code over 64-bit words."""
    if isinstance(mechanism, UnaryEncoding):
        return mechanism.tally_codes(mechanism.draw(words[:, 0], sampler))
    return mechanism.tally(mechanism.randomise(words, sampler))


def evaluate_query(
    query: Linear | Histogram | Prefix, population: Population, people: slice
) -> Values:
    """Everyone's value of a query, features side by side, weighted where it has weights [n, v].

    Raises:
        ParameterError: the features do not give that many numbers.
    """
    values = side_by_side(population, query.features, people)
    if isinstance(query, Linear) and query.weights is not None:
        values = query.weights.apply(values)
    length = query.value_length
    if values.shape[1] != length:
        raise ParameterError("dimension", length, f"{values.shape[1]}, what the features give")
    return values
