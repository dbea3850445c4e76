"""Subsets draw by draw, and what they charge; what all mechanisms share is tested with them."""

import json
import math
from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.proto.mechanisms.recorded import RecordedBits, halves_of, words_of

from demur_proto.accounting.divergences import levels_renyi
from demur_proto.errors import ParameterError
from demur_proto.mechanisms import subset_selection
from demur_proto.mechanisms.randomised_response import KaryRandomisedResponse
from demur_proto.mechanisms.subset_selection import SubsetSelection, best_size, subset_levels
from demur_sim.engine.sampling import SeededBits

EPSILONS = [1e-6, 0.1, 1.0, 4.0, 15.0, 17.0, 50.0]
ORDERS = [1.5, 2.0, 8.0, 1e4, math.inf]
GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "divergences.json").read_text("utf-8")
)["vectors"]


def seeded(seed: int) -> SeededBits:
    return SeededBits(np.random.Generator(np.random.SFC64(seed)))


def published(epsilon: float, order: float, *, options: int, size: int) -> Decimal:
    """ln(1 + m (e^((α−1)ε) − 1)(1 − e^(−αε)))/(α − 1), m the mass of subsets with one's own alone.

    m = p (o − w)/(o − 1): one's own is in, and the other one is not among w − 1 of the o − 1 rest.
    """
    with localcontext() as context:
        context.prec = 60
        if order == math.inf:
            return Decimal(epsilon)
        alpha, nats = Decimal(order), Decimal(epsilon)
        own = size * nats.exp() / (size * nats.exp() + options - size)
        alone = own * (options - size) / (options - 1)
        excess = alone * (((alpha - 1) * nats).exp() - 1) * (1 - (-alpha * nats).exp())
        return (1 + excess).ln() / (alpha - 1)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("categories", "size"), [(2, 1), (2, 2), (15, 5), (127, 0), (1024, 0)])
def test_a_charge_is_the_closed_form_of_the_nominal_epsilon_rounded_up(
    epsilon: float, order: float, categories: int, size: int
) -> None:
    mechanism = SubsetSelection(categories=categories, epsilon=epsilon, size=size)
    exact = published(epsilon, order, options=categories + 1, size=mechanism.size)

    charge = mechanism.charge_renyi(2, order=order)

    assert Fraction(charge) >= Fraction(exact)
    assert charge == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize(
    "row",
    [row for row in GOLDEN if row["mechanism"] == "subset_selection"],
    ids=lambda row: str(row["alpha"]),
)
def test_charges_and_sizes_are_the_published_ones(row: dict[str, Any]) -> None:
    epsilon, options, size = (row["params"][name] for name in ("eps", "k", "w"))
    mechanism = SubsetSelection(categories=options - 1, epsilon=epsilon)
    levels = subset_levels(epsilon, options=options, size=size)

    assert mechanism.size == size
    for charge in (
        mechanism.charge_renyi(5, order=row["alpha"]),
        levels_renyi(levels, order=row["alpha"]),
    ):
        assert charge == pytest.approx(float(row["divergence"]), rel=1e-12)


def test_both_published_vectors_of_subset_selection_are_there() -> None:
    assert sum(row["mechanism"] == "subset_selection" for row in GOLDEN) == 2


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("categories", [2, 9])
def test_subsets_of_one_symbol_are_randomised_response(epsilon: float, categories: int) -> None:
    subset = SubsetSelection(categories=categories, epsilon=epsilon, size=1)
    response = KaryRandomisedResponse(categories=categories, epsilon=epsilon)

    assert subset.own == response.keep
    assert subset.frequencies == response.frequencies
    assert subset.charge_renyi(1, order=3.0) == pytest.approx(
        response.charge_renyi(1, order=3.0), rel=1e-14
    )


def place(index: int, bound: int) -> int:
    """32 bits from which `uniform_below` makes this index."""
    return math.ceil((index + 0.5) * 2**32 / bound)


@pytest.mark.parametrize(("categories", "size"), [(2, 1), (3, 2), (4, 2), (4, 3), (5, 2), (3, 3)])
def test_over_all_draws_every_subset_comes_equally_often(categories: int, size: int) -> None:
    mechanism = SubsetSelection(categories=categories, epsilon=1.0, size=size)
    first = mechanism.own.numerator >> 96
    bounds = range(categories - size + 1, categories + 1)
    draws = [*product(*(range(bound) for bound in bounds))]
    columns = [
        halves_of([place(draw[at], bound) for draw in draws]) for at, bound in enumerate(bounds)
    ]

    for symbol, inside in product(range(categories + 1), (True, False)):
        coins = halves_of([first - 1 if inside else first + 1] * len(draws))
        symbols = np.full((len(draws), 1), symbol)
        source = RecordedBits(coins, *columns)

        reports = mechanism.randomise(symbols, source)

        # The word of null is left out: it is 1 where the others have a 1 too few.
        seen = Counter((size - sum(code), *code) for code in reports.tolist())
        wanted = {
            tuple(int(at in subset) for at in range(categories + 1))
            for subset in combinations(range(categories + 1), size)
            if (symbol in subset) == inside
        }
        assert set(seen) == wanted
        assert len(set(seen.values())) == 1
        assert source.left == 0
        assert mechanism.valid(reports).all()


def test_a_coin_that_ties_with_the_threshold_is_settled_by_more_bits() -> None:
    mechanism = SubsetSelection(categories=3, epsilon=1.0, size=1)
    first = mechanism.own.numerator >> 96
    middle = (mechanism.own.numerator >> 32) & ((1 << 64) - 1)
    source = RecordedBits(
        halves_of([first, first]), words_of([middle - 1, middle + 1]), halves_of([place(0, 3)] * 2)
    )

    reports = mechanism.randomise(np.array([[2], [2]]), source)

    assert reports.tolist() == [[0, 1, 0], [0, 0, 0]]  # itself; null


@pytest.mark.parametrize("options", [3, 5, 17, 65, 300])
@pytest.mark.parametrize("epsilon", [1e-9, 0.3, 1.0, 2.0, 4.0, 8.0, 50.0])
def test_the_chosen_size_has_the_least_variance_of_all(epsilon: float, options: int) -> None:
    def variance(size: int) -> float:
        mechanism = SubsetSelection(categories=options - 1, epsilon=epsilon, size=size)
        return mechanism.frequencies.variance(0.0, reports=1)

    chosen = best_size(epsilon, options=options)

    least = min(variance(size) for size in range(1, options))
    assert variance(chosen) <= least * (1 + 1e-9)
    assert abs(chosen - options / (math.exp(epsilon) + 1)) <= 1


@pytest.mark.parametrize(("categories", "epsilon"), [(64, 1.0), (300, 3.0)])
def test_estimates_miss_by_what_theory_says_whether_people_answer_or_cover(
    categories: int, epsilon: float
) -> None:
    mechanism, people, runs = SubsetSelection(categories=categories, epsilon=epsilon), 2_000, 60
    symbols = np.zeros((people, 1), dtype=np.int64)
    symbols[: people // 2] = 3  # half give category 2, the others cover
    source = seeded(9)

    estimates = []
    for _ in range(runs):
        reports = mechanism.randomise(symbols, source)
        answer = mechanism.estimate(mechanism.tally(reports), reports=people)
        estimates.append(answer.estimate)

    misses = np.array(estimates)
    misses[:, 2] -= people // 2
    w, o = mechanism.size, categories + 1
    p = w * math.exp(epsilon) / (w * math.exp(epsilon) + o - w)
    q = (w - p) / (o - 1)
    rare = people * q * (1 - q) / (p - q) ** 2
    full = people / 2 * (p * (1 - p) + q * (1 - q)) / (p - q) ** 2
    # A sample variance of n normal values has the relative standard deviation √(2/n); 5 of them.
    assert (misses[:, 2] ** 2).mean() == pytest.approx(full, rel=5 * math.sqrt(2 / runs))
    others = np.delete(misses, 2, axis=1)
    # Many counts together tell at least as much as one.
    assert (others**2).mean() == pytest.approx(rare, rel=5 * math.sqrt(2 / runs))
    assert np.abs(others.mean(axis=0)).max() < 5 * math.sqrt(rare / runs)


@given(
    people=st.integers(0, 40), rows=st.integers(1, 50), size=st.integers(0, 9), seed=st.integers(0)
)
def test_reports_are_valid_and_drawn_in_parts_of_any_size(
    people: int, rows: int, size: int, seed: int
) -> None:
    mechanism = SubsetSelection(categories=9, epsilon=1.0, size=size)
    symbols = np.random.default_rng(seed).integers(0, 10, (people, 1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subset_selection, "ROWS", rows)
        reports = mechanism.randomise(symbols, seeded(seed))

    assert reports.shape == (people, mechanism.report_length)
    assert mechanism.valid(reports).all()
    assert mechanism.tally(reports).tolist() == reports.sum(axis=0).tolist()


def test_a_great_many_categories_take_no_more_memory_than_a_few() -> None:
    mechanism = SubsetSelection(categories=1 << 20, epsilon=14.0, size=1)

    reports = mechanism.randomise(np.array([[0], [1 << 20], [7]]), seeded(1))

    assert mechanism.valid(reports).all()


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint64])
def test_symbols_may_be_integers_of_any_kind(kind: type[np.integer[Any]]) -> None:
    mechanism = SubsetSelection(categories=9, epsilon=1.0)
    symbols = np.arange(10)[:, None]

    reports = mechanism.randomise(symbols.astype(kind), seeded(3))

    assert np.array_equal(reports, mechanism.randomise(symbols, seeded(3)))
    sums = mechanism.tally(reports.astype(np.uint64))
    assert np.array_equal(sums, mechanism.tally(reports))
    assert mechanism.valid(reports.astype(np.uint64)).all()


def test_only_as_many_ones_as_a_subset_has_or_one_fewer_are_a_report() -> None:
    mechanism = SubsetSelection(categories=4, epsilon=1.0, size=2)
    codes = [[1, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 0], [2, 0, 0, 0], [1, 1, 1, -1]]
    codes += [[(1 << 63) - 1, 1, 1, 1], [-(1 << 63), 0, 0, 0]]

    assert mechanism.valid(np.array(codes)).tolist() == [True, True] + [False] * 6
    assert mechanism.valid(np.array([[1, 0, 1]])).tolist() == [False]  # of fewer categories
    assert mechanism.valid(np.array([[1.0, 0.0, 1.0, 0.0]])).tolist() == [False]


@pytest.mark.parametrize("reports", [[[1, 0, 1]], [1, 0, 1, 0], [[0.5] * 4]], ids=str)
def test_reports_of_another_shape_are_refused_by_the_tally(reports: list[Any]) -> None:
    mechanism = SubsetSelection(categories=4, epsilon=1.0, size=2)

    with pytest.raises(ParameterError, match=r"^reports ") as refused:
        mechanism.tally(np.array(reports))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("size", [-1, 5, 2.0, True, math.nan, "2", None])
def test_a_size_that_is_none_is_refused_in_one_line(size: Any) -> None:
    with pytest.raises(ParameterError, match=r"^size ") as refused:
        SubsetSelection(categories=4, epsilon=1.0, size=size)
    assert "\n" not in str(refused.value)
