"""From sums to releases."""

import math
from typing import Any

import numpy as np
import pytest

from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries import Feature, Gradient, Linear
from demur_proto.queries.registry import mechanism_for
from demur_proto.release import Estimand, Withheld
from demur_proto.round import Round, round_of
from demur_proto.study import Policy, Study, View, design_study
from demur_proto.v1 import release_pb2
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_server.collector.estimates import make_release
from demur_sim.engine.sampling import FastSampler


def gaussian_for(study: Study, asked: Round) -> GaussianLinear:
    mechanism = mechanism_for(study, asked)
    assert isinstance(mechanism, GaussianLinear)
    return mechanism


def a_study(
    *,
    minimum_cohort: int = 100,
    view: View = View.AGGREGATE,
    policy: Policy = Policy.SKIP,
    grid_exponent: int = -7,
) -> Defined[Study]:
    return define_study(
        design_study(
            name="estimates",
            epsilon=1.0,
            delta=1e-6,
            answers=3,
            minimum_cohort=minimum_cohort,
            view=view,
            policy=policy,
            grid_exponent=grid_exponent,
            maximum_dimension=3,
        )
    )


def a_round(study: Defined[Study], **changes: object) -> Defined[Round]:
    options: dict[str, Any] = {"features": [Feature(name="x")], "on_grid": True, **changes}
    return define_round(round_of(study, Linear(**options), number=1))


def test_an_estimate_is_the_sum_in_data_units() -> None:
    study = a_study()
    asked = a_round(study, dimension=3)

    release = make_release(study, asked, [128, -64, 3], reports=100)

    assert release.estimate.tolist() == [1.0, -0.5, 3 / 128]
    assert release.sums.tolist() == [128, -64, 3]
    assert release.withheld is Withheld.NOTHING
    assert (release.study_hash, release.round_hash) == (study.hash, asked.hash)
    assert (release.number, release.reports) == (1, 100)


@pytest.mark.parametrize(("on_grid", "rounding"), [(True, 1 / 12), (False, 1 / 12 + 1 / 4)])
def test_the_standard_error_is_that_of_a_sum_of_rounded_shares(
    on_grid: bool, rounding: float
) -> None:
    study = a_study()
    asked = a_round(study, on_grid=on_grid, sigma=10.0, grid_exponent=-14)
    share_steps = 10.0 / math.sqrt(100) * 2**14

    release = make_release(study, asked, [0], reports=400)

    expected = math.sqrt(400 * (share_steps**2 + rounding)) / 2**14
    assert release.standard_error_at(0) == pytest.approx(expected, rel=1e-12)
    clipped = 0.0 if on_grid else 400 * (2**-12 + 2**-14)  # what clipping may take from each
    assert release.half_width[0] == pytest.approx(1.959963985 * expected + clipped, rel=1e-9)
    assert release.confidence == 0.95


def test_at_the_minimum_cohort_there_is_a_release_and_one_report_below_there_is_none() -> None:
    study = a_study(minimum_cohort=100)
    asked = a_round(study)

    enough = make_release(study, asked, [128], reports=100)
    too_few = make_release(study, asked, [128], reports=99)

    assert enough.withheld is Withheld.NOTHING
    assert too_few.withheld is Withheld.BELOW_MINIMUM_COHORT
    assert (too_few.sums.size, too_few.estimate.size) == (0, 0)
    assert math.isnan(too_few.standard_error_at(0))
    assert all(map(math.isnan, too_few.interval_at(0)))
    assert math.isnan(too_few.confidence)
    assert too_few.reports == 99
    assert too_few.message().estimand == release_pb2.ESTIMAND_UNSPECIFIED
    assert enough.message().estimand == release_pb2.ESTIMAND_S_ACTIVE


@pytest.mark.parametrize("kind", ["on the grid", "off the grid", "a gradient"])
def test_where_budgets_may_shrink_no_question_has_an_interval(kind: str) -> None:
    study = a_study(policy=Policy.CLIP, grid_exponent=-14)
    asked = a_round(study, on_grid=kind == "on the grid")
    if kind == "a gradient":
        asked = define_round(
            round_of(study, Gradient(model_hash=bytes(32), dimension=1, clip=1.0), number=1)
        )

    release = make_release(study, asked, [9], reports=100)

    assert (release.has_interval, release.estimand) == (False, Estimand.S_SHRUNK)
    assert math.isnan(release.confidence)
    assert release.standard_error_at(0) > 0


@pytest.mark.parametrize("sums", [[1], [1 << 40]])
def test_withheld_releases_are_the_same_whatever_the_sums_were(sums: list[int]) -> None:
    study = a_study()
    asked = a_round(study)

    withheld = make_release(study, asked, sums, reports=5)
    of_nothing = make_release(study, asked, [0], reports=5)

    assert withheld.message().SerializeToString() == of_nothing.message().SerializeToString()


@pytest.mark.parametrize("view", list(View))
def test_every_release_names_unit_neighbour_and_view(view: View) -> None:
    study = a_study(view=view)

    for reports in (1, 100):
        release = make_release(study, a_round(study), [0], reports=reports)

        for part in ("(1, 1e-06)", "Unit: one device", "Neighbour: zero-out", f"View: {view}"):
            assert part in release.guarantee


def test_sums_at_the_edge_of_64_bits_survive() -> None:
    study = a_study()
    edge = (1 << 63) - 1

    release = make_release(study, a_round(study, dimension=2), [edge, -edge], reports=100)

    assert release.sums.tolist() == [edge, -edge]
    assert release.estimate.tolist() == [2.0**56, -(2.0**56)]


@pytest.mark.parametrize("view", list(View))
def test_errors_are_as_large_as_stated(view: View, rng: np.random.Generator) -> None:
    study = a_study(minimum_cohort=64, view=view)
    asked = a_round(study)
    mechanism = gaussian_for(study.value, asked.value)
    sampler = FastSampler(rng)
    truth = 30.0
    trials = 2000
    words = np.zeros((64, 1), dtype=np.int64)
    words[:30] = 128

    z = np.empty(trials)
    covered = 0
    for trial in range(trials):
        sums = (words + mechanism.noise(sampler, reports=64)).sum(axis=0)
        release = make_release(study, asked, sums.tolist(), reports=64)
        z[trial] = (release.estimate[0] - truth) / release.standard_error_at(0)
        covered += release.low[0] <= truth <= release.high[0]

    # z is standard normal: 4 sigma of its mean, of its variance, and of the number covered.
    assert abs(z.mean()) <= 4 / math.sqrt(trials)
    assert abs(z.var() - 1) <= 4 * math.sqrt(2 / trials)
    assert abs(covered - 0.95 * trials) <= 4 * math.sqrt(trials * 0.95 * 0.05)
