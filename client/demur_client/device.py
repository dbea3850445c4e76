"""One person's device: value, charge, decision, noise, report."""

import secrets
import threading
from collections.abc import Sequence
from typing import final

import numpy as np

from demur_client.decision import covered
from demur_client.filters import Filter
from demur_client.running import RunningState
from demur_client.sources import (
    DataSource,
    ExampleSource,
    evaluate_error_share,
    evaluate_gradient,
    evaluate_query,
)
from demur_proto.arrays import Values
from demur_proto.definition import Defined, report_id
from demur_proto.errors import ParameterError
from demur_proto.gradients import check_model, model_of
from demur_proto.mechanisms.base import Mechanism
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.mechanisms.of_round import mechanism_for
from demur_proto.models.definition import DefinedModel
from demur_proto.noise import Sampler
from demur_proto.round import CountingQuery, Gradient, HaltCount, ModelQuery, Round
from demur_proto.samplers.exact import ExactSampler
from demur_proto.study import Policy, Study
from demur_proto.v1 import report_pb2
from demur_proto.words import encode_words


@final
class Device:
    """Answers every round of a study exactly once, within its owner's budget.

    Args:
        study: the contract it agreed to.
        source: its owner's data: features, or examples that a model can learn from, or both.
        sampler: where its noise comes from; the exact one, which cannot be seeded, when not given.
        secret: 32 bytes that only this device knows; drawn when not given.
        beside: the same owner's devices of other studies, whose halts this study may count.

    Raises:
        ParameterError: the secret is not 32 bytes.
    """

    def __init__(
        self,
        study: Defined[Study],
        source: DataSource | ExampleSource,
        sampler: Sampler | None = None,
        *,
        secret: bytes | None = None,
        beside: Sequence["Device"] = (),
    ) -> None:
        if secret is not None and len(secret) != 32:
            raise ParameterError("secret", f"{len(secret)} bytes", "32 bytes")
        self.study = study
        self._source = source
        self._sampler: Sampler = ExactSampler() if sampler is None else sampler
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._filter = Filter.of(study.value)
        self._beside = {each.study.hash: each for each in beside}
        self._segments: dict[int, RunningState] = {}  # by their first round's number
        self._covered = False
        self._sealed: dict[int, report_pb2.Report] = {}  # by the round's number
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Device(study={self.study.value.name!r}, secret)"

    @property
    def ever_covered(self) -> bool:
        """Whether a report was ever less than its owner's value. Secret.

        It was cover, because the budget refused it or because there was no value: evaluation failed,
        came too late, or gave what is none, such as a gradient that is not finite. Or it was shrunk
        to what the budget still held, or did not have a change of a running count in it. Having
        nothing to tell, no example or no category, is a value.
        """
        return self._covered

    def evaluate(self, asked: Defined[Round], model: DefinedModel | None = None) -> Values | None:
        """The owner's value [1, v], or None where evaluation failed. Secret.

        Args:
            asked: a round of this device's study.
            model: the one that the round names; None where it names none.

        Raises:
            ParameterError: as `report`, or a model is missing that the round names; no data was read.
            WireError, UnsupportedError: it is another model, or one that this version cannot do.
        """
        self.check(asked)
        query = asked.value.query
        if isinstance(query, HaltCount):
            other = self._beside.get(query.halted_study)
            return None if other is None else np.array([[float(other.ever_covered)]])
        if not isinstance(query, ModelQuery):
            return evaluate_query(query, self._source)
        if model is None:
            raise ParameterError("model", model, "the one that the round names")
        check_model(model, query)
        model_of(model.value)  # or refuse it, before any data is looked at
        if isinstance(query, Gradient):
            return evaluate_gradient(model, self._source)
        return evaluate_error_share(model, self._source)

    def report(self, asked: Defined[Round], value: Values | None) -> report_pb2.Report:
        """The report to a round: charged first, sealed, and the same bytes ever after.

        Safe under threads.

        Args:
            asked: a round of this device's study.
            value: what `evaluate` gave; None, or another shape, for a cover report, or for no
                change in a running count.

        Raises:
            ParameterError: the round belongs to another study or does not fit this one, another
                round had its number, or it breaks the segment of a running count. All of that is
                public.
        """
        with self._lock:
            mechanism = self.check(asked)
            sealed = self._sealed.get(asked.value.number)
            if sealed is None:
                sealed = self._seal(asked, mechanism, value)
        report = report_pb2.Report()
        report.CopyFrom(sealed)  # whatever the caller does to it, the sealed one stays
        return report

    def _seal(
        self, asked: Defined[Round], mechanism: Mechanism, value: Values | None
    ) -> report_pb2.Report:
        numbers, failed = _as_numbers(value, shape=(1, asked.value.query.value_length))
        weight, shrunk = asked.value.weight, False
        if isinstance(asked.value.query, CountingQuery):
            first = asked.value.query.segment.first_round
            if first not in self._segments:
                self._segments[first] = RunningState(asked.value)
            running = self._segments[first]
            word, whole = running.answer(asked.value, numbers, self._filter)
            words, given = np.array([[word]]), whole  # a word that did not fit is 0 already
        elif self.study.value.policy is Policy.CLIP and isinstance(mechanism, GaussianLinear):
            radius = self._filter.radius(weight=weight, largest=mechanism.largest)
            words, units, short = mechanism.encode_within(
                numbers, self._sampler, radii=np.array([radius])
            )
            shrunk = bool(short[0])
            given = self._filter.try_spend(int(units[0]), weight=weight, shrunk=shrunk)
            words = covered(words, np.array([given]))
        else:
            words, units = mechanism.encode(numbers, self._sampler)
            given = self._filter.try_spend(int(units[0]), weight=weight)
            words = covered(words, np.array([given]))
        is_value = not failed and bool(mechanism.sound(numbers)[0])
        self._covered |= shrunk or not (given and is_value)
        noisy = mechanism.randomise(words, self._sampler)
        report = report_pb2.Report(
            round_hash=asked.hash,
            report_id=report_id(self._secret, asked.hash),
            words=encode_words(noisy, asked.value.word_type),
        )
        self._sealed[asked.value.number] = report
        return report

    def check(self, asked: Defined[Round]) -> Mechanism:
        """Refuse, for public reasons only, a round that breaks the contract.

        One round for each number keeps a study within its horizon, whatever a collector sends.
        """
        number = asked.value.number
        if asked.value.study_hash != self.study.hash:
            raise ParameterError("round", number, "a round of this device's study")
        sealed = self._sealed.get(number)
        if sealed is not None and sealed.round_hash != asked.hash:
            raise ParameterError("round", number, "the round that had this number before")
        query = asked.value.query
        if sealed is None and isinstance(query, CountingQuery):
            running = self._segments.get(query.segment.first_round)
            if running is not None:
                running.check(asked.value)
        return mechanism_for(self.study.value, asked.value)


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
