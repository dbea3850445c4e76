import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest
from tests.proto.mechanisms.laws import Law, divergence, hadamard_law, unary_law

from demur_proto.accounting.divergences import Level, levels_renyi
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.hadamard import HadamardResponse
from demur_proto.mechanisms.thresholds import exp_below
from demur_proto.mechanisms.unary import (
    Flip,
    UnaryEncoding,
    block_pair_levels,
    half_pair_levels,
    unary_pair_levels,
)

EPSILONS = [1e-6, 0.1, 1.0, 15.0, 50.0]
ORDERS = [1.5, 2.0, 8.0, 1e4, math.inf]


def holds(levels: Sequence[Level], laws: tuple[Law, Law], order: float) -> bool:
    exact, value = divergence(*laws, order), levels_renyi(levels, order=order)
    return Fraction(value) >= Fraction(exact) and value <= float(exact) * (1 + 1e-12)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("flip", Flip)
def test_two_codes_are_told_apart_as_their_enumerated_laws_are(
    epsilon: float, order: float, flip: Flip
) -> None:
    mechanism = UnaryEncoding(categories=3, epsilon=epsilon, flip=flip)
    one, zero = mechanism.one.probability, mechanism.zero.probability
    first, second = (unary_law(s, categories=3, one=one, zero=zero) for s in (1, 3))

    assert holds(unary_pair_levels(epsilon, flip=flip), (first, second), order)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("order", ORDERS)
def test_two_rows_of_the_matrix_are_told_apart_as_their_enumerated_laws_are(
    epsilon: float, order: float
) -> None:
    mechanism = HadamardResponse(categories=5, epsilon=epsilon)
    keep = mechanism.keep.probability
    first, second = (hadamard_law(symbol, size=8, keep=keep) for symbol in (2, 5))

    assert holds(half_pair_levels(epsilon), (first, second), order)
    assert half_pair_levels(epsilon) == unary_pair_levels(epsilon, flip=Flip.OPTIMISED)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("same_block", [False, True])
def test_two_sets_of_outputs_are_told_apart_as_their_enumerated_laws_are(
    epsilon: float, order: float, same_block: bool
) -> None:
    outputs, size, grown = 16, 4, exp_below(epsilon)
    mine, theirs = range(4), range(2, 6) if same_block else range(4, 8)

    def law(likely: range) -> Law:
        whole = size * grown + outputs - size
        return {at: (grown if at in likely else 1) / whole for at in range(outputs)}

    levels = block_pair_levels(epsilon, outputs=outputs, size=size, same_block=same_block)

    value = levels_renyi(levels, order=order)
    exact = float(divergence(law(mine), law(theirs), order))
    assert value == pytest.approx(exact, rel=1e-12)
    assert value >= exact * (1 - 1e-15)


def test_half_of_all_outputs_in_blocks_that_are_all_is_hadamard_response() -> None:
    blocks = block_pair_levels(1.0, outputs=8, size=4, same_block=True)

    for mine, theirs in zip(blocks, half_pair_levels(1.0), strict=True):
        assert mine.mass == pytest.approx(theirs.mass)
        assert mine.log_ratio == theirs.log_ratio


CALLS: list[Callable[[Any], object]] = [
    half_pair_levels,
    lambda epsilon: unary_pair_levels(epsilon, flip=Flip.SYMMETRIC),
    lambda epsilon: block_pair_levels(epsilon, outputs=8, size=2, same_block=True),
]


@pytest.mark.parametrize("call", CALLS, ids=["half", "unary", "blocks"])
@pytest.mark.parametrize("epsilon", [0.0, -1.0, 51.0, math.nan, math.inf, True, "1"])
def test_an_absurd_epsilon_is_refused(call: Callable[[Any], object], epsilon: Any) -> None:
    with pytest.raises(ParameterError, match=r"^epsilon [^\n]*$"):
        call(epsilon)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("outputs", 1),
        ("outputs", 2.0),
        ("size", 0),
        ("size", 5),
        ("size", 3),
        ("same_block", 1),
    ],
)
def test_blocks_that_cannot_be_are_refused(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {"outputs": 8, "size": 4, "same_block": True, name: value}

    with pytest.raises(ParameterError, match=rf"^{name} [^\n]*$"):
        block_pair_levels(1.0, **arguments)
    with pytest.raises(ParameterError, match=r"^flip "):
        unary_pair_levels(1.0, flip="other")  # type: ignore[arg-type]
