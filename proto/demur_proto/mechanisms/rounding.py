"""Vectors of floats to integer words: those on the grid as they are, others clipped and rounded.

What becomes of a row depends on that row, its coins and its radius alone, bit for bit: not on the
rows beside it, on how the arrays lie in memory, or on the processor. So a device gets the words that
it gets in a cohort. That is why squares are added element by element, in one fixed order; a library's
own sums of floats take whatever order suits a processor, and are left only what is exact in any order.

Arrays are worked on in pieces that stay in a processor's cache.
"""

from typing import Any

import numpy as np

from demur_proto.arrays import Flags, Integers, Values, Vector, Words

INSIDE = 1 - 2.0**-12  #: where a clipped row ends: inside its radius, as rounding may lengthen it
LANES = 8192  #: columns whose squares are added at once; the order of a sum follows from it
GROUP_WORDS = 1 << 17  #: rows worked on together
PIECE_WORDS = 1 << 15  #: words of a group, or of one long row, worked on at once
FIRST_COLUMNS = 64  #: hardly a row off the grid is on it in all of these
EXACT_SQUARES = 1 << 51  #: sums of squared integers up to four times this are exact in a float
LEAST_SQUARE, MOST_SQUARE = 2.0**-800, 2.0**1000  #: between them, no square that matters is lost


def squared_norms(words: Words) -> Integers:
    """Σz² of each row of words [n, d]; exact while it fits 63 bits."""
    squares: Integers = words[:, 0] ** 2 if words.shape[1] == 1 else np.vecdot(words, words)
    return squares


def on_grid(values: Values, *, exponent: int) -> Flags:
    """Which rows [n, d] have nothing but multiples of γ = 2^exponent, and infinities.

    >>> on_grid(np.array([[0.5, 1.0], [0.5, 0.7]]), exponent=-1)
    array([ True, False])
    """
    flags: Flags = np.ones(len(values), dtype=np.bool_)
    start, stop = 0, FIRST_COLUMNS
    while start < values.shape[1] and flags.any():
        left = np.flatnonzero(flags)
        piece = values[:, start:stop] if len(left) == len(flags) else values[left, start:stop]
        with np.errstate(over="ignore", invalid="ignore"):
            steps = np.ldexp(piece, -exponent)
            flags[left] = (np.rint(steps) == steps).all(axis=1)
        start, stop = stop, stop + max(FIRST_COLUMNS, PIECE_WORDS // len(left))
    return flags


def plain_words(
    values: Values, candidates: Flags, *, exponent: int, radius: int
) -> tuple[Words, Integers, Flags]:
    """The rows that are used as they are: on the grid, with Σz² ≤ R.

    Args:
        values: [n, d], data units.
        candidates: which of them are `on_grid` [n].
        exponent: of the grid step γ, data units.
        radius: R, grid steps²; below 2^61.

    Returns:
        words [n, d] and squared norms [n] of these rows, zero for all others; and which they are.

    >>> values = np.array([[0.5, 1.0], [0.5, 0.7], [9.0, 9.0]])
    >>> plain_words(values, on_grid(values, exponent=-1), exponent=-1, radius=5)
    (array([[1, 2],
           [0, 0],
           [0, 0]]), array([5, 0, 0]), array([ True, False, False]))
    """
    if candidates.all():
        return _fitting(values, exponent, radius)
    words = np.zeros(values.shape, dtype=np.int64)
    squares = np.zeros(len(values), dtype=np.int64)
    plain = candidates.copy()
    if plain.any():
        kept = _fitting(values[candidates], exponent, radius)
        words[candidates], squares[candidates], plain[candidates] = kept
    return words, squares, plain


def rounded(
    values: Values, coins: Values, *, exponent: int, radii: Integers, widen: bool = True
) -> tuple[Words, Integers]:
    """Every row clipped to a length just inside its own radius, then rounded by its coins.

        steps = v min(1/γ, √R′(1 − 2⁻¹²)/‖v‖),  z = ⌈steps − coin⌉

    That is ⌊steps⌋, or one more where the coin is below the fraction that is left. Should Σz² exceed R′ after all, z is steps rounded towards zero. A row with a coordinate that is not
    finite becomes zero.

    Args:
        values: [n, d], data units.
        coins: uniform on [0, 1) [n, d]. Over them z is steps on average, to 2⁻⁵³(|steps| + 1): steps are
            floats, and the difference is one.
        exponent: of the grid step γ, data units.
        radii: R′ of each row [n], grid steps²; below 2^61.
        widen: make words 64 bits wide. Otherwise they have 32 where every R′ is below 2^51: whoever asks
            for that must not compute beyond their width.

    Returns:
        words z [n, d], each with Σz² ≤ R′, and their squared norms [n].

    >>> rounded(np.array([[0.6, 0.8]]), np.array([[0.5, 0.9]]), exponent=-2, radii=np.array([16]))
    (array([[2, 3]]), array([13]))
    """
    exact = radii.max(initial=0) < EXACT_SQUARES
    words: Any = np.empty(values.shape, dtype=np.int32 if exact and not widen else np.int64)
    squares = np.empty(len(values), dtype=np.int64)
    rows_at_once = max(1, GROUP_WORDS // values.shape[1])
    for start in range(0, len(values), rows_at_once):
        rows = slice(start, start + rows_at_once)
        radius = radii[rows]
        some, scale = _scaled(values[rows], exponent, np.sqrt(radius) * INSIDE)
        floats = _round(some, scale, coins[rows], out=words[rows])
        squares[rows] = floats if exact else squared_norms(words[rows])
        outside = np.flatnonzero(squares[rows] > radius)
        if len(outside):
            inside = np.trunc(some[outside] * scale[outside, None]).astype(np.int64)
            words[start + outside], squares[start + outside] = inside, squared_norms(inside)
    return words, squares


def scaled_within(values: Values, *, exponent: int, reach: Vector) -> Values:
    """Every row in grid steps, no longer than its own reach: neither further inside nor rounded.

    Args:
        values: [n, d], data units; finite.
        exponent: of the grid step γ, data units.
        reach: the most that ‖v‖/γ may be of each row [n], grid steps.

    >>> scaled_within(np.array([[3.0, 4.0], [0.25, 0.0]]), exponent=-1, reach=np.array([5.0, 5.0]))
    array([[3. , 4. ],
           [0.5, 0. ]])
    """
    some, scale = _scaled(values, exponent, reach)
    steps: Values = some * scale[:, None]
    return steps


def _round(some: Values, scale: Vector, coins: Values, *, out: Words) -> Vector:
    """Steps [n, d], which are rows times a factor [n], rounded by coins; and Σz² in floats [n]."""
    n, d = some.shape
    squares = np.zeros(n)
    at_once = max(1, PIECE_WORDS // d)
    buffer = np.empty((min(n, at_once), min(d, PIECE_WORDS)))
    for i in range(0, n, at_once):
        rows = slice(i, i + at_once)
        for at in range(0, d, PIECE_WORDS):
            columns = slice(at, at + PIECE_WORDS)
            piece = buffer[: n - i, : d - at]
            np.multiply(some[rows, columns], scale[rows, None], out=piece)
            piece -= coins[rows, columns]
            np.ceil(piece, out=piece)
            out[rows, columns] = piece
            squares[rows] += np.einsum("nd,nd->n", piece, piece)  # no library, so no threads
    return squares


def _scaled(values: Values, exponent: int, reach: Vector) -> tuple[Values, Vector]:
    """Rows [n, d] and factors [n] whose products are the rows in grid steps, no longer than their reach.

    The rows are the values, but for those whose squares are too large or too small for floats: of these
    they are the directions, and zero where there is none.
    """
    squares = _squared_lengths(values)
    far: Flags = ~((squares >= LEAST_SQUARE) & (squares <= MOST_SQUARE))
    norms = np.sqrt(np.where(far, 1.0, squares))
    scale = np.minimum(np.ldexp(1.0, -exponent), reach / norms)
    if far.any():
        values = values.copy()
        finite: Flags = np.all(np.isfinite(values[far]), axis=1)
        rows = np.where(finite[:, None], values[far], 0.0)
        peaks = np.abs(rows).max(axis=1)
        rows /= np.where(peaks > 0, peaks, 1.0)[:, None]
        lengths = np.sqrt(_squared_lengths(rows))
        # In grid steps, and capped before it can overflow: far out, only the direction counts.
        with np.errstate(over="ignore"):
            ends = np.minimum(np.ldexp(peaks, -exponent) * lengths, reach[far])
        values[far], scale[far] = rows, ends / np.where(lengths > 0, lengths, 1.0)
    return values, scale


def _squared_lengths(values: Values) -> Vector:
    """Σv² of each row [n], in floats, added in one order.

    The square in column i goes to lane i mod 8,192, first to last; then, until one lane is left, the
    upper half of the lanes is added to the lower.
    """
    n, d = values.shape
    lanes = min(LANES, d)
    sums = np.empty((n, lanes))
    with np.errstate(over="ignore", invalid="ignore"):
        np.square(values[:, :lanes], out=sums)
        buffer = np.empty((n, min(lanes, d - lanes)))
        for at in range(lanes, d, lanes):
            part = buffer[:, : d - at]
            np.square(values[:, at : at + lanes], out=part)
            sums[:, : d - at] += part
        while lanes > 1:
            kept = (lanes + 1) // 2
            lower = sums[:, : lanes - kept]
            np.add(lower, sums[:, kept:lanes], out=lower)
            lanes = kept
    return sums[:, 0]


def _fitting(values: Values, exponent: int, radius: int) -> tuple[Words, Integers, Flags]:
    """`plain_words` of rows on the grid."""
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.ldexp(values, -exponent)
        # Squares of floats decide only where integers could not overflow; integers decide the rest.
        fit: Flags = np.einsum("nd,nd->n", steps, steps) <= 1.001 * radius
    if not fit.all():
        steps = np.where(fit[:, None], steps, 0.0)
    words: Words = steps.astype(np.int64)
    squares = squared_norms(words)
    outside = squares > radius
    if outside.any():
        words[outside], squares[outside] = 0, 0
        fit &= ~outside
    return words, squares, fit
