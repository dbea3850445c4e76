"""One person's device: value, charge, decision, noise, report."""

from typing import final

import numpy as np

from demur_client.decision import covered
from demur_client.ledger.base import Ledger
from demur_client.ledger.memory import MemoryLedger
from demur_client.ledger.purse import Purse
from demur_client.sources import (
    DataSource,
    ExampleSource,
    Noted,
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
from demur_proto.round import Gradient, Round
from demur_proto.samplers.exact import ExactSampler
from demur_proto.study import Policy, Study
from demur_proto.v1 import report_pb2
from demur_proto.words import encode_words


@final
class Device:
    """Answers every round of a study exactly once, within its owner's budget.

    Args:
        study: the contract it agreed to, or agrees to now.
        source: its owner's data: features, or examples for gradients, or both.
        sampler: where its noise comes from; the exact one, which cannot be seeded, when not given.
        secret: 32 bytes that only this device knows; drawn when not given.
        ledger: where it keeps what it must never forget, its secret too; in memory when not given.

    Raises:
        ParameterError: the secret is not 32 bytes, or comes with a ledger, which has one; or a
            lifetime cap cannot measure the study.
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
        self._source = source
        self._sampler: Sampler = ExactSampler() if sampler is None else sampler
        self.ledger.agree(study)

    def __repr__(self) -> str:
        return f"Device(study={self.study.value.name!r}, secret)"

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
            model: the one that a gradient round names; None in any other round.
            noted: told what went wrong, for the note of `report`. Secret.

        Raises:
            ParameterError: as `report`, or a gradient round comes without its model; no data was read.
            WireError, UnsupportedError: it is another model, or one that this version cannot do.
        """
        self.check(asked)
        query = asked.value.query
        if not isinstance(query, Gradient):
            return evaluate_query(query, self._source, noted=noted)
        if model is None:
            raise ParameterError("model", model, "the one that the gradient round names")
        check_model(model, query)
        model_of(model.value)  # or refuse it, before any data is looked at
        return evaluate_gradient(model, self._source, noted=noted)

    def report(
        self, asked: Defined[Round], value: Values | None, *, note: str = ""
    ) -> report_pb2.Report:
        """The report to a round: charged first, sealed, and the same bytes ever after.

        Safe under threads. What the ledger keeps outlasts the process, if the ledger does.

        Args:
            asked: a round of this device's study.
            value: what `evaluate` gave; None, or another shape, for a cover report.
            note: what went wrong in `evaluate`, for the owner's eyes. Secret.

        Raises:
            ParameterError: the round belongs to another study or does not fit this one, or
                another round had its number. All of that is public.
            StateError: it was answered, and the collector has the report or will never take it.
            StorageError: it cannot be kept, so nothing may leave.
        """
        mechanism = self.check(asked)

        def make(purse: Purse) -> report_pb2.Report:
            return self._made(asked, mechanism, value, purse)

        return self.ledger.seal(asked, make, note=note)

    def _made(
        self, asked: Defined[Round], mechanism: Mechanism, value: Values | None, purse: Purse
    ) -> report_pb2.Report:
        value = _as_numbers(value, shape=(1, asked.value.query.value_length))
        weight = asked.value.weight
        if self.study.value.policy is Policy.CLIP and isinstance(mechanism, GaussianLinear):
            radius = purse.radius(weight=weight, largest=mechanism.largest)
            words, units, shrunk = mechanism.encode_within(
                value, self._sampler, radii=np.array([radius])
            )
            given = purse.try_spend(int(units[0]), weight=weight, shrunk=bool(shrunk[0]))
        else:
            words, units = mechanism.encode(value, self._sampler)
            given = purse.try_spend(int(units[0]), weight=weight)
        noisy = mechanism.randomise(covered(words, np.array([given])), self._sampler)
        return report_pb2.Report(
            round_hash=asked.hash,
            report_id=report_id(self.ledger.secret, asked.hash),
            words=encode_words(noisy, asked.value.word_type),
        )

    def check(self, asked: Defined[Round]) -> Mechanism:
        """Refuse, for public reasons only, a round that breaks the contract.

        One round for each number keeps a study within its horizon, whatever a collector sends.
        """
        number = asked.value.number
        if asked.value.study_hash != self.study.hash:
            raise ParameterError("round", number, "a round of this device's study")
        answered = self.ledger.answered(self.study.hash, number)
        if answered not in (None, asked.hash):
            raise ParameterError("round", number, "the round that had this number before")
        return mechanism_for(self.study.value, asked.value)


def _as_numbers(value: Values | None, *, shape: tuple[int, int]) -> Values:
    """The value as doubles; NaN, which every mechanism encodes as nothing, for whatever is none.

    Narrower numbers could overflow on the way to the grid, and an error would depend on data.
    """
    try:
        if value is not None and value.shape == shape and not np.ma.isMaskedArray(value):
            return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        pass
    return np.full(shape, np.nan)
