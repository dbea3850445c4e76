"""What the server makes of a segment's sums: unbiased, with the error that it states."""

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from counting_kit import UNIT, a_study, chain_of, dense, dense_chain, rounds_of
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries import RunningCount
from demur_proto.running.estimates import RoundTotal, running_estimate
from demur_proto.running.segments import Admission, Factorisation, Segment

KINDS = list(Factorisation)
SQUARE_ROOT = Factorisation.SQUARE_ROOT
STUDY = a_study(answers=8)
AMPLE = 1 << 60


def query_at(
    position: int, *, kind: Factorisation, cohort: int, horizon: int = 16, **options: Any
) -> tuple[RunningCount, GaussianLinear]:
    segment = Segment(horizon=horizon, cohort=cohort, factorisation=kind)
    query = rounds_of(STUDY, segment, **options)[position - 1].value.query
    assert isinstance(query, RunningCount)
    return query, GaussianLinear.of(STUDY.value, query)


def last_of(
    horizons: tuple[int, ...], *, kind: Factorisation, cohort: int
) -> tuple[RunningCount, GaussianLinear]:
    """The last round of a count in segments of these horizons."""
    query = chain_of(STUDY, horizons, kind=kind, cohort=cohort)[-1].value.query
    assert isinstance(query, RunningCount)
    return query, GaussianLinear.of(STUDY.value, query)


def totals_of(sums: Any, reports: Any) -> list[RoundTotal]:
    return [
        RoundTotal(sum=int(each), reports=int(number))
        for each, number in zip(sums, reports, strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_the_estimate_is_the_running_count(kind: Factorisation) -> None:
    states = np.random.default_rng(1).integers(0, 4, size=(50, 16))
    words = np.diff(states, prepend=0, axis=1) @ dense(kind, 16).T

    for position in range(1, 17):
        query, mechanism = query_at(position, kind=kind, cohort=50, bound=3)
        totals = totals_of(words.sum(axis=0)[:position], [50] * position)
        found = running_estimate(query, mechanism, totals, energy=AMPLE)
        assert found.estimate[0] == pytest.approx(states[:, position - 1].sum(), abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_standard_error_is_that_of_the_dense_matrices(kind: Factorisation) -> None:
    n = 40
    weights = np.tril(np.ones((16, 16))) @ np.linalg.inv(dense(kind, 16).astype(float))

    for position in (1, 7, 16):
        query, mechanism = query_at(position, kind=kind, cohort=n)
        variance = n * (mechanism.noise_steps**2 + 1 / 12) * (weights[position - 1] ** 2).sum()
        found = running_estimate(
            query, mechanism, totals_of([0] * position, [n] * position), energy=AMPLE
        )
        assert found.standard_error[0] == pytest.approx(math.sqrt(variance), rel=1e-9)
        assert found.half_width[0] == pytest.approx(1.959963984540054 * math.sqrt(variance))


@pytest.mark.parametrize("horizons", [(16,), (2, 4, 10)], ids=["one segment", "three"])
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_cover_as_often_as_they_say(
    kind: Factorisation, horizons: tuple[int, ...]
) -> None:
    """2,000 counts of noise alone: 95 % of the last intervals hold zero, within 3 standard errors."""
    runs, n, position = 2000, 3, 16
    query, mechanism = last_of(horizons, kind=kind, cohort=n)
    rng = np.random.default_rng(7)
    noise = np.rint(mechanism.noise_steps * rng.standard_normal((runs, position, n))).sum(axis=2)

    covered = 0
    for sums in noise:
        found = running_estimate(query, mechanism, totals_of(sums, [n] * position), energy=AMPLE)
        covered += abs(found.estimate[0]) <= found.half_width[0]

    assert abs(covered / runs - 0.95) <= 3 * math.sqrt(0.95 * 0.05 / runs)


def test_not_knowing_the_end_of_1024_rounds_costs_what_the_page_says() -> None:
    """√(mean of ‖B_t‖²) by the largest ‖C e_1‖, from dense matrices."""
    found = []
    for horizons in ((1024,), (64, 128, 256, 512, 1024)):
        squares, frozen = [], 0.0
        for horizon in horizons:
            matrix = np.ldexp(dense(SQUARE_ROOT, horizon).astype(float), -14)
            undone = np.linalg.solve(matrix.T, np.triu(np.ones((horizon, horizon)))).T
            squares += (frozen + (undone**2).sum(axis=1)).tolist()
            frozen = squares[-1]
        found.append(np.linalg.norm(matrix[:, 0]) * math.sqrt(np.mean(squares[:1024])))

    assert [round(each, 1) for each in found] == [3.1, 5.3]


@pytest.mark.parametrize("kind", KINDS)
def test_over_several_segments_frozen_counts_add_and_so_do_their_variances(
    kind: Factorisation,
) -> None:
    horizons, n = (2, 4, 8), 50
    states = np.random.default_rng(2).integers(0, 4, size=(n, 14))
    words = np.diff(states, prepend=0, axis=1) @ dense_chain(kind, horizons).T
    variances: list[float] = []

    for place, asked in enumerate(chain_of(STUDY, horizons, kind=kind, cohort=n, bound=3), 1):
        query = asked.value.query
        assert isinstance(query, RunningCount)
        mechanism = GaussianLinear.of(STUDY.value, query)
        totals = totals_of(words.sum(axis=0)[:place], [n] * place)
        found = running_estimate(query, mechanism, totals, energy=AMPLE)
        assert found.estimate[0] == pytest.approx(states[:, place - 1].sum(), abs=1e-9)
        alone, _ = query_at(
            query.segment.position, kind=kind, cohort=n, horizon=query.segment.horizon, bound=3
        )
        own = running_estimate(
            alone, mechanism, totals[-query.segment.position :], energy=AMPLE
        ).standard_error[0]
        ends = sum(variances[end - 1] for end in np.cumsum(query.segment.earlier))
        assert found.standard_error[0] == pytest.approx(math.sqrt(own**2 + ends))
        variances.append(own**2)


@pytest.mark.parametrize("horizons", [(4,), (2, 2)], ids=["one segment", "two"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("together", [True, False], ids=["the same people", "other people"])
def test_lost_reports_leave_it_unbiased_with_a_variance_within_the_stated_one(
    kind: Factorisation, together: bool, horizons: tuple[int, ...]
) -> None:
    """Every way to lose 2 of 5 people's reports in rounds 2 and 4, each as likely, without noise."""
    people, kept = 5, 3
    states = np.array([[0, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 1], [1, 1, 1, 1]])
    matrix = dense_chain(kind, horizons)
    words = np.diff(states, prepend=0, axis=1) @ matrix.T
    query, mechanism = last_of(horizons, kind=kind, cohort=people)
    energy = int((words**2).sum(axis=1).max())
    subsets = [list(each) for each in combinations(range(people), kept)]
    pairs = [(one, other) for one in subsets for other in subsets if not together or one == other]

    estimates = []
    for one, other in pairs:
        sums = words.sum(axis=0)
        sums[1], sums[3] = words[one, 1].sum(), words[other, 3].sum()
        totals = totals_of(sums, [people, kept, people, kept])
        found = running_estimate(query, mechanism, totals, energy=energy)
        estimates.append(found.estimate[0])
    silent = running_estimate(query, mechanism, totals_of(sums, [people] * 4), energy=energy)

    assert np.mean(estimates) == pytest.approx(states[:, 3].sum(), abs=1e-9)
    scale = np.array([1, people / kept, 1, people / kept])
    weights = np.tril(np.ones((4, 4))) @ np.linalg.inv(matrix.astype(float))
    reports = np.array([people, kept, people, kept])
    share = mechanism.noise_steps**2 + 1 / 12
    noise = float(((weights[3] * scale) ** 2 * reports).sum()) * share
    sampling = found.standard_error[0] ** 2 - noise
    assert 0 < np.var(estimates) <= sampling * (1 + 1e-6)
    assert silent.standard_error[0] < found.standard_error[0]


@pytest.mark.parametrize("kind", [Factorisation.SQUARE_ROOT, Factorisation.IDENTITY])
def test_changes_that_are_told_later_by_whoever_was_not_reached_count_more_than_once(
    kind: Factorisation,
) -> None:
    """In expectation, without noise: all of 1,000 change before round 1, and 30 % miss each round."""
    people, reached, rounds = 1000, 0.7, 8
    told = people * reached * (1 - reached) ** np.arange(rounds)  # by round, the first time
    matrix = dense(kind, rounds).astype(float)
    new = np.diag(matrix) * told
    sums = new + reached * ((matrix - np.diag(np.diag(matrix))) @ told)
    query, mechanism = query_at(rounds, kind=kind, cohort=people, horizon=rounds)

    totals = totals_of(np.rint(sums), [int(people * reached)] * rounds)
    found = running_estimate(query, mechanism, totals, energy=AMPLE)

    # They are on from then on, all of them told: what is too much is no error that is stated.
    excess = found.estimate[0] / people
    assert 1.05 < excess <= 1 / reached + 1e-3
    if kind is Factorisation.IDENTITY:
        assert excess == pytest.approx(1 / reached, rel=2e-3)


def test_more_reports_than_the_cohort_are_not_scaled_down() -> None:
    query, mechanism = query_at(2, kind=Factorisation.IDENTITY, cohort=10)

    found = running_estimate(query, mechanism, totals_of([UNIT, 2 * UNIT], [10, 12]), energy=AMPLE)

    assert found.estimate[0] == 3.0


def test_under_halt_there_is_no_interval() -> None:
    query, mechanism = query_at(1, kind=Factorisation.TREE, cohort=10, admission=Admission.HALT)

    found = running_estimate(query, mechanism, totals_of([UNIT], [10]), energy=AMPLE)

    assert found.half_width.size == 0
    assert found.standard_error[0] > 0


@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_round_too_few_or_too_many_is_refused(number: int) -> None:
    query, mechanism = query_at(3, kind=Factorisation.TREE, cohort=10)

    with pytest.raises(ParameterError, match="totals"):
        running_estimate(query, mechanism, totals_of([0] * number, [10] * number), energy=AMPLE)
