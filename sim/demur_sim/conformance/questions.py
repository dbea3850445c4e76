"""Studies in which an answer and a cover report can be told apart, and the rounds asked in them.

Such a study protects next to nothing, which is the point: whoever tries out a device gives it its data.
"""

import math
from dataclasses import dataclass

from demur_proto.asking import round_of
from demur_proto.definition import Defined, define_round, define_study
from demur_proto.grid import squared_radius
from demur_proto.mechanisms.of_round import mechanism_of
from demur_proto.round import Feature, GaussianQuery, Linear, Round
from demur_proto.study import Measure, Policy, Study, View
from demur_proto.words import WordType

BUDGET_MU = 18.0  #: of every study here: an answer that costs a tenth of it shows by 5.7 σ
EPSILON = 38.0
DELTA = 1 - 1e-12
SIGMA = 4096.0  #: of the base round, data units, which are grid steps
CLIP = 131_072.0  #: above what the whole budget pays for
SLOT_MS = 400  #: of every round, and the shortest that the owner accepts
COORDINATES = 16  #: of most rounds: any squared norm is the sum of so many squares


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A round with what the device's data hold for it."""

    defined: Defined[Round]
    value: tuple[int, ...]  #: what the data say, data units

    @property
    def number(self) -> int:
        """The round's number."""
        return self.defined.value.number

    @property
    def squared_norm(self) -> int:
        """Σz² of the value, grid steps²."""
        return sum(each * each for each in self.value)

    @property
    def noise_steps(self) -> float:
        """σ_i, grid steps."""
        return sigma_steps(self.defined.value)


def sigma_steps(asked: Round) -> float:
    """The noise of one coordinate of a Gaussian round in view local, grid steps."""
    query = asked.query
    if not isinstance(query, GaussianQuery):
        raise TypeError("a round with Gaussian noise")
    return math.ldexp(query.sigma, -query.grid_exponent)


def revealing_study(
    policy: Policy, *, maximum_dimension: int = COORDINATES, horizon: int = 8
) -> Defined[Study]:
    """A study of this policy, whose budget of 18-GDP hides nothing."""
    return define_study(
        Study(
            name=f"conformance, policy {policy}",
            view=View.LOCAL,
            measure=Measure.GDP,
            policy=policy,
            budget=BUDGET_MU,
            epsilon=EPSILON,
            delta=DELTA,
            minimum_cohort=1,
            base_sigma=SIGMA,
            base_grid_exponent=0,
            horizon=horizon,
            maximum_dimension=maximum_dimension,
        )
    )


def ask(
    study: Defined[Study],
    number: int,
    value: tuple[int, ...],
    *,
    sigma: float = SIGMA,
    clip: float = CLIP,
    on_grid: bool = True,
    dimension: int | None = None,
    features: tuple[str, ...] = (),
    slot_ms: int = SLOT_MS,
    word_type: WordType | None = None,
) -> Asked:
    """A linear round about the feature that this device's data hold this value of.

    Args:
        study: a `revealing_study`.
        number: of the round; its feature is called after it.
        value: what the device's data hold.
        sigma: noise, data units; > 0.
        clip: ℓ₂ radius, data units.
        on_grid: all values are whole.
        dimension: where it is not the value's.
        features: their names, where they are not the one that is called after the round.
        slot_ms: when the device sends, after it received the round.
        word_type: where it is to be wider than it must.
    """
    query = Linear(
        features=tuple(Feature(name=each) for each in features or (feature_of(number),)),
        dimension=len(value) if dimension is None else dimension,
        clip=clip,
        sigma=sigma,
        grid_exponent=0,
        on_grid=on_grid,
    )
    asked = round_of(study, query, number=number, answer_after_ms=slot_ms)
    if word_type is not None:
        fields = {name: getattr(asked, name) for name in Round.__slots__}
        asked = Round(**{**fields, "word_type": word_type})
    return Asked(defined=define_round(asked), value=value)


def feature_of(number: int) -> str:
    """What the feature is called that a round with this number asks for."""
    return f"answer {number}"


def largest_of(study: Defined[Study], asked: Asked) -> int:
    """R, the largest squared norm of a round, grid steps²."""
    mechanism = mechanism_of(study.value, asked.defined.value.query)
    return getattr(mechanism, "squared_radius", squared_radius(CLIP, 0))


def of_squared_norm(total: int, *, coordinates: int = COORDINATES) -> tuple[int, ...]:
    """Integers whose squares add up to this, greedily: the rest shrinks as its square root does.

    >>> of_squared_norm(44, coordinates=5)
    (6, 2, 2, 0, 0)
    """
    value = []
    for _ in range(coordinates):
        value.append(math.isqrt(total))
        total -= value[-1] ** 2
    if total:
        raise ValueError(f"{total} is left after {coordinates} squares")
    return tuple(value)
