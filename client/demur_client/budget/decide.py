"""The one decision: does this charge still fit?

Elementwise, for a Python integer and for an int64 array alike. A single device and a cohort of a
million decide by these same lines, so they cannot differ.
"""

from collections.abc import Sequence
from typing import Any, TypeVar, overload

from demur_proto.arrays import Flags, Integers

Number = TypeVar("Number", int, Integers)


def charge_units(
    squared_norm: Number, *, weight: int, budget_units: int, largest: int | None = None
) -> Number:
    """What an answer costs, in budget units: w·Σz², or T + 1 where that exceeds T.

    Never multiplies first: w·Σz² may not fit 63 bits, while anything above T costs too much
    anyway.

    Args:
        squared_norm: Σz² in grid steps², or 1 for a category and 0 for none; >= 0.
        weight: the round's integer weight w; >= 1, at most T + 1.
        budget_units: the study's integer budget T; below 2^62.
        largest: a public bound on every Σz², such as the round's R. Where w·R is at most T,
            nothing has to be looked for above it.

    Secret: depends on a person's data.

    >>> charge_units(3, weight=10, budget_units=45), charge_units(5, weight=10, budget_units=45)
    (30, 46)
    """
    most = budget_units // weight
    if largest is not None and largest <= most:
        return squared_norm * weight
    fits = squared_norm <= most
    return squared_norm * fits * weight + (budget_units + 1) * (1 - fits)


@overload
def decide(
    charge: int, *, remaining: int, refused: bool, retire: bool
) -> tuple[bool, int, bool]: ...


@overload
def decide(
    charge: Integers, *, remaining: Integers, refused: Flags, retire: bool
) -> tuple[Flags, Integers, Flags]: ...


def decide(charge: Any, *, remaining: Any, refused: Any, retire: bool) -> tuple[Any, Any, Any]:
    """Whether an answer of this charge is given, and the state after.

    It is given iff charge ≤ remaining. Under policy `retire`, after a refusal only charges of
    zero are given. A refusal changes nothing that remains; zero charges are always given.

    Args:
        charge: budget units, >= 0.
        remaining: what is left of the budget, budget units, >= 0; an array is updated in place.
        refused: whether an answer was ever refused; an array is updated in place.
        retire: policy `retire` rather than `skip`. Under `clip`, whoever charges has shrunk the
            answer to what fits, and a refusal is as final as under `retire`.

    Returns:
        (given, remaining after, refused after). All secret.

    Source: Feldman & Zrnic 2021, arXiv:2008.11193, Algorithm 2 (filteredcomp).

    >>> decide(6, remaining=10, refused=False, retire=False)
    (True, 4, False)
    >>> decide(6, remaining=4, refused=False, retire=False)
    (False, 4, True)
    >>> decide(3, remaining=4, refused=True, retire=True)
    (False, 4, True)
    """
    given = charge <= remaining
    if retire:
        given = given & ((charge == 0) | (refused == False))  # an elementwise `not`
    remaining -= charge * given
    refused |= given == False
    return given, remaining, refused


@overload
def decide_every(
    charges: Sequence[int], *, remaining: list[int], refused: bool, retire: bool
) -> tuple[bool, list[int], bool]: ...


@overload
def decide_every(
    charges: Any, *, remaining: Any, refused: Flags, retire: bool
) -> tuple[Flags, Any, Flags]: ...


def decide_every(
    charges: Any, *, remaining: Any, refused: Any, retire: bool
) -> tuple[Any, Any, Any]:
    """`decide` for a filter with several counters, one for each Rényi order.

    An answer is given iff every charge fits its own counter. To go on while only some order fits
    is not sound: an adversary can pay each branch of what it does with another order, and no
    order bounds them all.

    Args:
        charges: one for each counter, budget units, >= 0: integers, or arrays over people. An
            array [n, k] goes in transposed.
        remaining: what is left, counter by counter; updated in place.
        refused: as in `decide`.
        retire: as in `decide`.

    Returns:
        (given, remaining after, refused after). All secret.

    Source: Feldman & Zrnic 2021, arXiv:2008.11193, Theorem "rdp-at-stopping-times", once for each
    order; the answer that one order's filter refuses is given by none.

    >>> decide_every([3, 6], remaining=[10, 7], refused=False, retire=False)
    (True, [7, 1], False)
    >>> decide_every([3, 6], remaining=[7, 1], refused=False, retire=False)
    (False, [7, 1], True)
    """
    given, free = True, True
    for charge, left in zip(charges, remaining, strict=True):
        given = given & (charge <= left)
        free = free & (charge == 0)
    if retire:
        given = given & (free | (refused == False))
    for counter, charge in enumerate(charges):
        remaining[counter] -= charge * given
    refused |= given == False
    return given, remaining, refused


@overload
def affordable_radius(remaining: int, *, weight: int, largest: int, refused: bool) -> int: ...


@overload
def affordable_radius(
    remaining: Integers, *, weight: int, largest: int, refused: Flags
) -> Integers: ...


def affordable_radius(remaining: Any, *, weight: int, largest: int, refused: Any) -> Any:
    """The largest squared norm that an answer may still have under policy `clip`.

        R′ = min(R, ⌊remaining / w⌋), or 0 after an answer was shrunk or refused

    Args:
        remaining: what is left of the budget, budget units, >= 0.
        weight: the round's integer weight w; >= 1.
        largest: the round's R, grid steps²; >= 0.
        refused: whether an answer was ever shrunk or refused.

    Returns:
        R′, grid steps². Secret.

    Source: Feldman & Zrnic 2021, arXiv:2008.11193, Algorithm "filtered-gd":
    min(C, √(B − Σ‖ḡ‖²)).

    >>> affordable_radius(45, weight=10, largest=100, refused=False)
    4
    """
    most = remaining // weight
    within = most <= largest
    return (most * within + largest * (1 - within)) * (refused == False)
