"""Random pen strokes: images that look somewhat like writing and are nobody's."""

from collections.abc import Iterator

import numpy as np

from demur_proto.arrays import Values
from demur_proto.models.straightening import REFERENCE_SIDE, Ink

MOST_STROKES = 3  #: in one image
POINTS = 24  #: of the pen along one stroke
JOINED = 0.7  #: share of strokes that begin where the last ended
SPREAD = 19.0  #: the longer side of all strokes' box; pixels of images of side 28, as is
THINNEST, THICKEST = 0.9, 1.7  #: half the pen's width
NARROWEST = 0.45  #: least factor by which a drawing is made narrower

_DRAWN = 1 + MOST_STROKES * 9 + 2  # uniform numbers for one image
_IMAGES_AT_ONCE = 16  # so that distances from all pixels stay in the processor's cache


def strokes(number: int, *, side: int, seed: int) -> Iterator[Ink]:
    """Images of one to three random cubic Bézier curves, some at a time, ink from 0 to 1.

    Control points are uniform in [−0.1, 1.1]². Seven strokes in ten begin where the one before ended;
    where an image has fewer than three, its last is drawn again. The drawing is scaled until its
    longer side is 19 pixels, made narrower by a factor from 0.45 to 1, and centred by the mean of its points;
    the pen is round, and half as wide as between 0.9 and 1.7 pixels, with an edge one pixel wide.
    Pixels are 28ths of the side.

    Uniform numbers are the leading 53 bits of the raw words of numpy's bit generator `PCG64(seed)`, of
    which numpy promises that they stay the same; 30 for each image. No data and no person come into it.

    Args:
        number: how many images.
        side: of an image, pixels.
        seed: of the generator; public.

    >>> [drawn.shape for drawn in strokes(20, side=28, seed=1)]
    [(16, 28, 28), (4, 28, 28)]
    """
    words = np.random.PCG64(seed)
    for start in range(0, number, _IMAGES_AT_ONCE):
        some = min(_IMAGES_AT_ONCE, number - start)
        raw = words.random_raw(some * _DRAWN).reshape(some, _DRAWN)
        uniform: Values = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
        yield _drawn(uniform, side)


def strokes_working_set(side: int) -> int:
    """The most bytes that `strokes` take at once, the images that come out with them.

    Distances of all pixels from one point and the nearest so far, images, and steps on the way from one to
    the other are five arrays of images; squares along both sides and points are small beside them.
    """
    points = MOST_STROKES * POINTS
    return 8 * _IMAGES_AT_ONCE * (5 * side * side + points * (3 * side + 8))


def _drawn(uniform: Values, side: int) -> Ink:
    some, unit = len(uniform), side / REFERENCE_SIDE
    controls = 1.2 * uniform[:, 1:25].reshape(some, MOST_STROKES, 4, 2) - 0.1
    for stroke in range(1, MOST_STROKES):
        joined = uniform[:, 24 + stroke] < JOINED
        controls[joined, stroke, 0] = controls[joined, stroke - 1, 3]
    last = (uniform[:, 0] * MOST_STROKES).astype(np.int64)
    chosen = np.minimum(np.arange(MOST_STROKES), last[:, None])
    controls = controls[np.arange(some)[:, None], chosen]

    along = np.linspace(0, 1, POINTS)
    back = 1 - along
    weights = np.stack(
        [back**3, 3 * along * back**2, 3 * along**2 * back, along**3], axis=1
    )  # of the four control points
    points = (weights @ controls).reshape(some, MOST_STROKES * POINTS, 2)
    points = points - points.min(axis=1, keepdims=True)
    points *= SPREAD * unit / np.maximum(points.max(axis=(1, 2)), 0.2)[:, None, None]
    points[:, :, 0] *= (NARROWEST + (1 - NARROWEST) * uniform[:, 28])[:, None]
    points += (side - 1) / 2 - points.mean(axis=1, keepdims=True)
    pen = unit * (THINNEST + (THICKEST - THINNEST) * uniform[:, 29])

    pixels = np.arange(side, dtype=np.float64)
    across = np.square(pixels - points[:, :, 0, None])
    down = np.square(pixels - points[:, :, 1, None])
    nearest: Ink = np.full((some, side, side), np.inf)
    for point in range(points.shape[1]):
        np.minimum(nearest, down[:, point, :, None] + across[:, point, None, :], out=nearest)
    ink: Ink = np.clip(pen[:, None, None] + 0.5 - np.sqrt(nearest), 0.0, 1.0)
    return ink
