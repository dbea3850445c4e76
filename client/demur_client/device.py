"""Contribute or cover: what a device puts into its report.

Works on rows, so one device (one row) and a cohort (many) share it.
"""

import time
from typing import final

import numpy as np

from demur_client.budget.running_counts import count_of
from demur_client.ledger.base import Ledger
from demur_client.ledger.kept import MemoryLedger
from demur_client.ledger.scope import Purse
from demur_client.sources.base import DataSource, ExampleSource, Noted, evaluate_round
from demur_proto.arrays import Flags, Values, Words
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import Mechanism
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.models.definition import DefinedModel
from demur_proto.models.gradients import model_of
from demur_proto.queries import CountingQuery, HaltCount, ModelQuery
from demur_proto.queries.halt_count import check_payable
from demur_proto.queries.registry import mechanism_for
from demur_proto.round import Round
from demur_proto.running.following import check_follows
from demur_proto.samplers.base import Sampler
from demur_proto.samplers.exact import ExactSampler
from demur_proto.study import Policy, Purpose, Study
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import Defined, report_id
from demur_proto.wire.words import encode_words


def covered(words: Words, given: Flags) -> Words:
    """The words [n, d] of rows that may be given, and the reference, zero, for the others.

    A device that stopped answering would reveal that it answered before, so a refusal is answered
    like everything else: same length, same slot, freshly randomised. Zero is the reference in every
    mechanism: no amount, or the symbol of no category.

    >>> import numpy as np
    >>> covered(np.array([[5, 6], [7, 8]]), np.array([True, False]))
    array([[5, 6],
           [0, 0]])
    """
    return words * given[:, None]


# One person's device: value, charge, decision, noise, report.

MOST_REHEARSED = 16  #: kinds of report whose times are kept


@final
class Device:
    """Answers every round of a study exactly once, within its owner's budget.

    Args:
        study: the contract it agreed to, or agrees to now.
        source: its owner's data: features, or examples that a model can learn from, or both.
        sampler: where its noise comes from; the exact one, which cannot be seeded, when not given.
        secret: 32 bytes that only this device knows; drawn when not given.
        ledger: where it keeps what it must never forget, its secret too; in memory when not given.
            The same owner's devices of other studies share it: then a study may count who halted in
            another one, and lifetime caps hold over all of them.

    Raises:
        ParameterError: the secret is not 32 bytes, or comes with a ledger, which has one; or a
            lifetime cap cannot measure the study.
        PolicyError: the ledger cannot agree to the study beside its others (`Ledger.agree`).
        StorageError: the study cannot be kept.
    """

    def __init__(
        self,
        study: Defined[Study],
        source: DataSource | ExampleSource,
        sampler: Sampler | None = None,
        *,
        secret: bytes | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        if ledger is not None and secret is not None:
            raise ParameterError("secret", "a value", "None beside a ledger, which has one")
        self.study = study
        self.ledger: Ledger = MemoryLedger(secret) if ledger is None else ledger
        self.source = source
        self._sampler: Sampler = ExactSampler() if sampler is None else sampler
        self._rehearsed: dict[tuple[str, int], float] = {}  # by mechanism and length of report
        self.ledger.agree(study)

    def __repr__(self) -> str:
        return f"Device(study={self.study.value.name!r}, secret)"

    @property
    def ever_covered(self) -> bool:
        """Whether a report was ever less than its owner's value. Secret.

        It was cover, because the budget refused it or because there was no value: evaluation failed,
        came too late, or gave what is none, such as a gradient that is not finite. Or it was shrunk
        to what the budget still held, or did not have a change of a running count in it. Having
        nothing to tell, no example or no category, is a value. Where the ledger is not to be trusted,
        every report is cover.
        """
        return bool(self.ledger.ever_covered(self.study.hash))

    def begin(self, asked: Defined[Round]) -> bool:
        """Note for good that a round is about to be evaluated, and say whether it may be.

        Where this is False nothing is evaluated, and `report` gives what it must: see `Ledger.begin`. A halt
        count asks for no data of the owner's, so nothing is noted: after a restart its answer is still true.

        Args:
            asked: a round of this device's study.

        Raises:
            ParameterError, StateError, StorageError: as `report`.
        """
        self.check(asked)
        if isinstance(asked.value.query, HaltCount):
            return False
        return self.ledger.begin(asked)

    def evaluate(
        self,
        asked: Defined[Round],
        model: DefinedModel | None = None,
        *,
        noted: Noted | None = None,
    ) -> Values | None:
        """The owner's value [1, v], or None where evaluation failed. Secret.

        Args:
            asked: a round of this device's study.
            model: the one that the round names; None where it names none.
            noted: told what went wrong, for the note of `report`. Secret.

        Raises:
            ParameterError: as `report`, or a model is missing that the round names; no data was read.
            WireError, UnsupportedError: it is another model, or one that this version cannot do.
            StorageError: the ledger cannot be read.
        """
        self.check(asked)
        query = asked.value.query
        if isinstance(query, HaltCount):
            return self._ever_covered_in(query.halted_study)
        if isinstance(query, ModelQuery):  # refused before any data are looked at
            if model is None:
                raise ParameterError("model", model, "the one that the round names")
            query.check_model(model)
            model_of(model.value)
        return evaluate_round(query, model, self.source, noted=noted)

    def report(
        self, asked: Defined[Round], value: Values | None, *, note: str = ""
    ) -> report_pb2.Report:
        """The report to a round: charged first, sealed, and the same bytes ever after.

        Safe under threads. What the ledger keeps outlasts the process, if the ledger does.

        Args:
            asked: a round of this device's study.
            value: what `evaluate` gave; None, or another shape, for a cover report, or for no
                change in a running count. Whatever it is, a round that an earlier process began is
                answered so, for nothing; and a halt count with what the ledger knows.
            note: what went wrong in `evaluate`, for the owner's eyes; beside a value, what is wrong with it. Secret.

        Raises:
            ParameterError: the round belongs to another study or does not fit this one, another
                round had its number, or it breaks the segment of a running count. All of that is
                public.
            StateError: it was answered, and the collector has the report or will never take it.
            StorageError: it cannot be kept, so nothing may leave.
        """
        mechanism = self.check(asked)

        def make(purse: Purse) -> report_pb2.Report:
            return self._made(asked, mechanism, value, purse)

        return self.ledger.seal(asked, make, note=note)

    def rehearsed_s(self, asked: Defined[Round]) -> float:
        """How long this device takes to draw a report to such a round, seconds of a processor. Public.

        Nothing of its owner's is in what is drawn, nothing is kept, and nothing is sent. It is measured once
        for each mechanism and length of report, the quicker of two times: the first one also loads tables.
        What else the machine does meanwhile, which may follow from data, does not count.

        Raises:
            ParameterError: as `report`.
        """
        mechanism = self.check(asked)
        kind = type(mechanism).__name__, mechanism.report_length
        if kind not in self._rehearsed:
            nothing = np.full((1, asked.value.query.value_length), np.nan)
            took_s = []
            for _ in range(2):
                began = time.thread_time()
                words, _ = mechanism.encode(nothing, self._sampler)
                encode_words(mechanism.randomise(words, self._sampler), asked.value.word_type)
                took_s.append(time.thread_time() - began)
            while len(self._rehearsed) >= MOST_REHEARSED:
                del self._rehearsed[next(iter(self._rehearsed))]
            self._rehearsed[kind] = min(took_s)
        return self._rehearsed[kind]

    def check(self, asked: Defined[Round]) -> Mechanism:
        """Refuse, for public reasons only, a round that breaks the contract.

        One round for each number keeps a study within its horizon, whatever a collector sends. A control
        question is refused where the ledger's `control_refusal` says why; a halt count also about a
        study that this device does not take part in, and where its study could not pay for the change.
        So whatever a device tells of halting is true.
        """
        number = asked.value.number
        if asked.value.study_hash != self.study.hash:
            raise ParameterError("round", number, "a round of this device's study")
        answered = self.ledger.answered(self.study.hash, number)
        known = answered or self.ledger.begun(self.study.hash, number)
        if known not in (None, asked.hash):
            raise ParameterError("round", number, "the round that had this number before")
        count = count_of(asked.value)
        if answered is None and count is not None:
            last = self.ledger.last_in_count(self.study.hash, count)
            if last is not None:
                check_follows(asked.value, last)
        mechanism = mechanism_for(self.study.value, asked.value)
        if answered is None and self.study.value.purpose is not Purpose.DATA:
            self._check_control(asked.value)
        return mechanism

    def _check_control(self, asked: Round) -> None:
        """Refuse a control question to which this device might not be able to say what is true."""
        refusal = self.ledger.control_refusal
        if refusal:
            expected = f"of another study: this device answers no control questions ({refusal})"
            raise ParameterError("round", asked.number, expected)
        if isinstance(asked.query, HaltCount):
            halted = asked.query.halted_study
            if halted not in [study.hash for study in self.ledger.studies()]:
                expected = "about a study that this device takes part in"
                raise ParameterError("round", asked.number, expected)
            check_payable(self.study.value, asked, self.ledger.counts(self.study.hash))

    def _ever_covered_in(self, study_hash: bytes) -> Values | None:
        flag = self.ledger.ever_covered(study_hash)
        return None if flag is None else np.array([[float(flag)]])  # None: forgotten just now

    def _made(
        self, asked: Defined[Round], mechanism: Mechanism, value: Values | None, purse: Purse
    ) -> report_pb2.Report:
        query = asked.value.query
        if isinstance(query, HaltCount):  # whatever was evaluated: nothing may tell another story
            value = self._ever_covered_in(query.halted_study)
        elif purse.stopped:
            value = None
        numbers, failed = _as_numbers(value, shape=(1, asked.value.query.value_length))
        purse.whole = not failed and bool(mechanism.sound(numbers)[0])
        words = self._paid_for(asked.value, mechanism, numbers, purse)
        noisy = mechanism.randomise(words, self._sampler)
        return report_pb2.Report(
            round_hash=asked.hash,
            report_id=report_id(self.ledger.secret, asked.hash),
            words=encode_words(noisy, asked.value.word_type),
        )

    def _paid_for(self, asked: Round, mechanism: Mechanism, value: Values, purse: Purse) -> Words:
        """The words [1, d] without their noise: charged, or cover."""
        if isinstance(asked.query, CountingQuery):
            purse.running.check(asked)  # again: now nothing can come between
            purse.told = told = purse.running.answer(asked, value, purse)
            purse.whole &= told.whole
            return np.array([[told.word]])  # one that did not fit is 0 already
        if self.study.value.policy is Policy.CLIP and isinstance(mechanism, GaussianLinear):
            radius = purse.radius(weight=asked.weight, largest=mechanism.largest)
            words, units, shrunk = mechanism.encode_within(
                value, self._sampler, radii=np.array([radius])
            )
            given = purse.try_spend(int(units[0]), weight=asked.weight, shrunk=bool(shrunk[0]))
        else:
            words, units = mechanism.encode(value, self._sampler)
            given = purse.try_spend(int(units[0]), weight=asked.weight)
        return covered(words, np.array([given]))


def _as_numbers(value: Values | None, *, shape: tuple[int, int]) -> tuple[Values, bool]:
    """The value as doubles; NaN, which every mechanism encodes as nothing, for whatever is none.

    Also whether it was none.

    Narrower numbers could overflow on the way to the grid, and an error would depend on data.
    """
    try:
        if value is not None and value.shape == shape and not np.ma.isMaskedArray(value):
            return np.asarray(value, dtype=np.float64), False
    except (TypeError, ValueError, OverflowError):
        pass
    return np.full(shape, np.nan), True
