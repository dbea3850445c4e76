"""From features to the next round of a study."""

from collections.abc import Sequence

from demur_proto.errors import ParameterError
from demur_proto.mechanisms.registry import (
    check_kind,
    mechanism_of,
    sized,
    weight_of,
    word_type_of,
)
from demur_proto.round import (
    ErrorCount,
    Feature,
    Gradient,
    HaltCount,
    Histogram,
    Linear,
    Prefix,
    Query,
    Randomiser,
    Round,
    Weights,
)
from demur_proto.running.segments import Admission, Segment
from demur_proto.study import Study
from demur_proto.wire.definition import Defined


def next_round(
    study: Defined[Study],
    features: Sequence[Feature],
    *,
    number: int,
    dimension: int | None = None,
    weights: Sequence[Sequence[float]] | None = None,
    clip: float = 1.0,
    on_grid: bool = False,
    sigma: float | None = None,
    grid_exponent: int | None = None,
    answer_after_ms: int = 0,
    close_unix_ms: int = 0,
) -> Round:
    """A linear round with its weight and word type worked out.

    Args:
        study: the contract.
        features: what to add up over people, one after the other.
        number: the round's number in the study.
        dimension: coordinates of all features together; one each by default, or one a row of weights.
        weights: [d, v], of the v numbers that the features give: one row for each coordinate of what
            is added up; None for the numbers as they are.
        clip: ℓ₂ radius of one person's value, weighted, data units; > 0.
        on_grid: every possible value is a multiple of the grid step.
        sigma: noise in the study's view; by default that of the base round.
        grid_exponent: grid step is 2^this; by default that of the base round.
        answer_after_ms: when devices send, after they received the round.
        close_unix_ms: when the collector closes the round; 0 leaves that to the analyst.

    Raises:
        ParameterError: an argument is outside its range, or the study has no linear rounds.
    """
    check_kind(study.value, Linear)
    noise, exponent = _noise(study.value, sigma, grid_exponent)
    matrix = None if weights is None else Weights.of(weights)
    coordinates = len(features) if matrix is None else matrix.dimension
    query = Linear(
        features=tuple(features),
        dimension=coordinates if dimension is None else dimension,
        weights=matrix,
        clip=clip,
        sigma=noise,
        grid_exponent=exponent,
        on_grid=on_grid,
    )
    return round_of(
        study,
        query,
        number=number,
        answer_after_ms=answer_after_ms,
        close_unix_ms=close_unix_ms,
    )


def next_histogram(
    study: Defined[Study],
    feature: Feature,
    *,
    number: int,
    categories: int,
    mechanism: Randomiser,
    epsilon: float,
    answer_after_ms: int = 0,
    close_unix_ms: int = 0,
) -> Round:
    """A histogram round with its weight and word type worked out.

    Args:
        study: the contract.
        feature: gives each person's category, 0 to categories − 1.
        number: the round's number in the study.
        categories: k, how many there are; >= 1: see `Histogram`.
        mechanism: how devices randomise their category.
        epsilon: ε of the mechanism, nats; > 0. Not that of the study, which pays for all answers
            together: `histograms.epsilon_for_answers` says what each may have.
        answer_after_ms: when devices send, after they received the round.
        close_unix_ms: when the collector closes the round; 0 leaves that to the analyst.

    Raises:
        ParameterError: an argument is outside its range, or the study has no histograms.
    """
    query = sized(
        Histogram(feature=feature, categories=categories, mechanism=mechanism, epsilon=epsilon)
    )
    check_kind(study.value, Histogram)
    mechanism_of(study.value, query)
    return round_of(
        study,
        query,
        number=number,
        answer_after_ms=answer_after_ms,
        close_unix_ms=close_unix_ms,
    )


def next_gradient(
    study: Defined[Study],
    model_hash: bytes,
    *,
    number: int,
    dimension: int,
    clip: float = 1.0,
    sigma: float | None = None,
    grid_exponent: int | None = None,
    answer_after_ms: int = 0,
    close_unix_ms: int = 0,
) -> Round:
    """A gradient round with its weight and word type worked out.

    Args:
        study: the contract.
        model_hash: of the model and its parameters, which the collector must keep; 32 bytes.
        number: the round's number in the study.
        dimension: how many parameters the model has; >= 1.
        clip: ℓ₂ radius of one person's gradient, data units; > 0.
        sigma: noise in the study's view; by default that of the base round.
        grid_exponent: grid step is 2^this; by default that of the base round.
        answer_after_ms: when devices send, after they received the round and its model.
        close_unix_ms: when the collector closes the round; 0 leaves that to the analyst.

    Raises:
        ParameterError: an argument is outside its range, or the study has no sums of vectors, or is
            for other questions.
    """
    check_kind(study.value, Gradient)
    noise, exponent = _noise(study.value, sigma, grid_exponent)
    query = Gradient(
        model_hash=model_hash,
        dimension=dimension,
        clip=clip,
        sigma=noise,
        grid_exponent=exponent,
    )
    return round_of(
        study,
        query,
        number=number,
        answer_after_ms=answer_after_ms,
        close_unix_ms=close_unix_ms,
    )


def next_error_count(
    study: Defined[Study],
    model_hash: bytes,
    *,
    number: int,
    parameters: int,
    on_grid: bool = False,
    sigma: float | None = None,
    grid_exponent: int | None = None,
    answer_after_ms: int = 0,
    close_unix_ms: int = 0,
) -> Round:
    """A count of a model's errors with its weight and word type worked out.

    Args:
        study: the contract.
        model_hash: of the model and its parameters, which the collector must keep; 32 bytes.
        number: the round's number in the study.
        parameters: how many the model has; >= 1.
        on_grid: every possible share of errors is a multiple of the grid step, as where nobody has
            more than one example; on a device of which that is not true a share counts as nothing.
        sigma: noise in the study's view; by default that of the base round.
        grid_exponent: grid step is 2^this; by default that of the base round.
        answer_after_ms: when devices send, after they received the round and its model.
        close_unix_ms: when the collector closes the round; 0 leaves that to the analyst.

    Raises:
        ParameterError: an argument is outside its range, or the study has no sums of vectors, or is
            for other questions.
    """
    check_kind(study.value, ErrorCount)
    noise, exponent = _noise(study.value, sigma, grid_exponent)
    query = ErrorCount(
        model_hash=model_hash,
        parameters=parameters,
        sigma=noise,
        grid_exponent=exponent,
        on_grid=on_grid,
    )
    return round_of(
        study,
        query,
        number=number,
        answer_after_ms=answer_after_ms,
        close_unix_ms=close_unix_ms,
    )


def next_prefix(
    study: Defined[Study],
    feature: Feature,
    segment: Segment,
    *,
    number: int,
    bound: int = 1,
    admission: Admission = Admission.COMMIT,
    sigma: float | None = None,
    grid_exponent: int | None = None,
    answer_after_ms: int = 0,
    close_unix_ms: int = 0,
) -> Round:
    """One round of a running count with its weight and word type worked out.

    Args:
        study: the contract.
        feature: the state, an integer from 0 to `bound`; its parameters may differ from round to round.
        segment: which of the segment's rounds this is.
        number: the round's number in the study.
        bound: the largest state; 1 for a Boolean.
        admission: what a device does with a change that does not fit.
        sigma: noise of one round in the study's view; by default that of the base round.
        grid_exponent: grid step is 2^this; by default that of the base round.
        answer_after_ms: when devices send, after they received the round.
        close_unix_ms: when the collector closes the round; 0 leaves that to the analyst.

    Raises:
        ParameterError: an argument is outside its range, or the study has no running counts.
    """
    check_kind(study.value, Prefix)
    noise, exponent = _noise(study.value, sigma, grid_exponent)
    query = Prefix(
        feature=feature,
        segment=_begun(segment, number),
        bound=bound,
        admission=admission,
        sigma=noise,
        grid_exponent=exponent,
    )
    return round_of(
        study,
        query,
        number=number,
        answer_after_ms=answer_after_ms,
        close_unix_ms=close_unix_ms,
    )


def next_halt_count(
    study: Defined[Study],
    halted_study: bytes,
    segment: Segment,
    *,
    number: int,
    sigma: float | None = None,
    grid_exponent: int | None = None,
    answer_after_ms: int = 0,
    close_unix_ms: int = 0,
) -> Round:
    """One round of the running count of those who did not answer another study in full.

    Args:
        study: the contract of the count, with a budget of its own.
        halted_study: hash of the other study, 32 bytes.
        segment: which of the segment's rounds this is.
        number: the round's number in the count's study.
        sigma: noise of one round in the study's view; by default that of the base round.
        grid_exponent: grid step is 2^this; by default that of the base round.
        answer_after_ms: when devices send, after they received the round.
        close_unix_ms: when the collector closes the round; 0 leaves that to the analyst.

    Raises:
        ParameterError: an argument is outside its range, or the study has no running counts.
    """
    check_kind(study.value, HaltCount)
    noise, exponent = _noise(study.value, sigma, grid_exponent)
    query = HaltCount(
        halted_study=halted_study,
        segment=_begun(segment, number),
        sigma=noise,
        grid_exponent=exponent,
    )
    return round_of(
        study,
        query,
        number=number,
        answer_after_ms=answer_after_ms,
        close_unix_ms=close_unix_ms,
    )


def check_affordable(study: Study, asked: Round) -> None:
    """Refuse a histogram of which no device could afford a single answer: all would be cover.

    Whoever asks wants to know; that it is so is public, so a device need not.

    Raises:
        ParameterError: an answer costs more than the whole budget.
    """
    query = asked.query
    if isinstance(query, Histogram) and asked.weight > study.budget_units:
        raise ParameterError(
            "epsilon",
            query.epsilon,
            "less: no device of this study could afford one answer; histograms.epsilon_for_answers "
            "says what fits",
        )


def round_of(
    study: Defined[Study],
    query: Query,
    *,
    number: int,
    answer_after_ms: int = 0,
    close_unix_ms: int = 0,
) -> Round:
    """A round that asks this query, with its weight and word type worked out.

    Raises:
        ParameterError: an argument is outside its range, or the study does not allow the query.
    """
    return Round(
        study_hash=study.hash,
        number=number,
        query=query,
        weight=weight_of(study.value, query),
        word_type=word_type_of(study.value, query),
        answer_after_ms=answer_after_ms,
        close_unix_ms=close_unix_ms,
    )


def _begun(segment: Segment, number: int) -> Segment:
    if not isinstance(segment, Segment):
        raise ParameterError("segment", segment, "a Segment")
    return segment.begun(number)


def _noise(study: Study, sigma: float | None, grid_exponent: int | None) -> tuple[float, int]:
    """The noise and the grid that were asked for; by default those of the study's base round."""
    return (
        study.base_sigma if sigma is None else sigma,
        study.base_grid_exponent if grid_exponent is None else grid_exponent,
    )
