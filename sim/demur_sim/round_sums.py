"""What a cohort's answers to one round add up to."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from demur_proto.arrays import Integers, Values, Words
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import Mechanism
from demur_proto.mechanisms.unary import UnaryEncoding
from demur_proto.noise import Sampler
from demur_proto.round import GaussianQuery, Histogram, Linear, Prefix, Query
from demur_sim.populations import Population, side_by_side


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RoundSum:
    """What a cohort's answers to one round add up to."""

    reports: int
    sums: Integers  #: what the reports add to the round's sums [s]
    contributed: Integers  #: simulator's truth: see `given_sums`


def added(parts: Iterable[RoundSum]) -> RoundSum:
    """Several sums as one; exact. Of the parts only one need be there at a time."""
    reports = 0
    sums: Integers | None = None
    contributed: Integers | None = None
    for part in parts:
        reports += part.reports
        sums = part.sums if sums is None else sums + part.sums
        contributed = part.contributed if contributed is None else contributed + part.contributed
    if sums is None or contributed is None:
        raise ParameterError("parts", "none", "at least one")
    return RoundSum(reports=reports, sums=sums, contributed=contributed)


def given_sums(query: Query, contribution: Words) -> Integers:
    """Simulator's truth: un-noised words added up [d], or how many gave each category [k]."""
    if isinstance(query, GaussianQuery):
        sums: Integers = contribution.sum(axis=0)
        return sums
    symbols: Integers = np.bincount(contribution[:, 0], minlength=query.categories + 1)
    return symbols[1:]  # without those who gave none


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
