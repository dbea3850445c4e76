"""Oriented gradients of straightened characters, whitened by synthetic strokes."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from demur_proto.arrays import Values
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError
from demur_proto.models.features import (
    Features,
    Images,
    at_once,
    check_images,
    pieces,
    scaled,
)
from demur_proto.models.straightening import Ink, upright
from demur_proto.models.strokes import strokes, strokes_working_set
from demur_proto.models.whitening import Whitening, fit_whitening

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
