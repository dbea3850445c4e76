"""Vectors with single divergences, one family for each mechanism.

Each is computed by what charges a person: the mechanism's own class against null, or the levels and
closed forms that its class is made of where the reference is another value.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from demur_conformance.vectors.case import Case, Check, Tally, Verdict, examine
from demur_conformance.vectors.conversions import CLOSED_FORM
from demur_proto.accounting.divergences import Level, gaussian_renyi, laplace_renyi, levels_renyi
from demur_proto.accounting.laws import discrete_gaussian_renyi, discrete_laplace_renyi
from demur_proto.checks import check_integer
from demur_proto.errors import DataError
from demur_proto.mechanisms.for_study.duchi import coin_levels
from demur_proto.mechanisms.for_study.numeric import check_value
from demur_proto.mechanisms.for_study.piecewise import piecewise_renyi
from demur_proto.mechanisms.for_study.privunit import PrivUnit
from demur_proto.mechanisms.local_hashing import joint_levels
from demur_proto.mechanisms.randomised_response import (
    BinaryRandomisedResponse,
    KaryRandomisedResponse,
    response_levels,
)
from demur_proto.mechanisms.subset_selection import subset_levels
from demur_proto.mechanisms.thresholds import check_epsilon
from demur_proto.mechanisms.unary import (
    Flip,
    UnaryEncoding,
    block_pair_levels,
    half_pair_levels,
    unary_pair_levels,
)

MOST_OPTIONS = 1 << 31  #: categories of a vector

Divergence = Callable[[Case], float]
"""What this implementation says of a case."""


def _binary_rr(case: Case) -> float:
    mechanism = BinaryRandomisedResponse(epsilon=_epsilon(case))
    return mechanism.charge_renyi(int(_differ(case)), order=_order(case))


def _grr(case: Case) -> float:
    options = case.within("params").integer("k")
    if options == 2:
        return _binary_rr(case)
    mechanism = KaryRandomisedResponse(categories=options - 1, epsilon=_epsilon(case))
    return mechanism.charge_renyi(int(_differ(case)), order=_order(case))


def _sue(case: Case) -> float:
    return _unary(case, Flip.SYMMETRIC)


def _oue(case: Case) -> float:
    for name, law in (("p", "1/2"), ("q", "1/(e^eps+1)")):
        if case.within("params").text(name) != law:
            raise DataError(f"{case.where}.params.{name} must be {law!r}, as in OUE")
    return _unary(case, Flip.OPTIMISED)


def _unary(case: Case, flip: Flip) -> float:
    epsilon = _epsilon(case)
    if case.is_null("x_ref"):
        category = case.integer("x")
        mechanism = UnaryEncoding(categories=max(2, category + 1), epsilon=epsilon, flip=flip)
        return mechanism.charge_renyi(category + 1, order=_order(case))
    return _pair(case, unary_pair_levels(epsilon, flip=flip))


def _local_hash(case: Case) -> float:
    params, epsilon = case.within("params"), _epsilon(case)
    hash_range = params.integer("g")
    check_epsilon(epsilon)
    check_integer("g", hash_range, 2, MOST_OPTIONS)
    loss = params.text("loss")
    if loss == "joint":
        return _pair(case, joint_levels(epsilon, hash_range=hash_range))
    if loss == "given seed, no collision":
        return _pair(case, response_levels(epsilon, options=hash_range))
    if loss == "given seed, collision":
        return _pair(case, [Level(mass=1.0, log_ratio=0.0)])
    raise DataError(f"{params.where}.loss {loss!r} is not one that this implementation knows")


def _hadamard_response(case: Case) -> float:
    return _pair(case, half_pair_levels(_epsilon(case)))


def _hadamard_response_general(case: Case) -> float:
    params = case.within("params")
    levels = block_pair_levels(
        _epsilon(case),
        outputs=params.integer("K"),
        size=params.integer("s"),
        same_block=params.flag("same_block"),
    )
    return _pair(case, levels)


def _subset_selection(case: Case) -> float:
    params, epsilon = case.within("params"), _epsilon(case)
    check_epsilon(epsilon)
    options, size = params.integer("k"), params.integer("w")
    check_integer("k", options, 2, MOST_OPTIONS)
    check_integer("w", size, 1, options - 1)
    return _pair(case, subset_levels(epsilon, options=options, size=size))


def _laplace(case: Case) -> float:
    scale = case.within("params").number("b")
    return laplace_renyi(_distance(case), scale=scale, order=_order(case))


def _discrete_laplace(case: Case) -> float:
    scale = case.within("params").number("scale")
    return discrete_laplace_renyi(_steps(case), scale=scale, order=_order(case))


def _gaussian(case: Case) -> float:
    sigma = case.within("params").number("sigma")
    return gaussian_renyi(_distance(case), sigma=sigma, order=_order(case))


def _discrete_gaussian(case: Case) -> float:
    sigma = case.within("params").number("sigma")
    return discrete_gaussian_renyi(_steps(case), sigma=sigma, order=_order(case))


def _duchi(case: Case) -> float:
    return _coins(case, _epsilon(case))


def _ternary(case: Case) -> float:
    for name in ("x", "x_ref"):
        if case.integer(name) not in (-1, 0, 1):
            raise DataError(f"{case.where}.{name} must be -1, 0 or 1, got {case.integer(name)}")
    return _coins(case, case.within("params").number("eps_half"))


def _coins(case: Case, epsilon: float) -> float:
    check_epsilon(epsilon)
    first, second = (check_value(case.number(name)) for name in ("x", "x_ref"))
    return levels_renyi(coin_levels(first, second, epsilon=epsilon), order=_order(case))


def _piecewise(case: Case) -> float:
    for name in ("x", "x_ref"):
        check_value(case.number(name))
    return piecewise_renyi(_distance(case), epsilon=_epsilon(case), order=_order(case))


def _privunit(case: Case) -> float:
    params, order = case.within("params"), _order(case)
    mechanism = PrivUnit(
        dimension=params.integer("d"),
        probability=params.number("p0"),
        height=params.number("gamma"),
    )
    pair = (case.text("x"), case.text("x_ref"))
    if pair == ("u", "uniform (no data)"):
        return mechanism.charge_renyi(True, order=order)
    if pair == ("u", "-u"):
        return mechanism.pair_renyi(order=order)
    raise DataError(f"{case.where} is about {pair}, which this implementation does not know")


def _pair(case: Case, levels: Sequence[Level]) -> float:
    divergence = levels_renyi(levels, order=_order(case))
    return divergence if _differ(case) else 0.0


def _differ(case: Case) -> bool:
    return case.integer("x") != case.integer("x_ref")


def _epsilon(case: Case) -> float:
    return case.within("params").number("eps")


def _order(case: Case) -> float:
    return case.number("alpha")


def _steps(case: Case) -> int:
    return abs(case.integer("x") - case.integer("x_ref"))


def _distance(case: Case) -> float:
    exact = abs(case.exact("x") - case.exact("x_ref"))
    return float(min(exact, Fraction(10**300)))  # which is refused as well, and a double


def _check(family: str, divergence: Divergence, cases: list[dict[str, Any]]) -> Verdict:
    def compare(case: Case, tally: Tally) -> None:
        tally.above("divergence", divergence(case), case.number("divergence"), within=CLOSED_FORM)

    return examine(family, cases, compare)


MECHANISMS: dict[str, Divergence] = {
    "binary_rr": _binary_rr,
    "grr": _grr,
    "sue": _sue,
    "oue": _oue,
    "local_hash": _local_hash,
    "hadamard_response": _hadamard_response,
    "hadamard_response_general": _hadamard_response_general,
    "subset_selection": _subset_selection,
    "laplace": _laplace,
    "discrete_laplace": _discrete_laplace,
    "gaussian": _gaussian,
    "discrete_gaussian": _discrete_gaussian,
    "duchi_1bit": _duchi,
    "ternary_rr_zero_coin": _ternary,
    "piecewise": _piecewise,
    "privunit": _privunit,
}
"""Every mechanism that a vector may name."""

FAMILIES: dict[str, Check] = {
    f"divergences.{name}": partial(_check, f"divergences.{name}", divergence)
    for name, divergence in MECHANISMS.items()
}
