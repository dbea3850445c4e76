"""What a store holds, for the people who run it: never an id, a digest, a payload or a partial sum."""

from dataclasses import dataclass

import sqlalchemy as sa

from demur_proto.errors import NotFoundError, ParameterError
from demur_proto.queries import (
    CountingQuery,
    Gradient,
    HaltCount,
    Histogram,
    Linear,
    ModelQuery,
    Query,
)
from demur_proto.release import Release
from demur_proto.study import Study
from demur_proto.wire.definition import Defined, read_round, read_study
from demur_server.parsing import describe_feature, matches
from demur_server.store import records
from demur_server.store.schema import ended_studies, rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyLine:
    """A study in a list."""

    study: str  #: its hash, hexadecimal
    name: str
    state: str  #: open, or ended where it came back from a backup
    view: str
    measure: str
    epsilon: float
    delta: float
    minimum_cohort: int
    rounds: int  #: opened so far
    open: int  #: of these
    releases: int  #: with numbers
    withheld: int  #: without


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLine:
    """A round in a list. The number of reports is public: nobody's data moves it."""

    study: str  #: its hash, hexadecimal
    number: int
    round: str  #: its hash, hexadecimal
    state: str  #: open, closing (its release is not kept yet), released or withheld
    reports: int
    conflicts: int  #: reports refused as CONFLICT while it was open
    asks: str  #: sums or a histogram, and of what
    estimates: int  #: how many numbers its release has: coordinates or categories
    access: str  #: credentials or open


def find_studies(sql: sa.Connection, wanted: str | None = None) -> list[Defined[Study]]:
    """The studies with this name, or whose hash begins so; all of them for None.

    Raises:
        NotFoundError: there is none.
    """
    found = [read_study(each) for each in records.study_definitions(sql)]
    if wanted is None:
        return found
    chosen = [each for each in found if matches(each, wanted)]
    if not chosen:
        raise NotFoundError(f"there is no study {wanted!r}; the store has {len(found)}")
    return chosen


def study_lines(sql: sa.Connection) -> list[StudyLine]:
    """Every study, in the order in which they were fixed."""
    states: dict[str, list[str]] = {}
    for line in round_lines(sql):
        states.setdefault(line.study, []).append(line.state)
    ended = ended_studies(sql)
    lines = []
    for study in find_studies(sql):
        mine = states.get(study.hash.hex(), [])
        lines.append(
            StudyLine(
                study=study.hash.hex(),
                name=study.value.name,
                state="ended" if study.hash in ended else "open",
                view=study.value.view.value,
                measure=study.value.measure.value,
                epsilon=study.value.epsilon,
                delta=study.value.delta,
                minimum_cohort=study.value.minimum_cohort,
                rounds=len(mine),
                open=mine.count("open"),
                releases=mine.count("released"),
                withheld=mine.count("withheld"),
            )
        )
    return lines


def round_lines(sql: sa.Connection, wanted: str | None = None) -> list[RoundLine]:
    """Every round of the studies that are meant, by study and number.

    Raises:
        NotFoundError: there is no such study.
    """
    studies = {each.hash: each for each in find_studies(sql, wanted)}
    lines = []
    for kept in records.kept_rounds(sql, shard=0):
        study = studies.get(kept.study_hash)
        row = records.find_round(sql, kept.round_hash)
        if study is None or row is None:
            continue
        asked = read_round(kept.definition, study=study).value
        counted = records.all_counted(sql, row)
        found = records.find_releases(
            sql, rounds.c.id == row.id
        )  # one at a time: they may be large
        lines.append(
            RoundLine(
                study=study.hash.hex(),
                number=asked.number,
                round=kept.round_hash.hex(),
                state=_state(closed=kept.closed, release=next(iter(found), None)),
                reports=counted.reports,
                conflicts=counted.conflicts,
                asks=_described(asked.query),
                estimates=_estimates(asked.query),
                access="open" if kept.open_access else "credentials",
            )
        )
    return lines


def releases_of(sql: sa.Connection, wanted: str | None = None) -> list[Release]:
    """The releases of the studies that are meant, by study and number.

    Raises:
        NotFoundError: there is no such study.
        ParameterError: several studies are meant by one name.
    """
    studies = find_studies(sql, wanted)
    if wanted is not None and len(studies) > 1:
        raise ParameterError("study", wanted, f"one of {len(studies)} of this name, by its hash")
    return [
        release
        for study in studies
        for release in records.find_releases(
            sql, *records.of_study(study.hash, from_number=1), rounds.c.closed
        )
    ]


def _described(query: Query) -> str:
    if isinstance(query, ModelQuery):
        kind = "gradient" if isinstance(query, Gradient) else "error count"
        return f"{kind}: model {query.model_hash.hex()[:16]}"
    if isinstance(query, CountingQuery):
        segment = query.segment
        what = (
            f"halts in study {query.halted_study.hex()[:16]}"
            if isinstance(query, HaltCount)
            else ", ".join(map(describe_feature, query.features))
        )
        return f"running count: {what}, {segment.position} of {segment.horizon}"
    kind = "histogram" if isinstance(query, Histogram) else "sum"
    if isinstance(query, Linear) and query.weights is not None:
        kind = "weighted sum"
    return f"{kind}: {', '.join(map(describe_feature, query.features))}"


def _estimates(query: Query) -> int:
    return query.categories if isinstance(query, Histogram) else query.report_length


def _state(*, closed: bool, release: Release | None) -> str:
    if not closed:
        return "open"
    if release is None:
        return "closing"
    return "released" if release.estimate.size else "withheld"
