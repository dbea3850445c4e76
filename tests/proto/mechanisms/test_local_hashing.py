"""Local hashing word by word, and what it charges; what all mechanisms share is tested with them."""

import json
import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.proto.mechanisms.laws import Law, Outcome, divergence, hashing_law
from tests.proto.mechanisms.recorded import RecordedBits, halves_of, words_of

from demur_proto.accounting.divergences import Level, levels_renyi
from demur_proto.errors import ParameterError
from demur_proto.mechanisms import local_hashing
from demur_proto.mechanisms.hadamard import HadamardResponse
from demur_proto.mechanisms.local_hashing import LocalHashing, joint_levels
from demur_proto.mechanisms.randomised_response import response_levels
from demur_sim.engine.sampling import SeededBits

EPSILONS = [1e-6, 0.1, 1.0, 4.0, 15.0, 17.0, 50.0]
ORDERS = [1.5, 2.0, 8.0, 1e4, math.inf]
GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "divergences.json").read_text("utf-8")
)["vectors"]


def seeded(seed: int) -> SeededBits:
    return SeededBits(np.random.Generator(np.random.SFC64(seed)))


def against_uniform(epsilon: float, order: float, g: int) -> Decimal:
    """The larger D_α of a response to one of g values and a uniform one, summed over the values."""
    with localcontext() as context:
        context.prec = 60
        grown, alpha = Decimal(epsilon).exp(), Decimal(order)
        whole = grown + g - 1
        kept, other, uniform = grown / whole, 1 / whole, 1 / Decimal(g)
        if order == math.inf:
            return max((kept / uniform).ln(), (uniform / other).ln())
        sums = (
            kept**alpha * uniform ** (1 - alpha) + (g - 1) * other**alpha * uniform ** (1 - alpha),
            uniform**alpha * kept ** (1 - alpha) + (g - 1) * uniform**alpha * other ** (1 - alpha),
        )
        return max(sums).ln() / (alpha - 1)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("g", [2, 3, 13])
def test_charges_are_the_divergence_from_a_uniform_value_rounded_up(
    epsilon: float, order: float, g: int
) -> None:
    mechanism = LocalHashing(categories=12, epsilon=epsilon, hash_range=g)

    charge = mechanism.charge_renyi(5, order=order)

    exact = against_uniform(epsilon, order, g)
    assert Fraction(charge) >= Fraction(exact)
    assert charge == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("g", [2, 3])
def test_the_seed_tells_nothing_and_under_each_of_them_a_category_costs_the_same(
    epsilon: float, g: int
) -> None:
    mechanism = LocalHashing(categories=4, epsilon=epsilon, hash_range=g)
    family, keep = mechanism.family, mechanism.keep.probability
    laws = [hashing_law(s, base=g, digits=family.digits, keep=keep) for s in range(5)]

    for symbol in (1, 4):
        for seed in range(family.seeds):
            values = range(seed * g, seed * g + g)
            first: Law = {at: laws[symbol][at] * family.seeds for at in values}
            second: Law = {at: laws[0][at] * family.seeds for at in values}
            assert sum(first.values()) == sum(second.values()) == 1
            if seed < 3:
                exact = divergence(first, second, 8.0)
                assert mechanism.charge_renyi(symbol, order=8.0) == pytest.approx(
                    float(exact), rel=1e-12
                )


@pytest.mark.parametrize("g", [2, 3, 5, 7])
@pytest.mark.parametrize("epsilon", [1e-6, 1.0, 50.0])
def test_a_report_supports_a_category_with_just_p_or_one_in_g_in_exact_rationals(
    g: int, epsilon: float
) -> None:
    mechanism = LocalHashing(categories=7, epsilon=epsilon, hash_range=g)
    family, keep = mechanism.family, mechanism.keep.probability
    every = np.arange(family.seeds * g)[:, None]
    supported = [mechanism.tally(every[at : at + 1]) for at in range(len(every))]

    for symbol in range(8):
        law = hashing_law(symbol, base=g, digits=family.digits, keep=keep)
        for category in range(7):
            chance = sum(
                mass for mass, hit in zip(law.values(), supported, strict=True) if hit[category]
            )
            assert chance == (keep if category + 1 == symbol else Fraction(1, g))
    assert (mechanism.frequencies.own, mechanism.frequencies.other) == (keep, Fraction(1, g))


@pytest.mark.parametrize(
    "row",
    [row for row in GOLDEN if row["mechanism"] == "local_hash"],
    ids=lambda row: f"{row['params']['loss']}-{row['alpha']}",
)
def test_levels_have_the_published_divergences(row: dict[str, Any]) -> None:
    epsilon, g = row["params"]["eps"], row["params"]["g"]
    match row["params"]["loss"]:
        case "joint":
            charge = levels_renyi(joint_levels(epsilon, hash_range=g), order=row["alpha"])
        case "given seed, no collision":
            charge = levels_renyi(response_levels(epsilon, options=g), order=row["alpha"])
        case _:
            charge = levels_renyi([Level(mass=1.0, log_ratio=0.0)], order=row["alpha"])

    assert charge == pytest.approx(float(row["divergence"]), rel=1e-12, abs=1e-50)


def test_all_published_vectors_of_local_hashing_are_there() -> None:
    assert sum(row["mechanism"] == "local_hash" for row in GOLDEN) == 5


def test_reports_follow_their_recorded_bits_word_by_word() -> None:
    # Symbols 0 to 4 in base 3: 4 is 11, so under seed 21 = 7 its hash is 2 + 1 = 3 = 0.
    mechanism = LocalHashing(categories=4, epsilon=1.0, hash_range=3)
    first = mechanism.keep.numerator >> 96
    middle = (mechanism.keep.numerator >> 32) & ((1 << 64) - 1)
    seeds = halves_of([math.ceil((seed + 0.5) * 2**32 / 9) for seed in (7, 7, 7, 2, 2, 7)])
    keeping = halves_of([first - 1, first + 1, first + 1, first, first, first + 1])
    ties = words_of([middle - 1, middle + 1])
    others = halves_of([0, 0, 1 << 31, 0, 0, (1 << 31) - 1])
    anyone = halves_of([1 << 31] * 5 + [7 << 29])  # only null looks at it: 2
    source = RecordedBits(seeds, keeping, ties, others, anyone)

    reports = mechanism.randomise(np.array([[4], [4], [4], [1], [1], [0]]), source)

    # Kept, and both others. Tied with the threshold: kept below it, another one above. Null is not kept.
    assert reports[:, 0].tolist() == [7 * 3 + value for value in (0, 1, 2)] + [
        2 * 3 + 2,
        2 * 3 + 0,
        7 * 3 + 0,
    ]
    assert source.left == 0


@pytest.mark.parametrize(("categories", "g"), [(4, 2), (4, 3), (2, 5), (8, 3)])
def test_over_all_draws_reports_have_the_law_that_was_enumerated(categories: int, g: int) -> None:
    mechanism = LocalHashing(categories=categories, epsilon=1.0, hash_range=g)
    family, keep = mechanism.family, mechanism.keep.probability
    first = mechanism.keep.numerator >> 96
    draws = [*product(range(family.seeds), (True, False), range(g - 1), range(g))]

    def place(index: int, bound: int) -> int:  # 32 bits from which `uniform_below` makes it
        return math.ceil((index + 0.5) * 2**32 / bound)

    for symbol in range(categories + 1):
        source = RecordedBits(
            halves_of([place(seed, family.seeds) for seed, _, _, _ in draws]),
            halves_of([first - 1 if kept else first + 1 for _, kept, _, _ in draws]),
            halves_of([place(other, g - 1) for _, _, other, _ in draws]),
            halves_of([place(anyone, g) for _, _, _, anyone in draws]),
        )
        reports = mechanism.randomise(np.full((len(draws), 1), symbol), source)

        law: dict[Outcome, Fraction] = dict.fromkeys(range(family.seeds * g), Fraction(0))
        for (_, kept, _, _), report in zip(draws, reports[:, 0].tolist(), strict=True):
            chance = keep if kept else 1 - keep
            law[report] += chance / family.seeds / (g - 1) / g
        assert law == hashing_law(symbol, base=g, digits=family.digits, keep=keep)


@pytest.mark.parametrize(("categories", "epsilon"), [(64, 1.0), (64, 4.0), (1000, 2.0)])
def test_estimates_miss_by_what_theory_says_whether_people_answer_or_cover(
    categories: int, epsilon: float
) -> None:
    mechanism, people, runs = LocalHashing(categories=categories, epsilon=epsilon), 4_000, 60
    symbols = np.zeros((people, 1), dtype=np.int64)
    symbols[: people // 2] = 3  # half give category 2, the others cover
    source = seeded(8)

    estimates = []
    for _ in range(runs):
        reports = mechanism.randomise(symbols, source)
        answer = mechanism.estimate(mechanism.tally(reports), reports=people)
        estimates.append(answer.estimate)

    misses = np.array(estimates)
    misses[:, 2] -= people // 2
    grown, g = math.exp(epsilon), mechanism.hash_range
    p, q = grown / (grown + g - 1), 1 / g
    rare = people * q * (1 - q) / (p - q) ** 2
    full = people / 2 * (p * (1 - p) + q * (1 - q)) / (p - q) ** 2
    # A sample variance of n normal values has the relative standard deviation √(2/n); 5 of them.
    assert (misses[:, 2] ** 2).mean() == pytest.approx(full, rel=5 * math.sqrt(2 / runs))
    others = np.delete(misses, 2, axis=1)
    # Many counts together tell at least as much as one.
    assert (others**2).mean() == pytest.approx(rare, rel=5 * math.sqrt(2 / runs))
    assert abs(others.mean()) < 5 * math.sqrt(rare / runs)
    assert np.abs(others.mean(axis=0)).max() < 5 * math.sqrt(rare / runs)


@given(people=st.integers(0, 50), rows=st.integers(1, 60), seed=st.integers(0, 99))
def test_reports_are_valid_and_drawn_in_parts_of_any_size(
    people: int, rows: int, seed: int
) -> None:
    mechanism = LocalHashing(categories=9, epsilon=1.0)
    symbols = np.random.default_rng(seed).integers(0, 10, (people, 1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_hashing, "ROWS", rows)
        reports = mechanism.randomise(symbols, seeded(seed))

    assert reports.shape == (people, mechanism.report_length)
    assert mechanism.valid(reports).all()
    assert mechanism.tally(reports).shape == (mechanism.sums_length,)


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint64])
def test_symbols_may_be_integers_of_any_kind(kind: type[np.integer[Any]]) -> None:
    mechanism = LocalHashing(categories=9, epsilon=1.0)
    symbols = np.arange(10)[:, None]

    reports = mechanism.randomise(symbols.astype(kind), seeded(3))

    assert np.array_equal(reports, mechanism.randomise(symbols, seeded(3)))
    sums = mechanism.tally(reports.astype(np.uint64))
    assert np.array_equal(sums, mechanism.tally(reports))
    assert mechanism.valid(reports.astype(np.uint64)).all()


def test_only_a_seed_with_a_value_is_a_report() -> None:
    mechanism = LocalHashing(categories=4, epsilon=1.0, hash_range=3)
    most = mechanism.family.seeds * 3

    valid = mechanism.valid(np.array([[0], [most - 1], [most], [-1], [1 << 40], [-(1 << 63)]]))

    assert valid.tolist() == [True, True, False, False, False, False]
    assert mechanism.valid(np.array([[0, 1]])).tolist() == [False]  # of a longer one
    assert mechanism.valid(np.array([[0.0]])).tolist() == [False]


@pytest.mark.parametrize("reports", [[[27]], [[-1]], [[1, 2]], [[0.5]], [[math.nan]], [0]], ids=str)
def test_reports_of_another_mechanism_are_refused_by_the_tally(reports: list[Any]) -> None:
    mechanism = LocalHashing(categories=4, epsilon=1.0, hash_range=3)

    with pytest.raises(ParameterError, match=r"^reports ") as refused:
        mechanism.tally(np.array(reports))
    assert "\n" not in str(refused.value)


def test_no_reports_have_no_estimate_and_sums_of_another_round_neither() -> None:
    mechanism = LocalHashing(categories=4, epsilon=1.0)
    none = mechanism.tally(np.zeros((0, 1), dtype=np.int64))

    assert none.tolist() == [0, 0, 0, 0]
    with pytest.raises(ParameterError, match=r"^reports "):
        mechanism.estimate(none, reports=0)
    other = HadamardResponse(categories=4, epsilon=1.0)
    with pytest.raises(ParameterError, match=r"^sums "):
        mechanism.estimate(np.zeros(other.sums_length, dtype=np.int64), reports=5)
    with pytest.raises(ParameterError, match=r"^supports "):
        mechanism.estimate(np.array([0, 0, 0, 6]), reports=5)
