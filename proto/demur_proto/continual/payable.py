"""Whether everybody can pay to say that they halted. All of it is public.

A device that has halted and cannot pay for the change would count as one that has not, and no bound
that is taken from the count would hold. So a halt count is refused, by everybody and before data are
looked at, unless its study pays for a change by anybody, whenever it comes, in each of its counts.
"""

from collections.abc import Iterable

from demur_proto.continual.factors import factors_of
from demur_proto.continual.following import counting_of
from demur_proto.errors import ParameterError
from demur_proto.round import HaltCount, Round
from demur_proto.study import Study


def most_cost(asked: Round) -> int:
    """What a change costs at most in a halt count, units of its study's budget.

        w · max Σ_{τ ≥ t} C[τ, t]²  over all positions t of all segments so far

    Somebody's state changes once, in one of the segments, and no change costs more than one at
    position 1.

    Args:
        asked: a round of the count.

    Raises:
        ParameterError: it asks for something else.

    >>> from demur_proto.segments import Factorisation, Segment
    >>> from demur_proto.words import WordType
    >>> count = HaltCount(halted_study=bytes(32), sigma=1.0, grid_exponent=-14, segment=Segment(
    ...     horizon=8, cohort=1, factorisation=Factorisation.TREE, position=3, first_round=1))
    >>> cost = most_cost(Round(study_hash=bytes(32), number=3, query=count, weight=10,
    ...                        word_type=WordType.INT32))
    >>> cost // (1 << 28)  # a change is sent at 1, 2, 4 and 8, as 2^14 grid steps
    40
    """
    query = asked.query
    if not isinstance(query, HaltCount):
        raise ParameterError("query", type(query).__name__, "a HaltCount")
    longest = max(query.segment.horizon, *query.segment.earlier, 1)
    factors = factors_of(query.segment.factorisation, horizon=longest, exponent=query.grid_exponent)
    return asked.weight * int(factors.shared(1)[-1])


def check_payable(study: Study, asked: Round, others: Iterable[Round] = ()) -> None:
    """Refuse a halt count in which somebody could not pay for the change; other rounds pass.

    Args:
        study: of the count.
        asked: the round.
        others: rounds of the same study that were asked before; of each count the last one counts.

    Raises:
        ParameterError: a change in each of the counts costs more than the study's budget.
    """
    query = asked.query
    if not isinstance(query, HaltCount):
        return
    last: dict[int, Round] = {}  # of each count, by its first round
    for each in (*others, asked):
        counting = counting_of(each)
        if isinstance(counting, HaltCount):
            last[counting.segment.count] = each
    if sum(map(most_cost, last.values())) > study.budget_units:
        raise ParameterError(
            "horizon",
            query.segment.horizon,
            "such that everybody can pay for a change in each halt count of the study, of which there are "
            f"{len(last)}; make it for so many answers whose clip is the change_norm of the longest segment",
        )
