"""Running counts of a state: continual monitoring."""

from dataclasses import dataclass, replace
from typing import ClassVar

from demur_proto.checks import named
from demur_proto.errors import ParameterError
from demur_proto.queries.base import CountingQuery, Feature, Reads, bound_of, check_feature
from demur_proto.running.segments import ADMISSIONS, Admission, Segment
from demur_proto.v1 import round_pb2


@dataclass(frozen=True, slots=True)
class RunningCount(CountingQuery):
    """A running count: the sum over people of a state that is an integer from 0 to `bound`.

    Devices send changes, weighted as their segment's factorisation says. A value that is no such state
    counts as no change.

    Raises:
        ParameterError: a field is outside its range, or the grid is too coarse or too fine.
    """

    wire_name: ClassVar[str] = "prefix"
    label: ClassVar[str] = "running count"
    reads: ClassVar[Reads] = Reads.STATE
    feature: Feature
    """The state; its name is the same in all rounds of a segment, its parameters may differ."""
    segment: Segment
    """Which of the segment's rounds this is; `segment.following(number)` is the next."""
    bound: int = 1  #: the largest state; 1 for a Boolean
    admission: Admission = Admission.COMMIT  #: what a device does with a change that does not fit

    def __post_init__(self) -> None:
        check_feature(self.feature)
        if not isinstance(self.admission, Admission):
            raise ParameterError("admission", self.admission, "an Admission")
        self._check_counting()

    @property
    def features(self) -> tuple[Feature, ...]:
        """The one feature, as all queries name theirs."""
        return (self.feature,)

    def at(self, segment: Segment) -> "RunningCount":
        """The same at another position."""
        return replace(self, segment=segment)

    def fixed(self) -> "RunningCount":
        """What all rounds of its segment have in common."""
        return replace(self, feature=Feature(self.feature.name), segment=self.segment.start())

    def whole(self) -> "RunningCount":
        """What all rounds of its count have in common, whichever segment they are in."""
        return replace(self, feature=Feature(self.feature.name), segment=self.segment.whole())

    def write(self, message: round_pb2.Round) -> None:
        """Put it into the message of a round."""
        CountingQuery.write(self, message)
        message.prefix.feature.CopyFrom(self.feature.message())
        message.prefix.segment.CopyFrom(self.segment.message())
        message.prefix.admission = ADMISSIONS[self.admission]

    @classmethod
    def read(cls, message: round_pb2.Round) -> "RunningCount":
        """From the message of a round."""
        asked = message.prefix
        return cls(
            Feature.read(asked.feature),
            Segment.read(asked.segment),
            bound=bound_of(message),
            sigma=message.sigma,
            grid_exponent=message.grid_exponent,
            admission=named(ADMISSIONS, asked.admission, "admission"),
        )
