"""Binary response, and k-ary word by word; the rest is in the tests of all mechanisms."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.proto.mechanisms.laws import exp_bound_below, response_law
from tests.proto.mechanisms.recorded import RecordedBits, halves_of, words_of

from demur_proto.errors import ParameterError
from demur_proto.mechanisms.randomised_response import (
    BinaryRandomisedResponse,
    KaryRandomisedResponse,
)
from demur_sim.engine.sampling import FastSampler, SeededBits


def seeded(seed: int) -> SeededBits:
    return SeededBits(np.random.Generator(np.random.SFC64(seed)))


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 4.0, 15.0, 17.0, 50.0])
def test_no_likelihood_ratio_of_a_yes_and_a_no_exceeds_e_to_the_epsilon(epsilon: float) -> None:
    keep = BinaryRandomisedResponse(epsilon=epsilon).keep.probability

    no, yes = (response_law(symbol, categories=1, keep=keep) for symbol in (0, 1))

    assert sum(no.values()) == sum(yes.values()) == 1
    worst = max(max(no[at] / yes[at], yes[at] / no[at]) for at in (0, 1))
    assert worst <= exp_bound_below(epsilon)
    # One step more of 2⁻¹²⁸ would be too much.
    step = Fraction(1, 1 << 128)
    assert (keep + step) / (1 - keep - step) > exp_bound_below(epsilon)


def test_a_no_is_the_reference_and_costs_nothing_and_so_does_what_is_no_answer() -> None:
    mechanism = BinaryRandomisedResponse(epsilon=1.0)
    values = np.array([[1.0], [0.0], [math.nan], [2.0], [-1.0], [0.5], [math.inf], [1 + 2**-52]])
    sampler = FastSampler(np.random.Generator(np.random.SFC64(1)))

    words, charges = mechanism.encode(values, sampler)

    assert words[:, 0].tolist() == charges.tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    assert mechanism.charge_pure(0) == 0.0
    assert mechanism.charge_pure(1) == pytest.approx(1.0, rel=1e-12)


def test_answers_follow_the_coin() -> None:
    mechanism = BinaryRandomisedResponse(epsilon=1.0)
    first = mechanism.keep.numerator >> 96
    truth = np.array([[0], [0], [1], [1]])

    told = mechanism.randomise(
        truth,
        RecordedBits(halves_of([first - 1, first + 1, first - 1, first + 1]), words_of([7, 7])),
    )

    assert told[:, 0].tolist() == [0, 1, 1, 0]
    assert mechanism.tally(told).tolist() == [2]


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 51.0, 1e-10])
def test_an_absurd_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(ParameterError, match=r"^epsilon "):
        BinaryRandomisedResponse(epsilon=epsilon)


def test_nobody_can_ask_for_other_categories_of_a_yes_or_no() -> None:
    with pytest.raises(TypeError, match="categories"):
        BinaryRandomisedResponse(categories=3, epsilon=1.0)  # type: ignore[call-arg]


@given(people=st.integers(0, 40), seed=st.integers(0, 99), categories=st.integers(2, 40))
def test_narrow_symbols_are_the_reports(people: int, seed: int, categories: int) -> None:
    mechanism = KaryRandomisedResponse(categories=categories, epsilon=1.0)
    symbols = np.random.default_rng(seed).integers(0, categories + 1, people)

    narrow = mechanism.draw(symbols.astype(np.int32), seeded(seed))
    reports = mechanism.randomise(symbols[:, None], seeded(seed))

    assert np.array_equal(narrow, reports[:, 0])
    assert narrow.dtype == np.int32
    assert reports.dtype == np.int64
    assert mechanism.valid(reports).all()


@pytest.mark.parametrize("symbol", [0, 1, 3])
def test_what_is_not_kept_becomes_each_other_symbol_by_equally_many_words(symbol: int) -> None:
    mechanism = KaryRandomisedResponse(categories=3, epsilon=1.0)
    # Thirds of the half words, the first of which is drawn again: 2³² is 3 · 1431655765 + 1.
    third = (1 << 32) // 3
    ends = [1, third, third + 1, 2 * third, 2 * third + 1, 3 * third]
    moved = halves_of([(1 << 32) - 1] * 6)

    drawn = mechanism.draw(np.full(6, symbol, dtype=np.int32), RecordedBits(moved, halves_of(ends)))

    others = [at for at in range(4) if at != symbol]
    assert drawn.tolist() == [other for other in others for _ in range(2)]


def test_null_takes_as_many_random_bits_as_a_category() -> None:
    mechanism = KaryRandomisedResponse(categories=9, epsilon=1.0)
    after = []
    for symbol in (0, 9):
        source = seeded(4)
        mechanism.draw(np.full(50, symbol, dtype=np.int32), source)
        after.append(source.words(1)[0])

    assert after[0] == after[1]


def test_reports_of_another_size_or_kind_are_not_valid_and_not_counted() -> None:
    mechanism = KaryRandomisedResponse(categories=4, epsilon=1.0)

    wide = np.zeros((2, 2), dtype=np.int64)
    assert mechanism.valid(wide).tolist() == [False, False]
    assert not mechanism.valid(np.full((1, 1), math.nan)).any()
    assert mechanism.valid(np.array([[4], [5], [-1]])).tolist() == [True, False, False]
    for reports in (wide, np.array([[5]]), np.array([[-1]]), np.array([[0.5]])):
        with pytest.raises(ParameterError, match=r"^reports "):
            mechanism.tally(reports)
