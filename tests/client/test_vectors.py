"""The checker of vectors finds every fault in a case, and none in ours."""

import copy
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_conformance.vectors.case import Case, Tally, examine, relative_error
from demur_conformance.vectors.checker import FAMILIES, check_file
from demur_conformance.vectors.facts import answered_rounds, worst_replacement
from demur_conformance.vectors.witness import Witness, leaked_delta
from demur_proto.errors import DataError, ParameterError
from vectors_kit import ACCOUNTING, CASES, DIVERGENCES, GOLDEN, check_vectors, leaves, written

# The vectors.


@pytest.mark.parametrize("family", CASES)
def test_every_case_of_a_family_holds(family: str) -> None:
    verdict = FAMILIES[family](CASES[family])

    assert verdict.failures == ()
    assert verdict.holds
    assert verdict.cases == len(CASES[family])
    assert verdict.worst is None or verdict.worst < 1e-12  # far better than the 1e-10 for Gaussians


def test_every_family_of_the_files_is_known_and_no_other() -> None:
    files = [
        GOLDEN / f"{name}.json" for name in ("accounting", "divergences", "device", "composition")
    ]
    found = [finding for file in files for finding in check_file(file)]

    assert {finding.family for finding in found} == FAMILIES.keys() == CASES.keys()
    assert all(finding.holds for finding in found)
    assert len(DIVERGENCES) == 16
    assert sum(map(len, DIVERGENCES.values())) == 45


# Faults. Every number, text and flag of a case is spoilt in turn. What may then still hold is listed
# here: remarks, what other implementations do, and inputs on which only decisions or counts depend.

UNCHECKED = {
    "filter_traces": {
        "id",
        "policy",
        "charge",
        "ticks_scale_log2",
        "naive_float64_decisions",
        "naive_float64_overspend",
    },
    "multi_order_traces": {"orders", "budget", "charges"},
    "odometer_traces": {"id"},
    "clip_traces": {"norm2_in"},
    "mnist": {"eta", "target_eps"},
    "dp_filter_rounds": {"eps_g", "delta", "eps"},
    "halt_leak": {"rounds", "note"},
    "replacement_factor": {"random_worst", "claim"},
    "exists_order_witness": {"orders"},
    "composition_answers": {"each", "eps", "delta"},
    "pure_charges": {"categories"},
    "study_definitions": {"note"},
    "refused_rounds": {"note"},
    "roundings": {"value", "coins", "clip", "on_grid"},  # the first value lies on the grid
    "divergences.gaussian": {"mechanism", "note"},
    "divergences.laplace": {"mechanism", "note"},
    **{
        # Only whether they differ counts, and with null not which category it is.
        f"divergences.{mechanism}": {"mechanism", "note", "x", "x_ref"}
        for mechanism in (
            *("binary_rr", "grr", "oue", "sue", "local_hash", "hadamard_response"),
            *("hadamard_response_general", "subset_selection"),
        )
    },
    **{
        f"divergences.{mechanism}": {"mechanism", "note"}
        for mechanism in (
            *("discrete_laplace", "discrete_gaussian", "duchi_1bit", "ternary_rr_zero_coin"),
            *("piecewise", "privunit"),
        )
    },
}


def spoilt(value: Any) -> Any:
    """The value, a little wrong."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * (1 + 1e-8) or 1e-8
    if value in ("CONT", "HALT", "ERROR"):
        return "HALT" if value == "CONT" else "CONT"
    if value in (None, "inf", "nan", "-inf"):
        return "1"
    try:
        number = Case({"": value}, where="").exact("")
    except DataError:
        return f"{value}?"
    return str(number * (1 + Fraction(1, 10**8))) if number else "1/1000000000"


def with_fault(case: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    faulty = copy.deepcopy(case)
    inside: Any = faulty
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = spoilt(inside[path[-1]])
    return faulty


@pytest.mark.parametrize("family", CASES)
def test_a_fault_in_any_field_of_a_family_is_noticed(family: str) -> None:
    case = CASES[family][0]
    unnoticed = set()
    for path in leaves(case):
        if FAMILIES[family]([with_fault(case, path)]).holds:
            unnoticed.add(next(name for name in reversed(path) if isinstance(name, str)))

    assert unnoticed <= UNCHECKED.get(family, set())


@pytest.mark.parametrize("family", CASES)
def test_a_case_that_lacks_a_field_is_not_taken_for_one_that_holds(family: str) -> None:
    case = CASES[family][0]
    unread = {"id", "note", "mechanism", "eta", "claim"}

    for name in sorted(case.keys() - unread):
        if name.startswith(("fixed_order_", "naive_")):
            continue  # optional, or what another implementation does
        fields = {key: value for key, value in case.items() if key != name}
        verdict = FAMILIES[family]([fields])
        assert not verdict.holds
        (unknown,) = verdict.unknown
        assert re.match(rf"{re.escape(family)}\[0\].* {name!r}", unknown)


def test_a_planted_fault_fails_its_family_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = copy.deepcopy(ACCOUNTING)
    content["dp_filter_rounds"][0]["whitehouse"] = 417
    content["zcdp_to_dp"][7]["eps_cks"] *= 1 + 1e-8

    code = check_vectors(written(tmp_path, content))

    assert code == 1
    printed = capsys.readouterr().out
    assert "\ndp_filter_rounds[0]: whitehouse is 416, expected 417\n" in printed
    assert "\nzcdp_to_dp[7]: improved epsilon" in printed
    assert printed.endswith("2 of 15 families fail: zcdp_to_dp, dp_filter_rounds\n")


# Reading and comparing.


def test_numbers_are_read_exactly() -> None:
    case = Case(
        {"decimal": "0.1", "ratio": "1/3", "hex": "0x1.8p+0", "double": 0.1, "whole": 7, "l": [1]},
        where="here",
    )

    assert case.exact("decimal") == Fraction(1, 10)
    assert case.exact("ratio") == Fraction(1, 3)
    assert case.exact("hex") == Fraction(3, 2)
    assert case.exact("double") == Fraction(0.1)
    assert case.exact("whole") == 7
    assert case.exacts("l") == [1]
    assert Case({"x": "inf"}, where="here").number("x") == math.inf


@pytest.mark.parametrize(
    "bad",
    ["inf", "nan", "1/0", "1e9999", "0x1p5000", "1_0", " 1", "\u0661", "0x", "+-1", "", None, []],
)
def test_what_is_not_a_finite_number_is_refused_by_name(bad: Any) -> None:
    with pytest.raises(DataError, match=r"here\.x must be a number"):
        Case({"x": bad}, where="here").exact("x")


def test_a_comparison_knows_its_side() -> None:
    tally = Tally()
    for name, value in (("below", 1 - 1e-15), ("above", 1 + 1e-15), ("far", 1.1)):
        tally.case(name)
        tally.above("value", value, 1.0, within=1e-12)

    verdict = tally.verdict()

    assert [failure.split(":")[0] for failure in verdict.failures] == ["below", "far"]
    assert verdict.worst == pytest.approx(0.1)


def test_a_reference_of_zero_stands_for_what_is_below_the_least_float() -> None:
    tally = Tally()
    for value in (0.0, 2e-323, 1e-300):
        tally.case(str(value))
        tally.above("value", value, 0.0, within=1e-12)

    assert len(tally.verdict().failures) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_answer_that_is_no_number_never_holds(value: float) -> None:
    tally = Tally()
    tally.case("it")
    for compare in (tally.above, tally.below, tally.near):
        compare("value", value, 1.0, within=1e-12)

    assert len(tally.verdict().failures) == 3
    assert relative_error(value, 1.0) == math.inf


def test_a_case_that_compares_nothing_is_still_counted() -> None:
    assert examine("family", [{}, {}], lambda case, tally: None).cases == 2


# The facts.


def test_going_on_while_some_order_fits_leaks_more_than_delta_and_every_order_does_not() -> None:
    low_to_high = (1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 8, 16, 32, 64)
    witness = Witness(epsilon=1.0, delta=1e-5, orders=low_to_high, shift=0.1, bins=100)

    assert leaked_delta(witness, every_order=False) == pytest.approx(1.456e-5, rel=1e-3)
    assert 0 < leaked_delta(witness, every_order=True) <= 1e-5


@settings(max_examples=30)
@given(
    epsilon=st.floats(0.1, 5.0),
    log_delta=st.floats(-30.0, -3.0),
    orders=st.lists(st.floats(1.1, 60.0), min_size=1, max_size=6, unique=True),
    shift=st.floats(0.01, 0.5),
    bins=st.integers(3, 60),
)
def test_no_adversary_of_this_kind_gets_past_every_order(
    epsilon: float, log_delta: float, orders: list[float], shift: float, bins: int
) -> None:
    delta = math.exp(log_delta)
    witness = Witness(epsilon=epsilon, delta=delta, orders=tuple(orders), shift=shift, bins=bins)

    assert leaked_delta(witness, every_order=True) <= delta * (1 + 1e-9)


def test_a_single_order_is_sound_under_either_rule() -> None:
    witness = Witness(epsilon=1.0, delta=1e-5, orders=(20.0,), shift=0.1, bins=60)

    some, every = (leaked_delta(witness, every_order=rule) for rule in (False, True))

    assert some == pytest.approx(every)
    assert some <= 1e-5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", math.nan),
        ("epsilon", 701.0),
        ("delta", 0.0),
        ("orders", ()),
        ("orders", (1.0,)),
        ("shift", 0.0),
        ("shift", 1.0),
        ("shift", math.nan),
        ("bins", 2),
    ],
)
def test_a_witness_outside_its_range_is_refused(name: str, value: Any) -> None:
    fields: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "orders": (2.0, 64.0),
        "shift": 0.1,
        "bins": 60,
    }

    with pytest.raises(ParameterError) as caught:
        Witness(**{**fields, name: value})

    assert caught.value.name == name


def test_two_people_differ_by_up_to_four_times_the_budget_and_never_more(
    rng: np.random.Generator,
) -> None:
    worst = worst_replacement(rng)

    assert 3.9 < worst <= 4.0 * (1 + 1e-12)


def test_a_filter_stops_whoever_pays_and_nobody_else() -> None:
    assert answered_rounds(1, budget=5, rounds=20) == [True] * 5 + [False] * 15
    assert all(answered_rounds(0, budget=5, rounds=20))
