"""Words become values: refinement where the first do not decide, and the same in every batch."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.samplers.replay import WORD, crafted, digits, recorded

from demur_proto.arrays import Integers
from demur_proto.errors import ParameterError
from demur_proto.samplers.base import BitSource
from demur_proto.samplers.gaussian import DiscreteGaussianSampler, RoundedGaussianSampler
from demur_proto.samplers.laplace import DiscreteLaplaceSampler
from demur_proto.samplers.table import AT_ONCE, Table

NARROW = RoundedGaussianSampler(16.0)
WIDE = RoundedGaussianSampler(7600.0)  # two tables
WIDEST = DiscreteGaussianSampler(3e5)  # three
LAPLACE = DiscreteLaplaceSampler(2.0**20)  # three
DRAWS: dict[str, Callable[[int, BitSource], Integers]] = {
    "narrow": NARROW.draw,
    "wide": WIDE.draw,
    "widest": WIDEST.draw,
    "laplace": LAPLACE.draw,
}
LEVELS = {"narrow": NARROW.levels, "wide": WIDE.levels, "widest": WIDEST.levels}
TABLES = {name: levels.tables for name, levels in LEVELS.items()} | {"laplace": LAPLACE.tables}


def joined(name: str, values: Sequence[int]) -> int:
    """What the values of the tables stand for, in Python's integers."""
    if name == "laplace":
        leading, *others = values
        w = leading if leading >= 0 else -1 - leading
        for group, value in zip(LAPLACE.digits, others, strict=True):
            w = (w << group) + value
        return w if leading >= 0 else -1 - w
    total = 0
    factors = (*LEVELS[name].factors[::-1], 1)
    for factor, value in zip(factors, values[::-1], strict=True):
        total = (total + value) * factor
    return total


def one_by_one(name: str, count: int, words: Sequence[int]) -> tuple[list[int], int]:
    """The values of so many samples, as the documentation says it, and how many words they took."""
    used = 0

    def value_of(table: Table) -> int:
        nonlocal used
        bits = words[used] << 128
        used += 1
        if any(each >> 128 == bits >> 128 for each in table.thresholds):
            bits |= words[used] << 64 | words[used + 1]
            used += 2
        return table.first + bisect_right(table.thresholds, bits)

    drawn = [joined(name, [value_of(table) for table in TABLES[name]]) for _ in range(count)]
    return drawn, used


# ---- refinement ------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0.5, 16.0])
def test_words_equal_to_a_boundary_are_refined_and_decide_at_its_last_digit(steps: float) -> None:
    sampler = RoundedGaussianSampler(steps)
    (table,) = sampler.levels.tables

    for value, threshold in enumerate(table.thresholds, start=table.first):
        below, at = crafted(digits(threshold - 1)), crafted(digits(threshold))

        assert sampler.draw(1, below).tolist() == [value]
        assert sampler.draw(1, at).tolist() == [value + 1]
        assert at.used == 3


def test_a_word_next_to_a_boundary_decides_alone() -> None:
    leading = sorted({threshold >> 128 for threshold in NARROW.levels.tables[0].thresholds})
    apart = [low for low, high in pairwise(leading) if high - low > 2 and low > 0]
    assert len(apart) > 250

    for lead in apart:
        for word in (lead - 1, lead + 1):
            source = crafted([word])

            drawn = NARROW.draw(1, source)

            assert drawn.tolist() == [NARROW.levels.tables[0].decide(word << 128)]


def test_the_last_values_come_from_the_first_and_last_words_alone() -> None:
    for name, draw in DRAWS.items():
        tables = TABLES[name]

        lowest = draw(1, crafted([0, 0, 0] * len(tables)))
        highest = draw(1, crafted([WORD - 1] * 3 * len(tables)))

        if name == "laplace":  # the lowest value of a group of digits is 0
            assert lowest.tolist() == [joined(name, [tables[0].first, 0, 0])]
        else:
            assert lowest.tolist() == [joined(name, [table.first for table in tables])]
            assert lowest.tolist() == [-highest[0]]
        assert highest.tolist() == [joined(name, [table.last for table in tables])]


def test_words_after_a_refined_value_make_the_next_ones() -> None:
    (table,) = NARROW.levels.tables
    threshold = table.thresholds[100]
    plain = recorded("plain", words=6).words(6).tolist()
    alone = NARROW.draw(6, crafted(plain)).tolist()

    source = crafted(
        [*plain[:2], *digits(threshold), *plain[2:4], *digits(threshold - 1), *plain[4:]]
    )
    drawn = NARROW.draw(8, source).tolist()

    met = table.first + 101
    assert drawn == [*alone[:2], met, *alone[2:4], met - 1, *alone[4:]]
    assert source.left == 0


# ---- batches ---------------------------------------------------------------------------------


plants = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2), st.floats(0, 1)), max_size=8)


@pytest.mark.parametrize("name", DRAWS)
@settings(max_examples=50)
@given(sizes=st.lists(st.integers(0, 6), max_size=4), planted=plants)
def test_values_are_the_same_one_by_one_and_in_any_batches(
    name: str, sizes: list[int], planted: list[tuple[int, int, float]]
) -> None:
    words = recorded("batches", words=300).words(300).tolist()
    for position, number, share in planted:  # words that begin like a boundary
        thresholds = TABLES[name][number % len(TABLES[name])].thresholds
        words[position] = thresholds[round(share * (len(thresholds) - 1))] >> 128
    wanted, used = one_by_one(name, sum(sizes), words)

    split, whole = crafted(words), crafted(words)
    parts = [DRAWS[name](size, split).tolist() for size in sizes]

    assert [value for part in parts for value in part] == wanted
    assert DRAWS[name](sum(sizes), whole).tolist() == wanted
    assert split.used == whole.used == used


@pytest.mark.parametrize("name", DRAWS)
def test_a_source_of_nothing_but_boundaries_is_followed_word_for_word(name: str) -> None:
    table = TABLES[name][0]
    words = [table.thresholds[len(table.thresholds) // 2] >> 128] * 400

    drawn = DRAWS[name](20, crafted(words))

    assert drawn.tolist() == one_by_one(name, 20, words)[0]


@pytest.mark.parametrize("name", DRAWS)
def test_parts_of_a_long_draw_are_those_of_short_ones(name: str) -> None:
    count = 2 * AT_ONCE + 17
    words = count * len(TABLES[name])
    whole, split = (recorded("long", words=words) for _ in range(2))

    drawn = DRAWS[name](count, whole)

    first = DRAWS[name](AT_ONCE - 5, split)
    rest = DRAWS[name](count - AT_ONCE + 5, split)
    assert drawn.tolist() == [*first.tolist(), *rest.tolist()]
    assert (drawn.dtype, drawn.shape) == (np.dtype(np.int64), (count,))


# ---- tables ----------------------------------------------------------------------------------


@given(
    thresholds=st.lists(
        st.integers(0, (1 << 192) - 1)
        | st.integers(0, 99)
        | st.integers(0, 99).map(lambda n: (1 << 191) + (n << 110)),
        max_size=40,
    ),
    first=st.integers(-50, 50),
    words=st.lists(st.integers(0, WORD - 1), min_size=1, max_size=20),
)
def test_a_table_of_any_thresholds_counts_those_that_are_not_above(
    thresholds: list[int], first: int, words: list[int]
) -> None:
    table = Table(thresholds=tuple(sorted(thresholds)), first=first)
    leads = {threshold >> 128 for threshold in thresholds}
    begins = [*words, *leads, *(min(lead + 1, WORD - 1) for lead in leads)]
    leading = np.array(begins, dtype=np.uint64)
    values = np.empty(len(begins), dtype=np.int64)

    decided = table.look_up(leading, values)

    undecided = [place for place, word in enumerate(begins) if word in leads]
    assert decided == (undecided[0] if undecided else len(begins))
    wanted = [first + sum(t <= word << 128 for t in thresholds) for word in begins[:decided]]
    assert values[:decided].tolist() == wanted


@pytest.mark.parametrize(
    "thresholds",
    [
        (2, 1),
        (-1,),
        (1 << 192,),
        (0.5,),
        (True,),
        (None,),
        ("1",),
        tuple(range((1 << 16) + 1)),
    ],
    ids=["falling", "negative", "193 digits", "float", "bool", "none", "text", "too many"],
)
def test_a_table_refuses_thresholds_that_are_none(thresholds: tuple[int, ...]) -> None:
    with pytest.raises(ParameterError, match=r"^thresholds must be at most 65536 ascending"):
        Table(thresholds=thresholds, first=0)


def test_a_table_refuses_bits_of_another_length() -> None:
    coin = Table(thresholds=(1 << 191,), first=0)

    for bits in (-1, 1 << 192, 0.5, True):
        with pytest.raises(ParameterError, match="bits must be an integer"):
            coin.decide(bits)  # type: ignore[arg-type]


def test_nothing_of_a_table_can_be_changed() -> None:
    (table,) = NARROW.levels.tables

    for array in (table._guide, table._leads):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(AttributeError):
        table.first = 1  # type: ignore[misc]
    assert "thresholds" not in repr(table)


# ---- arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "name", "largest"),
    [
        (RoundedGaussianSampler, "steps", 2.0**58),
        (DiscreteGaussianSampler, "sigma", 2.0**58),
        (DiscreteLaplaceSampler, "scale", 2.0**56),
    ],
)
def test_a_parameter_out_of_range_is_refused_in_one_line(
    make: Callable[[float], object], name: str, largest: float
) -> None:
    beyond = np.nextafter(largest, np.inf)
    wrong = [0, 0.0, -1.0, math.nan, math.inf, True, "1", None, 2**53 + 1, Fraction(1, 3), beyond]
    for value in [*wrong, 1e300, np.float32(0.1), 10**400]:
        with pytest.raises(ParameterError, match=f"^{name} must be ") as caught:
            make(value)
        assert "\n" not in str(caught.value)


def test_a_number_is_its_exact_value_of_whatever_type() -> None:
    made = [RoundedGaussianSampler(value) for value in (16, 16.0, np.float64(16.0))]

    assert len({sampler.levels.tables for sampler in made}) == 1


@pytest.mark.parametrize("count", [-1, 0.5, True, None, "1"])
def test_a_count_that_is_none_is_refused(count: int) -> None:
    for draw in DRAWS.values():
        source = recorded("none", words=3)
        with pytest.raises(ParameterError, match="count must be an integer >= 0"):
            draw(count, source)
        assert source.used == 0


def test_no_values_take_no_bits() -> None:
    for draw in DRAWS.values():
        drawn = draw(0, crafted([]))

        assert (drawn.dtype, drawn.shape) == (np.dtype(np.int64), (0,))


def test_noise_too_narrow_to_show_is_zero() -> None:
    for make in (RoundedGaussianSampler, DiscreteGaussianSampler, DiscreteLaplaceSampler):
        drawn = make(5e-324).draw(50, recorded("zero", words=50))

        assert drawn.tolist() == [0] * 50
