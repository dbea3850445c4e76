"""The figures of docs/monitoring.md: T = 1,024 rounds, a million people, changes as described there.

Noise by the designs' formulas, which other tests hold to simulations; truncation here by exact
sums over how often people change and how many of a person's changes came up to a round.
"""

import math
from pathlib import Path

import numpy as np
import pytest

from demur_sim.comparison.design import RepeatedResponse
from demur_sim.comparison.flips import (
    annulus_flips,
    best_changes,
    threshold_flips,
    truncation_errors,
)
from demur_sim.comparison.levels import ComposedResponse, KeptChange

HORIZON, PEOPLE, MOST = 1024, 1_000_000, 256
PAGE = Path(__file__).resolve().parents[3] / "docs" / "monitoring.md"


def below(changes: float) -> float:
    """How likely it is that exp(N(0.3, 1.1²)) is below that."""
    return 0.5 * math.erfc((0.3 - math.log(changes)) / (1.1 * math.sqrt(2)))


def shares() -> np.ndarray:
    """How many people change m times, m = 0 to 256: lognormal, rounded, at most 256."""
    edges = [0.0, *(below(m + 0.5) for m in range(MOST)), 1.0]
    return np.diff(edges)


@pytest.fixture(scope="module")
def truncation() -> np.ndarray:
    """Changes come in distinct rounds, all equally likely: c of m up to t is hypergeometric."""
    factorials = np.cumsum(np.log(np.maximum(np.arange(HORIZON + 1), 1)))
    m, c = np.arange(MOST + 1)[:, None], np.arange(MOST + 1)
    limits = np.arange(1, 13)[:, None]
    off = (np.minimum(c, limits) % 2 - c % 2).T  # [c, limit]

    def ways(n: np.ndarray, k: np.ndarray) -> np.ndarray:
        inside = (k >= 0) & (k <= n)
        k = np.where(inside, k, 0)
        return np.where(inside, factorials[n] - factorials[k] - factorials[n - k], -np.inf)

    squares = np.zeros(12)
    rounds = range(16, HORIZON + 1, 32)
    for t in rounds:
        likely = np.exp(
            ways(m, c) + ways(HORIZON - m, t - c) - ways(np.array(HORIZON), np.array(t))
        )
        squares += (shares() @ likely @ off) ** 2
    return np.sqrt(squares / len(rounds))


def test_the_exact_sums_agree_with_people(truncation: np.ndarray) -> None:
    rng = np.random.default_rng(1)
    people = 4000
    left = np.minimum(np.rint(rng.lognormal(0.3, 1.1, size=people)), MOST).astype(int)
    state, states = np.zeros(people, dtype=bool), []
    for number in range(HORIZON):  # distinct rounds, all sets of them equally likely
        changed = rng.random(people) * (HORIZON - number) < left
        left -= changed
        state = state ^ changed
        states.append(state)

    sampled = truncation_errors(states, horizon=HORIZON, most=12)

    np.testing.assert_allclose(sampled, truncation, atol=4 * 0.5 / math.sqrt(people))
    assert (left == 0).all()


def test_the_page_tells_the_errors_that_the_formulas_give(truncation: np.ndarray) -> None:
    def kept(k: int, *, pair: bool, epsilon: float = 1.0) -> KeptChange:
        return KeptChange(horizon=HORIZON, changes=k, epsilon=epsilon, pair=pair)

    def composed(k: int, *, pair: bool) -> ComposedResponse:
        flips = threshold_flips(changes=k, epsilon=1.0, pair=pair)
        return ComposedResponse(horizon=HORIZON, flips=flips)

    def published(k: int) -> ComposedResponse:
        return ComposedResponse(horizon=HORIZON, flips=annulus_flips(changes=k, epsilon=1.0))

    limits = range(1, 13)
    repeated = RepeatedResponse(horizon=HORIZON, epsilon=1.0, delta=1e-6)
    rows: dict[str, tuple[int | None, float, float]] = {
        "`RepeatedResponse`": (None, repeated.deviation / math.sqrt(PEOPLE), 0.0),
    }
    families: dict[str, list[KeptChange] | list[ComposedResponse]] = {
        "`KeptChange`": [kept(k, pair=False) for k in limits],
        "`KeptChange(pair=True)`": [kept(k, pair=True) for k in limits],
        "`KeptChange(pair=True)`, ε = ½": [kept(k, pair=True, epsilon=0.5) for k in limits],
        "`threshold_flips`": [composed(k, pair=False) for k in limits],
        "`threshold_flips(pair=True)`": [composed(k, pair=True) for k in limits],
        "`annulus_flips`": [published(k) for k in limits],
    }
    for name, designs in families.items():
        best, error = best_changes(designs, truncation, people=PEOPLE)
        off = truncation[best.changes - 1]
        assert error == pytest.approx(math.hypot(best.deviation / math.sqrt(PEOPLE), off))
        rows[name] = (best.changes, best.deviation / math.sqrt(PEOPLE), off)

    text = PAGE.read_text(encoding="utf-8")
    for name, (changes, noise, off) in rows.items():
        cells = f"| {changes or '–'} | {noise:.4f} | {off:.4f} | {math.hypot(noise, off):.4f} |"
        assert f"| {name} {cells}" in text
