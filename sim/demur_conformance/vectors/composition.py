"""Vectors about exact composition, and about what a category costs as pure differential privacy."""

from typing import Any

from demur_conformance.vectors.case import Case, Check, Tally, Verdict, examine
from demur_conformance.vectors.conversions import CLOSED_FORM
from demur_proto.accounting.pure import composition_answers, composition_delta, composition_each
from demur_proto.errors import DataError
from demur_proto.mechanisms.registry import ANY_CATEGORY, Randomiser
from demur_proto.queries import Feature, Histogram


def check_composition_delta(cases: list[dict[str, Any]]) -> Verdict:
    """From so many answers of ε₀ to the δ at ε."""
    return examine("composition_delta", cases, _delta)


def check_composition_each(cases: list[dict[str, Any]]) -> Verdict:
    """From ε, δ and so many answers to the largest ε₀."""
    return examine("composition_each", cases, _each)


def check_composition_answers(cases: list[dict[str, Any]]) -> Verdict:
    """From ε, δ and ε₀ to the number of answers."""
    return examine("composition_answers", cases, _answers)


def check_pure_charges(cases: list[dict[str, Any]]) -> Verdict:
    """What a category costs against none, whatever is reported."""
    return examine("pure_charges", cases, _charge)


FAMILIES: dict[str, Check] = {
    "composition_delta": check_composition_delta,
    "composition_each": check_composition_each,
    "composition_answers": check_composition_answers,
    "pure_charges": check_pure_charges,
}


def _delta(case: Case, tally: Tally) -> None:
    delta = composition_delta(
        case.integer("answers"), each=case.number("each"), epsilon=case.number("eps")
    )
    tally.above("delta", delta, case.number("delta"), within=CLOSED_FORM)


def _each(case: Case, tally: Tally) -> None:
    each = composition_each(
        case.integer("answers"), epsilon=case.number("eps"), delta=case.number("delta")
    )
    tally.below("each", each, case.number("each"), within=CLOSED_FORM)


def _answers(case: Case, tally: Tally) -> None:
    found = composition_answers(
        case.number("each"), epsilon=case.number("eps"), delta=case.number("delta")
    )
    tally.same("answers", found, case.integer("answers"))


def _charge(case: Case, tally: Tally) -> None:
    name = case.text("mechanism")
    if name not in list(Randomiser):
        raise DataError(
            f"{case.where}.mechanism {name!r} is not one that this implementation knows"
        )
    query = Histogram(
        feature=Feature(name="any"),
        categories=case.integer("categories"),
        mechanism=Randomiser(name),
        epsilon=case.number("eps"),
        size=case.integer("size"),
    )
    charge = query.randomiser.charge_pure(ANY_CATEGORY)
    tally.above("pure", charge, case.number("pure"), within=CLOSED_FORM)
