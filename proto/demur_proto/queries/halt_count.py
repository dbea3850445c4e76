"""Running counts of the people whom another study's budget did not pay for."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from demur_proto.checks import check_hash
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries.base import CountingQuery, Feature, GaussianQuery, Reads, bound_of
from demur_proto.running.factorisations import factors_of
from demur_proto.running.segments import Admission, Segment
from demur_proto.study import Purpose, Study
from demur_proto.v1 import round_pb2

if TYPE_CHECKING:
    from demur_proto.round import Round


@dataclass(frozen=True, slots=True)
class HaltCount(CountingQuery):
    """A running count of the people who ever answered another study with less than their value.

    That is with cover, a shrunk answer, or by refusing a change, for any reason. Everybody changes at
    most once. It is asked in a study of its own: a device that ran out could not pay to say so.

    Raises:
        ParameterError: a field is outside its range, or the grid is too coarse or too fine.
    """

    wire_name: ClassVar[str] = "halt_count"
    label: ClassVar[str] = "running count of halts"
    reads: ClassVar[Reads] = Reads.HALTS
    purpose: ClassVar[Purpose] = Purpose.HALTS
    halted_study: bytes  #: hash of the other study, 32 bytes
    segment: Segment  #: which of the segment's rounds this is; as of a `RunningCount`

    def __post_init__(self) -> None:
        check_hash("halted_study", self.halted_study)
        self._check_counting()

    @property
    def features(self) -> tuple[Feature, ...]:
        """None: a device reads its own ledger."""
        return ()

    @property
    def bound(self) -> int:
        """The largest state: halted, or not."""
        return 1

    @property
    def admission(self) -> Admission:
        """One change is all there is, so it is sent whole or not at all."""
        return Admission.COMMIT

    def at(self, segment: Segment) -> "HaltCount":
        """The same at another position."""
        return replace(self, segment=segment)

    def fixed(self) -> "HaltCount":
        """What all rounds of its segment have in common."""
        return replace(self, segment=self.segment.start())

    def whole(self) -> "HaltCount":
        """What all rounds of its count have in common, whichever segment they are in."""
        return replace(self, segment=self.segment.whole())

    def mechanism_for(self, study: Study, asked: "Round", *, kept: bool) -> GaussianLinear:
        """Refuse to count in the study itself, or in one that could not pay for everybody's change."""
        if self.halted_study == asked.study_hash:
            # Whoever has run out in it could not pay to say so.
            raise ParameterError("study_hash", "this study's own", "that of another study")
        if not kept:
            check_payable(study, asked)
        return GaussianQuery.mechanism_for(self, study, asked, kept=kept)

    def write(self, message: round_pb2.Round) -> None:
        """Put it into the message of a round."""
        CountingQuery.write(self, message)
        message.halt_count.study_hash = self.halted_study
        message.halt_count.segment.CopyFrom(self.segment.message())

    @classmethod
    def read(cls, message: round_pb2.Round) -> "HaltCount":
        """From the message of a round."""
        if bound_of(message) != 1:
            raise ParameterError("clip", message.clip, "1.0 in a count of those who halted")
        return cls(
            message.halt_count.study_hash,
            Segment.read(message.halt_count.segment),
            sigma=message.sigma,
            grid_exponent=message.grid_exponent,
        )


# Whether everybody can pay to say that they halted. All of it is public.
#
# A device that has halted and cannot pay for the change would count as one that has not, and no bound
# that is taken from the count would hold. So a halt count is refused, by everybody and before data are
# looked at, unless its study pays for a change by anybody, whenever it comes, in each of its counts.


def most_cost(asked: "Round") -> int:
    """What a change costs at most in a halt count, units of its study's budget.

        w · max Σ_{τ ≥ t} C[τ, t]²  over all positions t of all segments so far

    Somebody's state changes once, in one of the segments, and no change costs more than one at
    position 1.

    Args:
        asked: a round of the count.

    Raises:
        ParameterError: it asks for something else.

    >>> from demur_proto.round import Round
    >>> from demur_proto.running.segments import Factorisation
    >>> from demur_proto.wire.words import WordType
    >>> count = HaltCount(bytes(32), sigma=1.0, grid_exponent=-14, segment=Segment(
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
    factors = factors_of(
        query.segment.factorisation, horizon=longest, exponent=query.noise.grid_exponent
    )
    return asked.weight * int(factors.shared(1)[-1])


def check_payable(study: Study, asked: "Round", others: Iterable["Round"] = ()) -> None:
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
        counting = each.query
        if isinstance(counting, HaltCount):
            last[counting.segment.count] = each
    if sum(map(most_cost, last.values())) > study.budget_units:
        raise ParameterError(
            "horizon",
            query.segment.horizon,
            "such that everybody can pay for a change in each halt count of the study, of which there are "
            f"{len(last)}; make it for so many answers whose clip is the change_norm of the longest segment",
        )
