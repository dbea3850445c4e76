"""The decision of a running count: is a change taken up, and what is held for it?

Elementwise, for Python integers and int64 arrays alike, as in `demur_client.budget`: a device and a
cohort decide by these same lines.

What a person has taken up so far fixes every word that they will still send in the segment, whatever
comes. `planned` is the sum of those words' squares, from this position to the horizon, and w·planned
is held: no other round can spend it. So of a change that was taken up every word is sent, and none is
ever refused.
"""

from typing import Any, overload

from demur_client.budget import charge_units, decide
from demur_client.charges import HIDDEN
from demur_proto.arrays import Flags, Integers
from demur_proto.errors import ParameterError


@overload
def projected(change: int, *, planned: int, cross: int, alone: int) -> int: ...


@overload
def projected(change: Integers, *, planned: Integers, cross: Integers, alone: int) -> Integers: ...


def projected(change: Any, *, planned: Any, cross: Any, alone: int) -> Any:
    """Σ_{τ ≥ t} (z_τ + δ·C[τ, t])²: the energy still to come if a change δ is taken up at t.

    Args:
        change: δ, units of the state.
        planned: Σ_{τ ≥ t} z_τ² without it, grid steps².
        cross: Σ_{τ ≥ t} z_τ·C[τ, t], grid steps².
        alone: Σ_{τ ≥ t} C[τ, t]², grid steps².

    >>> projected(-1, planned=5, cross=5, alone=5)  # words (1, 2), less the change that made them
    0
    """
    return planned + change * (2 * cross + change * alone)


@overload
def commit(
    change: int,
    *,
    planned: int,
    cross: int,
    alone: int,
    weight: int,
    budget_units: int,
    remaining: int,
    refused: bool,
    retire: bool,
) -> tuple[bool, int, int, bool]: ...


@overload
def commit(
    change: Integers,
    *,
    planned: Integers,
    cross: Integers,
    alone: int,
    weight: int,
    budget_units: int,
    remaining: Integers,
    refused: Flags,
    retire: bool,
) -> tuple[Flags, Integers, Integers, Flags]: ...


def commit(
    change: Any,
    *,
    planned: Any,
    cross: Any,
    alone: int,
    weight: int,
    budget_units: int,
    remaining: Any,
    refused: Any,
    retire: bool,
) -> tuple[Any, Any, Any, Any]:
    """Whether a change is taken up, and the state after.

    It is taken up iff w times all the energy still to come fits what is left and what is held already.
    No change at all always fits. A change that cancels others may give back some of what they held.

    Args:
        change: δ, units of the state; 0 for none.
        planned: as `projected`; w·planned is held, and at most T.
        cross: as `projected`.
        alone: as `projected`.
        weight: the round's integer weight w.
        budget_units: T.
        remaining: what is left beside everything that is held, budget units.
        refused: whether an answer or a change was ever refused; an array is updated in place.
        retire: after a refusal no change is taken up any more.

    Returns:
        (taken up, planned after, remaining after, refused after). All secret.

    >>> commit(1, planned=0, cross=0, alone=5, weight=10, budget_units=80, remaining=80,
    ...        refused=False, retire=False)
    (True, 5, 30, False)
    >>> commit(1, planned=5, cross=2, alone=2, weight=10, budget_units=80, remaining=30,
    ...        refused=False, retire=False)  # 5 + 2·2 + 2 = 11 is more than 3 + 5
    (False, 5, 30, True)
    """
    energy = projected(change, planned=planned, cross=cross, alone=alone)
    held = weight * planned
    taken, left, refused = decide(
        charge_units(energy, weight=weight, budget_units=budget_units),
        remaining=remaining + held,
        refused=refused,
        retire=retire,
    )
    kept = taken == False  # an elementwise `not`
    return taken, energy * taken + planned * kept, left - held * kept, refused


def check_change(change: int, *, planned: int, cross: int, alone: int) -> None:
    """Refuse what is no change of one person, without saying what it is.

    Args:
        change: as in `commit`.
        planned: likewise.
        cross: likewise.
        alone: likewise.

    Raises:
        ParameterError: an argument is outside its range.
    """
    for name, value in (("change", change), ("cross", cross)):
        if type(value) is not int:  # without the value, a secret
            raise ParameterError(name, HIDDEN, "an integer")
    for name, value in (("planned", planned), ("alone", alone)):
        if type(value) is not int or value < 0:
            raise ParameterError(name, HIDDEN, "an integer >= 0")
    if projected(change, planned=planned, cross=cross, alone=alone) < 0:
        raise ParameterError("cross", HIDDEN, "such that no energy is below 0")
