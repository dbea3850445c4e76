"""Every design here by its name, and the ones of a promise: what a scenario puts beside its own."""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from demur_proto.accounting.numerics import check_delta
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.thresholds import check_epsilon
from demur_proto.mechanisms.unary import Flip
from demur_sim.comparison.design import Baseline, RepeatedResponse, check_horizon
from demur_sim.comparison.flips import MOST_CHANGES, threshold_flips
from demur_sim.comparison.levels import ComposedResponse, KeptChange
from demur_sim.comparison.memoised import BitFlip, MemoisedResponse, MemoisedUnary


class DesignName(StrEnum):
    """What a scenario calls a design."""

    REPEATED_RESPONSE = "repeated_response"  #: randomised response in every round
    KEPT_CHANGE = "kept_change"  #: one of the first k changes, about one level
    COMPOSED_RESPONSE = "composed_response"  #: the first k changes, about one level
    L_SUE = "l_sue"  #: a remembered code through fresh noise, basic RAPPOR
    L_OSUE = "l_osue"  #: the same, of optimised unary encoding
    L_GRR = "l_grr"  #: a remembered symbol through fresh noise
    BIT_FLIP = "bit_flip"  #: a remembered bit, as it is


def names_of(text: str) -> tuple[DesignName, ...]:
    """The names in a text, which has commas between them.

    Raises:
        ParameterError: one is no name, or there twice.

    >>> [str(name) for name in names_of("l_sue, bit_flip")]
    ['l_sue', 'bit_flip']
    """
    given = [each.strip() for each in text.split(",")] if text else []
    known = [str(name) for name in DesignName]
    for each in given:
        if each not in known:
            expected = f"names with commas between them, of {', '.join(known)}"
            raise ParameterError("beside", each, expected)
        if given.count(each) > 1:
            raise ParameterError("beside", text, "each name once")
    return tuple(DesignName(each) for each in given)


def designs_of(
    name: DesignName, *, horizon: int, epsilon: float, delta: float
) -> Sequence[Baseline]:
    """The designs of a name that promise (ε, δ) by zero-out: one, or one for each number of changes.

    Repeated response uses δ, all others are pure. Those that remember promise ε to whoever's state never
    changes, over any number of reports, and half of it for one report where that is less; whatever
    they promise others follows. As yes and no differ in one bit, this is, in the terms of the papers,

        L-SUE: ε∞ = 2ε, ε₁ = ε;  L-OSUE: e^ε∞ = 2e^ε − 1, e^ε₁ = 2e^(ε/2) − 1;  L-GRR: ε∞ = ε, ε₁ = ε/2;
        dBitFlipPM: 2ε

    Args:
        name: which.
        horizon: T; from 1 to 2^20.
        epsilon: ε, nats; from 1e-9 to 50, for those that remember to about 25.
        delta: δ; at least 1e-300 and below 1.

    Raises:
        ParameterError: there is none for such an ε, δ or horizon.

    Source: derived from `Noise.bit_epsilon`; for L-OSUE p = ½, so that it is ln(½/q).
    """
    if not isinstance(name, DesignName):
        raise ParameterError("name", name, "a DesignName")
    check_horizon(horizon)
    check_epsilon(epsilon)
    check_delta("delta", delta)
    makers: Mapping[DesignName, Callable[[], Sequence[Baseline]]] = {
        DesignName.REPEATED_RESPONSE: lambda: [
            RepeatedResponse(horizon=horizon, epsilon=epsilon, delta=delta)
        ],
        DesignName.KEPT_CHANGE: lambda: [
            KeptChange(horizon=horizon, changes=k, epsilon=epsilon)
            for k in range(1, MOST_CHANGES + 1)
        ],
        DesignName.COMPOSED_RESPONSE: lambda: _composed(horizon, epsilon),
        DesignName.L_SUE: lambda: [
            MemoisedUnary(horizon=horizon, forever=2 * epsilon, once=epsilon, first=Flip.SYMMETRIC)
        ],
        DesignName.L_OSUE: lambda: [
            MemoisedUnary(
                horizon=horizon,
                forever=_bit_of_half(epsilon),
                once=_bit_of_half(epsilon / 2),
                first=Flip.OPTIMISED,
            )
        ],
        DesignName.L_GRR: lambda: [
            MemoisedResponse(horizon=horizon, forever=epsilon, once=epsilon / 2)
        ],
        DesignName.BIT_FLIP: lambda: [BitFlip(horizon=horizon, epsilon=2 * epsilon)],
    }
    try:
        return makers[name]()
    except ParameterError as error:
        expected = (
            f"a design that there is for these rounds, epsilon and delta (its {error.name} must be "
            f"{error.expected}, and would be {error.value!r})"
        )
        raise ParameterError("beside", str(name), expected) from None


def _composed(horizon: int, epsilon: float) -> Sequence[ComposedResponse]:
    """As many k as have a law of integer weights at this ε; the first of them, at least."""
    designs = [_composed_of(1, horizon, epsilon)]
    for k in range(2, MOST_CHANGES + 1):
        try:
            designs.append(_composed_of(k, horizon, epsilon))
        except ParameterError:
            break  # 2^k weights leave no digits for so small an ε, nor will more
    return designs


def _composed_of(changes: int, horizon: int, epsilon: float) -> ComposedResponse:
    return ComposedResponse(
        horizon=horizon, flips=threshold_flips(changes=changes, epsilon=epsilon)
    )


def _bit_of_half(epsilon: float) -> float:
    """ε between two codes, of a bit that is a coin if set, and e^ε less often one if not: ln(2e^ε − 1)."""
    return math.log1p(2 * math.expm1(epsilon))
