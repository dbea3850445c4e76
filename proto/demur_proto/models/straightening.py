"""Written characters put upright: moved, sheared and partly scaled by the moments of their ink."""

import numpy as np

from demur_proto.arrays import Flags, Vector

Ink = np.ndarray[tuple[int, int, int], np.dtype[np.float64]]  # shape [n, side, side], 0 to 1

REFERENCE_SIDE = 28  #: pixels; lengths below are those of images of this side, and scale with it
HEIGHT, WIDTH = 5.4, 4.4  #: standard deviations of ink towards which sizes are changed
HEIGHT_POWER, WIDTH_POWER = 0.5, 0.3  #: how far: 0 not at all, 1 wholly
MOST_SHEAR = 1.0  #: columns for each row
LEAST_SCALE, MOST_SCALE = 0.6, 1.6

_NO_INK = 1e-3  # beside the ink of an image, so that an empty one has a centre too


def straightened(images: Ink) -> Ink:
    """Every image resampled so that its ink is centred, upright and of about the same size.

    With ink as weights, let (ȳ, x̄) be the mean of rows and columns and v_yy, v_xx, v_xy the central second moments.
    The ink's slant is a = v_xy / v_yy, and v = v_xx − v_xy² / v_yy what is left of its width. The pixel at
    (dy, dx) from the middle of the result is read, linearly between pixels and as nothing outside, at

        (ȳ + s_y dy,  x̄ + s_x dx + a s_y dy),   s_y = (√v_yy / 5.4)^½,   s_x = (√v / 4.4)^0.3

    with a within ±1, both scales within 0.6 to 1.6, v_yy at least 1 and v at least 0.3; lengths are in
    28ths of the side. The mass of ink is taken as 10⁻³ more than it is.

    Args:
        images: [n, side, side], 0 for none to 1 for full ink.

    A dot near the corner comes to the middle, larger than it was:

    >>> dot = np.zeros((1, 5, 5))
    >>> dot[0, 1, 1] = 1.0
    >>> np.argwhere(straightened(dot)[0] > 0.9).tolist()
    [[2, 2]]
    """
    side = images.shape[1]
    unit = side / REFERENCE_SIDE
    places = np.arange(side, dtype=np.float64)
    powers = np.stack([np.ones(side), places, places * places], axis=1)
    moments = powers.T @ (images @ powers)  # Σ ink yᵃ xᵇ at [n, a, b]; one small product each
    mass = moments[:, 0, 0] + _NO_INK
    row, column = moments[:, 1, 0] / mass, moments[:, 0, 1] / mass
    down = np.maximum(moments[:, 2, 0] / mass - row * row, unit**2)
    both = moments[:, 1, 1] / mass - row * column
    across = moments[:, 0, 2] / mass - column * column - both * both / down
    across = np.maximum(across, 0.3 * unit**2)
    slant = np.clip(both / down, -MOST_SHEAR, MOST_SHEAR)
    by_row = _scale(np.sqrt(down) / (HEIGHT * unit), HEIGHT_POWER)
    by_column = _scale(np.sqrt(across) / (WIDTH * unit), WIDTH_POWER)

    off = places - (side - 1) / 2
    rows = by_row[:, None] * off
    columns = column[:, None, None] + (by_column[:, None] * off)[:, None, :]
    columns = columns + (slant[:, None] * rows)[:, :, None]
    return _read(images, row[:, None] + rows, columns)


def upright(images: Ink) -> tuple[Ink, Flags]:
    """Images whose every pixel is a number straightened, nothing for the others, and which are which.

    >>> upright(np.full((1, 5, 5), np.nan))[1]
    array([False])
    """
    odd = np.count_nonzero(~np.isfinite(images), axis=(1, 2))
    known: Flags = odd == 0
    ink: Ink = np.where(known[:, None, None], np.clip(images, 0.0, 1.0), 0.0)
    return straightened(ink), known


def _scale(ratio: Vector, power: float) -> Vector:
    scale: Vector = np.clip(ratio**power, LEAST_SCALE, MOST_SCALE)
    return scale


def _read(images: Ink, rows: Ink, columns: Ink) -> Ink:
    """Images read at rows [n, side], and in each of those at columns [n, side, side]."""
    side = images.shape[1]
    padded = np.pad(images, ((0, 0), (1, 2), (1, 2)))
    rows = np.clip(rows, -1, side) + 1
    columns = np.clip(columns, -1, side) + 1
    above, left = rows.astype(np.int64), columns.astype(np.int64)
    part = (rows - above)[:, :, None]
    number = np.arange(len(images))[:, None]
    lines = (1 - part) * padded[number, above] + part * padded[number, above + 1]
    part = columns - left
    before = np.take_along_axis(lines, left, axis=2)
    after = np.take_along_axis(lines, left + 1, axis=2)
    read: Ink = (1 - part) * before + part * after
    return read
