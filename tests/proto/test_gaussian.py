"""Quantisation, noise shares and estimates; every statistical test fixes its seed."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from demur_proto.accounting.calibration import round_weight
from demur_proto.arrays import Bits, Values, Words
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import TWO_SIDED_QUANTILE
from demur_proto.mechanisms.gaussian import GaussianLinear, squared_norms
from demur_proto.queries import Feature, Linear
from demur_proto.queries.registry import mechanism_for
from demur_proto.round import Round
from demur_proto.study import Measure, Policy, Study, View
from demur_proto.wire.definition import define_study
from demur_proto.wire.words import WordType
from demur_sim.engine.sampling import FastSampler

Rng = np.random.Generator


def gaussian_for(study: Study, asked: Round) -> GaussianLinear:
    mechanism = mechanism_for(study, asked)
    assert isinstance(mechanism, GaussianLinear)
    return mechanism


class Coins:
    """A sampler whose coins are these and whose noise is none."""

    name = "coins"

    def __init__(self, coins: Values) -> None:
        self._coins = coins

    def words(self, count: int) -> Bits:
        raise AssertionError("a linear round asks for no bits")

    def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
        return np.zeros((reports, dimension), dtype=np.int64)

    def uniform(self, *, reports: int, dimension: int) -> Values:
        assert self._coins.shape == (reports, dimension)
        return self._coins


def linear(
    dimension: int = 1,
    *,
    clip: float = 1.0,
    exponent: int = -14,
    on_grid: bool = False,
    sigma: float = 4.0,
    shares: int = 1,
) -> GaussianLinear:
    return GaussianLinear(
        dimension=dimension,
        clip=clip,
        grid_exponent=exponent,
        sigma=sigma,
        shares=shares,
        on_grid=on_grid,
    )


wild = st.one_of(
    st.floats(),
    st.sampled_from(
        [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, -5e-324, 1e300, -1e300, 1.7e308, 1.0]
    ),
    st.floats(-1.2, 1.2),
    st.integers(-17_000, 17_000).map(lambda k: k * 2.0**-14),
)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Values, Values]:
    """Values [n, d] and as many coins."""
    n = draw(st.integers(1, 5))
    d = draw(st.one_of(st.integers(1, 6), st.integers(40, 50)))
    kind = st.one_of(wild, st.floats(-0.2, 0.2))  # rows inside the clip must come up too
    rows = [
        draw(
            st.one_of(
                st.lists(kind, min_size=d, max_size=d),
                st.tuples(kind, st.integers(0, d - 1)).map(
                    lambda one: [one[0] if i == one[1] else 0.0 for i in range(d)]
                ),
            )
        )
        for _ in range(n)
    ]
    coins = np.random.default_rng(draw(st.integers(0, 1 << 32))).random((n, d))
    return np.array(rows, dtype=np.float64), coins


def exact(row: Values, exponent: int) -> list[Fraction]:
    """A finite row in grid steps."""
    return [Fraction(float(x)) / Fraction(2) ** exponent for x in row.ravel()]


@settings(max_examples=250)
@given(batches(), st.booleans(), st.sampled_from([(1.0, -14), (0.3, -17), (2.0**20, 6)]))
def test_no_quantised_row_leaves_the_clip_and_good_rows_stay_as_they_are(
    batch: tuple[Values, Values], on_grid: bool, scale: tuple[float, int]
) -> None:
    values, coins = batch
    clip, exponent = scale
    with np.errstate(over="ignore"):
        values = values * clip
    mechanism = linear(values.shape[1], clip=clip, exponent=exponent, on_grid=on_grid)
    radius = math.floor(Fraction(clip) ** 2 / Fraction(4) ** exponent)
    before = values.copy()

    words, squares = mechanism.encode(values, Coins(coins))

    assert np.array_equal(values, before, equal_nan=True)
    assert words.dtype == squares.dtype == np.int64
    for row, z, square in zip(values, words, squares, strict=True):
        assert int(square) == sum(int(x) ** 2 for x in z)  # in Python integers
        assert int(square) <= radius
        if not np.isfinite(row).all():
            assert not z.any()
            continue
        steps = exact(row, exponent)
        good = all(x.denominator == 1 for x in steps) and sum(x * x for x in steps) <= radius
        if good:
            assert z.tolist() == [int(x) for x in steps]
        elif on_grid and max(abs(x) for x in row) > 1e-300:
            assert not z.any()  # the promise is broken: the reference
        elif not on_grid and sum(x * x for x in steps) <= Fraction(99, 100) * radius:
            assert all(abs(int(got) - x) <= 1 for got, x in zip(z, steps, strict=True))


@settings(max_examples=150)
@given(batches(), st.booleans())
def test_what_becomes_of_a_row_depends_on_no_other_row_and_on_no_memory_layout(
    batch: tuple[Values, Values], on_grid: bool
) -> None:
    values, coins = batch
    n, d = values.shape
    mechanism = linear(d, on_grid=on_grid)

    together, _ = mechanism.encode(values, Coins(coins))

    columns, _ = mechanism.encode(np.asfortranarray(values), Coins(coins))
    backwards, _ = mechanism.encode(values[::-1], Coins(coins[::-1]))
    assert np.array_equal(together, columns)
    assert np.array_equal(together, backwards[::-1])
    for i in range(n):
        alone, _ = mechanism.encode(values[i : i + 1], Coins(coins[i : i + 1]))
        assert np.array_equal(together[i : i + 1], alone)


@pytest.mark.parametrize("dimension", [3, 4, 7, 50])
def test_clipped_rows_of_a_cohort_are_those_of_its_devices_bit_for_bit(
    dimension: int, rng: Rng
) -> None:
    # Norms whose last bit depends on the order of addition decide coins that lie between the two
    # results. Coins that close are rare, so compare what the coins are compared with: put each
    # coin on the very edge that one device alone sees, and see whether the cohort agrees.
    n = 300
    values = rng.normal(size=(n, dimension)) * 3
    mechanism = linear(dimension)
    reach = math.sqrt(mechanism.squared_radius) * (1 - 2.0**-12)
    direction = values / np.abs(values).max(axis=1, keepdims=True)
    norm = np.sqrt(np.cumsum(direction * direction, axis=1)[:, -1:])
    steps = direction * (reach / norm)
    edge = steps - np.floor(steps)

    for coins in (edge, np.nextafter(edge, 0), np.nextafter(edge, 1)):
        together, _ = mechanism.encode(np.asfortranarray(values), Coins(coins))
        alone = [mechanism.encode(values[i : i + 1], Coins(coins[i : i + 1]))[0] for i in range(n)]
        assert np.array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_rounding_is_unbiased(fraction: float, rng: Rng) -> None:
    n = 100_000
    value = (1000 + fraction) * 2.0**-14

    words, _ = linear().encode(np.full((n, 1), value), FastSampler(rng))

    assert set(words.ravel().tolist()) == {1000, 1001}
    error = math.sqrt(fraction * (1 - fraction) / n)  # a coin's, in grid steps; 5 sigma
    assert float(words.mean()) == pytest.approx(1000 + fraction, abs=5 * error)


def test_rounding_after_clipping_is_unbiased(rng: Rng) -> None:
    n = 50_000
    value = np.array([3.0, -2.0, 0.7])
    mechanism = linear(3)

    words, squares = mechanism.encode(np.tile(value, (n, 1)), FastSampler(rng))

    # 2^14 steps to the clip, and the target lies 2^-12 of that inside it.
    target = value / np.linalg.norm(value) * 2**14 * (1 - 2.0**-12)
    np.testing.assert_allclose(words.mean(axis=0), target, rtol=0, atol=5 * 0.5 / math.sqrt(n))
    assert squares.max() <= mechanism.squared_radius


@given(st.integers(0, (1 << 14) - 1), st.floats(0.001, 0.999))
def test_the_coin_decides_as_its_probability_says(low: int, fraction: float) -> None:
    step = (low + fraction) * 2.0**-14 * (1 - 2.0**-11)  # inside what is not clipped
    steps = step * 2.0**14
    frac = steps - math.floor(steps)
    if not 1e-3 < frac < 1 - 1e-3:
        return
    mechanism = linear()

    up, _ = mechanism.encode(np.array([[step]]), Coins(np.array([[frac - 1e-6]])))
    down, _ = mechanism.encode(np.array([[step]]), Coins(np.array([[frac + 1e-6]])))

    assert (int(up[0, 0]), int(down[0, 0])) == (math.floor(steps) + 1, math.floor(steps))


def test_a_row_that_rounding_would_push_out_of_the_clip_is_rounded_towards_zero() -> None:
    # √R = 2^14 = 64·√4096 steps, the coarsest grid that so many coordinates allow. Half of them
    # are 10 to the others' 9: clipped to 2^14·(1 − 2^-12), that is 269.04 and 242.13 steps.
    d = 4096
    mechanism = linear(d)
    value = np.tile([10.0, 9.0], (1, d // 2))
    ups, downs = np.zeros((1, d)), np.full((1, d), 0.999)  # what every coin says
    assert 270**2 + 243**2 > 2 * mechanism.squared_radius / d > 269**2 + 242**2

    for coins in (ups, downs):
        words, squares = mechanism.encode(value, Coins(coins))

        assert set(words.ravel().tolist()) == {269, 242}
        assert squares.tolist() == [(269**2 + 242**2) * d // 2]


@given(st.integers(-200, 200), st.integers(0, 10))
def test_values_on_the_grid_use_no_coin(k: int, j: int) -> None:
    mechanism = linear(2, exponent=-14)
    value = np.array([[k * 2.0**-14, j * 2.0**-10]])

    for coins in (np.zeros((1, 2)), np.full((1, 2), math.nextafter(1, 0))):
        words, _ = mechanism.encode(value, Coins(coins))
        assert words.tolist() == [[k, 16 * j]]


def test_on_and_off_the_grid_equally_many_random_numbers_are_drawn() -> None:
    # What a device draws must not depend on its value, or the next draw would tell.
    states = []
    for value in (0.0, 0.25, 0.3, 7.0, math.nan):
        rng = np.random.default_rng(1)
        linear(2).encode(np.array([[value, 0.0]]), FastSampler(rng))
        states.append(rng.random())

    assert len(set(states)) == 1


@pytest.mark.parametrize(
    "value",
    [0.3, 1.0078125, 1.5, -2.0, math.nan, math.inf, -math.inf, 1e300, 2.0**-8, 2.0**62],
)
def test_a_broken_promise_of_the_grid_becomes_the_reference_at_no_charge(value: float) -> None:
    mechanism = linear(2, exponent=-7, on_grid=True)

    words, squares = mechanism.encode(np.array([[0.0, value], [0.0, 1.0]]), Coins(np.empty((0, 0))))

    assert words.tolist() == [[0, 0], [0, 128]]
    assert squares.tolist() == [0, 128**2]


@pytest.mark.parametrize("on_grid", [True, False])
def test_a_value_on_the_grid_just_outside_the_clip_does_not_stay_as_it_is(on_grid: bool) -> None:
    exponent = -7 if on_grid else -14
    edge = np.array([[1.0, 0.0], [1.0, 2.0**exponent], [0.0, -1.0]])
    mechanism = linear(2, exponent=exponent, on_grid=on_grid)

    words, squares = mechanism.encode(edge, Coins(np.full((3, 2), 0.5)))

    one = 2**-exponent
    assert words[0].tolist() == [one, 0]
    assert words[1].tolist() == ([0, 0] if on_grid else [one - 4, 1])  # 2^-12 inside the clip
    assert words[2].tolist() == [0, -one]
    assert squares.max() <= mechanism.squared_radius


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2,), (1, 2, 1)])
def test_values_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    values: Any = np.zeros(shape)

    with pytest.raises(ParameterError, match="shape"):
        linear(2).encode(values, Coins(np.zeros((1, 2))))


def test_no_rows_quantise_to_no_rows() -> None:
    words, squares = linear(2).encode(np.zeros((0, 2)), Coins(np.zeros((0, 2))))

    assert words.shape == (0, 2)
    assert squares.shape == (0,)


# ---- noise and its size ----------------------------------------------------------------------


@given(
    sigma=st.floats(1e-2, 1e9),
    shares=st.one_of(st.integers(1, 50), st.integers(1, (1 << 31) - 1)),
)
def test_the_shares_add_up_to_no_less_than_the_whole_noise(sigma: float, shares: int) -> None:
    mechanism = linear(sigma=sigma, shares=shares, exponent=-26, clip=2.0**-12)

    assert shares * Fraction(mechanism.share_sigma) ** 2 >= Fraction(sigma) ** 2
    assert mechanism.share_sigma <= sigma / math.sqrt(shares) * (1 + 2.0**-50)
    assert Fraction(mechanism.noise_steps) * Fraction(2) ** -26 == Fraction(mechanism.share_sigma)


@given(st.floats(0.1, 1e6), st.integers(-16, 5))
def test_the_whole_noise_of_a_local_report_is_sigma_to_the_last_bit(
    sigma: float, exponent: int
) -> None:
    mechanism = linear(sigma=sigma, exponent=exponent, clip=2.0**14)

    assert mechanism.share_sigma == sigma
    assert Fraction(mechanism.noise_steps) * Fraction(2) ** exponent == Fraction(sigma)


def test_a_share_below_8_grid_steps_is_refused() -> None:
    assert linear(sigma=8.0 * 2, shares=4, exponent=0, clip=2.0**14).noise_steps == 8.0
    with pytest.raises(ParameterError, match="at most -1"):
        linear(sigma=math.nextafter(16.0, 0), shares=4, exponent=0, clip=2.0**14)
    assert linear(sigma=0.1, exponent=0, clip=2.0**14).noise_steps == 0.1  # a whole noise may be


@pytest.mark.parametrize("sigma", [5e-324, 1e-310, 1e-300])
def test_noise_too_small_for_any_grid_is_refused_with_an_error_of_ours(sigma: float) -> None:
    with pytest.raises(ParameterError, match="at most"):
        linear(sigma=sigma, shares=1000)


@pytest.mark.parametrize("sigma", [1e16, 1e300, 1.7e308])
def test_words_beyond_64_bits_are_refused(sigma: float) -> None:
    with pytest.raises(ParameterError, match="64 bits"):
        linear(sigma=sigma, exponent=-14)


@given(st.floats(0.5, 1e3), st.integers(1, 1000), st.sampled_from([1.0, 0.3, 20.0]))
def test_the_word_limit_is_clip_and_40_sigmas(sigma: float, shares: int, clip: float) -> None:
    mechanism = linear(sigma=sigma, shares=shares, clip=clip, exponent=-18)

    limit = (Fraction(clip) + 40 * Fraction(mechanism.share_sigma)) * 2**18
    assert mechanism.word_limit <= limit < mechanism.word_limit + 1


@pytest.mark.parametrize("exponent", [-14, -28])  # limits within 32 bits, and beyond
def test_words_count_the_same_however_wide_they_came(exponent: int) -> None:
    mechanism = linear(sigma=3.0, exponent=exponent)
    edge = min(mechanism.word_limit, (1 << 31) - 2)
    rows = [[word] for word in (edge, -edge, edge + 1, -edge - 1, -(1 << 31), 0)]
    narrow: Any = np.array(rows, dtype=np.int32)

    valid = mechanism.valid(narrow)

    assert valid.tolist() == [abs(word) <= mechanism.word_limit for [word] in rows]
    assert mechanism.valid(narrow[valid]).all()
    assert mechanism.valid(narrow[:0]).tolist() == []
    fit = ((1 << 31) - 1) // edge  # so many words of this size add up within 32 bits
    for some, count in product((narrow, narrow.astype(np.int64)), (1, fit, fit + 1, 1000 * fit)):
        for row, word in ((0, edge), (1, -edge)):
            sums = mechanism.tally(np.repeat(some[row : row + 1], count, axis=0))
            assert sums.dtype == np.int64
            assert sums.tolist() == [count * word]


def test_the_standard_error_includes_rounding_at_random() -> None:
    on, off = (
        linear(sigma=3.0, shares=100, exponent=-14, on_grid=on_grid) for on_grid in (True, False)
    )

    step, share = 2.0**-14, 3.0 / 10
    assert on.standard_error(70) ** 2 == pytest.approx(70 * (share**2 + step**2 / 12), rel=1e-12)
    # γ is small beside the noise, so compare exactly what is added: n γ²/4.
    added = off.standard_error(70) ** 2 - on.standard_error(70) ** 2
    assert added == pytest.approx(70 * step**2 / 4, rel=1e-6)


def test_the_standard_error_covers_the_rounding_that_was_drawn(rng: Rng) -> None:
    # Noise of the order of a grid step, so that rounding shows; half steps are the worst case.
    people, repeats = 50, 3000
    mechanism = linear(repeats, sigma=0.5, exponent=0, clip=2.0**20)
    values = np.full((people, repeats), 7.5)
    sampler = FastSampler(rng)

    words = mechanism.encode(values, sampler)[0] + mechanism.noise(sampler, reports=people)

    errors = words.sum(axis=0) - people * 7.5
    spread = math.sqrt(float(np.mean(errors**2)))
    # At half a step of noise the rounded Gaussian varies less than s² + 1/12, by 0.0078 per report
    # (below), so the true spread is a little under the standard error.
    exact_variance = sum(
        k * k * (math.erf((k + 0.5) / 0.5**0.5) - math.erf((k - 0.5) / 0.5**0.5)) / 2
        for k in range(-8, 9)
    )
    truth = math.sqrt(people * (exact_variance + 0.25))
    assert spread == pytest.approx(truth, rel=5 / math.sqrt(2 * repeats))
    assert truth <= mechanism.standard_error(people) <= 1.02 * truth


def test_an_estimate_is_the_sum_in_data_units_with_its_interval() -> None:
    mechanism = linear(2, exponent=-7, on_grid=True)

    result = mechanism.estimate(np.array([128 * 41, -64]), reports=100)

    assert result.estimate.tolist() == [41.0, -0.5]
    (error,) = result.standard_error
    assert error == mechanism.standard_error(100)
    assert result.half_width.tolist() == [TWO_SIDED_QUANTILE * error]
    # 95 % of a Gaussian lie within the quantile.
    assert math.erf(TWO_SIDED_QUANTILE / math.sqrt(2)) == pytest.approx(0.95, abs=1e-15)


@given(st.integers(1, 1 << 28), st.floats(0.5, 100.0))
def test_charges_in_the_measures_are_those_of_the_exact_rationals(
    squared_norm: int, sigma: float
) -> None:
    mechanism = linear(sigma=sigma)

    squared_mu = squared_norm * Fraction(4) ** -14 / Fraction(sigma) ** 2
    assert mechanism.charge_gdp(squared_norm) ** 2 == pytest.approx(float(squared_mu), rel=1e-14)
    assert mechanism.charge_zcdp(squared_norm) == pytest.approx(float(squared_mu) / 2, rel=1e-14)


def test_one_report_alone_is_nearly_noiseless_in_the_aggregate_view() -> None:
    mechanism = linear(sigma=16.4, shares=23_570, exponent=-7, on_grid=True)

    assert mechanism.report_mu == pytest.approx(math.sqrt(23_570) / 16.4, rel=1e-12)
    assert mechanism.report_mu > 9.3


def test_squared_norms_are_exact_up_to_63_bits() -> None:
    words = np.array([[1 << 30, 1 << 30], [-(1 << 31), (1 << 31) - 1], [0, 0]])

    assert squared_norms(words).tolist() == [1 << 61, (1 << 62) + ((1 << 31) - 1) ** 2, 0]


# ---- a round against its study ---------------------------------------------------------------

STUDY = Study(
    name="x",
    view=View.AGGREGATE,
    measure=Measure.GDP,
    policy=Policy.SKIP,
    budget=0.2,
    epsilon=1.0,
    delta=1e-6,
    base_sigma=16.0,
    base_grid_exponent=-7,
    minimum_cohort=100,
    horizon=5,
    maximum_dimension=3,
)
ROUND = Round(
    study_hash=define_study(STUDY).hash,
    number=5,
    query=Linear(
        features=(Feature(name="f"),),
        dimension=3,
        clip=1.0,
        sigma=16.0,
        grid_exponent=-7,
        on_grid=True,
    ),
    weight=STUDY.base_weight,
    word_type=WordType.INT32,
)


def asking(word_type: WordType = WordType.INT32, **changes: Any) -> Round:
    """A round like ROUND with another question, and the weight that it implies."""
    assert isinstance(ROUND.query, Linear)
    query = replace(ROUND.query, **changes)
    weight = round_weight(
        sigma=query.noise.sigma,
        exponent=query.noise.grid_exponent,
        base_sigma=STUDY.base_sigma,
        base_exponent=STUDY.base_grid_exponent,
        base_weight=STUDY.base_weight,
        budget_units=STUDY.budget_units,
    )
    return replace(ROUND, query=query, weight=weight, word_type=word_type)


def test_a_round_that_fits_its_study_has_the_mechanism_it_states() -> None:
    mechanism = gaussian_for(STUDY, ROUND)

    assert mechanism == linear(3, exponent=-7, sigma=16.0, shares=100, on_grid=True)


def test_rounds_that_do_not_fit_their_study_are_refused() -> None:
    with pytest.raises(ParameterError, match="dimension"):
        gaussian_for(STUDY, asking(dimension=4))
    with pytest.raises(ParameterError, match="horizon"):
        gaussian_for(STUDY, replace(ROUND, number=6))
    for wrong in (STUDY.base_weight - 1, STUDY.base_weight + 1, 1):
        with pytest.raises(ParameterError, match="weight"):
            gaussian_for(STUDY, replace(ROUND, weight=wrong))
    with pytest.raises(ParameterError, match="noise"):
        gaussian_for(STUDY, asking(sigma=0.6))  # 0.06 of noise, 7.7 grid steps


def test_a_round_whose_words_do_not_fit_their_type_is_refused() -> None:
    asked = asking(grid_exponent=-26)

    with pytest.raises(ParameterError, match="word_type"):
        gaussian_for(STUDY, asked)
    assert gaussian_for(STUDY, replace(asked, word_type=WordType.INT64)).word_limit > 1 << 31


def test_a_round_whose_sums_could_overflow_is_refused() -> None:
    fine = asking(WordType.INT64, clip=2.0**-22, grid_exponent=-50)
    finer = asking(WordType.INT64, clip=2.0**-22, grid_exponent=-51)

    # 64.0000002 · 2^50 · 100 = 7.2e18 < 2^63 = 9.2e18 < twice that.
    assert gaussian_for(STUDY, fine).word_limit * 100 < 1 << 63
    with pytest.raises(ParameterError, match="overflow"):
        gaussian_for(STUDY, finer)


@example(sigma=16.0, exponent=-7, square=1)
@given(sigma=st.floats(2.0, 64.0), exponent=st.integers(-12, -7), square=st.integers(1, 1 << 24))
def test_what_a_filter_charges_is_no_less_than_what_the_noise_that_is_added_costs(
    sigma: float, exponent: int, square: int
) -> None:
    asked = asking(sigma=sigma, grid_exponent=exponent)
    mechanism = gaussian_for(STUDY, asked)

    # In shares of the whole budget, exactly: the honest part of the smallest cohort makes noise of
    # variance shares·σ_i² around a value of norm γ‖z‖.
    noise = STUDY.noise_shares * Fraction(mechanism.noise_steps) ** 2
    true_share = Fraction(square) / noise / Fraction(STUDY.budget) ** 2
    charged_share = Fraction(square * asked.weight, STUDY.budget_units)
    assert charged_share >= true_share
