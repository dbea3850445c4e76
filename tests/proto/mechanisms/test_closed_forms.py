"""Charges against published formulas and published numbers; `laws` has what the code itself does."""

import json
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from tests.proto.mechanisms.closed_forms import half, response, symmetric
from tests.proto.mechanisms.laws import Law, divergence, hadamard_law, response_law, unary_law

from demur_proto.mechanisms.hadamard import HadamardResponse
from demur_proto.mechanisms.randomised_response import (
    BinaryRandomisedResponse,
    KaryRandomisedResponse,
)
from demur_proto.mechanisms.unary import Flip, UnaryEncoding

EPSILONS = [1e-6, 0.1, 1.0, 4.0, 15.0, 17.0, 50.0]
ORDERS = [1.5, 2.0, 8.0, 1e4, math.inf]

Charge = Callable[[float, float], float]
Form = Callable[[float, float], Decimal]


def binary(epsilon: float, order: float) -> float:
    return BinaryRandomisedResponse(epsilon=epsilon).charge_renyi(1, order=order)


def krr(epsilon: float, order: float) -> float:
    return KaryRandomisedResponse(categories=5, epsilon=epsilon).charge_renyi(3, order=order)


def sue(epsilon: float, order: float) -> float:
    mechanism = UnaryEncoding(categories=5, epsilon=epsilon, flip=Flip.SYMMETRIC)
    return mechanism.charge_renyi(3, order=order)


def oue(epsilon: float, order: float) -> float:
    return UnaryEncoding(categories=5, epsilon=epsilon).charge_renyi(3, order=order)


def hadamard(epsilon: float, order: float) -> float:
    return HadamardResponse(categories=5, epsilon=epsilon).charge_renyi(3, order=order)


@pytest.mark.parametrize(
    ("charge", "form"),
    [
        (binary, lambda epsilon, order: response(epsilon, order, options=2)),
        (krr, lambda epsilon, order: response(epsilon, order, options=6)),
        (sue, symmetric),
        (oue, half),
        (hadamard, half),
    ],
    ids=["binary", "krr", "sue", "oue", "hadamard"],
)
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_charge_is_the_closed_form_of_the_nominal_epsilon_rounded_up(
    charge: Charge, form: Form, epsilon: float, order: float
) -> None:
    exact, charged = form(epsilon, order), charge(epsilon, order)

    assert Fraction(charged) >= Fraction(exact)
    assert charged == pytest.approx(float(exact), rel=1e-12)


GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "divergences.json").read_text("utf-8")
)["vectors"]
LARGEST = 20  # symbols that can still be enumerated


def laws_of(row: dict[str, Any]) -> tuple[Law, Law] | None:
    """The two laws that a published number is about, from our thresholds; categories suffice."""
    epsilon = row["params"].get("eps")
    against = 0 if row["x_ref"] is None else 2
    match row["mechanism"]:
        case "binary_rr":
            keep = BinaryRandomisedResponse(epsilon=epsilon).keep.probability
            first, second = (response_law(row[x], categories=1, keep=keep) for x in ("x", "x_ref"))
        case "grr" if row["params"]["k"] <= LARGEST:  # over k options, without null
            others = row["params"]["k"] - 1
            if others > 1:
                keep = KaryRandomisedResponse(categories=others, epsilon=epsilon).keep.probability
            else:
                keep = BinaryRandomisedResponse(epsilon=epsilon).keep.probability
            first, second = (response_law(x, categories=others, keep=keep) for x in (1, 0))
        case "sue" | "oue":
            flip = Flip.SYMMETRIC if row["mechanism"] == "sue" else Flip.OPTIMISED
            codes = UnaryEncoding(categories=3, epsilon=epsilon, flip=flip)
            one, zero = codes.one.probability, codes.zero.probability
            first, second = (
                unary_law(symbol, categories=3, one=one, zero=zero) for symbol in (1, against)
            )
        case "hadamard_response":
            keep = HadamardResponse(categories=3, epsilon=epsilon).keep.probability
            first, second = (hadamard_law(symbol, size=4, keep=keep) for symbol in (1, 2))
        case _:
            return None
    return first, second


OURS = [(row, laws) for row in GOLDEN if (laws := laws_of(row)) is not None]


@pytest.mark.parametrize(
    ("row", "laws"),
    OURS,
    ids=[f"{number}-{row['mechanism']}" for number, (row, _) in enumerate(OURS)],
)
def test_enumerated_thresholds_have_the_published_divergence(
    row: dict[str, Any], laws: tuple[Law, Law]
) -> None:
    found = divergence(*laws, float(row["alpha"]))

    assert float(found) == pytest.approx(float(row["divergence"]), rel=1e-12, abs=1e-50)


def test_most_published_vectors_of_these_mechanisms_are_enumerated() -> None:
    assert len(OURS) == 13


@pytest.mark.parametrize(
    "row",
    [row for row in GOLDEN if row["mechanism"] in ("oue", "sue") and row["x_ref"] is None],
    ids=lambda row: f"{row['mechanism']}-{row['alpha']}",
)
def test_a_charge_against_null_is_the_published_one(row: dict[str, Any]) -> None:
    charge = {"sue": sue, "oue": oue}[row["mechanism"]]

    charged = charge(row["params"]["eps"], float(row["alpha"]))

    assert charged == pytest.approx(float(row["divergence"]), rel=1e-12, abs=1e-50)
