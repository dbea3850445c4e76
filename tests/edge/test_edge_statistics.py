"""The figures behind "nothing shows": right where nothing does, and found where something does."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edge_kit import BARS, Comparison, Finding, Table, compare, unlike
from edge_observer import COLUMNS, Watch

WATCH = Watch(words=("nothing", "burn"), sends=300, slot_ms=100, seed=1)
TIMES = st.lists(st.integers(1, 9), min_size=6, max_size=12)


def a_table(sends: list[int], words: list[int]) -> Table:
    """One device's rounds, which differ in their send times only."""
    table = np.zeros((len(sends), len(COLUMNS)), dtype=np.int64)
    table[:, COLUMNS.index("word")] = words
    table[:, COLUMNS.index("send")] = sends
    table[:, COLUMNS.index("size")] = 60
    return table


def by_figure(tables: list[Table]) -> dict[str, Comparison]:
    return {each.figure: each for each in compare(tables, WATCH)}


@given(times=TIMES, others=TIMES)
def test_the_auc_of_two_devices_is_the_mean_share_of_pairs_of_one_device_that_are_in_order(
    times: list[int], others: list[int]
) -> None:
    shares, tables = [], []
    for one in (times, others):
        words = [number % 2 for number in range(len(one))]
        tables.append(a_table(one, words))
        pairs = [(x, y) for x in one[1::2] for y in one[::2]]
        shares.append(sum((x > y) + (x == y) / 2 for x, y in pairs) / len(pairs))

    found = by_figure(tables)["send"]

    assert math.isclose(found.auc, sum(shares) / 2)
    assert found.sends == len(times[1::2]) + len(others[1::2])


def test_the_standard_error_of_the_docstring_is_that_of_random_orders() -> None:
    rng = np.random.default_rng(20261128)
    m, n, k, runs = 6, 9, 3, 400
    words = np.repeat([1, 0], [m, n])
    aucs = []
    for _ in range(runs):
        tables = [a_table(rng.permutation(m + n).tolist(), words.tolist()) for _ in range(k)]
        for table in tables:
            table[:, COLUMNS.index("send")] += 1
        aucs.append(by_figure(tables)["send"].auc)

    error = math.sqrt((m + n + 1) / (12 * m * n * k))
    assert abs(np.mean(aucs) - 0.5) <= 4 * error / math.sqrt(runs)
    # The standard deviation of a near normal figure has the relative error 1/sqrt(2 runs).
    assert abs(np.std(aucs) / error - 1) <= 4 / math.sqrt(2 * runs)
    for sends, bar in BARS.items():
        deviations = bar / math.sqrt((2 * sends + 1) / (12 * sends * sends))
        assert 2.9 < deviations < 3.4


def test_the_same_mean_with_another_spread_is_told_by_the_spread() -> None:
    rng = np.random.default_rng(3)
    words = np.repeat([0, 1], 300)
    sends = np.where(words, rng.normal(scale=300, size=600), rng.normal(scale=100, size=600))

    found = by_figure([a_table((10_000 + sends).astype(int).tolist(), words.tolist())])

    # P(3|X| > |Y|) = 2/π arctan 3 = .795
    assert abs(found["spread"].auc - 2 / math.pi * math.atan(3)) <= 4 * found["spread"].error
    assert abs(found["send"].off) <= 4 * found["send"].error


def test_what_the_data_did_to_the_next_round_counts_for_the_data_and_not_for_the_next() -> None:
    words = [0, 1] * 20
    late_after_data = [100 + 50 * words[number - 1] for number in range(40)]

    found = by_figure([a_table(late_after_data, words)])

    assert found["next"].auc == 1.0


def test_a_comparison_shows_only_where_it_is_beyond_the_bar_twice_on_the_same_side() -> None:
    first = Comparison(
        word="burn", figure="send", auc=0.58, error=0.02, sends=300, reference=0.0, apart=0.0
    )

    def shows(again: float | None, auc: float = 0.58) -> bool:
        second = None if again is None else replace(first, auc=again)
        return Finding(first=replace(first, auc=auc), again=second, bar=0.07).shows

    assert [shows(None), shows(0.56), shows(0.42)] == [False] * 3
    assert [shows(0.58), shows(0.42, auc=0.42), shows(1.0, auc=1.0)] == [True] * 3


def test_a_missing_report_and_another_size_are_complained_about() -> None:
    table = a_table([100] * 4, [0, 1, 0, 1])
    assert not unlike([table], WATCH)

    table[1, COLUMNS.index("send")] = 0
    table[3, COLUMNS.index("size")] = 61

    assert [each.split(":")[0] for each in unlike([table], WATCH)] == ["burn", "size differs"]
