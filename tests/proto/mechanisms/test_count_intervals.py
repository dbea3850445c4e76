"""Intervals for counts of categories hold as often as they say, by the exact law of a support count.

No coverage here is drawn: the law is added up, from factorials.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_proto.arrays import Integers, Vector
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.categorical import Categorical, Frequencies, count_intervals
from demur_proto.mechanisms.hadamard import HadamardResponse
from demur_proto.mechanisms.local_hashing import LocalHashing
from demur_proto.mechanisms.randomised_response import KaryRandomisedResponse
from demur_proto.mechanisms.subset_selection import SubsetSelection
from demur_proto.mechanisms.unary import Flip, UnaryEncoding

NAMES = ("krr", "sue", "oue", "hadamard", "blh", "olh", "subset")
PEOPLE = (50, 2_000, 1_000_000)


def mechanism_of(name: str, *, categories: int, epsilon: float) -> Categorical:
    size: dict[str, Any] = {"categories": categories, "epsilon": epsilon}
    made: Mapping[str, Callable[[], Categorical]] = {
        "krr": lambda: KaryRandomisedResponse(**size),
        "sue": lambda: UnaryEncoding(**size, flip=Flip.SYMMETRIC),
        "oue": lambda: UnaryEncoding(**size),
        "hadamard": lambda: HadamardResponse(**size),
        "blh": lambda: LocalHashing(**size, hash_range=2),
        "olh": lambda: LocalHashing(**size),
        "subset": lambda: SubsetSelection(**size),
    }
    return made[name]()


def held_by(people: int) -> Iterator[int]:
    """True counts from nobody to everybody."""
    few = (0, 1, 2, 3, 5, 8, 20, 100)
    return iter(
        sorted({each for each in few if each <= people} | {people // 2, people - 1, people})
    )


def law_of(frequencies: Frequencies, count: int, people: int) -> tuple[Integers, Vector]:
    """The support counts that are not next to impossible [m], and how likely each is [m]."""
    own, own_at = _coins(count, float(frequencies.own))
    others, at = _coins(people - count, float(frequencies.other))
    law = np.convolve(own, others)
    places = own_at + at + np.arange(len(law))
    likely = law > 1e-14
    return places[likely], law[likely]


def _coins(count: int, chance: float) -> tuple[Vector, int]:
    reach = 9 * math.sqrt(count * chance * (1 - chance)) + 40
    first = max(0, math.floor(count * chance - reach))
    last = min(count, math.ceil(count * chance + reach))
    places = np.arange(first, last + 1)
    ways = math.lgamma(count + 1) - np.array(
        [math.lgamma(at + 1) + math.lgamma(count - at + 1) for at in places.tolist()]
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        tails = np.where(
            places == count, 0.0, (count - places) * math.log1p(-min(chance, 1 - 2**-53))
        )
    law: Vector = np.exp(ways + places * math.log(chance) + tails)
    return law, first


def coverage_of(
    frequencies: Frequencies, count: int, people: int, *, confidence: float = 0.95
) -> float:
    """How often the interval holds the count, exactly."""
    supports, law = law_of(frequencies, count, people)
    found = frequencies.estimate(supports, reports=people, confidence=confidence)
    missed = (found.low > count) | (found.high < count)
    return 1 - float(law[missed].sum())


def check_coverage(name: str, people: int, *, categories: int, epsilon: float) -> None:
    frequencies = mechanism_of(name, categories=categories, epsilon=epsilon).frequencies
    for count in held_by(people):
        covered = coverage_of(frequencies, count, people)
        assert covered >= 0.9499, (count, covered)


def test_the_interval_of_eight_people_among_two_thousand_is_not_too_narrow() -> None:
    frequencies = KaryRandomisedResponse(categories=1_000, epsilon=6.0).frequencies

    covered = coverage_of(frequencies, 8, 2_000)

    assert 0.94 <= covered < 0.98  # by a normal law with its error plugged in, 0.902


@pytest.mark.parametrize(
    ("people", "epsilon"), [(50, 1.0), (50, 6.0), (2_000, 1.0), (2_000, 6.0), (1_000_000, 6.0)]
)
@pytest.mark.parametrize("name", NAMES)
def test_intervals_hold_any_count_as_often_as_they_say(
    name: str, people: int, epsilon: float
) -> None:
    check_coverage(name, people, categories=1_000, epsilon=epsilon)


@pytest.mark.long
@pytest.mark.parametrize("categories", [4, 1_000])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0, 4.0, 8.0, 12.0, 30.0])
@pytest.mark.parametrize("people", [1, 2, *PEOPLE])
@pytest.mark.parametrize("name", NAMES)
def test_coverage_of_counts_at_many_budgets(
    name: str, people: int, epsilon: float, categories: int
) -> None:
    check_coverage(name, people, categories=categories, epsilon=epsilon)


@pytest.mark.parametrize("people", [50, 2_000, 100_000])
@pytest.mark.parametrize("name", NAMES)
def test_of_a_thousand_intervals_together_none_misses_as_often_as_is_said(
    name: str, people: int
) -> None:
    # As many as categories, so each may miss with a probability of 0.05/1,000. Far out in a tail the
    # score test is off by a tenth of that at most; exact tails are not off.
    frequencies = mechanism_of(name, categories=1_000, epsilon=4.0).frequencies
    for count in (0, 1, 8, people // 2, people):
        covered = coverage_of(frequencies, count, people, confidence=1 - 0.05 / 1_000)
        assert 1 - covered <= 1.1 * 0.05 / 1_000


@settings(max_examples=30, derandomize=True)
@given(
    people=st.integers(1, 12),
    chances=st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(
        lambda pair: pair[0] != pair[1]
    ),
)
def test_small_rounds_have_the_ends_that_fractions_give(
    people: int, chances: tuple[int, int]
) -> None:
    other, own = (Fraction(each, 12) for each in sorted(chances))
    laws = [_exact_law(count, people, own, other) for count in range(people + 1)]

    low, high = count_intervals(
        np.arange(people + 1), reports=people, own=own, other=other, confidence=0.9
    )

    for support in range(people + 1):
        possible = [
            count
            for count, law in enumerate(laws)
            if sum(law[support:]) > Fraction(1, 20) and sum(law[: support + 1]) > Fraction(1, 20)
        ]
        if not possible:  # what no count makes likely: between two of them, or beyond all
            continue
        assert (low[support], high[support]) == (possible[0], possible[-1])


def _exact_law(count: int, people: int, own: Fraction, other: Fraction) -> list[Fraction]:
    law = [Fraction(1)]
    for chance in [own] * count + [other] * (people - count):
        law = [
            (law[at] if at < len(law) else 0) * (1 - chance) + (law[at - 1] * chance if at else 0)
            for at in range(len(law) + 1)
        ]
    return law


@settings(max_examples=25, derandomize=True)
@given(
    people=st.integers(1, 100_000),
    own=st.fractions(Fraction(1, 100), 1, max_denominator=1000),
    share=st.fractions(0, Fraction(95, 100), max_denominator=1000),
)
def test_ends_are_whole_in_order_within_the_round_and_rise_with_the_support(
    people: int, own: Fraction, share: Fraction
) -> None:
    frequencies = Frequencies(own=own, other=own * share)
    supports = np.unique(np.linspace(0, people, 50).astype(np.int64))

    found = frequencies.estimate(supports, reports=people)

    assert (found.low == np.rint(found.low)).all()
    assert (found.high == np.rint(found.high)).all()
    assert (found.low >= 0).all()
    assert (found.high <= people).all()
    assert (found.low <= found.high).all()
    assert (np.diff(found.low) >= 0).all()
    assert (np.diff(found.high) >= 0).all()
    nearest = np.clip(found.estimate, 0, people)
    assert (found.low <= np.ceil(nearest)).all()
    assert (found.high >= np.floor(nearest)).all()


def test_chances_that_tell_everything_leave_one_number() -> None:
    certain = Frequencies(own=Fraction(1), other=Fraction(0))

    found = certain.estimate(np.array([0, 3, 7]), reports=7)

    assert found.low.tolist() == found.high.tolist() == [0.0, 3.0, 7.0]


@pytest.mark.parametrize("name", NAMES)
def test_large_counts_have_intervals_as_wide_as_two_standard_errors_make_them(name: str) -> None:
    frequencies = mechanism_of(name, categories=64, epsilon=2.0).frequencies
    people = 1_000_000
    for share in (0.1, 0.5, 0.9):
        supports, law = law_of(frequencies, int(share * people), people)
        middle = supports[np.searchsorted(np.cumsum(law), 0.5)]
        found = frequencies.estimate(np.array([middle]), reports=people)
        width = (found.high - found.low) / (2 * 1.959963984540054 * found.standard_error)
        # Whole numbers widen it by half a step on either side: by 1/(1.96 √V), V being 10⁴ or more.
        assert 0.99 < width[0] < 1.01


@pytest.mark.parametrize("confidence", [0.49, 1.0, math.nan, "0.95", None, True])
def test_a_confidence_that_is_none_is_refused(confidence: float) -> None:
    mechanism = HadamardResponse(categories=3, epsilon=1.0)

    with pytest.raises(ParameterError, match=r"^confidence "):
        mechanism.estimate(np.array([1, 0, 0, 0]), reports=1, confidence=confidence)


def test_more_confidence_takes_a_wider_interval() -> None:
    mechanism = KaryRandomisedResponse(categories=3, epsilon=1.0)
    sums = np.array([500, 300, 200])

    usual, sure = (
        mechanism.estimate(sums, reports=1000, confidence=each) for each in (0.95, 0.999)
    )

    assert (sure.low < usual.low).all()
    assert (sure.high[1:] > usual.high[1:]).all()  # the first may be everybody already
