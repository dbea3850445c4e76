"""From a person's state to the change that would bring what they have told up to it."""

import numpy as np

from demur_proto.arrays import Flags, Integers, Values
from demur_proto.errors import ParameterError


def changes_wanted(values: Values, *, told: Integers, bound: int) -> tuple[Integers, Flags]:
    """The change of each person, and whether their value is a state at all.

    A value that is no integer from 0 to the bound, NaN for one, is none: nothing changes. All of it is
    secret.

    Args:
        values: [n, 1], the states now; units of the state.
        told: [n], the states as told so far.
        bound: the largest state.

    Returns:
        changes [n], from −bound to bound; which values are states [n].

    Raises:
        ParameterError: the values are not of shape [n, 1].

    >>> changes, sound = changes_wanted(
    ...     np.array([[1.0], [0.0], [np.nan], [0.5]]), told=np.array([0, 1, 1, 0]), bound=1)
    >>> changes.tolist(), sound.tolist()
    ([1, -1, 0, 0], [True, True, False, False])
    """
    if values.shape != (len(told), 1):
        raise ParameterError("values", values.shape, f"of shape [{len(told)}, 1]")
    states = values[:, 0]
    with np.errstate(invalid="ignore"):
        sound: Flags = (states >= 0) & (states <= bound) & (np.rint(states) == states)
    changes: Integers = np.where(sound, states, told).astype(np.int64) - told
    return changes, sound
