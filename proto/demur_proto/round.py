"""A round: one question, put to every device of a study."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from demur_proto.checks import check_hash, check_integer
from demur_proto.errors import ParameterError
from demur_proto.queries.base import Query
from demur_proto.study import Study
from demur_proto.wire.words import WordType

if TYPE_CHECKING:
    from demur_proto.wire.definition import Defined

LATEST_ANSWER_MS = 86_400_000  #: a day
DEFAULT_SLOT_MS = (
    1000  #: of a question, and the shortest that an owner accepts, unless they say otherwise
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One question with its noise.

    Raises:
        ParameterError: a field is outside its range.
    """

    study_hash: bytes  #: SHA-256 of the study's definition
    number: int  #: 1 for the first round of the study, then consecutive
    query: Query
    weight: int  #: what one squared grid step, or one category, costs; budget units, >= 1
    word_type: WordType
    answer_after_ms: int = 0  #: a device sends this long after it received the round
    close_unix_ms: int = 0  #: the collector closes the round then; 0: the analyst does

    def __post_init__(self) -> None:
        check_hash("study_hash", self.study_hash)
        check_integer("number", self.number, 1, (1 << 32) - 1)
        check_query(self.query)
        self.query.check_round(self)
        check_integer("weight", self.weight, 1, 1 << 62)
        if not isinstance(self.word_type, WordType):
            raise ParameterError("word_type", self.word_type, "a WordType")
        check_integer("answer_after_ms", self.answer_after_ms, 0, LATEST_ANSWER_MS)
        check_integer("close_unix_ms", self.close_unix_ms, 0, (1 << 53))


def check_query(query: object) -> None:
    """Refuse what is no query.

    Raises:
        ParameterError: it is something else.
    """
    if not isinstance(query, Query):
        name = type(query).__name__
        raise ParameterError("query", name, "a query, as Linear([Feature(name)]) is one")


def round_of(
    study: "Defined[Study]",
    query: Query,
    *,
    number: int,
    answer_after_ms: int = 0,
    close_unix_ms: int = 0,
) -> Round:
    """A round that asks this query, with all filled in that the query leaves to its study.

    Args:
        study: the contract.
        query: what is asked.
        number: the round's number in the study.
        answer_after_ms: when devices send, after they received the round and its model.
        close_unix_ms: when the collector closes the round; 0 leaves that to the analyst.

    Raises:
        ParameterError: an argument is outside its range, or the study does not allow the query.
    """
    check_query(query)
    query.check_family(study.value)
    stated = query.in_study(study.value, number)
    return Round(
        study_hash=study.hash,
        number=number,
        query=stated,
        weight=stated.weight_in(study.value),
        word_type=stated.word_type_in(study.value),
        answer_after_ms=answer_after_ms,
        close_unix_ms=close_unix_ms,
    )
