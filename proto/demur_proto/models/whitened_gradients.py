"""Written characters put upright: moved, sheared and partly scaled by the moments of their ink."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

import numpy as np

from demur_proto.arrays import Flags, Values, Vector
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError
from demur_proto.models.features import Features, Images, at_once, check_images, pieces, scaled
from demur_proto.models.layers import ROWS, sum_of_products

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


# Random pen strokes: images that look somewhat like writing and are nobody's.

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


# Centring and partial whitening: directions in which vectors differ most count for less.

CENTRE_STEP = 2.0**-20  #: of the grid on which a centre is kept
MATRIX_STEP = 2.0**-14  #: of that of a matrix


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Whitening:
    """x → (x − m) K, fitted to some vectors that are public."""

    centre: Vector = field(repr=False)  #: m [k]; cannot be written
    matrix: Values = field(repr=False)  #: K [k, k], symmetric; cannot be written

    def of(self, rows: Values) -> Values:
        """Whitened rows [n, k]; each is a product of its own, the same in any company."""
        whitened: Values = ((rows - self.centre)[:, None, :] @ self.matrix)[:, 0]
        return whitened


def fit_whitening(rows: Values, *, power: float, floor: float) -> Whitening:
    """Fit a centre and a matrix to vectors.

        m = mean,  covariance = V diag(λ) Vᵀ,  K = V diag((λ / λ_max + floor)^(−power / 2)) Vᵀ

    K is a function of the covariance alone: it does not depend on the signs of eigenvectors, nor on which of
    them are chosen where eigenvalues are equal. What linear algebra libraries round differently goes when m
    is rounded to multiples of 2^−20 and K to those of 2^−14.

    Args:
        rows: [n, k], at least 2, which must be public; not all alike.
        power: 0 for no whitening, 1 for variances that are equal but for the floor.
        floor: added to every eigenvalue's share of the largest; > 0.

    Two independent coordinates with variances 4 and 1 are divided by the roots of 1 and ¼:

    >>> four = np.array([[2.0, 1.0], [2.0, -1.0], [-2.0, 1.0], [-2.0, -1.0]])
    >>> fit_whitening(four, power=1.0, floor=1e-9).matrix.round(3)
    array([[1., 0.],
           [0., 2.]])
    """
    centre = np.rint(rows.mean(axis=0) / CENTRE_STEP) * CENTRE_STEP
    values, vectors = np.linalg.eigh(_covariance(rows))
    shares = np.maximum(values, 0.0) / values[-1]
    roots = vectors * (shares + floor) ** (-power / 4)
    matrix = np.rint(sum_of_products(roots.T, roots.T) / MATRIX_STEP) * MATRIX_STEP + 0.0
    centre.flags.writeable = matrix.flags.writeable = False
    return Whitening(centre=centre, matrix=matrix)


def _covariance(rows: Values) -> Values:
    """The covariance [k, k] of rows [n, k], of which some at a time are centred: all take much memory."""
    mean = rows.mean(axis=0)
    total: Values = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), ROWS):
        apart = rows[start : start + ROWS] - mean
        total += sum_of_products(apart, apart)
    total /= len(rows) - 1
    return total


# Oriented gradients of straightened characters, whitened by synthetic strokes.

MOST_FEATURES = 1 << 10  #: of one image; a fit takes time with their cube
MOST_SYNTHETIC = 1 << 14  #: drawings to fit to

_BLUR = 0.8  # standard deviation of the Gaussian under the derivative, pixels
_SMALL = 1e-6  # beside the length of a gradient
_SHORTEST = 1e-9  # divisor of a vector


@dataclass(frozen=True, slots=True, kw_only=True)
class WhitenedGradients:
    """Which way brightness changes, cell by cell, in characters put upright; for linear models.

    1. Brightness, scaled so that white is 1 and kept within 0 and 1, is straightened: see `straightened`.
    2. It is blurred by a Gaussian of standard deviation 0.8 pixels. A pixel's gradient g is (right − left,
       below − above), and nothing at the border. With the unit vector u at the angle 2π b / bins it votes
       max(g·u, 0)² / (‖g‖ + 10⁻⁶) for bin b: its length times cos² of the angle between both.
    3. Votes are pooled around the centres of `cells` × `cells` equal squares, with Gaussian weights of standard
       deviation half a square, divided along each side by their root sum of squares. The square roots of all, by bin,
       row and column, are divided by their norm.
    4. Then x → (x − m) K, `fit_whitening` to what steps 1 to 3 make of `synthetic` random drawings,
       `strokes`, and the result is scaled to the length `norm`.

    Nothing that anybody wrote comes into it: m and K follow from the fields alone. The first use, or `prepare`, takes a
    second or two to fit them, and a process keeps the last four. With a long `norm`, the constant input that stands for
    a bias takes little of a clipped gradient: 1 part in norm² + 1 of its square.

    Raises:
        ParameterError: a field is outside its range, or does not fit the others.

    Sources: Dalal & Triggs 2005, section 6, for histograms of gradients; LeCun et al. 1998, Gradient-based
    learning applied to document recognition, section III-A, for deslanting by moments.

    >>> WhitenedGradients(height=28, width=28).length  # 7 × 7 cells with 8 bins
    392
    """

    name: ClassVar[str] = "whitened_gradients"

    height: int  #: of every image, pixels; 8 to 2^6
    width: int  #: of every image, pixels; the same
    white: float = 255.0  #: value of a white pixel; > 0
    cells: int = 7  #: along a side; 1 to half the side
    bins: int = 8  #: directions told apart; 2 to 64
    synthetic: int = 6000  #: drawings to fit to; 100 to 2^14
    seed: int = 1  #: of the drawings; 0 to 2^32 − 1
    power: float = 0.6  #: how far to whiten; > 0 and <= 1, which is wholly
    floor: float = 1e-3  #: below which share of the largest variance others hardly matter; > 0
    norm: float = 10.0  #: of an image's features; > 0

    def __post_init__(self) -> None:
        check_integer("height", self.height, 8, 1 << 6)
        check_integer("width", self.width, 8, 1 << 6)
        if self.width != self.height:
            raise ParameterError("width", self.width, f"the height, {self.height}")
        check_positive("white", self.white)
        check_integer("cells", self.cells, 1, self.height // 2)
        check_integer("bins", self.bins, 2, 64)
        if self.length > MOST_FEATURES:
            expected = f"such that there are at most {MOST_FEATURES} features"
            raise ParameterError("cells", self.cells, expected)
        check_integer("synthetic", self.synthetic, 100, MOST_SYNTHETIC)
        check_integer("seed", self.seed, 0, (1 << 32) - 1)
        for name in ("power", "floor"):
            check_positive(name, getattr(self, name))
            if getattr(self, name) > 1:
                raise ParameterError(name, getattr(self, name), "at most 1")
        check_positive("norm", self.norm)

    @property
    def parameters(self) -> Mapping[str, float]:
        """What it was made with, by name."""
        return {each.name: float(getattr(self, each.name)) for each in fields(self)}

    @property
    def length(self) -> int:
        """How many features an image has."""
        return self.cells**2 * self.bins

    @property
    def working_set(self) -> int:
        """The most bytes that a fit or `of` takes at once, and what is kept; see `FeatureMap`.

        A fit holds the features of all drawings, and at most seven matrices of the size of the
        covariance [k, k]. LAPACK's `dsyevd`, which finds its eigenvectors, works in two of them.
        """
        each = _bytes_each(self.height, self.cells, self.bins)
        fit = 8 * (self.synthetic * self.length + 7 * self.length**2) + strokes_working_set(
            self.height
        )
        return fit + at_once(each) * each

    def prepare(self) -> None:
        """Fit m and K, unless this process still has them."""
        self._fitted()

    def of(self, images: Images) -> Features:
        """Features [n, length] of images [n, height, width]; see `FeatureMap`."""
        check_images(images, self.height, self.width)
        out: Features = np.empty((len(images), self.length), dtype=np.float32)
        fit = self._fitted()
        size = at_once(_bytes_each(self.height, self.cells, self.bins))
        for some in pieces(len(images), size):
            ink, known = upright(scaled(images[some], self.white).astype(np.float64))
            found = self.norm * _unit(fit.of(_pooled(ink, self.cells, self.bins)))
            out[some] = np.where(known[:, None], found, np.nan)
        return out

    def _fitted(self) -> Whitening:
        return _fit(
            self.height, self.cells, self.bins, self.synthetic, self.seed, self.power, self.floor
        )


@functools.lru_cache(maxsize=4)
def _fit(
    side: int, cells: int, bins: int, synthetic: int, seed: int, power: float, floor: float
) -> Whitening:
    rows: Values = np.empty((synthetic, cells * cells * bins))
    size = at_once(_bytes_each(side, cells, bins))
    start = 0
    for drawn in strokes(synthetic, side=side, seed=seed):
        for some in pieces(len(drawn), size):
            pooled = _pooled(upright(drawn[some])[0], cells, bins)
            rows[start : start + len(pooled)] = pooled
            start += len(pooled)
    return fit_whitening(rows, power=power, floor=floor)


def _bytes_each(side: int, cells: int, bins: int) -> int:
    """What is made of one image at once: its votes, these pooled along columns, and the rest.

    While an image is put upright or its gradients are found, sixteen arrays of its size at most, with
    a border; then its features eight times.
    """
    votes = bins * side * (side + cells)
    return 8 * (votes + 16 * (side + 3) ** 2 + 8 * bins * cells * cells)


def _pooled(images: Ink, cells: int, bins: int) -> Values:
    """Steps 2 and 3 [n, bins · cells²]. Products are small, and of one image each."""
    side = images.shape[1]
    blur = _blur(side)
    smooth = blur @ images @ blur.T
    across, down = np.zeros_like(smooth), np.zeros_like(smooth)
    across[:, :, 1:-1] = smooth[:, :, 2:] - smooth[:, :, :-2]
    down[:, 1:-1] = smooth[:, 2:] - smooth[:, :-2]
    length = np.sqrt(across * across + down * down) + _SMALL
    votes = np.empty((len(images), bins, side, side))
    for number, angle in enumerate(2 * np.pi * np.arange(bins) / bins):
        towards = np.maximum(np.cos(angle) * across + np.sin(angle) * down, 0)
        votes[:, number] = towards * towards / length
    pools = _pools(side, cells)
    return _unit(np.sqrt(pools @ votes @ pools.T).reshape(len(images), bins * cells * cells))


def _blur(side: int) -> Values:
    apart = np.arange(side) - np.arange(side)[:, None]
    whole = np.exp(-np.square(np.arange(-20, 21)) / (2 * _BLUR**2)).sum()
    weights: Values = np.exp(-np.square(apart) / (2 * _BLUR**2)) / whole
    return weights


def _pools(side: int, cells: int) -> Values:
    """How much of a vote at each pixel is for each cell along one side [cells, side]."""
    square = side / cells
    apart = np.arange(side) + 0.5 - (np.arange(cells)[:, None] + 0.5) * square
    weights: Values = np.exp(-2 * np.square(apart / square))
    weights /= np.sqrt(np.square(weights).sum(axis=1, keepdims=True))
    return weights


def _unit(rows: Values) -> Values:
    lengths = np.sqrt(np.einsum("nk,nk->n", rows, rows))[:, None]
    unit: Values = rows / np.maximum(lengths, _SHORTEST)
    return unit
