"""Vectors with whole curves of Rényi divergences."""

import math
from collections.abc import Callable
from typing import Any

from demur_conformance.vectors.case import Case, Check, Tally, Verdict, examine
from demur_conformance.vectors.conversions import CLOSED_FORM
from demur_proto.accounting.conversions import Grade, curve_epsilon
from demur_proto.accounting.divergences import (
    gaussian_renyi,
    laplace_renyi,
    randomized_response_renyi,
    uniform_response_renyi,
)
from demur_proto.errors import DataError

Curve = Callable[[float], float]
"""From an order to a divergence."""

GRADES: tuple[tuple[Grade, str], ...] = (("simple", "simple"), ("improved", "cks"))


def check_rdp_curves(cases: list[dict[str, Any]]) -> Verdict:
    """Whole curves, their limits, and what they are worth as (ε, δ)."""
    return examine("rdp_curves", cases, _rdp_curve)


FAMILIES: dict[str, Check] = {
    "rdp_curves": check_rdp_curves,
}


def _rdp_curve(case: Case, tally: Tally) -> None:
    curve = _curve(case)
    orders, references = case.numbers("orders"), case.numbers("rdp")
    if len(orders) != len(references):
        raise DataError(f"{case.where} has {len(orders)} orders and {len(references)} divergences")
    points = [(order, curve(order)) for order in orders]
    for (order, value), reference in zip(points, references, strict=True):
        tally.above(f"divergence at order {order:g}", value, reference, within=CLOSED_FORM)
    tally.above("KL divergence", curve(1.0), case.number("kl"), within=CLOSED_FORM)
    pure = math.inf if case.is_null("eps_pure") else case.number("eps_pure")
    tally.above("pure epsilon", curve(math.inf), pure, within=CLOSED_FORM)
    table = case.within("eps_on_grid")
    for text in table.names():
        delta, row = _delta(table, text), table.within(text)
        for grade, name in GRADES:
            epsilon = curve_epsilon(points, delta=delta, grade=grade)
            what = f"{grade} epsilon at delta {text}"
            tally.above(what, epsilon, row.number(name), within=CLOSED_FORM)


def _delta(table: Case, text: str) -> float:
    """A field's name that is itself a number."""
    return Case({text: text}, where=table.where).number(text)


def _curve(case: Case) -> Curve:
    kind, params = case.text("kind"), case.within("params")
    if kind == "gaussian":
        distance, sigma = params.number("sensitivity"), params.number("sigma")
        return lambda order: gaussian_renyi(distance, sigma=sigma, order=order)
    if kind == "laplace":
        distance, scale = params.number("sensitivity"), params.number("b")
        return lambda order: laplace_renyi(distance, scale=scale, order=order)
    if kind in ("krr_replace", "krr_null"):
        epsilon, options = params.number("eps"), params.integer("k")
        response = randomized_response_renyi if kind == "krr_replace" else uniform_response_renyi
        return lambda order: response(epsilon, options=options, order=order)
    raise DataError(f"{case.where}.kind {kind!r} is not one that this implementation knows")
