"""What a device's owner may see: what was asked, what it cost, what is left. For no other eyes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from demur_client.ledger.base import Answered, Ledger
from demur_proto.errors import DemurError
from demur_proto.guarantee import guarantee_of, largest_report_mu
from demur_proto.queries import (
    CountingQuery,
    Feature,
    Gradient,
    HaltCount,
    Histogram,
    Linear,
    ModelQuery,
    Query,
    RunningCount,
)
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.wire.definition import Defined, read_round


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explained:
    """One answer in words. Secret."""

    number: int
    at: str  #: UTC
    asked: str
    cost: float  #: share of the study's budget, 0 to 1
    wanted: float  #: what it would have cost
    held: float  #: share of the budget that is held for words of running counts to come
    left: float  #: share of the budget, beside that
    change: int | None  #: what a running count took up; None in other rounds
    answer: str  #: what was sent: a value or cover, and why
    state: str  #: what became of the report


def explained(ledger: Ledger, study: Defined[Study]) -> list[Explained]:
    """Every answer of a device in a study, in order. Secret.

    Raises:
        StorageError: nothing can be read.
    """
    total = study.value.budget_units
    rows = []
    for row in ledger.history(study.hash):
        at = datetime.fromtimestamp(row.at_unix_ms / 1000, UTC)
        rows.append(
            Explained(
                number=row.number,
                at=f"{at:%Y-%m-%d %H:%M}",
                asked=_asked(row.definition, study),
                cost=row.charge / total,
                wanted=row.wanted / total,
                held=row.held / total,
                left=row.left / total,
                change=row.change,
                answer=_answer(row),
                state=str(row.settled or "to be sent"),
            )
        )
    return rows


def question(query: Query) -> str:
    """What a round asks, in words.

    >>> from demur_proto.mechanisms.registry import Randomiser
    >>> question(Histogram(feature=Feature(name="app"), categories=8, mechanism=Randomiser.KRR,
    ...                    epsilon=1.0))
    'which of 8 categories is app, by krr, epsilon 1'
    >>> question(Histogram(feature=Feature(name="rode"), categories=1, mechanism=Randomiser.KRR,
    ...                    epsilon=1.0))
    'whether rode, by krr, epsilon 1'
    """
    if isinstance(query, ModelQuery):
        wanted = "gradient" if isinstance(query, Gradient) else "share of errors"
        return f"{wanted} of model {query.model_hash.hex()[:8]}, {query.parameters} parameters"
    if isinstance(query, HaltCount):
        return (
            f"whether study {query.halted_study.hex()[:16]} was ever answered with less than the "
            f"value, {_position(query)}"
        )
    names = ", ".join(map(feature_text, query.features))
    if isinstance(query, Histogram):
        asked = (
            f"whether {names}"
            if query.categories == 1
            else f"which of {query.categories} categories is {names}"
        )
        return f"{asked}, by {query.mechanism}, epsilon {query.epsilon:g}"
    if isinstance(query, RunningCount):
        return f"changes of {names}, from 0 to {query.bound}, {_position(query)}"
    if not isinstance(query, Linear):
        return names
    if query.weights is not None:
        names = f"{query.dimension} weighted {'sums' if query.dimension > 1 else 'sum'} of {names}"
    return f"{names}, clipped to {query.clip:g}, noise {query.noise.sigma:.3g}"


def _position(query: CountingQuery) -> str:
    segment = query.segment
    return f"round {segment.position} of {segment.horizon}, noise {query.noise.sigma:.3g}"


def feature_text(feature: Feature) -> str:
    """A feature with its parameters.

    >>> feature_text(Feature(name="active", parameters={"day": 20240101}))
    'active(day=20240101)'
    """
    parameters = ", ".join(
        f"{name}={number_text(value)}" for name, value in feature.parameters.items()
    )
    return f"{feature.name}({parameters})" if parameters else feature.name


def number_text(value: float) -> str:
    """A number for people, all digits of an integer.

    >>> number_text(6_000_000.0), number_text(0.1 + 0.2)
    ('6000000', '0.3')
    """
    return f"{value:.15g}"


def explain_text(ledger: Ledger, study: Defined[Study]) -> str:
    """All of it for people. Secret."""
    value, rows = study.value, explained(ledger, study)
    lines = [_heading(study)]
    if not rows:
        lines.append("nothing was answered yet")
    for row in rows:
        lines.append(
            f"round {row.number}, {row.at}: {row.asked}\n"
            f"    {row.answer}; cost {_up(row.cost)}, {_held(row.held)}left {_down(row.left)}; {row.state}"
        )
    held = ledger.held_units(study.hash) / value.budget_units
    left = ledger.remaining_units(study.hash) / value.budget_units
    lines.append(f"{_held(held)}left: {_down(left)} of the budget")
    if ledger.doubt:
        lines.append(doubt_text(ledger.doubt))
    return "\n".join(lines)


def doubt_text(doubt: str) -> str:
    """Why nothing is left of any budget, for people."""
    return f"the ledger cannot be relied on, so every budget counts as spent: {doubt}"


def explain_fields(ledger: Ledger, study: Defined[Study]) -> Mapping[str, Any]:
    """All of it for programs. Secret."""
    return {
        **study_fields(study),
        "answers": [
            {
                "round": row.number,
                "at_utc": row.at,
                "asked": row.asked,
                "cost": row.cost,
                "would_have_cost": row.wanted,
                "held": row.held,
                "left": row.left,
                "change": row.change,
                "answer": row.answer,
                "state": row.state,
            }
            for row in explained(ledger, study)
        ],
        "doubt": ledger.doubt,
        "held": ledger.held_units(study.hash) / study.value.budget_units,
        "left": ledger.remaining_units(study.hash) / study.value.budget_units,
    }


def study_fields(study: Defined[Study]) -> dict[str, Any]:
    """What is public about a study, for programs."""
    value = study.value
    return {
        "study": value.name,
        "hash": study.hash.hex(),
        "view": str(value.view),
        "measure": str(value.measure),
        "budget": value.budget,
        "epsilon": value.epsilon,
        "delta": value.delta,
        "minimum_cohort": value.minimum_cohort,
        "purpose": str(value.purpose),
        "guarantee": _statement(value),
    }


def _statement(study: Study) -> str:
    """What the study promises, in the words in which everything states it."""
    return guarantee_of(study, per_report_mu=largest_report_mu(study)).statement


def _heading(study: Defined[Study]) -> str:
    return f"study {study.value.name!r}: {_statement(study.value)}"


def _asked(definition: bytes, study: Defined[Study]) -> str:
    try:
        asked: Defined[Round] = read_round(definition, study=study)
    except DemurError:  # of another version of this program
        return "a question that this version cannot read"
    return question(asked.value.query)


def _answer(row: Answered) -> str:
    if row.change is not None:
        return _told(row)
    if row.note:
        return f"{'answered' if row.given and not row.covered else 'cover'}: {row.note}"
    if row.given and row.covered and not row.shrunk:
        return "cover: the data gave no value that fits the question, its clip and its grid"
    if not row.given:
        return "cover: the budget would not have covered it"
    return "answered, shrunk to what was left" if row.shrunk else "answered"


def _told(row: Answered) -> str:
    """What a running count was told."""
    if row.note:
        return f"no change told: {row.note}"
    if not row.given:
        return "no change told: the budget would not have covered what follows from it"
    if row.covered:
        return "no change told: the data source gave no such state"
    return f"change of {row.change:+d} told" if row.change else "nothing had changed"


def _held(share: float) -> str:
    """What is held, where something is."""
    return f"{_up(share)} held for rounds to come, " if share else ""


def _up(share: float) -> str:
    """A share for people, rounded up.

    >>> _up(1 / 3), _up(0.0), _up(1e-9)
    ('33.4 %', '0 %', '0.1 %')
    """
    return f"{math.ceil(1000 * share) / 10:g} %"


def _down(share: float) -> str:
    """A share for people, rounded down.

    >>> _down(1 / 3)
    '33.3 %'
    """
    return f"{math.floor(1000 * share) / 10:g} %"


def status_text(fields: Mapping[str, Any]) -> str:
    """What `demur device status` says, for people. Public."""
    lines = [f"device in {fields['folder']}"]
    if fields["device"]:
        lines.append(f"enrolled at {fields['target']} as {fields['device']}")
    else:
        lines.append("not enrolled: demur device enrol")
    if fields["opt_out"]:
        lines.append("takes part in nothing: its owner opted out")
    lines.append(f"features: {', '.join(fields['features']) or 'none'}")
    for study in fields["studies"]:
        lines.append(
            f"study {study['study']!r} {study['hash'][:16]}: round {study['rounds_reached']} reached, "
            f"{study['reports_to_send']} to be sent\n    {study['guarantee']}"
        )
    if not fields["studies"]:
        lines.append("it takes part in no study yet")
    if fields["doubt"]:
        lines.append(doubt_text(fields["doubt"]))
    if fields["control_refusal"]:
        lines.append(f"it answers no control questions: {fields['control_refusal']}")
    return "\n".join(lines)
