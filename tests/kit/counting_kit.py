"""What the tests of running counts share: a study, people's states, a sampler that adds nothing."""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from demur_proto.arrays import Bits, Values, Words
from demur_proto.queries import Feature, RunningCount
from demur_proto.round import Round, round_of
from demur_proto.running.factorisations import factors_of
from demur_proto.running.segments import Factorisation, Segment
from demur_proto.study import Policy, Study, View, design_study
from demur_proto.wire.definition import Defined, define_round, define_study

EXPONENT = -14
UNIT = 1 << -EXPONENT  #: grid steps of one unit of the state
STATE = Feature(name="state")


def a_study(*, answers: int = 4, policy: Policy = Policy.SKIP, **options: Any) -> Defined[Study]:
    """A contract in which so many squared units fit: an energy, as running counts measure it."""
    told = {
        "name": "counting",
        "epsilon": 1.0,
        "delta": 1e-6,
        "minimum_cohort": 1,
        "view": View.LOCAL,
        "grid_exponent": EXPONENT,
        **options,
    }
    return define_study(design_study(answers=answers, policy=policy, **told))


def rounds_of(
    study: Defined[Study], segment: Segment, *, number: int = 1, **options: Any
) -> list[Defined[Round]]:
    """All rounds of a segment that begins with this number."""
    segment = segment.begun(number)
    rounds = []
    for each in range(number, number + segment.horizon):
        asked = round_of(study, RunningCount(STATE, segment, **options), number=each)
        rounds.append(define_round(asked))
        segment = segment.after() if segment.position < segment.horizon else segment
    return rounds


def chain_of(
    study: Defined[Study], horizons: Sequence[int], *, number: int = 1, **options: Any
) -> list[Defined[Round]]:
    """All rounds of a count that goes through segments of these horizons; see `rounds_of`."""
    kind = options.pop("kind", Factorisation.SQUARE_ROOT)
    cohort = options.pop("cohort", 1)
    rounds: list[Defined[Round]] = []
    for index, horizon in enumerate(horizons):
        segment = Segment(
            horizon=horizon,
            cohort=cohort,
            factorisation=kind,
            earlier=tuple(horizons[:index]),
            origin=number if index else 0,
        )
        rounds += rounds_of(study, segment, number=number + len(rounds), **options)
    return rounds


def dense_chain(
    kind: Factorisation, horizons: Sequence[int]
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """C of such a count: a block for each segment."""
    total = sum(horizons)
    matrix, at = np.zeros((total, total), dtype=np.int64), 0
    for horizon in horizons:
        matrix[at : at + horizon, at : at + horizon] = dense(kind, horizon)
        at += horizon
    return matrix


def dense(kind: Factorisation, horizon: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """C as a matrix [H, H], grid steps."""
    factors = factors_of(kind, horizon=horizon, exponent=EXPONENT)
    matrix = np.zeros((horizon, horizon), dtype=np.int64)
    for position in range(1, horizon + 1):
        matrix[position - 1, :position] = factors.row(position)
    return matrix


def undone(kind: Factorisation, horizon: int) -> Values:
    """B as a matrix [H, H], units of the state: B·C adds changes up."""
    matrix = np.ldexp(dense(kind, horizon).astype(float), EXPONENT)
    solved: Values = np.linalg.solve(matrix.T, np.triu(np.ones((horizon, horizon)))).T
    return solved


def sigma_of_changes(kind: Factorisation, horizon: int, *, changes: int, mu: float) -> float:
    """In theory, the noise of one report at which so many changes are μ-GDP: σ² = k‖C e₁‖²/μ²."""
    first = np.ldexp(dense(kind, horizon)[:, 0].astype(float), EXPONENT)
    return math.sqrt(changes * (first @ first)) / mu


def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ of which μ-GDP is (ε, δ), by bisection.

    Source: Dong, Roth & Su 2019, arXiv:1905.02383, Corollary 2.13.
    """
    normal, low, high = NormalDist(), 0.0, 10.0
    for _ in range(60):
        mu = (low + high) / 2
        tails = normal.cdf(mu / 2 - epsilon / mu), normal.cdf(-mu / 2 - epsilon / mu)
        low, high = (mu, high) if tails[0] - math.exp(epsilon) * tails[1] <= delta else (low, mu)
    return low


class NoNoise:
    """A sampler that draws nothing, so that reports show what went into them."""

    name = "none"

    def words(self, count: int) -> Bits:
        raise AssertionError("a running count asks for no bits")

    def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
        return np.zeros((reports, dimension), dtype=np.int64)

    def uniform(self, *, reports: int, dimension: int) -> Values:
        raise AssertionError("a running count rounds nothing")
