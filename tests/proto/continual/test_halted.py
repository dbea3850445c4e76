"""H⁺ from a halt count: a bound whoever is missing from it, whenever, and for whatever reason."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counting_kit import EXPONENT, UNIT, a_study, dense_chain
from demur_proto.errors import ParameterError
from demur_proto.everyone import Measured, everyone_interval
from demur_proto.mechanisms.base import TWO_SIDED_QUANTILE
from demur_proto.queries import HaltCount
from demur_proto.round import Round, round_of
from demur_proto.running.estimates import RoundTotal
from demur_proto.running.factorisations import factors_of
from demur_proto.running.segments import Factorisation, Segment
from demur_proto.study import Purpose
from demur_proto.wire.definition import Defined, define_round
from demur_server.collector.estimates import make_release, running_count

STUDY = a_study(answers=9, name="halts", purpose=Purpose.HALTS)
COHORT = 6
ROUNDS = 6
CHAINS = ((8,), (2, 4), (1, 2, 4))


def rounds_of(kind: Factorisation, horizons: tuple[int, ...]) -> list[Round]:
    segment, rounds = Segment(horizon=horizons[0], cohort=COHORT, factorisation=kind), []
    for number in range(1, ROUNDS + 1):
        rounds.append(round_of(STUDY, HaltCount(bytes(32), segment), number=number))
        segment = segment.following(number)
    return rounds


@given(
    kind=st.sampled_from(list(Factorisation)),
    horizons=st.sampled_from(CHAINS),
    halted=st.lists(st.integers(1, ROUNDS + 1), min_size=COHORT, max_size=COHORT),
    present=st.lists(
        st.lists(st.booleans(), min_size=ROUNDS, max_size=ROUNDS), min_size=COHORT, max_size=COHORT
    ),
)
@settings(max_examples=100, deadline=None)
def test_the_estimate_reaches_every_true_count_whoever_is_missing_and_when(
    kind: Factorisation, horizons: tuple[int, ...], halted: list[int], present: list[list[bool]]
) -> None:
    """By hand: everybody tells their change at the first round at or after it in which they are there."""
    matrix = dense_chain(kind, horizons)[:ROUNDS, :ROUNDS]
    there = np.array(present)
    there[0] = True  # a round without any report is withheld
    words = np.zeros((COHORT, ROUNDS), dtype=np.int64)
    for who, since in enumerate(halted):
        told = next((at for at in range(since - 1, ROUNDS) if there[who, at]), None)
        if told is not None:
            words[who] = matrix[:, told]
    totals = [
        RoundTotal(sum=int(words[there[:, at], at].sum()), reports=int(there[:, at].sum()))
        for at in range(ROUNDS)
    ]

    for at, asked in enumerate(rounds_of(kind, horizons), start=1):
        found = running_count(STUDY.value, asked, totals[:at])
        truth = sum(since <= at for since in halted)
        beside = found.half_width.item() - TWO_SIDED_QUANTILE * found.standard_error.item()
        assert abs(truth - found.estimate.item()) <= beside + 1e-9
        if there[:, :at].all():
            assert found.estimate.item() == pytest.approx(truth, abs=1e-9)
            assert beside == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("exponent", [-14, -20])
def test_no_weight_of_a_sum_is_below_zero_at_any_horizon(exponent: int) -> None:
    for kind in Factorisation:
        for horizon in (1, 2, 100, 2048):
            factors = factors_of(kind, horizon=horizon, exponent=exponent)
            last = factors.solution(horizon)
            assert (last >= 0).all()
            assert (
                last[-1] == 2.0**exponent
            )  # so the word of now is worth 1 at most, and attains it
            assert (factors.row(horizon) >= 0).all()


def release_of(reports: int, total: int = 0) -> tuple[Defined[Round], float, Measured]:
    asked = define_round(rounds_of(Factorisation.SQUARE_ROOT, (8,))[0])
    made = make_release(STUDY, asked, [total], reports=reports)
    return asked, made.standard_error_at(0), Measured.of(made)


@pytest.mark.parametrize("missing", [0, 1, 4])
def test_those_who_are_missing_are_added_to_the_bound_and_never_scaled(missing: int) -> None:
    _, error, halted = release_of(COHORT - missing, total=UNIT)

    found = everyone_interval(
        Measured(estimate=0.0, standard_error=0.0), halted, largest=1.0, signed=False, share=0.5
    )

    # One told; the bound is that, the missing, and what noise may hide at 2.5 % on one side.
    assert error == pytest.approx(
        math.ldexp(math.sqrt((COHORT - missing) * (sigma_steps() ** 2 + 1 / 12)), EXPONENT)
    )
    assert found.most_halted == pytest.approx(1 + missing + TWO_SIDED_QUANTILE * error, rel=1e-9)


def sigma_steps() -> float:
    return math.ldexp(STUDY.value.base_sigma, -EXPONENT)


def test_a_count_from_before_there_were_studies_for_it_is_estimated_as_it_was() -> None:
    """So that releases that a store has still follow from their sums."""
    old = a_study(answers=9, name="halts")
    asked = replace(rounds_of(Factorisation.SQUARE_ROOT, (8,))[0], study_hash=old.hash)

    found = running_count(old.value, asked, [RoundTotal(sum=UNIT, reports=COHORT // 2)])

    assert found.estimate.item() == pytest.approx(2.0)  # scaled up


def test_a_measured_number_has_all_by_which_an_interval_is_wider_than_noise() -> None:
    asked, error, halted = release_of(COHORT - 2, total=3 * UNIT)
    made = make_release(STUDY, asked, [3 * UNIT], reports=COHORT - 2)

    assert halted.estimate == pytest.approx(4.0)
    assert halted.standard_error == error
    assert halted.bias == pytest.approx(1.0)
    with pytest.raises(ParameterError, match="index"):
        Measured.of(made, index=1)
    nothing = make_release(
        replace(STUDY, value=replace(STUDY.value, minimum_cohort=9)), asked, [0], reports=1
    )
    with pytest.raises(ParameterError, match="no interval"):
        Measured.of(nothing)
