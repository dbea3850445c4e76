"""Fixed public feature maps: what a device makes of an image before a model sees it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol

import numpy as np

from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError
from demur_proto.models.base import MOST_INPUTS

Images = np.ndarray[tuple[int, int, int], np.dtype[np.generic]]  # shape [n, height, width]
Features = np.ndarray[tuple[int, int], np.dtype[np.float32]]  # shape [n, length]
Single = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Bright = np.ndarray[tuple[int, int, int], np.dtype[np.float32]]  # shape [n, height, width]

MOST_PIXELS = 1 << 10  #: along one side

PIECE_BYTES = 1 << 23  #: what a map computes with at once, unless one image takes more
MOST_AT_ONCE = 32  #: images, so that what is made of them stays in the processor's cache

_SMALL = 1e-6  # beside the squared norm of a block: a block without edges stays nothing


class FeatureMap(Protocol):
    """A map from images to flat inputs of a model. Frozen, public, and the same on both sides."""

    name: ClassVar[str]

    @property
    def parameters(self) -> Mapping[str, float]:
        """What it was made with, by name."""

    @property
    def length(self) -> int:
        """How many features an image has."""

    @property
    def working_set(self) -> int:
        """The most bytes that `of` and `prepare` take at once, for any images.

        What comes out, 4 bytes for each feature, is not in it.
        """

    def prepare(self) -> None:
        """Fit what has to be fitted, so that `of` does not; a process keeps it."""

    def of(self, images: Images) -> Features:
        """Features [n, length] of images [n, height, width]; each of its own image alone.

        A pixel that is not finite makes features that are not.

        Raises:
            ParameterError: the images are of another size, or no numbers.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """The pixels themselves, row by row, scaled so that white is 1.

    Raises:
        ParameterError: a field is outside its range.

    >>> Pixels(height=1, width=2).of(np.array([[[0, 255]]], dtype=np.uint8))
    array([[0., 1.]], dtype=float32)
    """

    name: ClassVar[str] = "pixels"

    height: int  #: of every image, pixels; 1 to 2^10
    width: int  #: of every image, pixels; 1 to 2^10
    white: float = 255.0  #: value of a white pixel; > 0

    def __post_init__(self) -> None:
        check_integer("height", self.height, 1, MOST_PIXELS)
        check_integer("width", self.width, 1, MOST_PIXELS)
        check_positive("white", self.white)
        _check_length(self.length)

    @property
    def parameters(self) -> Mapping[str, float]:
        """What it was made with, by name."""
        return {each.name: float(getattr(self, each.name)) for each in fields(self)}

    @property
    def length(self) -> int:
        """How many features an image has: one for each pixel."""
        return self.height * self.width

    @property
    def working_set(self) -> int:
        """None: brightness is scaled where it comes out."""
        return 0

    def prepare(self) -> None:
        """Do nothing: nothing is fitted."""

    def of(self, images: Images) -> Features:
        """Features [n, length] of images [n, height, width]; see `FeatureMap`."""
        check_images(images, self.height, self.width)
        return scaled(images, self.white).reshape(len(images), self.length)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrientedGradients:
    """Histograms of oriented gradients: which way brightness changes, cell by cell.

    A pixel's gradient is (right − left, below − above), with the image's border repeated. Its length is its
    vote, and is shared between the two bins whose centres are nearest to its direction, linearly in the
    angle, and between the two rows and two columns of cells whose centres are nearest, linearly in the
    distance; beyond the outermost centres that cell has it all. Bin b is centred at (b + ½) π / bins,
    or 2π / bins if `signed`. Every square block of cells, overlapping ones too, is divided by its
    norm, capped, and divided again:

        v → v / √(‖v‖² + 10⁻⁶),  then v → min(v, cap),  then the first again

    Features are ordered by block row, block column, cell row, cell column and bin. Brightness added to a
    whole image changes nothing; contrast hardly anything, the less the stronger the edges.

    Raises:
        ParameterError: a field is outside its range, or does not fit the others.

    Source: Dalal & Triggs 2005, Histograms of oriented gradients for human detection, section 6.

    >>> OrientedGradients(height=28, width=28).length  # 6 × 6 blocks of 2 × 2 cells with 9 bins
    1296
    """

    name: ClassVar[str] = "oriented_gradients"

    height: int  #: of every image, pixels; 1 to 2^10, a multiple of `cell`
    width: int  #: of every image, pixels; 1 to 2^10, a multiple of `cell`
    white: float = 255.0  #: value of a white pixel; > 0
    cell: int = 4  #: side of a cell, pixels; >= 1
    bins: int = 9  #: orientations told apart; 2 to 64
    block: int = 2  #: side of a block, cells; 1 to the smaller side of the image
    cap: float = 0.2  #: of a feature before the second division; > 0 and <= 1, which caps nothing
    signed: bool = False  #: whether dark-to-bright differs from bright-to-dark

    def __post_init__(self) -> None:
        check_integer("height", self.height, 1, MOST_PIXELS)
        check_integer("width", self.width, 1, MOST_PIXELS)
        check_positive("white", self.white)
        check_integer("cell", self.cell, 1, min(self.height, self.width))
        for name in ("height", "width"):
            if getattr(self, name) % self.cell:
                expected = f"a multiple of cell, {self.cell}"
                raise ParameterError(name, getattr(self, name), expected)
        check_integer("bins", self.bins, 2, 64)
        check_integer("block", self.block, 1, min(self.height, self.width) // self.cell)
        check_positive("cap", self.cap)
        if self.cap > 1:
            raise ParameterError("cap", self.cap, "at most 1")
        if not isinstance(self.signed, bool):
            raise ParameterError("signed", self.signed, "true or false")
        _check_length(self.length)

    @property
    def parameters(self) -> Mapping[str, float]:
        """What it was made with, by name."""
        return {each.name: float(getattr(self, each.name)) for each in fields(self)}

    @property
    def length(self) -> int:
        """How many features an image has."""
        rows, columns = (side // self.cell - self.block + 1 for side in (self.height, self.width))
        return rows * columns * self.block**2 * self.bins

    @property
    def working_set(self) -> int:
        """The most bytes that `of` takes at once; see `FeatureMap`."""
        weights = 8 * 3 * max(self.height, self.width) ** 2 // self.cell  # while they are made
        images, _, each = self._at_once()
        return weights + images * each

    def prepare(self) -> None:
        """Do nothing: nothing is fitted."""

    def of(self, images: Images) -> Features:
        """Features [n, length] of images [n, height, width]; see `FeatureMap`."""
        check_images(images, self.height, self.width)
        out: Features = np.empty((len(images), self.length), dtype=np.float32)
        size, bins, _ = self._at_once()
        with np.errstate(all="ignore"):
            by_row = _nearest_cells(self.height, self.cell).T
            by_column = _nearest_cells(self.width, self.cell)
            for some in pieces(len(images), size):
                place, length = self._gradients(scaled(images[some], self.white))
                cells = [  # votes added up [n, bins, rows, columns]
                    by_row @ (self._votes(place, length, few) @ by_column)
                    for few in pieces(self.bins, bins)
                ]
                out[some] = self._blocks(cells[0] if len(cells) == 1 else np.hstack(cells))
        return out

    def _at_once(self) -> tuple[int, int, int]:
        """How many images, how many bins of their votes, and the most bytes for each of the images.

        Of an image there are its pixels, their gradients and steps on the way, nine arrays at most;
        votes for some bins, also added up along rows; cells twice; and blocks five times,
        in which single numbers may stand for two norms of a block.
        """
        rows, columns = self.height // self.cell, self.width // self.cell
        pixels = 9 * (self.height + 2) * (self.width + 2)
        each = 4 * (pixels + 2 * rows * columns * self.bins + 7 * self.length)
        of_bin = 4 * self.height * (self.width + columns)
        bins = min(self.bins, max(1, (PIECE_BYTES - each) // of_bin))
        each += bins * of_bin
        return at_once(each), bins, each

    def _gradients(self, images: Single) -> tuple[Single, Single]:
        """Directions and lengths of pixels' gradients [n, height, width].

        Directions are in bins, from the centre of bin 0; whole turns do not matter.
        """
        padded = np.pad(images, ((0, 0), (1, 1), (1, 1)), mode="edge")
        across = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
        down = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
        length = np.sqrt(across * across + down * down)
        turn = 2 * np.pi if self.signed else np.pi
        place = np.arctan2(down, across) * np.float32(self.bins / turn) - np.float32(0.5)
        return place, length

    def _votes(self, place: Single, length: Single, some: slice) -> Single:
        """What each pixel votes for some of the bins [n, bins, height, width]."""
        shape = (len(place), some.stop - some.start, self.height, self.width)
        votes: Single = np.empty(shape, dtype=np.float32)
        whole = np.float32(self.bins)
        for row, number in enumerate(range(some.start, some.stop)):
            apart = place - np.float32(number)
            apart -= np.rint(apart / whole) * whole
            votes[:, row] = np.maximum(1 - np.abs(apart), 0) * length
        return votes

    def _blocks(self, cells: Single) -> Features:
        """Blocks of cells, divided by their norms [n, length]."""
        side = (self.block, self.block)
        windows = np.lib.stride_tricks.sliding_window_view(cells, side, axis=(2, 3))
        # [n, bins, block row, block column, cell row, cell column], bins to the end
        blocks = np.moveaxis(windows, 1, -1).reshape(-1, self.block**2 * self.bins)
        blocks = np.minimum(_divided(blocks), np.float32(self.cap))
        return _divided(blocks).reshape(len(cells), -1)


def scaled(images: Images, white: float) -> Bright:
    """Numbers [n, height, width] in single precision, row by row, such that white is 1; a copy.

    >>> scaled(np.array([[[0, 5]]]), 10.0)
    array([[[0. , 0.5]]], dtype=float32)
    """
    with np.errstate(all="ignore"):
        copied: Bright = images.astype(np.float32, order="C")
        copied /= np.float32(white)
    return copied


def check_images(images: Images, height: int, width: int) -> None:
    """Refuse what are no images [n, height, width].

    Raises:
        ParameterError: they are of another size, or no numbers.

    >>> check_images(np.zeros((0, 1, 2)), 1, 2)
    """
    if images.ndim != 3 or images.shape[1:] != (height, width) or images.dtype.kind not in "uif":
        shown = (str(images.dtype), images.shape)
        raise ParameterError("images", shown, f"numbers of shape [n, {height}, {width}]")


def at_once(bytes_each: int) -> int:
    """How many images a map takes at once, where one of them takes so many bytes; at least 1.

    >>> at_once(1 << 10), at_once(1 << 20), at_once(1 << 30)
    (32, 8, 1)
    """
    return min(MOST_AT_ONCE, max(1, PIECE_BYTES // bytes_each))


def pieces(number: int, size: int) -> Iterator[slice]:
    """All of so many rows, some at a time.

    >>> list(pieces(5, 3))
    [slice(0, 3, None), slice(3, 5, None)]
    """
    for start in range(0, number, size):
        yield slice(start, min(start + size, number))


def _nearest_cells(side: int, cell: int) -> Single:
    """How much of a vote at each pixel is for each cell along one side [side, cells]; rows add to 1."""
    centres = (np.arange(side // cell) + 0.5) * cell
    pixels = np.clip(np.arange(side) + 0.5, centres[0], centres[-1])
    share: Single = np.maximum(1 - np.abs(pixels[:, None] - centres) / cell, 0).astype(np.float32)
    return share


def _divided(blocks: Features) -> Features:
    squares = np.einsum("nk,nk->n", blocks, blocks)[:, None]
    divided: Features = blocks / np.sqrt(squares + np.float32(_SMALL))
    return divided


def _check_length(length: int) -> None:
    if length > MOST_INPUTS:
        raise ParameterError(
            "height", length, f"such that there are at most {MOST_INPUTS} features"
        )
