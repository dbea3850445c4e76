"""Writes composition.json, in decimal arithmetic of its own: nothing of demur is imported.

    python tests/golden/composition.py

Sums go over all numbers of true answers, with exact binomial coefficients and 80 digits; calibrations
are bisected on them until 55 digits are settled. Doubles in the file are read as the numbers that they are.
"""

import json
import math
from decimal import Decimal, getcontext
from pathlib import Path

getcontext().prec = 80
FILE = Path(__file__).with_suffix(".json")
SETTLED = Decimal(10) ** -55

PAIRS = ((0.5, 1e-9), (1.0, 1e-6), (4.0, 1e-6), (1.0, 1e-12), (8.0, 1e-3), (0.1, 1e-5))
COUNTS = (365, 52, 26, 19, 10, 3, 2, 1)
EPSILONS = (0.001, 0.1, 1.0, 2.0, 4.0, 8.0)


def delta(n: int, each: Decimal, epsilon: Decimal) -> Decimal:
    """Of n binary randomised responses at ε."""
    odds, known = each.exp(), epsilon.exp()
    first = next((k for k in range(n + 1) if (2 * k - n) * each > epsilon), n + 1)
    # The first law's mass, less e^ε times the other's, in which k and n − k change places.
    mine, other = odds**first, odds ** (n - first)
    total, ways = Decimal(0), math.comb(n, first)
    for k in range(first, n + 1):
        total += ways * (mine - known * other)
        mine, other, ways = mine * odds, other / odds, ways * (n - k) // (k + 1)
    return total / (1 + odds) ** n


def largest(n: int, epsilon: Decimal, most: Decimal) -> Decimal:
    """The largest ε₀ of which n keep (ε, δ)."""
    low, high = Decimal(0), epsilon + 1
    while high - low > SETTLED * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta(n, middle, epsilon) <= most else (low, middle)
    return low


def pure(mechanism: str, epsilon: Decimal, size: int) -> Decimal:
    """The larger of both log likelihood ratios of a category against none, over all reports."""
    grown = epsilon.exp()
    if mechanism == "sue":
        return epsilon / 2
    if mechanism in ("oue", "hadamard"):
        flipped = 1 / (grown + 1)
        laws = [(Decimal("0.5"), flipped), (Decimal("0.5"), 1 - flipped)]
    elif mechanism in ("blh", "olh"):  # given any seed: a hash value kept, or else another; uniform
        kept = grown / (grown + size - 1)
        laws = [(kept, 1 / Decimal(size)), ((1 - kept) / (size - 1), 1 / Decimal(size))]
    else:  # krr, subset: the symbol of none is one of those that they choose from
        return epsilon
    return max(abs((first / second).ln()) for first, second in laws)


def written() -> dict[str, object]:
    """The families."""
    deltas, budgets, numbers = [], [], []
    for n in COUNTS:
        for each in (0.05, 0.25, 1.0):
            for epsilon in (0.77, 0.0, 1.0, 4.0):
                if n * each > epsilon + 1e-9:  # or nothing but rounding is left
                    truth = delta(n, Decimal(each), Decimal(epsilon))
                    deltas.append(
                        {"answers": n, "each": each, "eps": epsilon, "delta": float(truth)}
                    )
        for epsilon, most in PAIRS:
            truth = largest(n, Decimal(epsilon), Decimal(most))
            budgets.append({"answers": n, "eps": epsilon, "delta": most, "each": float(truth)})
    for epsilon, most in PAIRS:
        for each in (0.05, 0.1, 0.2):
            low, high = 0, 4096  # fits, does not fit
            while high - low > 1:
                n = (low + high) // 2
                fits = delta(n, Decimal(each), Decimal(epsilon)) <= Decimal(most)
                low, high = (n, high) if fits else (low, n)
            assert low < 4095
            numbers.append({"each": each, "eps": epsilon, "delta": most, "answers": low})
    charges = [
        {
            "mechanism": mechanism,
            "categories": categories,
            "size": size,
            "eps": epsilon,
            "pure": float(pure(mechanism, Decimal(epsilon), size)),
        }
        for mechanism, categories, size in (
            ("krr", 1, 0),
            ("krr", 2, 0),
            ("krr", 64, 0),
            ("sue", 64, 0),
            ("oue", 64, 0),
            ("blh", 64, 2),
            ("olh", 64, 3),
            ("olh", 64, 53),
            ("hadamard", 64, 0),
            ("subset", 64, 17),
        )
        for epsilon in EPSILONS
    ]
    return {
        "meta": {"made_by": "tests/golden/composition.py", "digits": getcontext().prec},
        "composition_delta": deltas,
        "composition_each": budgets,
        "composition_answers": numbers,
        "pure_charges": charges,
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(written(), indent=1) + "\n", encoding="utf-8")
