"""Policy clip: the answer that no longer fits is shrunk to what still does, and is the last."""

import copy
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_client.budget.decide import affordable_radius, charge_units, decide
from demur_client.budget.filters import Filter
from demur_client.device import Device
from demur_conformance.vectors.filters import check_clip_traces
from demur_proto.arrays import Bits, Flags, Integers, Values, Words
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.gaussian import GaussianLinear, squared_norms
from demur_proto.queries import Feature, Linear
from demur_proto.queries.registry import mechanism_for
from demur_proto.round import Round, round_of
from demur_proto.study import Policy, Study, View, design_study
from demur_proto.wire.definition import Defined, define_round, define_study, read_study
from demur_proto.wire.words import decode_words
from demur_sim.engine.sampling import FastSampler

GOLDEN = Path(__file__).parent.parent / "golden" / "accounting.json"
TRACES: list[dict[str, Any]] = json.loads(GOLDEN.read_text(encoding="utf-8"))["clip_traces"]
EXPONENT = -14
FULL = 1 << 28  # R at a clip of 1


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
        return np.broadcast_to(self._coins, (reports, dimension))


class Following(Coins):
    """Another row of coins in each round."""

    def uniform(self, *, reports: int, dimension: int) -> Values:
        row, self._coins = self._coins[:1], self._coins[1:]
        return row


HALF = Coins(np.full((1, 1), 0.5))


def linear(dimension: int = 1, *, on_grid: bool = False) -> GaussianLinear:
    return GaussianLinear(
        dimension=dimension,
        clip=1.0,
        grid_exponent=EXPONENT,
        sigma=4.0,
        shares=1,
        on_grid=on_grid,
    )


def study(answers: int = 3, *, policy: Policy = Policy.CLIP) -> Defined[Study]:
    return define_study(
        design_study(
            name="clip",
            epsilon=1.0,
            delta=1e-6,
            answers=answers,
            minimum_cohort=10,
            view=View.LOCAL,
            policy=policy,
            grid_exponent=EXPONENT,
            maximum_dimension=4,
        )
    )


def ask(of: Defined[Study], number: int, *, dimension: int = 1, **options: Any) -> Defined[Round]:
    query = Linear([Feature(name="f")], dimension=dimension, **options)
    return define_round(round_of(of, query, number=number))


class Owner:
    """Someone's data: round after round, another value."""

    def __init__(self, *values: Any) -> None:
        self._values = list(values)

    def evaluate(self, feature: Feature) -> Values:
        value: Values = np.atleast_2d(self._values.pop(0))
        return value


def said(device: Device, asked: Defined[Round]) -> list[int]:
    report = device.report(asked, device.evaluate(asked))
    length = asked.value.query.report_length
    words, _ = decode_words(report.words, asked.value.word_type, reports=1, dimension=length)
    return list(words[0].tolist())


# Recorded traces.


@pytest.mark.parametrize("trace", TRACES, ids=lambda t: t["B_norm"])
def test_recorded_traces_are_shrunk_the_same(trace: dict[str, Any]) -> None:
    clip, budget = Fraction(trace["C2"]), Fraction(trace["B_norm"])
    unit = 10_000  # every squared norm in the file is a whole number of these parts
    mine = Filter(budget_units=int(budget * unit), policy=Policy.CLIP)

    for step in trace["steps"]:
        wanted = min(Fraction(step["norm2_in"]), clip) * unit
        radius = mine.radius(weight=1, largest=int(clip * unit))
        out = min(int(wanted), radius)

        assert mine.try_spend(out, weight=1, shrunk=out < wanted)
        assert Fraction(out, unit) == Fraction(step["norm2_out"])
        assert Fraction(mine.remaining_units, unit) == Fraction(step["remaining"])

    assert check_clip_traces([trace]).holds


@pytest.mark.parametrize("column", ["norm2_out", "remaining"])
def test_the_checker_of_vectors_finds_a_wrong_number_in_any_column(column: str) -> None:
    planted = copy.deepcopy(TRACES[:1])
    planted[0]["steps"][-1][column] = "1/7"

    verdict = check_clip_traces(planted)

    assert not verdict.holds
    assert column in verdict.failures[0]


# The radius.


@given(st.integers(0, (1 << 62) - 1), st.data())
def test_the_radius_is_the_largest_norm_that_fits(remaining: int, data: st.DataObject) -> None:
    weight = data.draw(st.integers(1, remaining + 1))
    largest = data.draw(st.integers(0, (1 << 61) - 1))

    radius = affordable_radius(remaining, weight=weight, largest=largest, refused=False)
    nothing = affordable_radius(remaining, weight=weight, largest=largest, refused=True)

    assert radius <= largest
    assert radius * weight <= remaining
    assert radius == largest or (radius + 1) * weight > remaining
    assert nothing == 0


def test_the_radius_under_other_policies_is_there_to_be_asked_for() -> None:
    skip = Filter(budget_units=10, policy=Policy.SKIP)
    retire = Filter(budget_units=10, policy=Policy.RETIRE)

    for mine in (skip, retire):
        assert not mine.try_charge(11)

    assert skip.radius(weight=3, largest=9) == 3
    assert retire.radius(weight=3, largest=9) == 0


# Rows of values within their own radii.

rows = st.lists(st.floats(-1.5, 1.5), min_size=2, max_size=2)
on_the_grid = st.lists(
    st.integers(-(1 << 14), 1 << 14).map(lambda z: z / 2**14), min_size=2, max_size=2
)
strange = st.lists(st.sampled_from([0.0, math.nan, math.inf, -1e300, 1.0]), min_size=2, max_size=2)


@st.composite
def shrinkings(draw: st.DrawFn) -> tuple[Values, Integers, Values]:
    """Values [n, 2], radii [n] and coins [n, 2]."""
    values = draw(st.lists(rows | on_the_grid | strange, min_size=1, max_size=6))
    n = len(values)
    radius = st.integers(0, FULL) | st.integers(0, 20) | st.just(FULL)
    radii = draw(st.lists(radius, min_size=n, max_size=n))
    coins = np.random.default_rng(draw(st.integers(0, 1000))).random((n, 2))
    return np.array(values), np.array(radii, dtype=np.int64), coins


@given(shrinkings())
@settings(max_examples=300)
def test_no_row_leaves_its_radius_and_shrunk_is_what_the_budget_changed(
    case: tuple[Values, Integers, Values],
) -> None:
    values, radii, coins = case
    mechanism = linear(2)

    words, squares, shrunk = mechanism.encode_within(values, Coins(coins), radii=radii)
    whole, norms = mechanism.encode(values, Coins(coins))
    narrow = mechanism.encode_within(values, Coins(coins), radii=radii, widen=False)

    for wide_one, narrow_one in zip((words, squares, shrunk), narrow, strict=True):
        np.testing.assert_array_equal(narrow_one, wide_one)
    assert (squares <= radii).all()
    np.testing.assert_array_equal(squares, squared_norms(words))
    np.testing.assert_array_equal(shrunk, (words != whole).any(axis=1))
    assert not shrunk[radii == FULL].any()
    assert shrunk[norms > radii].all()
    np.testing.assert_array_equal(words[radii == 0], 0)
    # A row that is on the grid and fits its radius is used as it is.
    scaled = values * 2.0**14
    with np.errstate(over="ignore", invalid="ignore"):
        plain = (np.rint(scaled) == scaled).all(axis=1)
        fits = plain & ((scaled**2).sum(axis=1) <= radii)
    np.testing.assert_array_equal(words[fits], scaled[fits])


@given(shrinkings())
def test_a_row_depends_on_nothing_but_itself(case: tuple[Values, Integers, Values]) -> None:
    values, radii, coins = case
    mechanism = linear(2)

    together, _, shrunk = mechanism.encode_within(values, Coins(coins), radii=radii)
    backwards, *_ = mechanism.encode_within(values[::-1], Coins(coins[::-1]), radii=radii[::-1])

    np.testing.assert_array_equal(backwards[::-1], together)
    for i in range(len(values)):
        row = slice(i, i + 1)
        alone, _, gone = mechanism.encode_within(values[row], Coins(coins[row]), radii=radii[row])
        np.testing.assert_array_equal(alone[0], together[i])
        assert gone[0] == shrunk[i]


@given(shrinkings())
def test_nothing_that_breaks_the_promise_of_a_grid_is_shrunk(
    case: tuple[Values, Integers, Values],
) -> None:
    values, radii, coins = case
    mechanism = linear(2, on_grid=True)

    words, squares, shrunk = mechanism.encode_within(values, Coins(coins), radii=radii)
    whole, norms = mechanism.encode(values, Coins(coins))

    np.testing.assert_array_equal(words[norms <= radii], whole[norms <= radii])
    np.testing.assert_array_equal(shrunk, norms > radii)
    assert (squares <= radii).all()


def test_a_shrunk_value_keeps_its_direction_and_almost_all_of_the_norm_that_fits(
    rng: np.random.Generator,
) -> None:
    n, radius = 20_000, FULL // 9
    mechanism = linear(2)
    value = np.array([0.6, -0.8])

    words, squares, shrunk = mechanism.encode_within(
        np.tile(value, (n, 1)), FastSampler(rng), radii=np.full(n, radius)
    )

    reach = math.sqrt(radius) * (1 - 2.0**-12)
    assert shrunk.all()
    # Rounding moves a coordinate by less than one step, so the norm by less than √2 of them.
    assert (np.sqrt(squares) >= reach - math.sqrt(2)).all()
    # Unbiased: the mean of n coordinates of variance at most ¼ within 5 of its standard errors.
    np.testing.assert_allclose(words.mean(axis=0), value * reach, rtol=0, atol=2.5 / math.sqrt(n))


def test_the_radius_of_the_budget_stands_in_for_that_of_the_clip_to_the_letter() -> None:
    # 99.99 steps are within a radius of 100 steps, but not within it times 1 − 2⁻¹²: the value
    # becomes 99.9756 steps, and a coin that would have rounded the former up rounds this down.
    value, coin = np.array([[99.99 / 2**14]]), Coins(np.array([[0.98]]))

    whole, _ = linear().encode(value, coin)
    words, squares, shrunk = linear().encode_within(value, coin, radii=np.array([100**2]))

    assert (whole[0, 0], words[0, 0], squares[0], shrunk[0]) == (100, 99, 99**2, True)


# The same coins are drawn whatever is left.


def test_what_is_drawn_does_not_depend_on_what_is_left() -> None:
    class Counting(FastSampler):
        drawn = 0

        def uniform(self, *, reports: int, dimension: int) -> Values:
            Counting.drawn += reports * dimension
            return super().uniform(reports=reports, dimension=dimension)

    counts = set()
    for radius in (0, 5, FULL):
        for values in (np.zeros((4, 2)), np.full((4, 2), 0.3), np.full((4, 2), math.nan)):
            Counting.drawn = 0
            sampler = Counting(np.random.default_rng(0))
            linear(2).encode_within(values, sampler, radii=np.full(4, radius))
            counts.add(Counting.drawn)

    assert counts == {8}


# A device.


def test_a_device_shrinks_once_and_then_covers_whatever_costs_something() -> None:
    of = study(answers=3)
    device = Device(of, Owner(1.0, 1.0, 0.0, 0.75, 1.0, 0.25, 0.0), HALF)

    words = [said(device, ask(of, number))[0] for number in range(1, 8)]

    # Of a budget of 3: 1, 1, 0, .5625; .4375 are left for the next, shrunk to their root.
    left = math.isqrt(3 * FULL - 2 * FULL - 12288**2)
    reach = math.sqrt(3 * FULL - 2 * FULL - 12288**2) * (1 - 2.0**-12)
    assert words[:4] == [1 << 14, 1 << 14, 0, 12288]
    assert words[4] in (math.floor(reach), math.ceil(reach))
    assert words[4] <= left
    assert words[5:] == [0, 0]


@pytest.mark.parametrize("on_grid", [False, True])
def test_a_device_whose_budget_is_spent_exactly_covers_the_next(on_grid: bool) -> None:
    of = study(answers=2)
    device = Device(of, Owner(1.0, -1.0, 0.5, 1.0), HALF)

    words = [said(device, ask(of, number, on_grid=on_grid))[0] for number in range(1, 5)]

    assert words == [1 << 14, -(1 << 14), 0, 0]
    assert device.ledger.ever_refused(device.study.hash)


def test_rounds_of_any_noise_are_shrunk_to_what_their_weight_allows() -> None:
    of = study(answers=2)
    loud = 2 * of.value.base_sigma  # a quarter of the charge
    device = Device(of, Owner(1.0, 1.0, 1.0), HALF)
    rounds = [ask(of, 1, sigma=loud), ask(of, 2), ask(of, 3)]

    words = [said(device, asked)[0] / 2**14 for asked in rounds]

    assert words[:2] == [1.0, 1.0]
    # .75 of a charge is left, so √.75 of the norm fits; the weight may have been rounded up.
    assert words[2] == pytest.approx(math.sqrt(0.75), rel=2.0**-11)
    assert words[2] <= math.sqrt(0.75)


@given(st.lists(st.lists(st.floats(-1.2, 1.2), min_size=2, max_size=2), max_size=12), st.data())
@settings(max_examples=60, deadline=None)
def test_a_device_never_spends_more_than_its_budget(
    values: list[list[float]], data: st.DataObject
) -> None:
    of = study(answers=2)
    budget = of.value.budget_norm
    device = Device(of, Owner(*values), FastSampler(np.random.default_rng(1)))
    silent = Device(of, Owner(*values), Coins(np.full((1, 2), 0.25)))
    spent = Fraction(0)

    for number in range(1, len(values) + 1):
        factor = data.draw(st.sampled_from([0.5, 1.0, 3.0]))
        sigma = factor * of.value.base_sigma
        asked = ask(of, number, dimension=2, sigma=sigma)
        device.report(asked, device.evaluate(asked))
        words = said(silent, asked)
        norm = Fraction(sum(z * z for z in words)) / 4**-EXPONENT
        spent += norm * Fraction(of.value.base_sigma) ** 2 / Fraction(sigma) ** 2

    assert spent <= budget
    assert device.ledger.remaining_units(device.study.hash) >= 0


@given(
    st.lists(
        st.lists(
            st.floats(-1.5, 1.5) | st.sampled_from([0.0, 1.0, -1.0, 0.5, math.nan, 1e300]),
            min_size=3,
            max_size=3,
        ),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
    st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_a_device_says_the_same_words_as_in_a_cohort(
    values: list[list[float]], on_grid: bool, seed: int
) -> None:
    of = study(answers=3)
    rounds = [ask(of, number, on_grid=on_grid) for number in range(1, len(values) + 1)]
    coins = np.random.default_rng(seed).random((len(values), 3, 1))
    remaining: Integers = np.full(3, of.value.budget_units, dtype=np.int64)
    refused: Flags = np.zeros(3, dtype=np.bool_)

    together = []
    for asked, row, tossed in zip(rounds, values, coins, strict=True):
        mechanism = gaussian_for(of.value, asked.value)
        weight, largest = asked.value.weight, mechanism.squared_radius
        radii = affordable_radius(remaining, weight=weight, largest=largest, refused=refused)
        words, squares, shrunk = mechanism.encode_within(
            np.array(row)[:, None], Coins(tossed), radii=radii
        )
        charge = charge_units(squares, weight=weight, budget_units=of.value.budget_units)
        given_, remaining, refused = decide(
            charge, remaining=remaining, refused=refused, retire=True
        )
        refused |= shrunk
        assert given_.all()
        together.append(words[:, 0].tolist())

    for person in range(3):
        device = Device(of, Owner(*(row[person] for row in values)), Following(coins[:, person]))
        alone = [said(device, asked)[0] for asked in rounds]
        assert alone == [row[person] for row in together]
        assert device.ledger.remaining_units(device.study.hash) == remaining[person]
        assert device.ledger.ever_refused(device.study.hash) == refused[person]


# The study and its estimate.


def test_a_study_that_shrinks_travels_as_bytes() -> None:
    of = study()

    assert read_study(of.definition) == of
    assert of.value.policy is Policy.CLIP


def test_the_interval_counts_the_rounding_of_shrunk_values_even_on_the_grid() -> None:
    errors = {}
    for policy in Policy:
        of = study(policy=policy)
        mechanism = gaussian_for(of.value, ask(of, 1, on_grid=True).value)
        errors[policy] = mechanism.standard_error(100)

    assert errors[Policy.SKIP] == errors[Policy.RETIRE] < errors[Policy.CLIP]
    off_grid = gaussian_for(study().value, ask(study(), 1, on_grid=False).value)
    assert errors[Policy.CLIP] == off_grid.standard_error(100)


def test_values_of_another_shape_are_refused() -> None:
    with pytest.raises(ParameterError, match="values"):
        linear(2).encode_within(np.zeros((1, 3)), HALF, radii=np.array([1]))


def test_no_rows_shrink_to_no_rows() -> None:
    empty: Integers = np.zeros(0, dtype=np.int64)

    words, squares, shrunk = linear(2).encode_within(
        np.zeros((0, 2)), Coins(np.zeros((0, 2))), radii=empty
    )

    none: Flags = np.zeros(0, dtype=np.bool_)
    assert (words.shape, squares.shape) == ((0, 2), (0,))
    np.testing.assert_array_equal(shrunk, none)
