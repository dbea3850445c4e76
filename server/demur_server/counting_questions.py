"""What an analyst asks round by round: running counts."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from demur_proto.asking import next_halt_count, next_prefix
from demur_proto.credentials import Metadata
from demur_proto.definition import Defined
from demur_proto.errors import StateError
from demur_proto.release import Release, Withheld
from demur_proto.round import Feature, Prefix, Round
from demur_proto.segments import Admission, Segment
from demur_proto.study import Study
from demur_server.analyst_calls import check_waiting, last_count

if TYPE_CHECKING:
    from demur_proto.v1 import analyst_pb2_grpc


class CountingQuestions(ABC):
    """That part of an `Analyst`."""

    study: Defined[Study]
    _stub: "analyst_pb2_grpc.AnalystAsyncStub"
    _metadata: Metadata

    @abstractmethod
    async def _open(self, numbered: Callable[..., Round]) -> Defined[Round]:
        """Open the next round, made when its number is known, in the analyst's slot."""

    @abstractmethod
    async def _close(self, asked: Defined[Round], reports: int | None, timeout_s: float) -> Release:
        """Close a round, once it has its reports."""

    async def next_of(self, feature: str) -> Prefix | None:
        """What the next round of a feature's running count asks, as the collector knows it.

        The last such count of the study is meant, and goes on in segments twice as long when one is
        over. Ask it with `ask_prefix(feature, next.segment, bound=next.bound)`.

        Args:
            feature: its name; the parameters are those of the last round.

        Returns:
            None where nobody has asked for a running count of it.

        Raises:
            StateError: its last round is still open; or was withheld, so that only another count can
                be begun.
            DemurError: the collector refuses, or went away.
        """
        query, _ = await self.next_or_others(feature)
        return query

    async def next_or_others(self, feature: str) -> tuple[Prefix | None, tuple[str, ...]]:
        """The same, and what else is counted where nobody has asked for a running count of it.

        Returns:
            What `next_of` does; and with None the features that the study has running counts of, each
            once and the last one first.

        Raises:
            StateError: as `next_of`.
            DemurError: likewise.
        """
        found, others = await last_count(self._stub, self.study, feature, metadata=self._metadata)
        if found is None:
            return None, others
        query, release = found
        if release.withheld is not Withheld.NOTHING:
            raise StateError(
                f"round {release.number} of the running count was withheld, and nothing can go on with "
                "it; begin another count (demur ask --anew)"
            )
        return replace(query, segment=query.segment.following(release.number)), ()

    async def open_prefix(
        self,
        feature: Feature,
        segment: Segment,
        *,
        bound: int = 1,
        admission: Admission = Admission.COMMIT,
    ) -> Defined[Round]:
        """Put a question to every device: what has changed in its owner's state?

        Args:
            feature: the state now, an integer from 0 to `bound`; parameters may differ by round.
            segment: which of the segment's rounds this is; then `segment.following(number)` is the next.
            bound: the largest state; 1 for a Boolean.
            admission: what a device does with a change that does not fit.

        Raises:
            ParameterError: an argument is outside its range, or the round breaks its segment.
            StateError: it is not the segment's next, or the one before is still open.
            DemurError: the collector refuses the round, or went away.
        """
        return await self._open(
            partial(
                next_prefix,
                self.study,
                feature,
                segment,
                bound=bound,
                admission=admission,
            )
        )

    async def open_halt_count(self, halted_study: bytes, segment: Segment) -> Defined[Round]:
        """Put a question to every device: did it ever give another study less than its value?

        Args:
            halted_study: hash of the other study; not of this one, which has a budget for the count.
            segment: as in `open_prefix`.

        Raises:
            ParameterError: as `open_prefix`.
            StateError: likewise.
            DemurError: likewise.
        """
        return await self._open(
            partial(
                next_halt_count,
                self.study,
                halted_study,
                segment,
            )
        )

    async def ask_prefix(
        self,
        feature: Feature,
        segment: Segment,
        *,
        bound: int = 1,
        admission: Admission = Admission.COMMIT,
        reports: int | None = None,
        timeout_s: float = 60.0,
    ) -> Release:
        """Ask what has changed, wait for the reports, and return the running count.

        Args:
            feature: as in `open_prefix`.
            segment: likewise; `segment.following(release.number)` is the next.
            bound: the largest state; 1 for a Boolean.
            admission: what a device does with a change that does not fit.
            reports: how many to wait for; by default the study's minimum cohort.
            timeout_s: how long to wait for them, seconds.

        Raises:
            ParameterError: an argument is outside its range, or the round breaks its segment.
            StateError: as `open_prefix`, or the reports did not come in time.
            DemurError: the collector refuses, or went away.
        """
        check_waiting(reports, timeout_s)
        asked = await self.open_prefix(feature, segment, bound=bound, admission=admission)
        return await self._close(asked, reports, timeout_s)

    async def ask_halt_count(
        self,
        halted_study: bytes,
        segment: Segment,
        *,
        reports: int | None = None,
        timeout_s: float = 60.0,
    ) -> Release:
        """Ask who gave another study less than their value, and return the running count.

        Args:
            halted_study: as in `open_halt_count`.
            segment: likewise.
            reports: how many to wait for; by default the study's minimum cohort.
            timeout_s: how long to wait for them, seconds.

        Raises:
            ParameterError: as `ask_prefix`.
            StateError: likewise.
            DemurError: likewise.
        """
        check_waiting(reports, timeout_s)
        asked = await self.open_halt_count(halted_study, segment)
        return await self._close(asked, reports, timeout_s)
