"""The designs' laws, enumerated in exact fractions, and that devices draw from them."""

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from demur_proto.mechanisms.thresholds import exp_below
from demur_proto.mechanisms.unary import Flip
from demur_sim.comparison.design import RepeatedResponse
from demur_sim.comparison.flips import Flips, annulus_flips, threshold_flips
from demur_sim.comparison.levels import ComposedResponse, KeptChange
from demur_sim.comparison.memoised import UNSENT, BitFlip, MemoisedResponse, MemoisedUnary, Noise

HORIZON = 4
RECORDS = list(product((0, 1), repeat=HORIZON))
Signs = tuple[int, ...]
Law = dict[Signs, Fraction]


def log(ratio: Fraction) -> float:
    return math.log(ratio.numerator) - math.log(ratio.denominator)


def ratios(one: Law, other: Law) -> Iterator[Fraction]:
    return (one[answers] / other[answers] for answers in one)


def largest(laws: Iterable[Law], references: Iterable[Law]) -> Fraction:
    """The largest likelihood ratio in either direction."""
    others = list(references)
    return max(
        max(ratio, 1 / ratio) for one in laws for other in others for ratio in ratios(one, other)
    )


def changes_of(record: Signs) -> list[int]:
    return [now - before for before, now in zip((0, *record), record, strict=False)]


def intervals(changes: list[int], level: int) -> list[int]:
    width = 1 << level
    return [sum(changes[at : at + width]) for at in range(0, len(changes) - width + 1, width)]


def kept_law(design: KeptChange, record: Signs, level: int) -> Law:
    """Over which of the first k changes is kept, then a lean coin for it and fair ones for others."""
    law: Law = dict.fromkeys(product((-1, 1), repeat=HORIZON >> level), Fraction(0))
    for kept in range(1, design.changes + 1):
        changes, seen = [], 0
        for change in changes_of(record):
            seen += change != 0
            changes.append(change if seen == kept else 0)
        for answers in law:
            likely = Fraction(1, design.changes)
            for answer, change in zip(answers, intervals(changes, level), strict=True):
                likely *= (1 + Fraction(design.lean) * answer * change) / 2
            law[answers] += likely
    return law


def composed_law(design: ComposedResponse, record: Signs, level: int) -> Law:
    """Over all sequences of signs by their weights."""
    k, flips = design.changes, design.flips
    changes, seen = [], 0
    for change in changes_of(record):
        seen += change != 0
        changes.append(change if seen <= k else 0)
    told = intervals(changes, level)
    silent = told.count(0)
    law: Law = dict.fromkeys(product((-1, 1), repeat=HORIZON >> level), Fraction(0))
    for signs in product((-1, 1), repeat=k):
        weight = Fraction(flips.weights[signs.count(-1)], flips.whole)
        for answers in law:
            following = iter(signs)
            if all(
                answer == change * next(following)
                for answer, change in zip(answers, told, strict=True)
                if change
            ):
                law[answers] += weight / 2**silent
    return law


def tree_law(design: KeptChange | ComposedResponse, record: Signs, level: int) -> Law:
    if isinstance(design, KeptChange):
        return kept_law(design, record, level)
    return composed_law(design, record, level)


TREES = [
    KeptChange(horizon=HORIZON, changes=2, epsilon=1.0),
    KeptChange(horizon=HORIZON, changes=2, epsilon=1.0, pair=True),
    ComposedResponse(horizon=HORIZON, flips=threshold_flips(changes=2, epsilon=1.0)),
    ComposedResponse(horizon=HORIZON, flips=threshold_flips(changes=2, epsilon=1.0, pair=True)),
    ComposedResponse(horizon=HORIZON, flips=annulus_flips(changes=2, epsilon=3.0)),
]
NAMES = ["kept", "kept-pair", "threshold", "threshold-pair", "annulus"]


@pytest.mark.parametrize("design", TREES, ids=NAMES)
def test_a_whole_record_of_answers_is_as_private_as_printed_and_no_more(
    design: KeptChange | ComposedResponse,
) -> None:
    found = Fraction(1)
    for level in range(3):
        coin = [dict.fromkeys(product((-1, 1), repeat=4 >> level), Fraction(1, 2 ** (4 >> level)))]
        laws = [tree_law(design, record, level) for record in RECORDS]
        assert all(sum(law.values()) == 1 for law in laws)
        assert log(largest(laws, laws)) <= design.guarantee.pair_epsilon
        found = max(found, largest(laws, coin))

    assert design.guarantee.epsilon * (1 - 1e-9) <= log(found) <= design.guarantee.epsilon


@pytest.mark.parametrize("design", TREES, ids=NAMES)
def test_two_people_who_change_at_different_times_are_as_far_apart_as_printed(
    design: KeptChange | ComposedResponse,
) -> None:
    laws = [tree_law(design, record, 0) for record in ((1, 0, 0, 0), (0, 0, 1, 0))]

    assert log(largest(laws[:1], laws[1:])) == pytest.approx(design.guarantee.pair_epsilon)


@pytest.mark.parametrize("design", TREES, ids=NAMES)
@pytest.mark.parametrize("record", [(1, 0, 1, 1), (0, 1, 1, 0), (0, 0, 0, 0)], ids=str)
def test_devices_answer_by_the_enumerated_law(
    design: KeptChange | ComposedResponse, record: Signs
) -> None:
    people = 30_000
    states = [np.full(people, bool(state)) for state in record]
    levels = np.arange(people) % 3

    said: dict[int, list[np.ndarray]] = {0: [], 1: [], 2: []}
    for each in design.answers(states, levels=levels, rng=np.random.default_rng(5)):
        said[each.level].append(each.signs)

    for level, columns in said.items():
        rows, counts = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
        seen = {tuple(row): count for row, count in zip(rows.tolist(), counts, strict=True)}
        for answers, likely in tree_law(design, record, level).items():
            expected, share = people / 3 * float(likely), float(likely)
            error = math.sqrt(expected * (1 - share))
            assert abs(seen.get(answers, 0) - expected) <= 4.5 * error, (level, answers)


@pytest.mark.parametrize("changes", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("pair", [False, True])
def test_no_exchangeable_law_of_this_epsilon_leans_more_than_the_threshold(
    changes: int, pair: bool
) -> None:
    best = threshold_flips(changes=changes, epsilon=1.0, pair=pair)
    rng = np.random.default_rng(changes)
    low, high = best.ratios
    span = math.e if pair else math.e**2

    for _ in range(300):  # of random weights, many at the ends of what ε allows
        shape = np.clip(rng.normal(0.5, 0.7, size=changes + 1), 0, 1)
        weights = tuple(round(2.0**40 * span**share) for share in sorted(shape, reverse=True))
        law = Flips(weights=weights)
        if pair or (law.ratios[0] >= low and law.ratios[1] <= high):
            assert law.lean <= best.lean * (1 + Fraction(1, 10**6))

    assert (best.pair_epsilon if pair else best.epsilon) <= 1.0
    assert (best.pair_epsilon if pair else best.epsilon) >= 1.0 - 1e-6


def test_the_published_law_keeps_its_epsilon_with_room_to_spare() -> None:
    for changes in (1, 2, 5, 16, 32):
        law = annulus_flips(changes=changes, epsilon=1.0)

        assert 0 < law.pair_epsilon <= 1.0
        assert law.lean < threshold_flips(changes=changes, epsilon=1.0, pair=True).lean


def hockey_stick(first: np.ndarray, second: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())


def test_repeated_answers_keep_epsilon_and_delta_and_little_more_would_not() -> None:
    rounds = 128
    design = RepeatedResponse(horizon=rounds, epsilon=1.0, delta=1e-5)

    def deltas(lean: float, epsilon: float, other: float) -> float:
        heads = np.arange(rounds + 1)
        ways = np.array([math.comb(rounds, int(j)) for j in heads], dtype=float)
        one, two = (
            ways * ((1 + c) / 2) ** heads * ((1 - c) / 2) ** (rounds - heads) for c in (lean, other)
        )
        return max(hockey_stick(one, two, epsilon), hockey_stick(two, one, epsilon))

    pair = design.guarantee.pair_epsilon

    assert 1e-7 < deltas(design.lean, 1.0, 0.0) <= 1e-5
    assert deltas(1.2 * design.lean, 1.0, 0.0) > 1e-5
    assert 1e-7 < deltas(design.lean, pair, -design.lean) <= 1e-5
    assert deltas(design.lean, 1.0, -design.lean) > 1e-5


def bits_law(noise: Noise, code: Signs) -> Law:
    law: Law = {}
    for bits in product((0, 1), repeat=len(code)):
        likely = Fraction(1)
        for bit, set_ in zip(bits, code, strict=True):
            one = noise.own if set_ else noise.other
            likely *= one if bit else 1 - one
        law[bits] = likely
    return law


def unary_law(design: MemoisedUnary, symbol: int) -> Law:
    """One report: over all codes that may be remembered, and all that become of them."""
    code = tuple(int(category == symbol) for category in range(1, design.categories + 1))
    law: Law = dict.fromkeys(product((0, 1), repeat=design.categories), Fraction(0))
    for kept, weight in bits_law(design.kept, code).items():
        for sent, likely in bits_law(design.fresh, kept).items():
            law[sent] += weight * likely
    return law


def symbol_law(noise: Noise, symbol: int, symbols: int) -> Law:
    return {(s,): noise.own if s == symbol else noise.other for s in range(symbols)}


def response_law(design: MemoisedResponse, symbol: int) -> Law:
    symbols = design.categories + 1
    law: Law = {(s,): Fraction(0) for s in range(symbols)}
    for (kept,), weight in symbol_law(design.kept, symbol, symbols).items():
        for sent, likely in symbol_law(design.fresh, kept, symbols).items():
            law[sent] += weight * likely
    return law


@pytest.mark.parametrize("first", list(Flip))
@pytest.mark.parametrize("categories", [1, 2, 3])
def test_one_report_and_all_reports_of_unary_codes_cost_what_they_say(
    first: Flip, categories: int
) -> None:
    design = MemoisedUnary(horizon=9, categories=categories, forever=2.0, once=1.0, first=first)
    laws = [unary_law(design, symbol) for symbol in range(categories + 1)]
    codes = [tuple(int(c == s) for c in range(1, categories + 1)) for s in range(categories + 1)]
    memos = [bits_law(design.kept, code) for code in codes]
    ours = design.guarantee

    assert all(sum(law.values()) == 1 for law in (*laws, *memos))
    assert log(largest(laws[1:], laws[:1])) == pytest.approx(ours.report_epsilon)
    assert log(largest(memos[1:], memos[:1])) == pytest.approx(ours.steady_epsilon)
    assert log(largest(memos, memos)) == pytest.approx(ours.steady_pair_epsilon)
    if categories > 1:  # between two categories, as ε₁ and ε∞ are meant
        assert exp_below(1.0) * (1 - Fraction(1, 10**12)) <= largest(laws[1:], laws[1:])
        assert largest(laws[1:], laws[1:]) <= exp_below(1.0)
        assert largest(memos[1:], memos[1:]) <= exp_below(2.0)


@pytest.mark.parametrize("categories", [1, 2, 4, 9])
def test_one_report_of_remembered_symbols_counts_the_ways_by_a_third_symbol(
    categories: int,
) -> None:
    design = MemoisedResponse(horizon=9, categories=categories, forever=2.0, once=1.0)
    laws = [response_law(design, symbol) for symbol in range(categories + 1)]

    # The published p₂ of Arcolezi et al., without those ways, for s symbols.
    s, p, e = categories + 1, float(design.kept.own), math.e
    q = (1 - p) / (s - 1)
    fresh = (q - e * p) / (-p * e + s * q * e - q * e - p * (s - 1) + q)
    other = (1 - fresh) / (s - 1)
    published = (p * fresh + (s - 1) * q * other) / (p * other + q * fresh + (s - 2) * q * other)

    assert all(sum(law.values()) == 1 for law in laws)
    assert largest(laws, laws) <= exp_below(1.0)
    assert log(largest(laws, laws)) == pytest.approx(1.0, abs=1e-9)
    assert log(largest(laws, laws)) == pytest.approx(design.guarantee.report_epsilon)
    if s == 2:
        assert math.log(published) == pytest.approx(1.0)
    else:
        assert abs(math.log(published) - 1.0) > 0.01


def test_when_a_state_changes_comes_out_whatever_is_remembered() -> None:
    design = MemoisedUnary(horizon=8, forever=1.0, once=0.9, first=Flip.SYMMETRIC)
    steady = bits_law(design.kept, (0,))

    def reports_law(record: Signs) -> Law:
        law: Law = dict.fromkeys(product((0, 1), repeat=len(record)), Fraction(0))
        for (no,), weight in steady.items():
            for (yes,), more in bits_law(design.kept, (1,)).items():
                kept = [yes if state else no for state in record]
                for sent in law:
                    likely = weight * more
                    for bit, own in zip(sent, kept, strict=True):
                        likely *= design.fresh.own if bit == own else design.fresh.other
                    law[sent] += likely
        return law

    never = reports_law((0,) * 8)
    apart = log(largest([reports_law((0, 1) * 4)], [never]))
    alike = log(largest([reports_law((1,) * 8)], [never]))
    ours = design.guarantee

    assert ours.steady_epsilon is not None
    assert alike <= ours.steady_epsilon
    assert ours.steady_epsilon * 4 < apart <= ours.epsilon


def test_bits_that_are_sent_as_they_are_cost_what_they_say() -> None:
    for categories, bits in ((1, 1), (3, 1), (3, 2)):
        design = BitFlip(horizon=9, categories=categories, bits=bits, epsilon=1.0)
        codes = [
            tuple(int(j == symbol) for j in range(1, bits + 1)) for symbol in range(bits + 1)
        ]  # of the categories that a device tells; of null and all others it is the first
        laws = [bits_law(design.noise, code) for code in codes]
        ours = design.guarantee

        assert log(largest(laws[1:], laws[:1])) == pytest.approx(ours.steady_epsilon)
        assert log(largest(laws, laws)) == pytest.approx(ours.steady_pair_epsilon)
        assert ours.steady_pair_epsilon is not None
        assert ours.steady_pair_epsilon <= 1.0
        assert ours.epsilon == math.inf


def test_a_device_that_sends_bits_as_they_are_never_says_anything_else_of_a_value() -> None:
    design = BitFlip(horizon=9, categories=5, bits=2, epsilon=1.0)
    rng = np.random.default_rng(3)
    memo = design.memo(2000, rng=rng)
    symbols = rng.integers(6, size=2000)

    first, again = (design.reports(symbols, memo, rng=rng) for _ in range(2))

    np.testing.assert_array_equal(first, again)
    assert ((first != UNSENT).sum(axis=1) == 2).all()
    told = (first != UNSENT).mean(axis=0)
    np.testing.assert_allclose(told, 0.4, atol=5 * math.sqrt(0.24 / 2000))
