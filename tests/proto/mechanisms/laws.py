"""What categorical mechanisms report, enumerated from their integer thresholds, exactly."""

from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import combinations, product

Outcome = int | tuple[int, ...]
Law = Mapping[Outcome, Fraction]

DIGITS = 60  # far more than the charges have; ε = 1e-6 at α = 1.5 loses 13 of them


def exp_bound_below(exponent: float) -> Fraction:
    """Just below e^x, by another library than the code's."""
    with localcontext() as context:
        context.prec = 120
        value = Decimal(exponent).exp()
        return Fraction(value) * (1 - Fraction(1, 10**118))


def divergence(first: Law, second: Law, order: float) -> Decimal:
    """D_α, the larger of both directions, from the definition."""
    return max(_one_way(first, second, order), _one_way(second, first, order))


def _one_way(first: Law, second: Law, order: float) -> Decimal:
    with localcontext() as context:
        context.prec = DIGITS
        alike = Counter((first[at], second[at]) for at in first)
        pairs = [(_decimal(p), _decimal(q)) for p, q in alike]
        if order == float("inf"):
            return max((p / q).ln() for p, q in pairs)
        power = Decimal(order)
        terms = [(p.ln() * power + q.ln() * (1 - power)) for p, q in pairs]
        largest = max(terms)
        weighted = zip(terms, alike.values(), strict=True)
        total = sum(((term - largest).exp() * times for term, times in weighted), Decimal(0))
        return (largest + total.ln()) / (power - 1)


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


def response_law(symbol: int, *, categories: int, keep: Fraction) -> Law:
    """k-ary randomised response over the categories and null."""
    other = (1 - keep) / categories
    return {at: keep if at == symbol else other for at in range(categories + 1)}


def unary_law(symbol: int, *, categories: int, one: Fraction, zero: Fraction) -> Law:
    """Codes, as tuples of bits."""
    law: dict[Outcome, Fraction] = {}
    for code in product((0, 1), repeat=categories):
        mass = Fraction(1)
        for at, bit in enumerate(code):
            chance = one if at == symbol - 1 else zero
            mass *= chance if bit else 1 - chance
        law[code] = mass
    return law


def hadamard_law(symbol: int, *, size: int, keep: Fraction) -> Law:
    """Indices: the two halves that a row of the matrix makes."""
    law: dict[Outcome, Fraction] = {}
    for index in range(size):
        positive = (index & symbol).bit_count() % 2 == 0
        chance = keep if positive else 1 - keep
        law[index] = chance * 2 / size if symbol else Fraction(1, size)
    return law


def hashing_law(symbol: int, *, base: int, digits: int, keep: Fraction) -> Law:
    """Seed times the base plus value; hashing written out digit by digit. Null is uniform."""
    seeds = base**digits
    law: dict[Outcome, Fraction] = {}
    if not symbol:
        return dict.fromkeys(range(seeds * base), Fraction(1, seeds * base))
    for seed in range(seeds):
        parts = [(seed // base**at) * (symbol // base**at) for at in range(digits)]
        hashed = sum(parts) % base
        for value in range(base):
            chance = keep if value == hashed else (1 - keep) / (base - 1)
            law[seed * base + value] = chance / seeds
    return law


def subset_law(symbol: int, *, categories: int, size: int, own: Fraction) -> Law:
    """Subsets of all symbols, as bits of the categories alone."""
    law: dict[Outcome, Fraction] = {}
    subsets = list(combinations(range(categories + 1), size))
    holding = sum(symbol in subset for subset in subsets)
    for subset in subsets:
        code = tuple(int(at in subset) for at in range(1, categories + 1))
        chance = own / holding if symbol in subset else (1 - own) / (len(subsets) - holding)
        law[code] = chance
    return law


def pairs(count: int) -> Iterator[tuple[int, int]]:
    """Two different ones of so many."""
    return ((a, b) for a in range(count) for b in range(count) if a != b)
