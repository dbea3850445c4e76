"""What a report holds: the value, a shrunk one, or cover. And what its noise was.

All of this works because whoever looks gave the device its data, in a study that hides nothing.
"""

import math
from itertools import combinations

import numpy as np

from demur_proto.arrays import Values, Words
from demur_proto.errors import WireError
from demur_proto.round import Round
from demur_proto.words import decode_words
from demur_sim.conformance.questions import Asked

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
