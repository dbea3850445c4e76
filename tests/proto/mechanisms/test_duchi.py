import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.mechanisms.laws import Law, divergence, exp_bound_below
from tests.proto.mechanisms.recorded import RecordedBits, words_of

from demur_proto.accounting.divergences import levels_renyi, randomized_response_renyi
from demur_proto.accounting.pure import pure_rho
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.for_study.duchi import REACH, DuchiMean, coin_levels
from demur_proto.mechanisms.for_study.numeric import FULL_CHARGE
from demur_proto.mechanisms.unary import UnaryEncoding
from demur_sim.engine.sampling import FastSampler

EPSILONS = [1e-9, 1e-6, 0.1, 1.0, 4.0, 17.0, 50.0]
ORDERS = [1.5, 2.0, 8.0, 1e4, math.inf]


def sampler(seed: int = 1) -> FastSampler:
    return FastSampler(np.random.Generator(np.random.SFC64(seed)))


def law(mechanism: DuchiMean, step: int) -> Law:
    one = mechanism.probability(step)
    return {0: 1 - one, 1: one}


# The law.


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_no_likelihood_ratio_of_any_two_values_exceeds_e_to_the_epsilon_in_exact_rationals(
    epsilon: float,
) -> None:
    mechanism = DuchiMean(epsilon=epsilon)
    words = zip(mechanism.high.tolist(), mechanism.low.tolist(), strict=True)
    thresholds = [high << 64 | low for high, low in words]

    assert len(thresholds) == 2 * REACH + 1
    for outcome in (thresholds, [(1 << 128) - threshold for threshold in thresholds]):
        worst = Fraction(max(outcome), min(outcome))  # over all pairs of values
        assert worst <= exp_bound_below(epsilon)
        assert worst > exp_bound_below(epsilon) * (1 - Fraction(1, 10**12))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_estimator_undoes_the_thresholds_exactly(epsilon: float) -> None:
    mechanism = DuchiMean(epsilon=epsilon)
    scale = Fraction(1 << 127, mechanism.slope * REACH)

    for step in (-REACH, -1, 0, 1, 12_345, REACH):
        at = step + REACH
        one = Fraction((int(mechanism.high[at]) << 64) + int(mechanism.low[at]), 1 << 128)
        assert one == mechanism.probability(step)
        assert (2 * one - 1) * scale == Fraction(step, REACH)
    assert mechanism.scale == pytest.approx(1 / math.tanh(epsilon / 2), rel=1e-12)


def test_a_bit_is_whether_a_uniform_integer_is_below_the_threshold() -> None:
    mechanism = DuchiMean(epsilon=1.0)
    steps = np.array([[0], [-REACH], [REACH], [REACH], [7]])
    high, low = (words[steps[:, 0] + REACH].tolist() for words in (mechanism.high, mechanism.low))
    first = words_of([high[0] - 1, high[1] + 1, high[2], high[3], high[4]])
    second = words_of([low[2] - 1, low[3], low[4]])  # of those that the first did not decide
    source = RecordedBits(first, second)

    bits = mechanism.randomise(steps, source)

    assert bits[:, 0].tolist() == [1, 0, 1, 0, 0]
    assert source.left == 0


# Charges.


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("step", [1, -163, REACH // 2, REACH])
def test_a_charge_is_the_divergence_of_the_enumerated_law_rounded_up(
    epsilon: float, order: float, step: int
) -> None:
    mechanism = DuchiMean(epsilon=epsilon)

    charge = mechanism.charge_renyi(step / REACH, order=order)

    exact: Decimal = divergence(law(mechanism, step), law(mechanism, 0), order)
    assert Fraction(charge) >= Fraction(exact)
    assert charge == pytest.approx(float(exact), rel=1e-12 if epsilon > 1e-8 else 1e-9)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("order", [1.0, *ORDERS])
def test_the_value_1_costs_what_oue_costs_against_the_zero_code(
    epsilon: float, order: float
) -> None:
    charge = DuchiMean(epsilon=epsilon).charge_renyi(1.0, order=order)

    code = UnaryEncoding(categories=3, epsilon=epsilon)
    assert charge == pytest.approx(code.charge_renyi(2, order=order), rel=2e-13)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("order", [1.0, *ORDERS])
def test_the_values_1_and_minus_1_are_told_apart_as_in_binary_response(
    epsilon: float, order: float
) -> None:
    pair = levels_renyi(coin_levels(1.0, -1.0, epsilon=epsilon), order=order)

    expected = randomized_response_renyi(epsilon, options=2, order=order)
    assert pair == pytest.approx(expected, rel=2e-13)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_binary_response_against_a_fair_coin_is_the_coin_of_1_with_that_epsilon(
    epsilon: float, order: float
) -> None:
    kept = exp_bound_below(epsilon) / (exp_bound_below(epsilon) + 1)
    answer: Law = {1: kept, 0: 1 - kept}
    nothing: Law = {1: Fraction(1, 2), 0: Fraction(1, 2)}

    for value in (1.0, -1.0):
        curve = levels_renyi(coin_levels(value, 0.0, epsilon=epsilon), order=order)
        assert curve == pytest.approx(float(divergence(answer, nothing, order)), rel=1e-12)


@settings(max_examples=30)
@given(first=st.floats(0, 1), second=st.floats(0, 1), epsilon=st.sampled_from(EPSILONS))
def test_charges_rise_with_the_size_of_the_value_and_forget_its_sign(
    first: float, second: float, epsilon: float
) -> None:
    mechanism = DuchiMean(epsilon=epsilon)
    low, high = sorted((first, second))

    for order in (1.0, 2.0, 1e4, math.inf):
        small = mechanism.charge_renyi(low, order=order)
        assert small <= mechanism.charge_renyi(high, order=order) * (1 + 1e-13)
        assert mechanism.charge_renyi(-low, order=order) == pytest.approx(small, rel=1e-13)
    assert mechanism.charge_zcdp(low) <= pure_rho(mechanism.charge_pure(low))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_charges_in_weights_are_never_below_their_share_and_0_is_free(epsilon: float) -> None:
    mechanism = DuchiMean(epsilon=epsilon)
    values = np.array([[0.0], [1e-9], [0.001], [-0.3], [0.5], [-1.0], [1.0]])

    steps, charges = mechanism.encode(values, sampler())

    assert charges[0] == 0
    assert charges[-2:].tolist() == [FULL_CHARGE] * 2
    assert mechanism.largest == FULL_CHARGE
    full = Fraction(mechanism.charge_zcdp(1.0))
    for (step,), charge in zip(steps.tolist(), charges.tolist(), strict=True):
        share = Fraction(mechanism.charge_zcdp(step / REACH)) / full
        assert charge >= share * FULL_CHARGE * (1 - Fraction(2, 10**9))
        assert charge <= (abs(step) / REACH + 1 / 256) ** 2 * FULL_CHARGE + 1 or epsilon > 0.1
    assert mechanism.charge_renyi(0.0, order=8.0) == mechanism.charge_zcdp(0.0) == 0.0
    assert mechanism.charge_pure(-0.0) == 0.0


# Estimates.


def check(*, runs: int, seed: int) -> None:
    mechanism, people = DuchiMean(epsilon=1.0), 400
    for value in (0.0, 0.3, -1.0):
        values, drawn = np.full((people, 1), value), sampler(seed)
        misses, covered = [], []
        for _ in range(runs):
            bits = mechanism.randomise(mechanism.encode(values, drawn)[0], drawn)
            result = mechanism.estimate(mechanism.tally(bits), reports=people)
            misses.append(result.estimate[0] - people * value)
            covered.append(abs(misses[-1]) <= result.half_width[0])

        theory = people * (1 / math.tanh(0.5) ** 2 - value**2)
        assert mechanism.variance(people * value**2, reports=people) == pytest.approx(theory)
        assert abs(np.mean(np.square(misses)) / theory - 1) < 3 * math.sqrt(2 / runs)
        assert abs(np.mean(misses)) < 3 * math.sqrt(theory / runs)
        # A count of 400 bits takes steps of 4.3 in a deviation of 43: an end of the interval
        # includes or excludes half of one, which has 0.6 % of all.
        error = math.sqrt(0.95 * 0.05 / runs)
        assert abs(np.mean(covered) - 0.95) < 3 * error + 0.006


def test_estimates_miss_by_what_theory_says_and_intervals_cover() -> None:
    check(runs=400, seed=3)


@pytest.mark.long
def test_mechanisms_duchi_estimates_over_thousands_of_runs() -> None:
    check(runs=10_000, seed=4)


def test_cover_reports_do_not_move_the_estimate() -> None:
    mechanism, drawn, runs = DuchiMean(epsilon=2.0), sampler(5), 300
    steps, _ = mechanism.encode(np.full((400, 1), 0.5), drawn)
    steps[100:] = 0

    estimates = [
        mechanism.estimate(mechanism.tally(mechanism.randomise(steps, drawn)), reports=400)
        for _ in range(runs)
    ]

    totals = [each.estimate[0] for each in estimates]
    assert abs(np.mean(totals) - 50) < 3.5 * np.std(totals) / math.sqrt(runs)
    # Values that differ make the interval wider than it need be, never narrower.
    covered = [abs(each.estimate[0] - 50) <= each.half_width[0] for each in estimates]
    assert np.mean(covered) > 0.95 - 3 * math.sqrt(0.95 * 0.05 / runs)


def test_rounding_a_value_to_the_grid_is_unbiased() -> None:
    value, n = 0.3 + 0.25 / REACH, 100_000

    steps, _ = DuchiMean(epsilon=1.0).encode(np.full((n, 1), value), sampler(6))

    assert set(steps[:, 0].tolist()) == {math.floor(value * REACH), math.ceil(value * REACH)}
    assert abs(steps.mean() - value * REACH) < 4 * 0.5 / math.sqrt(n)


# What is refused.


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.0001, -2.0, 1e300])
def test_what_is_no_value_becomes_the_reference_and_costs_nothing(value: float) -> None:
    steps, charges = DuchiMean(epsilon=1.0).encode(np.array([[value], [1.0]]), sampler())

    assert steps.tolist() == [[0], [REACH]]
    assert charges.tolist() == [0, FULL_CHARGE]


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 1e-10, 51.0, math.nan, math.inf, True, "1", None])
def test_an_absurd_epsilon_is_refused(epsilon: Any) -> None:
    with pytest.raises(ParameterError, match=r"^epsilon [^\n]*$"):
        DuchiMean(epsilon=epsilon)


def test_bad_input_is_refused_in_one_line_without_repeating_secrets() -> None:
    mechanism = DuchiMean(epsilon=1.0)

    for words in (np.array([[REACH + 1]]), np.array([[0.5]]), np.array([1]), np.zeros((1, 2), int)):
        with pytest.raises(ParameterError, match=r"^words [^\n]*$"):
            mechanism.randomise(words, sampler())
    for value in (1.5, -1.5, math.nan, True, "1", None, 1j):
        with pytest.raises(ParameterError, match=r"^value must be .* got 'another one'$"):
            mechanism.charge_renyi(value, order=2.0)  # type: ignore[arg-type]
        with pytest.raises(ParameterError, match=r"^value "):
            mechanism.charge_zcdp(value)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"^order "):
        mechanism.charge_renyi(0.0, order=0.5)
    shapes: list[Any] = [np.zeros((2, 2)), np.zeros(2)]
    for values in shapes:
        with pytest.raises(ParameterError, match=r"^values "):
            mechanism.encode(values, sampler())
    with pytest.raises(ParameterError, match=r"^step "):
        mechanism.probability(REACH + 1)


def test_reports_and_sums_of_another_mechanism_are_refused() -> None:
    mechanism = DuchiMean(epsilon=1.0)

    assert mechanism.valid(np.array([[0], [1], [2], [-1]])).tolist() == [True, True, False, False]
    assert not mechanism.valid(np.zeros((3, 2), dtype=np.int64)).any()
    for reports in (np.array([[2]]), np.array([[0, 1]]), np.array([[0.0]])):
        with pytest.raises(ParameterError, match=r"^reports [^\n]*$"):
            mechanism.tally(reports)
    with pytest.raises(ParameterError, match=r"^reports "):
        mechanism.estimate(np.array([0]), reports=0)
    for sums in (np.array([3]), np.array([-1]), np.array([1, 1]), np.array([0.5])):
        with pytest.raises(ParameterError, match=r"^sums [^\n]*$"):
            mechanism.estimate(sums, reports=2)
    with pytest.raises(ParameterError, match=r"^squares "):
        mechanism.variance(3.0, reports=2)
