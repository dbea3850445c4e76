"""What only a simulator knows of a round: sums over people as they are, without noise or filter."""

import numpy as np

from demur_proto.arrays import Flags, Integers, Values
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.symbols import categories_of
from demur_proto.round import Feature
from demur_sim.populations import Population
from demur_sim.questions import blocks
from demur_sim.running_results import BOUND

AT_ONCE = 1 << 16  #: people counted in one go


def value_totals(
    people: Population, asked: Feature, *, clip: float, among: Flags | None = None
) -> tuple[list[float], list[float]]:
    """Simulator's truth: the sums over everyone of their values, and of their clipped values [d], data units.

    A value with a number that is not finite counts as nothing, as on a device.

    Args:
        people: who they are.
        asked: the feature.
        clip: ℓ₂ radius of a value, data units.
        among: whose values count [devices]; by default everyone's.

    Raises:
        ParameterError: there is nobody, or the population does not know the feature.
    """
    totals, clipped_totals, at = [], [], 0
    for values in blocks(people, [asked]):
        some = values if among is None else values[among[at : at + len(values)]]
        finite: Flags = np.all(np.isfinite(some), axis=1)
        some = np.where(finite[:, None], some, 0.0)
        totals.append(some.sum(axis=0))
        clipped_totals.append(_clipped(some, clip).sum(axis=0))
        at += len(values)
    if not totals:
        raise ParameterError("population", people.devices, "at least one device")
    return np.sum(totals, axis=0).tolist(), np.sum(clipped_totals, axis=0).tolist()


def category_counts(
    people: Population, asked: Feature, categories: int, *, among: Flags | None = None
) -> Integers:
    """Simulator's truth: how many of everyone have each category [k].

    Args:
        people: who they are.
        asked: the feature.
        categories: k; with one it is who has the value 1.
        among: who counts [devices]; by default everyone.

    Raises:
        ParameterError: there is nobody, or the population does not know the feature.
    """
    if not people.devices:
        raise ParameterError("population", people.devices, "at least one device")
    counts = np.zeros(categories, dtype=np.int64)
    for start in range(0, people.devices, AT_ONCE):
        block = slice(start, min(start + AT_ONCE, people.devices))
        values = people.evaluate(asked, block)[:, 0]
        if among is not None:
            values = values[among[block]]
        values = categories_of(values, categories=categories)
        some = values[(values >= 0) & (values < categories)]  # not NaN
        whole = some.astype(np.int64)
        counts += np.bincount(whole[whole == some], minlength=categories)
    return counts


def states_total(people: Population, asked: Feature) -> float:
    """Simulator's truth: the sum over everyone of their state; whoever has none counts as nothing.

    Raises:
        ParameterError: there is nobody, or the population does not know the feature.
    """
    if not people.devices:
        raise ParameterError("population", people.devices, "at least one device")
    total = 0.0
    for start in range(0, people.devices, AT_ONCE):
        values = people.evaluate(asked, slice(start, min(start + AT_ONCE, people.devices)))
        total += float(
            values[(values >= 0) & (values <= BOUND) & (np.rint(values) == values)].sum()
        )
    return total


def _clipped(values: Values, clip: float) -> Values:
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    clipped: Values = values * np.minimum(1.0, clip / np.maximum(norms, clip))
    return clipped
