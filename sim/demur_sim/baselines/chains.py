"""Two noises one after the other, as exact fractions: what a report shows, and what its sums say."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from demur_proto.arrays import Flags, Integers, Vector, Words
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.thresholds import check_epsilon
from demur_proto.outward import up
from demur_sim.baselines.design import (
    Estimates,
    check_horizon,
    checked_rounds,
    largest_probability,
)
from demur_sim.baselines.memo import Memo

MOST_CATEGORIES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """A bit or symbol that is kept with probability `own`, and appears for another with `other`."""

    own: Fraction
    other: Fraction

    @property
    def bit_epsilon(self) -> float:
        """ε of one bit that is set or not, nats, rounded up."""
        return log_up(max(self.own / self.other, (1 - self.other) / (1 - self.own)))

    @property
    def two_bits(self) -> Fraction:
        """e^ε of a bit that is set and one that is not, against the reverse."""
        return self.own / self.other * (1 - self.other) / (1 - self.own)

    @property
    def symbol_epsilon(self) -> float:
        """ε of one symbol against another, nats, rounded up."""
        return log_up(self.own / self.other)


def log_up(ratio: Fraction) -> float:
    """The logarithm of a ratio of at least 1, rounded up.

    >>> round(log_up(Fraction(3)) - math.log(3), 9)
    0.0
    """
    return up(math.log1p(float(ratio - 1)))


def bits_chain(first: Noise, second: Noise) -> Noise:
    """A bit through both: p = p₁p₂ + (1 − p₁)q₂, q = q₁p₂ + (1 − q₁)q₂.

    >>> half = Noise(own=Fraction(3, 4), other=Fraction(1, 4))
    >>> bits_chain(half, half).own
    Fraction(5, 8)
    """
    return Noise(
        own=first.own * second.own + (1 - first.own) * second.other,
        other=first.other * second.own + (1 - first.other) * second.other,
    )


def symbols_chain(first: Noise, second: Noise, *, symbols: int) -> Noise:
    """A symbol of s: p = p₁p₂ + (s − 1)q₁q₂, q = p₁q₂ + q₁p₂ + (s − 2)q₁q₂.

    >>> third = Noise(own=Fraction(1, 2), other=Fraction(1, 4))
    >>> symbols_chain(third, third, symbols=3)
    Noise(own=Fraction(3, 8), other=Fraction(5, 16))
    """
    both = first.other * second.other
    return Noise(
        own=first.own * second.own + (symbols - 1) * both,
        other=first.own * second.other + first.other * second.own + (symbols - 2) * both,
    )


def response(own: Fraction, *, others: int) -> Noise:
    """Randomised response with so many other symbols."""
    return Noise(own=own, other=(1 - own) / others)


def largest_own(fits: Callable[[Fraction], bool]) -> Fraction:
    """The largest multiple of 2^-53 below 1 that fits, if all below do."""
    return Fraction(largest_probability(lambda m: fits(Fraction(m, 1 << 53))))


class Memoised(Protocol):
    """A design whose devices remember."""

    @property
    def horizon(self) -> int:
        """T."""

    def memo(self, people: int, *, rng: np.random.Generator) -> Memo:
        """What so many new devices remember."""

    def reports(self, symbols: Integers, memo: Memo, *, rng: np.random.Generator) -> Words:
        """Device half: symbols [n], 0 for null, to reports [n, w] of one round."""

    def frequencies(self, reports: Words) -> tuple[Vector, Vector]:
        """Server half: reports to fractions [k] and their standard errors [k]."""


def run_memoised(
    design: Memoised, states: Iterable[Flags], *, rng: np.random.Generator, memo: Memo | None
) -> Estimates:
    """A whole run in which yes is the first category and no is null; see `Baseline.estimates`."""
    fractions, errors = [], []
    for state in checked_rounds(states, horizon=design.horizon):
        if memo is None:
            memo = design.memo(len(state), rng=rng)
        reports = design.reports(state.astype(np.int64), memo, rng=rng)
        estimate, error = design.frequencies(reports)
        fractions.append(estimate[0])
        errors.append(error[0])
    return Estimates(fraction=np.array(fractions), standard_error=np.array(errors))


def frequencies_of(counts: Integers, noise: Noise, *, people: int) -> tuple[Vector, Vector]:
    """How often each category was reported [k] to fractions [k] and their standard errors [k].

        f = (count/n − q)/(p − q),   error² = ( f p(1 − p) + (1 − f) q(1 − q) )/( n (p − q)² )

    with f cut to between 0 and 1 in the second: the error is exact where p + q = 1, else estimated.
    """
    own, other = float(noise.own), float(noise.other)
    apart = float(noise.own - noise.other)
    estimate = (counts / people - other) / apart
    share = np.clip(estimate, 0, 1)
    spread = share * own * (1 - own) + (1 - share) * other * (1 - other)
    return estimate, np.sqrt(spread / people) / apart


def check_memoised(horizon: int, categories: int, *, forever: float, once: float) -> None:
    """Refuse what is no design: its rounds, categories, ε∞ and ε₁."""
    check_horizon(horizon)
    check_integer("categories", categories, 1, MOST_CATEGORIES)
    for name, epsilon in (("forever", forever), ("once", once)):
        try:
            check_epsilon(epsilon)
        except ParameterError as error:
            raise ParameterError(name, epsilon, error.expected) from None
    if not once < forever:
        raise ParameterError("once", once, f"below the {forever:g} nats of all reports")
