"""The one decision: does this charge still fit?

Elementwise, for a Python integer and for an int64 array alike. A single device and a cohort of a
million decide by these same lines, so they cannot differ.
"""

from typing import Any, TypeVar, overload

from demur_proto.arrays import Flags, Integers

Number = TypeVar("Number", int, Integers)


def charge_units(squared_norm: Number, *, weight: int, budget_units: int) -> Number:
    """What an answer costs, in budget units: w·Σz², or T + 1 where that exceeds T.

    Never multiplies first: w·Σz² may not fit 63 bits, while anything above T costs too much
    anyway.

    Args:
        squared_norm: Σz² in grid steps²; >= 0.
        weight: the round's integer weight w; >= 1, at most T + 1.
        budget_units: the study's integer budget T; below 2^62.

    Secret: depends on a person's data.

    >>> charge_units(3, weight=10, budget_units=45), charge_units(5, weight=10, budget_units=45)
    (30, 46)
    """
    fits = squared_norm <= budget_units // weight
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
        remaining: what is left of the budget, budget units, >= 0.
        refused: whether an answer was ever refused.
        retire: policy `retire` rather than `skip`.

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
    return given, remaining - charge * given, refused | (given == False)
