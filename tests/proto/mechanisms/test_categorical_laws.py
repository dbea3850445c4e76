import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from tests.proto.mechanisms.laws import (
    Law,
    divergence,
    exp_bound_below,
    hadamard_law,
    hashing_law,
    pairs,
    response_law,
    subset_law,
    unary_law,
)
from tests.proto.mechanisms.recorded import RecordedBits, halves_of

from demur_proto.accounting.divergences import levels_zcdp
from demur_proto.accounting.pure import pure_rho
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.hadamard import HadamardResponse
from demur_proto.mechanisms.local_hashing import HashFamily, LocalHashing, joint_levels
from demur_proto.mechanisms.randomised_response import KaryRandomisedResponse
from demur_proto.mechanisms.subset_selection import SubsetSelection
from demur_proto.mechanisms.unary import Flip, UnaryEncoding
from demur_sim.engine.sampling import SeededBits

EPSILONS = [1e-6, 0.1, 1.0, 4.0, 15.0, 17.0, 50.0]
ORDERS = [1.5, 2.0, 8.0, 1e4, math.inf]

Mechanism = (
    KaryRandomisedResponse | UnaryEncoding | HadamardResponse | LocalHashing | SubsetSelection
)


def krr(categories: int, epsilon: float) -> Mechanism:
    return KaryRandomisedResponse(categories=categories, epsilon=epsilon)


def sue(categories: int, epsilon: float) -> Mechanism:
    return UnaryEncoding(categories=categories, epsilon=epsilon, flip=Flip.SYMMETRIC)


def oue(categories: int, epsilon: float) -> Mechanism:
    return UnaryEncoding(categories=categories, epsilon=epsilon, flip=Flip.OPTIMISED)


def hadamard(categories: int, epsilon: float) -> Mechanism:
    return HadamardResponse(categories=categories, epsilon=epsilon)


def blh(categories: int, epsilon: float) -> Mechanism:
    return LocalHashing(categories=categories, epsilon=epsilon, hash_range=2)


def olh(categories: int, epsilon: float) -> Mechanism:
    return LocalHashing(categories=categories, epsilon=epsilon, hash_range=5)


def subset(categories: int, epsilon: float) -> Mechanism:
    return SubsetSelection(categories=categories, epsilon=epsilon)


def pair_subset(categories: int, epsilon: float) -> Mechanism:
    return SubsetSelection(categories=categories, epsilon=epsilon, size=2)


FAMILIES = [krr, sue, oue, hadamard, blh, olh, subset, pair_subset]
Family = Callable[[int, float], Mechanism]


def law_of(mechanism: Mechanism, symbol: int) -> Law:
    if isinstance(mechanism, KaryRandomisedResponse):
        keep = mechanism.keep.probability
        return response_law(symbol, categories=mechanism.categories, keep=keep)
    if isinstance(mechanism, UnaryEncoding):
        one, zero = mechanism.one.probability, mechanism.zero.probability
        return unary_law(symbol, categories=mechanism.categories, one=one, zero=zero)
    if isinstance(mechanism, LocalHashing):
        family, keep = mechanism.family, mechanism.keep.probability
        return hashing_law(symbol, base=family.size, digits=family.digits, keep=keep)
    if isinstance(mechanism, SubsetSelection):
        own = mechanism.own.probability
        return subset_law(symbol, categories=mechanism.categories, size=mechanism.size, own=own)
    keep = mechanism.keep.probability
    return hadamard_law(symbol, size=mechanism.sums_length, keep=keep)


@cache
def bound(epsilon: float) -> Fraction:
    return exp_bound_below(epsilon)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("categories", [2, 3, 4, 5])
def test_no_likelihood_ratio_exceeds_e_to_the_epsilon_in_exact_rationals(
    family: Family, epsilon: float, categories: int
) -> None:
    mechanism = family(categories, epsilon)
    laws = [law_of(mechanism, symbol) for symbol in range(categories + 1)]

    assert all(sum(law.values()) == 1 for law in laws)
    for first, second in pairs(categories + 1):
        worst = max(laws[first][at] / laws[second][at] for at in laws[first])
        assert worst <= bound(epsilon)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("order", ORDERS)
def test_the_charge_is_the_divergence_of_the_enumerated_laws_rounded_up(
    family: Family, epsilon: float, order: float
) -> None:
    mechanism = family(3, epsilon)
    null = law_of(mechanism, 0)

    for symbol in (1, 3):
        exact = divergence(law_of(mechanism, symbol), null, order)
        charge = mechanism.charge_renyi(symbol, order=order)

        assert Fraction(charge) >= Fraction(exact)
        assert charge == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_zcdp_charge_holds_at_every_order_and_is_at_most_the_pure_one(
    family: Family, epsilon: float
) -> None:
    mechanism = family(3, epsilon)

    rho = mechanism.charge_zcdp(1)

    curve = [
        mechanism.charge_renyi(1, order=order) / order for order in 1 + np.geomspace(1e-3, 1e7, 200)
    ]
    assert rho >= max(curve) * (1 - 1e-12)
    assert rho <= pure_rho(mechanism.charge_pure(1))
    assert rho <= max(curve) * 1.01  # 200 orders come this near to the supremum


@pytest.mark.parametrize("family", FAMILIES)
def test_the_null_symbol_costs_exactly_nothing(family: Family) -> None:
    mechanism = family(4, 1.0)

    assert mechanism.charge_renyi(0, order=8.0) == 0.0
    assert mechanism.charge_zcdp(0) == 0.0
    assert mechanism.charge_pure(0) == 0.0


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("order", [1.0, *ORDERS])
def test_oue_costs_what_hadamard_response_does(epsilon: float, order: float) -> None:
    first, second = oue(5, epsilon), hadamard(9, epsilon)

    assert first.charge_renyi(2, order=order) == second.charge_renyi(7, order=order)


def test_randomised_response_follows_its_thresholds_digit_by_digit() -> None:
    mechanism = KaryRandomisedResponse(categories=4, epsilon=1.0)
    first = mechanism.keep.numerator >> 96
    symbols = np.array([0, 2, 2, 4, 4], dtype=np.int32)
    keeping = halves_of([first - 1, first - 1, first + 1, first + 1, first + 1])
    quarter = 1 << 30
    others = halves_of([0, 0, 0, 2 * quarter, 3 * quarter])

    drawn = mechanism.draw(symbols, RecordedBits(keeping, others))

    assert drawn.tolist() == [0, 2, 0, 2, 3]


def test_a_coin_that_ties_with_the_threshold_is_settled_by_more_bits() -> None:
    for mechanism in (
        KaryRandomisedResponse(categories=4, epsilon=1.0),
        HadamardResponse(categories=4, epsilon=1.0),
    ):
        first = mechanism.keep.numerator >> 96
        middle = (mechanism.keep.numerator >> 32) & ((1 << 64) - 1)
        symbols = np.array([3, 3], dtype=np.int32)
        more = np.array([middle - 1, middle + 1], dtype=np.uint64)
        zeros = halves_of([0, 0])
        draws = [halves_of([first, first]), more, zeros]

        drawn = mechanism.draw(symbols, RecordedBits(*draws))

        # Kept: itself, or index 0, which lies in the likely half. Not kept: 0, or its neighbour.
        expected = [3, 0] if isinstance(mechanism, KaryRandomisedResponse) else [0, 1]
        assert drawn.tolist() == expected


@pytest.mark.parametrize("symbol", [0, 1, 5])
def test_hadamard_indices_fill_the_wanted_half_one_to_one(symbol: int) -> None:
    mechanism = HadamardResponse(categories=5, epsilon=1.0)
    likely, unlikely = 0, (1 << 32) - 1
    every = halves_of([index << 29 for index in range(8)])
    symbols = np.full(8, symbol, dtype=np.int32)

    for coin, parity in ((likely, 0), (unlikely, 1)):
        drawn = mechanism.draw(symbols, RecordedBits(halves_of([coin] * 8), every))

        parities = [(int(index) & symbol).bit_count() % 2 for index in drawn]
        if symbol:
            assert parities == [parity] * 8
            assert np.bincount(drawn, minlength=8).max() == 2  # each of the half exactly twice
        else:
            assert sorted(drawn.tolist()) == list(range(8))


@pytest.mark.parametrize("family", FAMILIES)
def test_reports_follow_the_enumerated_law(family: Family) -> None:
    mechanism, n = family(3, 1.0), 40_000
    source = SeededBits(np.random.Generator(np.random.SFC64(5)))

    for symbol in range(4):
        reports = mechanism.randomise(np.full((n, 1), symbol), source)
        law = law_of(mechanism, symbol)
        keys = Counter(tuple(row) if len(row) > 1 else row[0] for row in reports.tolist())
        counts = {at: keys[at] for at in law}

        assert sum(counts.values()) == n
        expected = {at: float(mass) * n for at, mass in law.items()}
        chi = sum((counts[at] - expected[at]) ** 2 / expected[at] for at in law)
        freedom = len(law) - 1
        # Wilson-Hilferty: the normal deviate of χ²; 32 of them stay below 4.2 but for 5e-4.
        cube = (chi / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))
        assert cube / math.sqrt(2 / (9 * freedom)) < 4.2


@pytest.mark.parametrize("base", [2, 3, 5])
def test_any_two_symbols_collide_under_just_one_seed_in_g(base: int) -> None:
    family = HashFamily(size=base, symbols=2 * base + 1)
    seeds = np.arange(family.seeds)
    hashed = [family.hash(seeds, np.full_like(seeds, at)) for at in range(family.symbols)]

    for first, second in pairs(family.symbols):
        assert (hashed[first] == hashed[second]).sum() * base == family.seeds


@pytest.mark.parametrize("base", [2, 3, 5, 7, 131, 257])
@pytest.mark.parametrize("symbols", [2, 19, 300])
def test_supports_are_those_of_hashing_every_symbol(base: int, symbols: int) -> None:
    family, n = HashFamily(size=base, symbols=symbols), 500
    rng = np.random.default_rng(3)
    seeds, values = rng.integers(0, family.seeds, n), rng.integers(0, base, n)

    supports = family.supports(seeds, values)

    for at in range(symbols):
        digits = range(family.digits)
        hashed = sum((seeds // base**i) % base * (at // base**i % base) for i in digits) % base
        assert supports[at] == (hashed == values).sum()


@pytest.mark.parametrize(("epsilon", "share"), [(0.1, 0.56), (1.0, 0.56), (4.0, 0.75)])
def test_a_hashed_category_costs_about_half_of_what_it_did_when_null_was_hashed(
    epsilon: float, share: float
) -> None:
    mechanism = LocalHashing(categories=6, epsilon=epsilon)

    before = levels_zcdp(joint_levels(epsilon, hash_range=mechanism.hash_range))

    assert mechanism.charge_zcdp(4) < share * before
    assert mechanism.largest_charge == before


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        pytest.param(LocalHashing, {"hash_range": 4}, id="a range that is no prime"),
        pytest.param(LocalHashing, {"hash_range": 1}, id="a range of one"),
        pytest.param(LocalHashing, {"hash_range": 32771}, id="a range too large"),
        pytest.param(SubsetSelection, {"size": 5}, id="a subset larger than the categories"),
        pytest.param(SubsetSelection, {"size": -1}, id="a subset smaller than none"),
        pytest.param(UnaryEncoding, {"flip": "optimised"}, id="a flip that is a text"),
    ],
)
def test_impossible_parameters_are_refused_in_one_line(
    kind: Callable[..., object], wrong: dict[str, object]
) -> None:
    with pytest.raises(ParameterError, match=rf"^{next(iter(wrong))} ") as refused:
        kind(categories=4, epsilon=1.0, **wrong)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("categories", [1, 0, -3, 2.0, True, 1 << 21])
def test_fewer_than_two_categories_or_absurdly_many_are_refused(
    family: Family, categories: int
) -> None:
    with pytest.raises(ParameterError, match=r"^categories "):
        family(categories, 1.0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 50.1, 1e-10])
def test_an_absurd_epsilon_is_refused(family: Family, epsilon: float) -> None:
    with pytest.raises(ParameterError, match=r"^epsilon "):
        family(4, epsilon)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("symbol", [-1, 5, 1.0, True])
def test_a_charge_of_what_is_no_symbol_is_refused_without_repeating_it(
    family: Family, symbol: int
) -> None:
    with pytest.raises(ParameterError, match=r"^symbol must be .*, got another value|^symbol "):
        family(4, 1.0).charge_renyi(symbol, order=2.0)


def test_subsets_are_drawn_by_floyds_steps_from_recorded_bits() -> None:
    # Two of the symbols 0 to 3, for symbol 1: the others are 0, 3 (in 1's place), 2.
    mechanism = SubsetSelection(categories=3, epsilon=1.0, size=2)
    first = mechanism.own.numerator >> 96
    top = (1 << 32) - 1
    symbols = np.array([[1], [1], [1]])
    coins = halves_of([first - 1, first + 1, first + 1])  # own in it; not; not
    # First step, below 2: skipped where own is in. Second step, below 3.
    draws = [halves_of([0, 0, top]), halves_of([top, top, 1 << 31])]

    drawn = mechanism.randomise(symbols, RecordedBits(coins, *draws))

    # Columns are 0, 1, 2 and own; own changes places with column 1, whose symbol is 3.
    assert drawn.tolist() == [[1, 1, 0], [0, 1, 0], [0, 1, 1]]
