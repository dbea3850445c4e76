"""Which studies and rounds a running collector knows of."""

from collections.abc import Collection

from demur_proto.definition import Defined
from demur_proto.errors import NotFoundError
from demur_proto.hmacs import prepare_key
from demur_proto.mechanisms.of_round import mechanism_for
from demur_proto.round import Round
from demur_proto.study import Study
from demur_server.live import LiveRound, find_round


class Register:
    """Studies in the order in which they were fixed, and their rounds in order of their numbers."""

    def __init__(self) -> None:
        self._studies: dict[bytes, Defined[Study]] = {}
        self._rounds: dict[bytes, list[LiveRound]] = {}  # by study
        self._by_hash: dict[bytes, LiveRound] = {}

    def __contains__(self, known: bytes) -> bool:
        """Whether this is the hash of a study or a round."""
        return known in self._by_hash or known in self._studies

    def study(self, study_hash: bytes) -> Defined[Study]:
        """A study by its hash; an empty hash means the only one.

        Raises:
            NotFoundError: there is no such study, or not exactly one.
        """
        if not study_hash and len(self._studies) == 1:
            return next(iter(self._studies.values()))
        try:
            return self._studies[study_hash]
        except KeyError:
            number = len(self._studies)
            if study_hash:
                missing = f"there is no study {study_hash.hex()[:16]}; this collector has {number}"
            elif number:
                missing = f"there is no study without a hash: this collector has {number}, name one"
            else:
                missing = "there is no study yet; a first question makes one"
            raise NotFoundError(missing) from None

    def studies(self) -> list[Defined[Study]]:
        """Every study."""
        return list(self._studies.values())

    def find(self, round_hash: bytes) -> LiveRound:
        """A round by its hash.

        Raises:
            NotFoundError: there is no such round.
        """
        try:
            return self._by_hash[round_hash]
        except KeyError:
            raise NotFoundError(f"there is no round {round_hash.hex()[:16]}") from None

    def find_begun(self, begins: bytes) -> LiveRound:
        """The one round whose hash begins with these bytes; see `find_round`.

        Raises:
            NotFoundError, ParameterError: there is none, or there are several.
        """
        return find_round(self._by_hash, begins)

    def rounds(self, study_hash: bytes) -> list[LiveRound]:
        """The rounds of a study; it grows as they open.

        Raises:
            NotFoundError: as `study`.
        """
        return self._rounds[self.study(study_hash).hash]

    def every_round(self) -> Collection[LiveRound]:
        """Those of all studies, in the order in which they were taken up."""
        return self._by_hash.values()

    def take_up_study(self, study: Defined[Study]) -> None:
        """Know of a study."""
        self._studies[study.hash] = study
        self._rounds[study.hash] = []

    def take_up_round(
        self,
        study: Defined[Study],
        asked: Defined[Round],
        key: bytes | None,
        *,
        open_access: bool,
    ) -> LiveRound:
        """Know of a round, the next of its study.

        Args:
            study: a known one.
            asked: the round.
            key: that of its digests; None: it is lost.
            open_access: its reports are taken from anybody.
        """
        live = LiveRound(
            study=study,
            asked=asked,
            mechanism=mechanism_for(study.value, asked.value, kept=True),
            open_access=open_access,
            digest_key=None if key is None else prepare_key(key),
        )
        self._rounds[study.hash].append(live)
        self._by_hash[asked.hash] = live
        return live
