"""Vectors of floats to integer words: those on the grid as they are, others clipped and rounded.

What becomes of a row depends on that row, its coins and its radius alone, bit for bit: not on the
rows beside it, on how the arrays lie in memory, or on the processor. So a device gets the words that
it gets in a cohort. That is why squares are added element by element, in one fixed order; a library's
own sums of floats take whatever order suits a processor, and are left only what is exact in any order.

Arrays are worked on in pieces that stay in a processor's cache.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from demur_proto.accounting.calibration import RADIUS_LIMIT, grid_step, squared_radius
from demur_proto.arrays import Flags, Integers, Values, Vector, Words
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import TWO_SIDED_QUANTILE, Estimate
from demur_proto.samplers.base import Sampler
from demur_proto.study import Policy, Study
from demur_proto.wire.words import WordType

if TYPE_CHECKING:
    from demur_proto.queries.base import GaussianQuery

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


# Linear queries with rounded Gaussian noise, on an integer grid.

FEWEST_NOISE_STEPS = 8  #: σ_i/γ in view aggregate, so that sums of shares are Gaussian enough
WORD_LIMIT_SIGMAS = 40  #: a word further out than the clip plus this is not a report


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianLinear:
    """Round a clipped vector to the grid, then add a share of rounded Gaussian noise.

    Both halves live here, so whoever changes the noise sees the estimate that must undo it.

    Raises:
        ParameterError: the grid is too coarse for the noise of a share, or words would not fit 64
            bits.
    """

    dimension: int  #: d
    clip: float  #: ℓ₂ radius C, data units
    grid_exponent: int  #: grid step γ = 2^this
    sigma: float  #: full noise of the view, data units
    shares: int  #: how many devices split it; 1 in view local
    on_grid: bool  #: every possible value is a multiple of γ, and none is ever shrunk
    shrinks: bool = False  #: policy `clip`: what is left of a budget may shrink a value
    # Worked out once, since these take exact fractions and every report is held against them.
    #: R = ⌊C²/γ²⌋, the largest squared norm of a value in grid steps.
    squared_radius: int = field(init=False, repr=False, compare=False)
    #: σ_i, one device's own noise, data units: never less than σ/√shares.
    share_sigma: float = field(init=False, repr=False, compare=False)
    #: Largest magnitude of a word that the server accepts: ⌊(C + 40σ_i)/γ⌋.
    word_limit: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_integer("dimension", self.dimension, 1, (1 << 31) - 1)
        check_positive("sigma", self.sigma)
        check_integer("shares", self.shares, 1, (1 << 31) - 1)
        radius = squared_radius(self.clip, self.grid_exponent)
        object.__setattr__(self, "squared_radius", radius)
        object.__setattr__(self, "share_sigma", _share_of(self.sigma, self.shares))
        reach = Fraction(self.clip) + WORD_LIMIT_SIGMAS * Fraction(self.share_sigma)
        object.__setattr__(self, "word_limit", int(reach / grid_step(self.grid_exponent)))
        if self.word_limit > WordType.INT64.limit:
            raise ParameterError(
                "grid_exponent", self.grid_exponent, "coarser: words would not fit 64 bits"
            )
        if not self.noise_steps > 0:
            raise ParameterError("sigma", self.sigma, "more: it is nothing in grid steps")
        if self.shares > 1 and not self.noise_steps >= FEWEST_NOISE_STEPS:
            finest = math.frexp(self.share_sigma)[1] - FEWEST_NOISE_STEPS.bit_length()
            raise ParameterError(
                "grid_exponent",
                self.grid_exponent,
                f"at most {finest}: a share of the noise ({self.share_sigma:.3g}) must be "
                f"{FEWEST_NOISE_STEPS} grid steps or more",
            )

    @classmethod
    def of(cls, study: Study, query: "GaussianQuery") -> "GaussianLinear":
        """The mechanism that a query of a study uses, if it asks for a sum of vectors."""
        return cls(
            dimension=query.dimension,
            clip=query.clip,
            grid_exponent=query.noise.grid_exponent,
            sigma=query.noise.sigma,
            shares=study.noise_shares,
            on_grid=query.on_grid and study.policy is not Policy.CLIP,
            shrinks=study.policy is Policy.CLIP,
        )

    @property
    def report_length(self) -> int:
        """Words in one report: one for each coordinate."""
        return self.dimension

    @property
    def sums_length(self) -> int:
        """Numbers that the server keeps for a round: one for each coordinate."""
        return self.dimension

    @property
    def largest(self) -> int:
        """The largest squared norm that `encode` gives, R."""
        return self.squared_radius

    @property
    def noise_steps(self) -> float:
        """σ_i/γ, one device's own noise in grid steps."""
        return math.ldexp(self.share_sigma, -self.grid_exponent)

    @property
    def report_mu(self) -> float:
        """μ of one report on its own, at the full clip: C/σ_i. In view aggregate that is large."""
        return self.clip / self.share_sigma

    def clipped(self, values: Values) -> Values:
        """Values [n, d] as S_active adds them up, in grid steps: scaled into the clip C, and no more.

        Neither shrunk by a budget nor rounded. A row that is no valid value is zero, as `encode` has it.
        Secret.

        Raises:
            ParameterError: the values are not of shape [n, d].

        >>> mechanism = GaussianLinear(dimension=2, clip=1.0, grid_exponent=-14, sigma=4.0,
        ...                            shares=1, on_grid=False)
        >>> mechanism.clipped(np.array([[0.0, 0.25], [3.0, -4.0]])) / 2**14
        array([[ 0.  ,  0.25],
               [ 0.6 , -0.8 ]])
        """
        valid = self.sound(values)
        kept = values if valid.all() else np.where(valid[:, None], values, 0.0)
        kept = kept.astype(np.float64, copy=False)
        reach = np.full(len(kept), math.ldexp(self.clip, -self.grid_exponent))
        return scaled_within(kept, exponent=self.grid_exponent, reach=reach)

    def sound(self, values: Values) -> Flags:
        """Which rows of values [n, d] are finite, and keep the promise of an on-grid round [n].

        Raises:
            ParameterError: the values are not of shape [n, d].
        """
        self._check_shape(values)
        if self.on_grid:
            exponent, radius = self.grid_exponent, self.squared_radius
            candidates = on_grid(values, exponent=exponent)
            return plain_words(values, candidates, exponent=exponent, radius=radius)[2]
        finite: Flags = np.all(np.isfinite(values), axis=1)
        return finite

    def encode(self, values: Values, sampler: Sampler) -> tuple[Words, Integers]:
        """Device half, before the decision: values [n, d] to the grid.

        A value on the grid and inside the clip is used as it is. Any other is scaled into the
        clip (a little inside it, by the factor 1 − 2⁻¹²), then each coordinate is rounded up or
        down at random, without bias; should the rounded vector leave the clip, it is rounded
        towards zero instead. A value that is not finite, or that breaks the promise of an
        on-grid round, counts as an evaluation error: it becomes the reference, zero.

        What becomes of a row depends on that row and its coins alone, bit for bit, so a device
        gets the words that it gets in a cohort.

        Returns:
            words [n, d] in grid steps, each with Σz² ≤ R, and their squared norms [n].

        Raises:
            ParameterError: the values are not of shape [n, d].
        """
        self._check_shape(values)
        coins = None if self.on_grid else self._coins(sampler, len(values))
        words, squares, _ = self._encoded(values, coins)
        return words, squares

    def encode_within(
        self, values: Values, sampler: Sampler, *, radii: Integers, widen: bool = True
    ) -> tuple[Words, Integers, Flags]:
        """`encode` under policy `clip`: each row to a squared norm that it can still pay for.

        What `encode` says of the clip and of R holds here of each row's own R′. Coins are drawn
        in every round, so that nothing drawn depends on what is left of a budget.

        Args:
            values: [n, d], data units.
            sampler: of the coins.
            radii: R′ of each row [n], grid steps²; 0 to R. Secret.
            widen: see `rounding.rounded`.

        Returns:
            words [n, d] in grid steps, each with Σz² ≤ R′; their squared norms [n]; and whether
            the budget shrunk a row [n], so that with R it would have been another.

        Raises:
            ParameterError: the values are not of shape [n, d].
        """
        self._check_shape(values)
        coins = self._coins(sampler, len(values))
        words, squares, rough = self._encoded(values, None if self.on_grid else coins, widen=widen)
        shrunk: Flags = (radii == 0) & (squares > 0)
        words[shrunk], squares[shrunk] = 0, 0  # what rounding within nothing gives, found sooner
        tight = (radii > 0) & (radii < self.squared_radius) & (rough | (squares > radii))
        if tight.any():
            fitting, fitting_squares = rounded(
                values[tight].astype(np.float64, copy=False),
                coins[tight],
                exponent=self.grid_exponent,
                radii=radii[tight],
            )
            shrunk[tight] = (fitting != words[tight]).any(axis=1)
            words[tight], squares[tight] = fitting, fitting_squares
        return words, squares, shrunk

    def _check_shape(self, values: Values) -> None:
        if values.ndim != 2 or values.shape[1] != self.dimension:
            raise ParameterError("values", values.shape, f"of shape [n, {self.dimension}]")

    def _coins(self, sampler: Sampler, reports: int) -> Values:
        """One for each coordinate [n, d]."""
        return sampler.uniform(reports=reports, dimension=self.dimension)

    def _encoded(
        self, values: Values, coins: Values | None, *, widen: bool = True
    ) -> tuple[Words, Integers, Flags]:
        """Words, squared norms, and which rows had to be rounded: none, without coins."""
        values = values.astype(np.float64, copy=False)
        exponent, radius = self.grid_exponent, self.squared_radius
        candidates = on_grid(values, exponent=exponent)
        if coins is not None and not candidates.any():
            radii = np.full(len(values), radius)
            words, squares = rounded(values, coins, exponent=exponent, radii=radii, widen=widen)
            return words, squares, ~candidates
        words, squares, plain = plain_words(values, candidates, exponent=exponent, radius=radius)
        if coins is None:
            return words, squares, np.zeros_like(plain)
        rough = ~plain
        if rough.any():
            radii = np.full(np.count_nonzero(rough), radius)
            words[rough], squares[rough] = rounded(
                values[rough], coins[rough], exponent=exponent, radii=radii
            )
        return words, squares, rough

    def randomise(self, words: Words, sampler: Sampler) -> Words:
        """Device half, after the decision: words [n, d] plus a share of noise for each report."""
        noisy = self.noise(sampler, reports=len(words))
        if np.can_cast(words.dtype, noisy.dtype):
            noisy += words
            return noisy
        return noisy + words  # as wide as the wider of the two: nothing wraps around

    def noise(self, sampler: Sampler, *, reports: int) -> Words:
        """One share of noise for each report [n, d], grid steps."""
        return sampler.gaussian(self.noise_steps, reports=reports, dimension=self.dimension)

    def valid(self, reports: Words) -> Flags:
        """Server half: which reports [n, d] hold only words up to the limit [n], of any width."""
        limit = self.word_limit
        if not reports.size or (reports.max() <= limit and reports.min() >= -limit):
            return np.ones(len(reports), dtype=np.bool_)  # nearly always, and quickly known
        inside: Flags = np.all((reports >= -limit) & (reports <= limit), axis=1)
        return inside

    def tally(self, reports: Words) -> Integers:
        """Server half: the sum of valid reports [d], whose words may be of any width; exact."""
        # Without widening each word first, which takes longer than adding them up.
        narrow = reports.dtype.itemsize == 4 and len(reports) * self.word_limit < (1 << 31)
        sums = reports.sum(axis=0, dtype=np.int32 if narrow else np.int64)
        return cast(Integers, sums.astype(np.int64, copy=False))

    def charge_gdp(self, squared_norm: int) -> float:
        """μ of releasing a value of this squared norm (grid steps²), against the reference.

            μ = γ‖z‖/σ

        Secret: it depends on a person's data. For the owner's eyes; filters use integers.

        Source: Dong, Roth & Su 2019, arXiv:1905.02383, Theorem 2.7.

        >>> mechanism = GaussianLinear(dimension=1, clip=1.0, grid_exponent=-7, sigma=4.0,
        ...                            shares=1, on_grid=True)
        >>> mechanism.charge_gdp(128**2)
        0.25
        """
        if type(squared_norm) is not int or not 0 <= squared_norm <= RADIUS_LIMIT:
            # Without the value, which is secret.
            raise ParameterError("squared_norm", "another value", "an integer from 0 to 2^61")
        return math.ldexp(math.sqrt(squared_norm), self.grid_exponent) / self.sigma

    def charge_zcdp(self, squared_norm: int) -> float:
        """ρ in nats of releasing a value of this squared norm (grid steps²).

            ρ = γ²‖z‖²/(2σ²)

        Secret, like `charge_gdp`.

        Source: Bun & Steinke 2016, arXiv:1605.02065, Proposition 1.6.

        >>> mechanism = GaussianLinear(dimension=1, clip=1.0, grid_exponent=-7, sigma=4.0,
        ...                            shares=1, on_grid=True)
        >>> mechanism.charge_zcdp(128**2)
        0.03125
        """
        return self.charge_gdp(squared_norm) ** 2 / 2

    def standard_error(self, reports: int) -> float:
        """Standard error of a sum of `reports` reports, data units.

            γ√(n((σ_i/γ)² + 1/12)), plus n/4 under the root where values are rounded at random

        >>> mechanism = GaussianLinear(dimension=1, clip=1.0, grid_exponent=-7, sigma=4.0,
        ...                            shares=1, on_grid=True)
        >>> round(mechanism.standard_error(100), 3)
        40.0
        """
        check_integer("reports", reports, 0, (1 << 53))
        rounding = 1 / 12 if self.on_grid else 1 / 12 + 1 / 4
        return math.ldexp(math.sqrt(reports * (self.noise_steps**2 + rounding)), self.grid_exponent)

    def clipping_bias(self, reports: int) -> float:
        """The most by which clipping may shift a sum of `reports` reports, per coordinate.

            nC(2⁻¹² + 2⁻¹⁴), and 0 where every value lies on the grid

        A value that reaches the clip is scaled to just inside it, by the factor 1 − 2⁻¹², and in
        rare cases rounded towards zero, by less than γ ≤ 2⁻¹⁴C. How many did is secret.

        >>> mechanism = GaussianLinear(dimension=1, clip=1.0, grid_exponent=-14, sigma=4.0,
        ...                            shares=1, on_grid=False)
        >>> mechanism.clipping_bias(16384)
        5.0
        """
        check_integer("reports", reports, 0, (1 << 53))
        return 0.0 if self.on_grid else reports * self.clip * (2.0**-12 + 2.0**-14)

    def estimate(self, sums: Integers, *, reports: int) -> Estimate:
        """Server half: exact sums of words [d] to an estimate with its interval.

        The interval is for the sum of clipped values. The estimate is unbiased for it up to
        `clipping_bias`, by which the interval is wider on both sides. Where budgets may have shrunk
        values it is unbiased, up to as much, for values as shrunk; nobody can tell how many were, and
        so there is no interval. A lifetime cap of an owner shrinks as well, so the study's own
        budget does not tell from when on.

        Raises:
            ParameterError: the sums are not of shape [d], or there is no report.
        """
        if sums.shape != (self.dimension,):
            raise ParameterError("sums", sums.shape, f"of shape [{self.dimension}]")
        check_integer("reports", reports, 1, (1 << 53))
        error = self.standard_error(reports)
        reach = TWO_SIDED_QUANTILE * error + self.clipping_bias(reports)
        return Estimate(
            estimate=np.ldexp(sums.astype(np.float64), self.grid_exponent),
            standard_error=np.array([error]),
            half_width=np.array([] if self.shrinks else [reach]),
        )


def _share_of(sigma: float, shares: int) -> float:
    """σ/√shares, or the next larger float.

    >>> _share_of(3.0, 4)
    1.5
    """
    target = Fraction(sigma) ** 2 / shares
    share = sigma / math.sqrt(shares)
    while Fraction(share) ** 2 < target:
        share = math.nextafter(share, math.inf)
    return share
