"""Studies, rounds and answers for tests of the ledger, without a device around them."""

import os
import secrets
from collections.abc import Callable
from functools import cache
from pathlib import Path

from demur_client.ledger.base import Ledger
from demur_client.ledger.scope import Purse
from demur_proto.accounting.histograms import design_histogram_study
from demur_proto.queries import Feature, Linear
from demur_proto.round import Round, round_of
from demur_proto.study import Measure, Policy, Study, View, design_study
from demur_proto.v1.report_pb2 import Report
from demur_proto.wire.definition import Defined, define_round, define_study, report_id

FULL = 1 << 28  #: Σz² of an answer at the full clip, grid steps²
ANSWERS = 3  #: how many of them a study's budget holds
MEMORY = Path("/dev/shm")  #: where nothing waits for a disk, if the system has it


def quick_folder(otherwise: Path) -> Path:
    """A folder for files whose syncs need not be real."""
    return MEMORY if os.access(MEMORY, os.W_OK) else otherwise


@cache
def study_of(
    policy: Policy = Policy.SKIP, name: str = "x", measure: Measure = Measure.GDP
) -> Defined[Study]:
    """Three answers at a clip of 1 fit."""
    return define_study(
        design_study(
            name=name,
            epsilon=1.0,
            delta=1e-6,
            answers=ANSWERS,
            minimum_cohort=10,
            view=View.LOCAL,
            policy=policy,
            measure=measure,
            grid_exponent=-14,
            horizon=10_000,
        )
    )


@cache
def histogram_study() -> Defined[Study]:
    """One whose noise is not Gaussian."""
    return define_study(
        design_histogram_study(
            name="categories", epsilon=1.0, delta=1e-6, minimum_cohort=10, categories=4
        )
    )


@cache
def ask(of: Defined[Study], number: int, feature: str = "f") -> Defined[Round]:
    """A round of one coordinate."""
    features = [Feature(name=feature)]
    return define_round(
        round_of(of, Linear(features, dimension=1, clip=1.0, on_grid=True), number=number)
    )


def maker(
    ledger: Ledger,
    asked: Defined[Round],
    norm: int,
    *,
    shrinks: bool = False,
    length: int = 16,
    tell: Callable[[str], None] = lambda step: None,
) -> Callable[[Purse], Report]:
    """Makes an answer of this squared norm, whose bytes never come twice."""

    def make(purse: Purse) -> Report:
        tell("before the purse is asked")
        weight, spent = asked.value.weight, norm
        if shrinks:
            spent = min(norm, purse.radius(weight=weight, largest=FULL))
        purse.try_spend(spent, weight=weight, shrunk=shrinks and spent < norm)
        tell("after the purse was asked")
        return Report(
            round_hash=asked.hash,
            report_id=report_id(ledger.secret, asked.hash),
            words=secrets.token_bytes(length),
        )

    return make


def answer(ledger: Ledger, asked: Defined[Round], norm: int = FULL) -> Report:
    """An answer of this squared norm."""
    return ledger.seal(asked, maker(ledger, asked, norm))


def spent_of(ledger: Ledger, of: Defined[Study]) -> int:
    """What was spent of a study, in squared norms."""
    weight = ask(of, 1).value.weight
    return (of.value.budget_units - ledger.remaining_units(of.hash)) // weight
