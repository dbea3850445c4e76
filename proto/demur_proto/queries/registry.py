"""All kinds of questions, by the name under which they travel."""

from collections.abc import Mapping

from demur_proto.errors import ParameterError, UnsupportedError, WireError
from demur_proto.mechanisms.base import Mechanism
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries.base import Query
from demur_proto.queries.error_count import ErrorCount
from demur_proto.queries.gradient import Gradient
from demur_proto.queries.halt_count import HaltCount
from demur_proto.queries.histogram import Histogram
from demur_proto.queries.linear import Linear
from demur_proto.queries.running_count import RunningCount
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.v1 import round_pb2

KINDS: Mapping[str, type[Query]] = {
    kind.wire_name: kind
    for kind in (Linear, Histogram, Gradient, ErrorCount, RunningCount, HaltCount)
}
MOST_REPORTS = 1 << 53  #: of one round


def read_query(message: round_pb2.Round) -> Query:
    """What a round asks.

    Raises:
        WireError: it asks nothing.
        UnsupportedError: it asks something that this version does not answer.
        ParameterError: a field is outside its range.
    """
    name = message.WhichOneof("query")
    if name is None:
        raise WireError("not a valid round: it asks nothing")
    if name not in KINDS:
        raise UnsupportedError(
            f"{name} rounds are not supported by this version; ask a linear one, a histogram, a "
            "gradient, an error count or a running count"
        )
    return KINDS[name].read(message)


def mechanism_for(study: Study, asked: Round, *, kept: bool = False) -> Mechanism:
    """The mechanism of a round, checked against the study it claims to belong to.

    Args:
        study: the contract.
        asked: the round.
        kept: the round was asked before, maybe when studies did not say what they are for. Otherwise
            it is refused in a study that is not for such questions, and a halt count also where its
            study could not pay for a change by everybody.

    Raises:
        ParameterError: the round does not fit the study.
    """
    if study.horizon and asked.number > study.horizon:
        raise ParameterError("number", asked.number, f"<= the horizon {study.horizon}")
    if not kept:
        asked.query.check_purpose(study)
    return asked.query.mechanism_for(study, asked, kept=kept)


def room_of(mechanism: Mechanism) -> int:
    """How many reports fit before a sum could leave 64 bits, or a count a float."""
    if isinstance(mechanism, GaussianLinear):
        return min(MOST_REPORTS, ((1 << 63) - 1) // mechanism.word_limit)
    return MOST_REPORTS  # one report of a randomiser adds at most 1 to any sum
