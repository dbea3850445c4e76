"""Hash functions: how often two symbols differ by what, in exact counts, and what they support."""

import math
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.errors import ParameterError
from demur_proto.mechanisms import local_hashing as hash_family
from demur_proto.mechanisms.local_hashing import (
    MOST_CELLS,
    MOST_RANGE,
    MOST_SYMBOLS,
    HashFamily,
    best_range,
    is_prime,
    ranges_near,
)


def by_hand(family: HashFamily, seed: int, symbol: int) -> int:
    """The hash, written out digit by digit."""
    total = 0
    for _ in range(family.digits):
        seed, a = divmod(seed, family.size)
        symbol, x = divmod(symbol, family.size)
        total += a * x
    return total % family.size


@cache
def fitting(symbols: int) -> list[int]:
    return [g for g in range(2, MOST_RANGE) if hash_family.family_fits(g, symbols=symbols)]


FAMILIES = [(2, 2), (2, 9), (3, 3), (3, 20), (5, 4), (5, 31), (7, 8), (11, 12), (13, 5)]


@pytest.mark.parametrize(("size", "symbols"), FAMILIES)
def test_two_symbols_differ_by_every_amount_under_equally_many_seeds(
    size: int, symbols: int
) -> None:
    family = HashFamily(size=size, symbols=symbols)
    table = [[by_hand(family, a, x) for x in range(symbols)] for a in range(family.seeds)]

    for one, other in combinations(range(symbols), 2):
        differences = [(row[one] - row[other]) % size for row in table]
        assert np.bincount(differences, minlength=size).tolist() == [family.seeds // size] * size


def test_a_composite_range_would_not_do_as_the_refusal_says() -> None:
    # Mod 4, seeds times a difference of 2 are even: 0 too often, and 1 never.
    assert {seed * 2 % 4 for seed in range(4)} == {0, 2}
    for size in (4, 6, 9, 1024):
        with pytest.raises(ParameterError, match=r"^hash_range must be a prime"):
            HashFamily(size=size, symbols=4)


@given(
    size=st.sampled_from([2, 3, 5, 29, 127, 131, 257, 1031, 32749]),
    symbols=st.integers(2, 300),
    pairs=st.integers(0, 90),
    at_once=st.sampled_from([1, 200, 1 << 18]),
    seed=st.integers(0, 99),
)
def test_supports_are_counted_as_if_every_symbol_were_hashed_by_hand(
    size: int, symbols: int, pairs: int, at_once: int, seed: int
) -> None:
    family = HashFamily(size=size, symbols=symbols)
    rng = np.random.default_rng(seed)
    seeds = rng.integers(0, family.seeds, pairs)
    values = rng.integers(0, size, pairs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hash_family, "AT_ONCE", at_once)  # in few or in many parts
        supports = family.supports(seeds, values)

    for symbol in {0, 1, symbols // 2, symbols - 1}:
        hashed = [by_hand(family, int(a), symbol) for a in seeds]
        assert supports[symbol] == (np.array(hashed) == values).sum()
        assert family.hash(seeds, np.full(pairs, symbol)).tolist() == hashed
    assert supports.shape == (symbols,)
    assert supports.min() >= 0
    assert supports.max() <= pairs


@pytest.mark.parametrize("size", [2, 211, 1289])
def test_the_most_symbols_are_still_hashed_exactly(size: int) -> None:
    family = HashFamily(size=size, symbols=MOST_SYMBOLS)
    rng = np.random.default_rng(size)
    seeds = np.append(rng.integers(0, family.seeds, 9), family.seeds - 1)
    values = np.append(rng.integers(0, size, 9), size - 1)

    supports = family.supports(seeds, values)

    for symbol in (0, 1, 524_287, MOST_SYMBOLS - 2, MOST_SYMBOLS - 1):
        hits = [by_hand(family, int(a), symbol) == v for a, v in zip(seeds, values, strict=True)]
        assert supports[symbol] == sum(hits)


@pytest.mark.parametrize("symbols", [3, 65, 1025, 100_001, MOST_SYMBOLS])
def test_a_seed_with_a_value_fits_an_int32_for_all_primes_that_fit_and_no_other(
    symbols: int,
) -> None:
    possible = fitting(symbols)

    for g in (possible[0], possible[len(possible) // 2], possible[-1]):
        family = HashFamily(size=g, symbols=symbols)
        assert family.seeds * g - 1 < 1 << 31
        assert g**family.digits >= symbols > g ** (family.digits - 1)
    primes = [g for g in range(2, MOST_RANGE) if is_prime(g)]
    assert all(
        g ** (hash_family.digits_of(symbols, base=g) + 1) > MOST_CELLS
        for g in set(primes) - set(possible)
    )


def test_primes_are_those_of_the_sieve() -> None:
    sieve = np.ones(MOST_RANGE + 10, dtype=bool)
    sieve[:2] = False
    for number in range(2, math.isqrt(len(sieve)) + 1):
        sieve[number * number :: number] &= not sieve[number]

    assert [is_prime(number) for number in range(len(sieve))] == sieve.tolist()


def variance(epsilon: float, g: int) -> float:
    """Of local hashing, for a rare category, times (e^ε − 1)²."""
    return (math.exp(epsilon) + g - 1) ** 2 / (g - 1)


@pytest.mark.parametrize("symbols", [3, 65, 1025, 100_001])
@pytest.mark.parametrize("epsilon", [1e-9, 0.3, 1.0, 1.5, 2.0, 3.3, 4.0, 6.0, 9.0])
def test_the_best_range_is_the_best_of_all_that_fit(epsilon: float, symbols: int) -> None:
    chosen = best_range(epsilon, symbols=symbols)

    assert chosen in fitting(symbols)
    least = min(variance(epsilon, g) for g in fitting(symbols))
    assert variance(epsilon, chosen) <= least * (1 + 1e-12)


def test_a_prime_costs_at_most_three_percent_of_the_variance() -> None:
    for epsilon in np.linspace(0.01, 10.0, 300).tolist():
        chosen = best_range(epsilon, symbols=65)

        # Of all real numbers g = e^ε + 1 is the best: (e^ε + e^ε)²/e^ε. The worst is between two
        # primes one of which is twice as far from 1 as the other: (√2 + 2 + 1/√2)/4 of that.
        assert variance(epsilon, chosen) <= 1.0304 * 4 * math.exp(epsilon)


@pytest.mark.parametrize("epsilon", [10.5, 30.0, 50.0])
def test_far_out_the_range_is_the_largest_that_fits(epsilon: float) -> None:
    assert best_range(epsilon, symbols=65) == next(ranges_near(MOST_RANGE, symbols=65)) == 32749


@pytest.mark.parametrize("size", [1, 0, -3, 2.0, True, math.nan, "3", None, 32771, 1 << 40])
def test_a_range_that_is_none_is_refused_in_one_line(size: Any) -> None:
    with pytest.raises(ParameterError, match=r"^hash_range ") as refused:
        HashFamily(size=size, symbols=9)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("symbols", [1, 0, -3, 2.0, True, math.nan, MOST_SYMBOLS + 1])
def test_fewer_than_two_symbols_or_too_many_are_refused(symbols: Any) -> None:
    with pytest.raises(ParameterError, match=r"^symbols "):
        HashFamily(size=3, symbols=symbols)


def test_a_range_whose_seeds_are_too_many_is_refused_with_one_that_will_do() -> None:
    with pytest.raises(ParameterError, match=r"as 211 does, got 223$"):
        HashFamily(size=223, symbols=MOST_SYMBOLS)

    assert HashFamily(size=211, symbols=MOST_SYMBOLS).digits == 3
