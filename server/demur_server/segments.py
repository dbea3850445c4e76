"""What a running count needs of the rounds before: their releases, which never change."""

from collections.abc import Sequence

from demur_proto.continual.following import check_next, counting_of
from demur_proto.continual.payable import check_payable
from demur_proto.errors import StateError
from demur_proto.release import Release
from demur_proto.round import CountingQuery, Round
from demur_proto.study import Study
from demur_server.live import LiveRound
from demur_server.store.base import Store


class Segments:
    """Finds the rounds of a running count, and keeps what they released.

    Args:
        store: where releases are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._releases: dict[bytes, Release] = {}  # of running counts, by their round

    def waits(self, asked: Round, rounds: Sequence[LiveRound]) -> bool:
        """Whether the position before is open, as far as this collector knows."""
        query = counting_of(asked)
        before = [] if query is None else rounds_before(query, rounds, number=asked.number)
        return bool(before) and not before[-1].released

    def check(self, study: Study, asked: Round, rounds: Sequence[LiveRound]) -> None:
        """Refuse a round that does not go on with its count, and a halt count that some could not pay for.

        Args:
            study: the contract.
            asked: the round that is to open.
            rounds: all of its study so far, in order.

        Raises:
            ParameterError: it differs from the count's other rounds; or, in a halt count, a change in
                each of the study's counts costs more than the study's budget.
            StateError: it is not the count's next position, or the one before it is open.
        """
        query = counting_of(asked)
        if query is None:
            return
        before = rounds_before(query, rounds, number=asked.number)
        check_next(asked, [each.asked.value for each in before])
        check_payable(study, asked, [each.asked.value for each in rounds])
        if self.waits(asked, rounds):
            raise StateError(
                f"round {asked.number} cannot open before round {before[-1].number} of its running "
                "count is closed"
            )

    async def earlier(self, asking: LiveRound, rounds: Sequence[LiveRound]) -> list[Release]:
        """The releases of the rounds before this one in its count, in order; none where it has none.

        Raises:
            StorageError: they cannot be read.
        """
        query = counting_of(asking.asked.value)
        if query is None:
            return []
        before = rounds_before(query, rounds, number=asking.number)
        unknown = [each for each in before if each.asked.hash not in self._releases]
        if unknown:
            for release in await self._store.releases(
                asking.study.hash, from_number=unknown[0].number
            ):
                self._releases[release.round_hash] = release
        found = [self._releases.get(each.asked.hash) for each in before]
        if query.segment.over:
            for each in before:
                self._releases.pop(each.asked.hash, None)  # until another segment goes on with them
        return [release for release in found if release is not None]


def rounds_before(
    query: CountingQuery, rounds: Sequence[LiveRound], *, number: int
) -> list[LiveRound]:
    """The rounds of a running count before that of this number, in order."""
    found = []
    for each in rounds[query.segment.count - 1 :]:
        other = counting_of(each.asked.value)
        if other is None or other.segment.count != query.segment.count:
            continue
        if each.number < number:
            found.append(each)
    return found
