from dataclasses import replace

import pytest

from demur_proto.errors import ParameterError
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries import Feature, Linear
from demur_proto.queries.registry import mechanism_for
from demur_proto.round import Round, round_of
from demur_proto.study import Study, View, design_study
from demur_proto.wire.definition import Defined, define_round, define_study, read_round
from demur_proto.wire.words import WordType

FEATURE = Feature(name="active", parameters={"day": 3.0})


def gaussian_for(study: Study, asked: Round) -> GaussianLinear:
    mechanism = mechanism_for(study, asked)
    assert isinstance(mechanism, GaussianLinear)
    return mechanism


@pytest.fixture(params=View)
def study(request: pytest.FixtureRequest) -> Defined[Study]:
    return define_study(
        design_study(
            name="x",
            epsilon=1.0,
            delta=1e-6,
            answers=15,
            minimum_cohort=100,
            grid_exponent=-16,
            view=request.param,
            horizon=50,
            maximum_dimension=4,
        )
    )


def test_by_default_a_round_is_like_the_base_round(study: Defined[Study]) -> None:
    asked = round_of(study, Linear([FEATURE, FEATURE]), number=2)

    assert asked.query == Linear(
        features=(FEATURE, FEATURE),
        dimension=2,
        clip=1.0,
        sigma=study.value.base_sigma,
        grid_exponent=study.value.base_grid_exponent,
        on_grid=False,
    )
    assert asked.weight == study.value.base_weight


@pytest.mark.parametrize("sigma", [None, 8.0, 1000.0])
@pytest.mark.parametrize("grid_exponent", [None, -17, -20])
def test_what_is_asked_is_what_devices_accept(
    study: Defined[Study], sigma: float | None, grid_exponent: int | None
) -> None:
    asked = round_of(
        study,
        Linear([FEATURE], dimension=3, clip=0.9, sigma=sigma, grid_exponent=grid_exponent),
        number=1,
        answer_after_ms=250,
        close_unix_ms=1_900_000_000_000,
    )

    assert read_round(define_round(asked).definition, study=study).value == asked


def test_words_take_the_smallest_type_that_holds_them(study: Defined[Study]) -> None:
    small = round_of(study, Linear([FEATURE]), number=1)
    large = round_of(study, Linear([FEATURE], grid_exponent=-25, sigma=5000.0), number=1)

    assert small.word_type is WordType.INT32
    assert gaussian_for(study.value, small).word_limit < 1 << 31
    assert large.word_type is WordType.INT64
    assert gaussian_for(study.value, large).word_limit >= 1 << 31
    with pytest.raises(ParameterError, match="word_type"):
        gaussian_for(study.value, replace(large, word_type=WordType.INT32))


@pytest.mark.parametrize("sigma", [1e16, 1e300])
def test_noise_that_no_word_holds_is_refused(study: Defined[Study], sigma: float) -> None:
    with pytest.raises(ParameterError, match="64 bits"):
        round_of(study, Linear([FEATURE], sigma=sigma), number=1)


def test_a_value_off_the_grid_needs_a_finer_grid_than_a_value_on_it(
    study: Defined[Study],
) -> None:
    with pytest.raises(ParameterError, match="grid_exponent"):
        round_of(study, Linear([FEATURE], clip=0.125), number=1)

    asked = round_of(study, Linear([FEATURE], clip=0.125, on_grid=True), number=1)
    assert gaussian_for(study.value, asked).on_grid


def test_a_round_without_features_is_refused(study: Defined[Study]) -> None:
    with pytest.raises(ParameterError):
        round_of(study, Linear([]), number=1)
