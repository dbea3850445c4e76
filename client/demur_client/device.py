"""One person's device: value, charge, decision, noise, report."""

import secrets
from typing import final

import numpy as np

from demur_client.decision import covered
from demur_client.filters import Filter
from demur_client.sources import DataSource, evaluate_query
from demur_proto.arrays import Values
from demur_proto.definition import Defined, report_id
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.gaussian import mechanism_for
from demur_proto.noise import Sampler
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.v1 import report_pb2
from demur_proto.words import encode_words


@final
class Device:
    """Answers every round of a study exactly once, within its owner's budget.

    Args:
        study: the contract it agreed to.
        source: its owner's data.
        sampler: where its noise comes from.
        secret: 32 bytes that only this device knows; drawn when not given.
    """

    def __init__(
        self,
        study: Defined[Study],
        source: DataSource,
        sampler: Sampler,
        *,
        secret: bytes | None = None,
    ) -> None:
        self.study = study
        self._source = source
        self._sampler = sampler
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._filter = Filter.of(study.value)
        self._sealed: dict[bytes, report_pb2.Report] = {}

    def __repr__(self) -> str:
        return f"Device(study={self.study.value.name!r}, secret)"

    def evaluate(self, asked: Defined[Round]) -> Values | None:
        """The owner's value [1, d], or None where evaluation failed. Secret."""
        return evaluate_query(
            asked.value.query, self._source, dimension=asked.value.dimension
        )

    def report(self, asked: Defined[Round], value: Values | None) -> report_pb2.Report:
        """The report to a round: charged first, sealed, and the same bytes ever after.

        Args:
            asked: a round of this device's study.
            value: what `evaluate` gave, or None for a cover report.

        Raises:
            ParameterError: the round belongs to another study.
        """
        if asked.value.study_hash != self.study.hash:
            raise ParameterError("round", asked.value.number, "a round of this device's study")
        sealed = self._sealed.get(asked.hash)
        if sealed is not None:
            return sealed
        mechanism = mechanism_for(self.study.value, asked.value)
        nothing = np.zeros((1, asked.value.dimension))
        words, squares = mechanism.quantise(nothing if value is None else value, self._sampler)
        given = self._filter.try_spend(int(squares[0]), weight=asked.value.weight)
        noisy = covered(words, np.array([given])) + mechanism.noise(self._sampler, reports=1)
        report = report_pb2.Report(
            round_hash=asked.hash,
            report_id=report_id(self._secret, asked.hash),
            words=encode_words(noisy, asked.value.word_type),
        )
        self._sealed[asked.hash] = report
        return report
