"""From features to the next round of a study."""

from collections.abc import Sequence
from dataclasses import replace

from demur_proto.definition import Defined
from demur_proto.grid import round_weight
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.round import Feature, Linear, Round
from demur_proto.study import Study
from demur_proto.words import WordType, word_type_for


def next_round(
    study: Defined[Study],
    features: Sequence[Feature],
    *,
    number: int,
    dimension: int | None = None,
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
        dimension: coordinates of all features together; one each by default.
        clip: ℓ₂ radius of one person's value, data units; > 0.
        on_grid: every possible value is a multiple of the grid step.
        sigma: noise in the study's view; by default that of the base round.
        grid_exponent: grid step is 2^this; by default that of the base round.
        answer_after_ms: when devices send, after they received the round.
        close_unix_ms: when the collector closes the round; 0 leaves that to the analyst.

    Raises:
        ParameterError: an argument is outside its range.
    """
    base = study.value
    width = len(features) if dimension is None else dimension
    noise = base.base_sigma if sigma is None else sigma
    exponent = base.base_grid_exponent if grid_exponent is None else grid_exponent
    asked = Round(
        study_hash=study.hash,
        number=number,
        query=Linear(features=tuple(features)),
        dimension=width,
        clip=clip,
        sigma=noise,
        grid_exponent=exponent,
        on_grid=on_grid,
        weight=round_weight(
            sigma=noise,
            exponent=exponent,
            base_sigma=base.base_sigma,
            base_exponent=base.base_grid_exponent,
            base_weight=base.base_weight,
            budget_units=base.budget_units,
        ),
        word_type=WordType.INT32,
        answer_after_ms=answer_after_ms,
        close_unix_ms=close_unix_ms,
    )
    limit = GaussianLinear.of(base, asked).word_limit
    return replace(asked, word_type=word_type_for(limit))
