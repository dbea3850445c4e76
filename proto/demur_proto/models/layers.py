"""Matrix products whose every bit is the same for any number of threads.

A linear algebra library cuts a large product into one piece for each thread, and where it cuts decides in
which order terms are added and thus how the sum is rounded. A product of at most 2^18 multiplications
is one piece: from there on OpenBLAS, which numpy's wheels hold, uses more than one thread
(SMP_THRESHOLD_MIN times GEMM_MULTITHREAD_THRESHOLD in its interface/gemm.c). So products are cut here, by
their shapes alone, into pieces not larger than that. A caller that wants two cores gives them two blocks
of people, which costs less than two threads for one product.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from demur_proto.arrays import Flags, Integers, Values, Vector
from demur_proto.errors import ParameterError

MOST_MULTIPLICATIONS = 1 << 18  #: in one piece
ROWS = 64  #: the most in one piece


def rows_times(rows: Values, matrix: Values) -> Values:
    """Rows [m, k] times a matrix [k, c] to [m, c]; pieces are whole rows, all of one shape.

    The last piece is filled up with zeros, so what one row gives does not depend on how many follow it.

    >>> rows_times(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]))
    array([[11.]])
    """
    height, inner = rows.shape
    width = matrix.shape[1]
    columns = min(width, max(1, MOST_MULTIPLICATIONS // max(1, 8 * inner)))
    piece = min(ROWS, max(1, MOST_MULTIPLICATIONS // max(1, inner * columns)))
    whole = height - height % piece
    out: Values = np.empty((height, width))
    last: Values = np.zeros((piece, inner))
    last[: height - whole] = rows[whole:]
    for start in range(0, width, columns):
        part = slice(start, start + columns)
        stacked = rows[:whole].reshape(-1, piece, inner) @ matrix[:, part]
        out[:whole, part] = stacked.reshape(whole, stacked.shape[2])
        if whole < height:
            out[whole:, part] = (last @ matrix[:, part])[: height - whole]
    return out


def sum_of_products(left: Values, right: Values) -> Values:
    """Σ_i left_i right_iᵀ over the rows of left [m, k] and right [m, c], to [k, c].

    Pieces are added in the order of the rows.

    >>> sum_of_products(np.array([[1.0], [2.0]]), np.array([[3.0, 4.0], [5.0, 6.0]]))
    array([[13., 16.]])
    """
    height, inner = left.shape
    width = right.shape[1]
    columns = min(width, MOST_MULTIPLICATIONS // (ROWS * 8))
    part = max(1, MOST_MULTIPLICATIONS // (ROWS * columns))
    total: Values = np.zeros((inner, width))
    for top in range(0, height, ROWS):
        rows = slice(top, top + ROWS)
        for start in range(0, inner, part):
            some = slice(start, start + part)
            for first in range(0, width, columns):
                across = slice(first, first + columns)
                total[some, across] += left[rows, some].T @ right[rows, across]
    return total


def squared_lengths(rows: Values) -> Vector:
    """‖row‖² of every row [m].

    >>> squared_lengths(np.array([[3.0, 4.0]]))
    array([25.])
    """
    lengths: Vector = np.einsum("mk,mk->m", rows, rows)
    return lengths


# Gradients of affine layers, person by person: as rows, or clipped and added up without the rows.
#
# An affine layer y = xW + b with inputs x [k] and the derivative s of the loss by y, its slopes [c], has the
# gradient (x, 1) sᵀ: W's part row by row, then b's. θ is the layers' (W, b) one after the other, and so
# is its gradient.

Owned = np.ndarray[tuple[int, int], np.dtype[np.int64]]  # shape [g, size], numbers of examples

_ROWS_AT_ONCE = 1 << 18  # numbers: a few gradients, so that they stay in the processor's cache
_ROUNDING = 2.0**-52
_FAINT = 2.0**-960  # a square that is less may have lost digits, or all of them


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One affine layer at m examples: what went in, and what came back."""

    inputs: Values = field(repr=False)  #: x [m, k]
    slopes: Values = field(repr=False)  #: s [m, c], derivatives of each example's loss

    @property
    def parameters(self) -> int:
        """Parameters of this layer, (k + 1) c."""
        return (self.inputs.shape[1] + 1) * self.slopes.shape[1]


def affine(theta: Vector, inputs: Values, *, outputs: int) -> Values:
    """The outputs xW + b of inputs [m, k], with θ [(k + 1) c] of this layer alone; to [m, c].

    >>> affine(np.array([2.0, 3.0, 0.5]), np.array([[1.0, 10.0]]), outputs=1)
    array([[32.5]])
    """
    weights = theta[:-outputs].reshape(-1, outputs)
    return rows_times(inputs, weights) + theta[-outputs:]


def gradient_rows(layers: Sequence[Layer], people: Integers) -> Values:
    """The gradient of every person's mean loss [n, d]; zero for who has no example.

    A person's row is made of that person's examples alone, whatever the others hold.

    >>> layer = Layer(np.array([[3.0], [1.0]]), np.array([[1.0], [1.0]]))
    >>> gradient_rows([layer], np.array([0, 2, 2]))
    array([[2., 1.],
           [0., 0.]])
    """
    rows: Values = np.zeros((len(people) - 1, _parameters(layers)))
    for persons, owned in _groups(layers, people, np.diff(people) > 0):
        rows[persons] = _rows(layers, owned)
    return rows


def clipped_gradient_sum(
    layers: Sequence[Layer], people: Integers, radii: Vector
) -> tuple[Vector, Vector, Vector]:
    """Σ over people of their gradients, each clipped to its own ℓ₂ radius, without [n, d] in memory.

    The norm of a single example's gradient is ‖(x, 1)‖‖s‖; that of several takes their inner products,
    or a few people's gradients at a time.

    Args:
        layers: of all examples.
        people: who owns which examples, offsets [n + 1].
        radii: [n]; ≥ 0, infinite for no clip.

    Returns:
        the sum [d]; the norms [n]; and the norms after clipping [n], min(norm, radius). A norm is
        rounded upwards, never below that of what is added to the sum in real arithmetic, and above
        it by rounding alone, unless the person's examples nearly cancel each other or have slopes
        below 2^-480, which may count twice. Where a squared
        norm is no finite number nothing is added: the norm is NaN, and 0 after clipping.

    Raises:
        ParameterError: the radii are not n numbers ≥ 0.

    Source of the norms of single examples: Goodfellow 2015, arXiv:1510.01799.

    >>> layer = Layer(np.array([[3.0], [1.0]]), np.array([[1.0], [1.0]]))
    >>> total, norms, clipped = clipped_gradient_sum([layer], np.array([0, 2]), np.array([1.0]))
    >>> total.round(3), norms.round(3), clipped
    (array([0.894, 0.447]), array([2.236]), array([1.]))
    """
    if radii.shape != (len(people) - 1,) or not (radii >= 0).all():
        raise ParameterError("radii", radii.shape, f"{len(people) - 1} numbers >= 0")
    with np.errstate(all="ignore"):
        norms = _norms(layers, people)
    usable = ~np.isnan(norms)
    clipped = np.where(usable, np.minimum(norms, radii), 0.0)
    factor = np.where(usable & (norms > radii), radii / np.where(norms > 0, norms, 1.0), 1.0)
    sizes = np.diff(people)
    weights = np.repeat(factor / np.maximum(sizes, 1), sizes)[:, None]
    kept = np.repeat(usable, sizes)[:, None]
    parts: list[Vector] = []
    for layer in layers:
        inputs, slopes = layer.inputs, layer.slopes
        if not kept.all():  # zero times infinity would not be zero
            inputs, slopes = np.where(kept, inputs, 0.0), np.where(kept, slopes, 0.0)
        slopes = slopes * weights
        parts += [sum_of_products(inputs, slopes).reshape(-1), slopes.sum(axis=0)]
    return np.concatenate(parts), norms, clipped


def _norms(layers: Sequence[Layer], people: Integers) -> Vector:
    """Norms of people's gradients [n], rounded upwards; NaN where the square is not finite."""
    sizes = np.diff(people)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    squares: Vector = np.zeros(len(sizes))
    reach: Vector = np.zeros(
        len(sizes)
    )  # sum over examples of the norms of their layers' gradients
    missed: Vector = np.zeros(len(sizes))
    for layer in layers:
        inputs, slopes = squared_lengths(layer.inputs) + 1, squared_lengths(layer.slopes)
        faint = np.flatnonzero(slopes < _FAINT)
        faint = faint[layer.slopes[faint].any(axis=1)]
        if faint.size:  # beside long inputs they are no less than other slopes
            slopes[faint] = 0.0
            alone = np.sqrt(inputs[faint]) * _lengths(layer.slopes[faint])
            missed += np.bincount(owner[faint], weights=alone, minlength=len(sizes))
        single = inputs * slopes
        squares[sizes == 1] += single[people[:-1][sizes == 1]]
        reach += np.bincount(owner, weights=np.sqrt(single), minlength=len(sizes))
    for persons, owned in _groups(layers, people, sizes > 1):
        for layer in layers:
            squares[persons] += _squares(layer, owned)
    # A sum of d squares is off by d roundings at most. What single examples give is rounded before it
    # is added, so where they cancel, what is left of them is off by some roundings of their size.
    upwards = 1 + _ROUNDING * (_parameters(layers) + 8)
    norms: Vector = np.sqrt(squares) * upwards
    norms += _ROUNDING * (sizes + 8) * reach / np.maximum(sizes, 1)
    norms += np.nextafter(missed * upwards, 2 * missed) / np.maximum(sizes, 1)
    norms[~np.isfinite(norms * norms)] = np.nan
    return norms


def _lengths(rows: Values) -> Vector:
    """Lengths of rows [n] that are not zero, and whose squares may be; to [n]."""
    largest = np.abs(rows).max(axis=1)
    found: Vector = np.sqrt(squared_lengths(rows / largest[:, None])) * largest
    return found


def _squares(layer: Layer, owned: Owned) -> Vector:
    """Squared norms of this layer's part of gradients of people who own these examples; to [g].

        ‖Σ_i (x_i, 1) s_iᵀ‖² = Σ_ij (x_i·x_j + 1)(s_i·s_j)

    Terms on the right may cancel, so a bound of the rounding error is added. Where the gradient itself is
    cheaper it is made instead, and needs none.
    """
    size, k, c = owned.shape[1], layer.inputs.shape[1], layer.slopes.shape[1]
    if size * (k + c) >= k * c:
        return squared_lengths(_rows([layer], owned))
    inputs, slopes = layer.inputs[owned], layer.slopes[owned] / size
    left = np.einsum("gik,gjk->gij", inputs, inputs) + 1
    right = np.einsum("gik,gjk->gij", slopes, slopes)
    squares: Vector = np.einsum("gij,gij->g", left, right)
    lengths = np.sqrt(np.einsum("gii->gi", left) * np.einsum("gii->gi", right)).sum(axis=1)
    bound: Vector = _ROUNDING * (k + c + size * size + 16) * lengths**2
    bound += np.maximum(squares, 0)
    return bound


def _groups(
    layers: Sequence[Layer], people: Integers, among: Flags
) -> Iterator[tuple[Integers, Owned]]:
    """Some people at a time who own equally many examples: who [g], and which [g, size]."""
    sizes = np.diff(people)
    most = max(1, _ROWS_AT_ONCE // _parameters(layers))
    for size in np.unique(sizes[among]).tolist():
        alike = np.flatnonzero(among & (sizes == size))
        for start in range(0, len(alike), most):
            persons = alike[start : start + most]
            yield persons, people[persons][:, None] + np.arange(size)


def _rows(layers: Sequence[Layer], owned: Owned) -> Values:
    """Gradients of people who own these examples [g, size]; to [g, d]."""
    people, size = len(owned), owned.shape[1]
    rows: Values = np.zeros((people, _parameters(layers)))
    stop = 0
    for layer in layers:
        inputs, slopes = layer.inputs[owned], layer.slopes[owned] / size
        k, c = inputs.shape[2], slopes.shape[2]
        start, stop = stop, stop + layer.parameters
        weights = rows[:, start : stop - c].reshape(people, k, c)  # a view
        if size == 1:
            np.multiply(inputs[:, 0, :, None], slopes[:, 0, None, :], out=weights)
        else:
            step = max(1, MOST_MULTIPLICATIONS // (k * c))
            for first in range(0, size, step):
                some = slice(first, first + step)
                weights += inputs[:, some].swapaxes(1, 2) @ slopes[:, some]
        rows[:, stop - c : stop] = slopes.sum(axis=1)
    return rows


def _parameters(layers: Sequence[Layer]) -> int:
    return sum(layer.parameters for layer in layers)
