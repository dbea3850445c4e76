"""The noise of running counts over 1,024 rounds is that of theory, over many seeds.

Errors of one run go together, so its mean squared error is far from that of theory now and then: nearly
all of its spread comes from four slow patterns. Turned back into the noise of each round, errors are
independent, and say a great deal more.
"""

import math
from functools import cache

import numpy as np
import pytest

from counting_kit import EXPONENT, dense, mu_of, sigma_of_changes, undone
from demur_proto.arrays import Values
from demur_proto.running.segments import Factorisation
from demur_sim.results.running import RunningResult
from demur_sim.run import simulate
from demur_sim.scenario import load_scenario

DEVICES, ROUNDS, SEEDS = 5000, 1024, 20  # two blocks
KIND = Factorisation.SQUARE_ROOT


@cache
def sigma() -> float:
    """Of a round's sum, in theory."""
    each = sigma_of_changes(KIND, ROUNDS, changes=4, mu=mu_of(1.0, 1e-6))
    return each * math.sqrt(DEVICES)


@cache
def errors() -> Values:
    """How far estimates are from what people told [SEEDS, ROUNDS], in units of `sigma`."""
    rows = []
    for seed in range(SEEDS):
        scenario = load_scenario("states", overrides=[f"data.devices={DEVICES}"])
        result = simulate(scenario, seed=seed, workers=1)
        assert isinstance(result, RunningResult)
        rows.append((result.estimates - result.active_truth)[:, 0])
    return np.array(rows) / sigma()


@pytest.mark.long
def test_monitoring_adds_the_noise_that_theory_says_to_each_round_and_no_two_go_together() -> None:
    matrix = np.ldexp(dense(KIND, ROUNDS).astype(float), EXPONENT)

    normals = np.diff(errors(), prepend=0.0, axis=1) @ matrix.T

    # Standard normals: of their squares, of products with the round before, and of sums over a run.
    count = SEEDS * ROUNDS
    assert abs((normals**2).sum() - count) <= 3 * math.sqrt(2 * count)
    assert abs((normals[:, 1:] * normals[:, :-1]).sum()) <= 3 * math.sqrt(count)
    assert abs(normals.sum()) <= 3 * math.sqrt(count)
    # Of two seeds each, and of each seed against chi squared.
    together = normals @ normals.T
    apart = together[np.triu_indices(SEEDS, 1)] / math.sqrt(ROUNDS)
    assert np.abs(apart).max() <= 4.5  # 190 of them
    assert np.abs(np.diag(together) - ROUNDS).max() <= 4.5 * math.sqrt(2 * ROUNDS)


@pytest.mark.long
def test_monitoring_is_off_by_what_theory_says_on_average_over_rounds_and_seeds() -> None:
    squares = (errors() ** 2).mean(axis=1)

    # Σ_t error_t² is Σ λ_i z_i² with λ the eigenvalues of BᵀB: of mean Σλ, and of variance 2Σλ².
    eigenvalues = np.linalg.eigvalsh(undone(KIND, ROUNDS).T @ undone(KIND, ROUNDS))
    mean = eigenvalues.sum() / ROUNDS
    spread = math.sqrt(2 * (eigenvalues**2).sum() / SEEDS) / ROUNDS
    print(f"mean squared error over theory: {squares.mean() / mean:.3f} ± {spread / mean:.3f}")
    assert abs(squares.mean() - mean) <= 3 * spread
