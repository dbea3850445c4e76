import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from tests.proto.mechanisms.laws import Outcome, divergence, exp_bound_below

from demur_proto.errors import ParameterError
from demur_proto.mechanisms.for_study.piecewise import CELLS, PiecewiseMean, piecewise_renyi
from demur_sim.engine.sampling import FastSampler

EPSILONS = [1e-6, 0.1, 1.0, 4.0, 15.0, 17.0, 50.0]


def sampler(seed: int = 1) -> FastSampler:
    return FastSampler(np.random.Generator(np.random.SFC64(seed)))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_no_likelihood_ratio_exceeds_e_to_the_epsilon_in_exact_rationals(epsilon: float) -> None:
    mechanism = PiecewiseMean(epsilon=epsilon)
    inside = mechanism.inside.probability

    ratio = (inside / mechanism.width) / ((1 - inside) / (CELLS - mechanism.width))

    assert 1 <= ratio <= exp_bound_below(epsilon)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("order", [1.5, 2.0, 8.0, 1e4, math.inf])
def test_the_charge_is_the_divergence_of_the_enumerated_law_rounded_up(
    epsilon: float, order: float
) -> None:
    mechanism = PiecewiseMean(epsilon=epsilon)
    inside = mechanism.inside.probability
    near, far = inside / mechanism.width, (1 - inside) / (CELLS - mechanism.width)

    for shift in {1, -min(100, mechanism.reach), mechanism.reach}:
        cells = min(abs(shift), mechanism.width)
        rest = mechanism.width - cells
        mine: dict[Outcome, Fraction] = {0: cells * near, 1: cells * far}
        other: dict[Outcome, Fraction] = {0: cells * far, 1: cells * near}
        for at, mass in enumerate((rest * near, (CELLS - mechanism.width - cells) * far), start=2):
            if mass:
                mine[at] = other[at] = mass
        exact: Decimal = divergence(mine, other, order)

        charge = mechanism.charge_renyi(shift, order=order)

        assert Fraction(charge) >= Fraction(exact)
        assert charge == pytest.approx(float(exact), rel=1e-12)


def test_a_value_near_the_reference_costs_less_and_the_reference_nothing() -> None:
    mechanism = PiecewiseMean(epsilon=1.0)
    charges = [
        mechanism.charge_renyi(round(x * mechanism.reach), order=2.0) for x in (0, 0.1, 0.5, 1)
    ]

    assert charges[0] == 0.0
    assert charges == sorted(charges)
    assert charges[1] == pytest.approx(piecewise_renyi(0.1, epsilon=1.0, order=2.0), rel=1e-3)
    assert mechanism.charge_zcdp(0) == mechanism.charge_pure(0) == 0.0
    assert mechanism.charge_pure(1) == pytest.approx(1.0)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_charges_in_weights_are_never_below_their_share_and_0_is_free(epsilon: float) -> None:
    mechanism = PiecewiseMean(epsilon=epsilon)
    values = np.array([[0.0], [1e-9], [0.001], [-0.3], [0.5], [-1.0], [1.0]])

    shifts, charges = mechanism.encode(values, sampler())

    assert charges[0] == 0
    assert charges[-2:].tolist() == [mechanism.largest] * 2
    full = Fraction(mechanism.charge_zcdp(mechanism.reach))
    for (shift,), charge in zip(shifts.tolist(), charges.tolist(), strict=True):
        share = Fraction(mechanism.charge_zcdp(shift)) / full
        assert charge >= share * mechanism.largest * (1 - Fraction(2, 10**9))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_paper_s_variance_is_the_limit_of_many_cells(epsilon: float) -> None:
    mechanism, half = PiecewiseMean(epsilon=epsilon), math.exp(epsilon / 2)

    for square in (0.0, 0.3, 1.0):
        paper = square / (half - 1) + (half + 3) / (3 * (half - 1) ** 2)
        # Windows of whole cells, and at most a quarter of a cell's square of rounding.
        step = 1 / (float(mechanism.slope) * mechanism.reach**2) + 4 / mechanism.width * paper
        assert mechanism.variance(square, reports=1) == pytest.approx(paper, abs=step)


@pytest.mark.parametrize("value", [-1.0, -0.3, 0.0, 0.7, 1.0])
def test_reports_fill_window_and_rest_uniformly(value: float) -> None:
    mechanism, n = PiecewiseMean(epsilon=2.0), 60_000
    drawn = sampler()

    shifts, _ = mechanism.encode(np.full((n, 1), value), drawn)
    cells = mechanism.randomise(shifts, drawn)[:, 0]

    start = shifts[:, 0] + mechanism.reach
    inside = (cells >= start) & (cells < start + mechanism.width)
    p = float(mechanism.inside.probability)
    assert abs(inside.mean() - p) < 4 * math.sqrt(p * (1 - p) / n)
    place = (cells - start)[inside] / mechanism.width
    assert abs(place.mean() - 0.5) < 4 / math.sqrt(12 * inside.sum())
    assert mechanism.valid(cells[:, None]).all()


def check(*, runs: int, seed: int) -> None:
    mechanism, people = PiecewiseMean(epsilon=1.0), 500
    values = np.linspace(-0.6, 1.0, people)[:, None]
    drawn = sampler(seed)
    misses, covered, errors = [], [], []
    for _ in range(runs):
        cells = mechanism.randomise(mechanism.encode(values, drawn)[0], drawn)
        result = mechanism.estimate(mechanism.tally(cells), reports=people)
        misses.append(result.estimate[0] - values.sum())
        covered.append(abs(misses[-1]) <= result.half_width[0])
        errors.append(result.standard_error[0])

    half = math.exp(0.5)
    paper = people * (half + 3) / (3 * (half - 1) ** 2) + (values**2).sum() / (half - 1)
    assert abs(np.mean(np.square(misses)) / paper - 1) < 3 * math.sqrt(2 / runs)
    assert abs(np.mean(misses)) < 3.5 * math.sqrt(paper / runs)
    assert abs(np.mean(covered) - 0.95) < 3 * math.sqrt(0.95 * 0.05 / runs)
    assert np.abs(np.array(errors) / math.sqrt(paper) - 1).max() < 0.15


def test_estimates_miss_by_the_published_variance_and_intervals_cover() -> None:
    check(runs=400, seed=3)


@pytest.mark.long
def test_mechanisms_piecewise_estimates_over_thousands_of_runs() -> None:
    check(runs=10_000, seed=4)


def test_cover_reports_do_not_move_the_estimate() -> None:
    mechanism, drawn = PiecewiseMean(epsilon=1.0), sampler(5)
    words, _ = mechanism.encode(np.full((400, 1), 0.5), drawn)
    words[200:] = 0

    sums = [mechanism.tally(mechanism.randomise(words, drawn)) for _ in range(300)]

    estimates = [mechanism.estimate(each, reports=400).estimate[0] for each in sums]
    assert abs(np.mean(estimates) - 100) < 3.5 * np.std(estimates) / math.sqrt(300)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.001, -2.0])
def test_a_value_outside_the_range_becomes_the_reference(value: float) -> None:
    words, charges = PiecewiseMean(epsilon=1.0).encode(np.array([[value]]), sampler())

    assert words.tolist() == [[0]]
    assert charges.tolist() == [0]


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 51.0])
def test_an_absurd_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(ParameterError, match=r"^epsilon "):
        PiecewiseMean(epsilon=epsilon)


def test_bad_input_is_refused_in_one_line_without_repeating_secrets() -> None:
    mechanism = PiecewiseMean(epsilon=1.0)

    for words in (np.array([[1 << 20]]), np.array([[0.5]]), np.array([1])):
        with pytest.raises(ParameterError, match=r"^words "):
            mechanism.randomise(words, sampler())
    with pytest.raises(ParameterError, match=r"^shift .*another value"):
        mechanism.charge_renyi(1 << 20, order=2.0)
    with pytest.raises(ParameterError, match=r"^values "):
        mechanism.encode(np.zeros((2, 2)), sampler())
    with pytest.raises(ParameterError, match=r"^reports "):
        mechanism.estimate(np.zeros(2, dtype=np.int64), reports=0)
    with pytest.raises(ParameterError, match=r"^sums "):
        mechanism.estimate(np.zeros(3, dtype=np.int64), reports=1)
    with pytest.raises(ParameterError, match=r"^distance "):
        piecewise_renyi(2.5, epsilon=1.0, order=2.0)
    assert mechanism.valid(np.array([[-1], [CELLS], [0]])).tolist() == [False, False, True]
    assert not mechanism.valid(np.zeros((3, 2), dtype=np.int64)).any()
    for reports in (np.array([[CELLS]]), np.array([[0, 1]]), np.array([[0.0]])):
        with pytest.raises(ParameterError, match=r"^reports [^\n]*$"):
            mechanism.tally(reports)
    with pytest.raises(ParameterError, match=r"^squares "):
        mechanism.variance(3.0, reports=2)
