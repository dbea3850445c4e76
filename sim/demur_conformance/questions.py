"""Studies in which an answer and a cover report can be told apart, and the rounds asked in them.

Such a study protects next to nothing, which is the point: whoever tries out a device gives it its data.
"""

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from demur_proto.accounting.calibration import squared_radius
from demur_proto.arrays import Values, Words
from demur_proto.errors import WireError
from demur_proto.queries import Feature, GaussianQuery, Linear
from demur_proto.round import Round, round_of
from demur_proto.study import Measure, Policy, Study, View
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_proto.wire.words import WordType, decode_words

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
    return math.ldexp(query.noise.sigma, -query.noise.grid_exponent)


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
    mechanism = asked.defined.value.query.mechanism_in(study.value)
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


# What a report holds: the value, a shrunk one, or cover. And what its noise was.
#
# All of this works because whoever looks gave the device its data, in a study that hides nothing.

TOLERANCE = 5.5
"""How many standard deviations an observation may be off: a right device fails at one with
probability 4e-8, by the normal law."""

SAME = 0.01  #: standard deviations; 16 independent differences are all below with probability 1e-36
LARGE = 1024  #: coordinates from which an inner product is normal enough


def words_of(asked: Round, data: bytes) -> Words | None:
    """The words of a report [d]; None where their size is not the round's."""
    dimension = asked.query.value_length
    try:
        rows, sound = decode_words(data, asked.word_type, reports=1, dimension=dimension)
    except WireError:
        return None
    return rows[0] if sound[0] else None


def shown_norm(asked: Asked, words: Words) -> float:
    """How much of the value is in the words: ⟨words, z⟩/(‖z‖σ), in standard deviations.

    It has the normal law around ‖z‖/σ for the whole value, around 0 for cover.
    """
    value = np.array(asked.value, dtype=np.float64)
    length = math.sqrt(float(value @ value))
    return float(words @ value) / (length * asked.noise_steps)


def agrees(asked: Asked, words: Words, *, squared_norm: int) -> tuple[bool, str]:
    """Whether the words hold the value with this squared norm, and what they do hold.

    Args:
        asked: the round.
        words: of the report [d].
        squared_norm: what the answer should have: of the value, of a shrunk one, 0 for cover.
    """
    seen = shown_norm(asked, words)
    due = math.sqrt(squared_norm) / asked.noise_steps
    whole = math.sqrt(asked.squared_norm) / asked.noise_steps
    text = f"round {asked.number}: {seen:.1f} of {whole:.1f} standard deviations, {due:.1f} is due"
    return abs(seen - due) <= TOLERANCE, text


def noise_is_right(words: Words, *, steps: float) -> tuple[bool, str]:
    """Whether words that hold nothing but noise have its mean and spread.

    The sum over σ√d has the standard normal law; the sum of squares over σ² has mean d and variance 2d, up to
    the rounding, which adds 1/12 of a step².
    """
    size = len(words)
    scaled = words / steps
    mean = float(scaled.sum()) / math.sqrt(size)
    spread = (float(scaled @ scaled) / (1 + 1 / (12 * steps**2)) - size) / math.sqrt(2 * size)
    holds = abs(mean) <= TOLERANCE and abs(spread) <= TOLERANCE
    return holds, (
        f"of {size} coordinates the mean is {mean:.1f}, the sum of squares {spread:.1f} "
        "standard deviations off"
    )


def noises_differ(noises: list[Values]) -> tuple[bool, str]:
    """Whether no two noise vectors, in standard deviations, are the same, opposite, or go together.

    Of independent ones the inner product over √d has mean 0 and variance 1, and the normal law where d is
    large. Where it is small, they are only held to be neither the same nor opposite.
    """
    for one, other in combinations(noises, 2):
        size = min(len(one), len(other))
        one, other = one[:size], other[:size]
        product = float(one @ other) / math.sqrt(size)
        apart = min(np.abs(one - other).max(), np.abs(one + other).max())
        if apart < SAME or (size >= LARGE and abs(product) > TOLERANCE):
            return False, (
                f"two reports have noise that goes together by {product:.1f} standard deviations, and "
                f"differs by {apart:.3g} at most"
            )
    return True, f"of {len(noises)} reports, the noise of no two goes together"


def noise_of(asked: Asked, words: Words, *, given: bool) -> Values:
    """The noise of a report, in standard deviations, once one knows whether it was given."""
    value = np.array(asked.value, dtype=np.float64) * given
    return np.asarray((words - value) / asked.noise_steps, dtype=np.float64)
