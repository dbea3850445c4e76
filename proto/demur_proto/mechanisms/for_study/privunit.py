"""PrivUnit: a random direction that is likely near one's own."""

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from demur_proto.accounting.divergences import Level, levels_renyi, levels_zcdp
from demur_proto.accounting.laws import (
    cap_density,
    cap_share,
    check_dimension,
    check_height,
    share_error,
)
from demur_proto.arrays import Flags, Values
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import TWO_SIDED_QUANTILE, Estimate
from demur_proto.mechanisms.categorical import MOST_REPORTS
from demur_proto.mechanisms.thresholds import WHOLE, Threshold
from demur_proto.samplers.base import Sampler

LEAST_PROBABILITY = 1e-9  #: of the cap, far above the threshold's steps of 2⁻¹²⁸
SHARE_SLACK = 2.0**-42  #: charges are of a cap smaller by this, relative: `cap_share` errs by less
ROUNDING = 1e-9  #: of the squared length of unit vectors in floating point


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivUnit:
    """Report a direction v: with probability p one whose ⟨u, v⟩ is at least γ, otherwise another.

    u is one's own direction; v is uniform on the cap around u, or uniform outside of it. The mean of v
    is m u, and the estimate divides by m. With c the share of the sphere in the cap:

        against no data (a uniform direction): ln(p/c) inside, ln((1 − p)/(1 − c)) outside
        against the opposite direction: ε = ln( p (1 − c)/((1 − p) c) )

    Neighbour: zero-out, the direction replaced by none, for which v is uniform on the whole
    sphere. Accounting is all or nothing: every direction costs the same, none costs 0.

    What is certified: the choice between cap and outside, by an integer threshold. Where in the
    cap v lies is drawn in floating point, so the guarantee is stated in real arithmetic; it is not
    one to deploy.

    Raises:
        ParameterError: a field is outside its range.

    Source: Bhowmick et al. 2018, arXiv:1812.00984, Algorithm 1 and Lemma 4.1.

    >>> mechanism = PrivUnit(dimension=3, probability=0.75, height=0.0)
    >>> round(mechanism.mean_cosine, 12)  # of a half sphere 1/2, and -1/2 of the other
    0.25
    """

    dimension: int  #: d; 2 to 2^24
    probability: float  #: p of the cap; more than the share of the sphere in it, below 1
    height: float  #: γ, the least cosine in the cap; 0 ≤ γ < 1
    share: float = field(init=False)  #: c
    inside: Threshold = field(init=False, repr=False)  #: p

    def __post_init__(self) -> None:
        check_dimension(self.dimension)
        check_height(self.height)
        share = cap_share(self.height, dimension=self.dimension)
        number = isinstance(self.probability, float) and share < self.probability < 1
        if not number or share < 1e-90 or self.probability < LEAST_PROBABILITY:
            raise ParameterError(
                "probability",
                self.probability,
                f"more than the cap's share {share:.6g}, at least {LEAST_PROBABILITY:g}, below 1",
            )
        object.__setattr__(self, "share", share)
        numerator = math.floor(WHOLE * Fraction(self.probability))
        object.__setattr__(self, "inside", Threshold(numerator=numerator))

    @property
    def epsilon(self) -> float:
        """ε between two opposite directions, nats, rounded up."""
        return self.pair_renyi(order=math.inf)

    @property
    def mean_cosine(self) -> float:
        """M, the mean of ⟨u, v⟩."""
        density = cap_density(self.height, dimension=self.dimension)
        inside, outside = self.probability / self.share, (1 - self.probability) / (1 - self.share)
        return density * (inside - outside)

    def randomise(self, directions: Values, sampler: Sampler) -> Values:
        """Device half: unit vectors [n, d], zero rows for none, to unit vectors [n, d].

        Raises:
            ParameterError: the rows are not of length d, or neither unit vectors nor zero.
        """
        if directions.ndim != 2 or directions.shape[1] != self.dimension:
            raise ParameterError("directions", directions.shape, f"of shape [n, {self.dimension}]")
        lengths = np.linalg.norm(directions, axis=1)
        if not ((np.abs(lengths - 1) < ROUNDING) | (lengths == 0)).all():
            raise ParameterError("directions", "others", "unit vectors, or zero for none")
        count = len(directions)
        inside = self.inside.draw(sampler, count)
        uniform = _directions(sampler, count, self.dimension)
        cosines = np.einsum("nd,nd->n", uniform, directions)
        target = self._cosines(sampler, inside)
        # Turn a uniform direction until it has the wanted cosine: its part across u stays uniform.
        across = uniform - cosines[:, None] * directions
        across /= np.linalg.norm(across, axis=1, keepdims=True)
        turned = target[:, None] * directions + np.sqrt(1 - target**2)[:, None] * across
        return np.where(lengths[:, None] > 0, turned, uniform)

    def valid(self, reports: Values) -> Flags:
        """Server half: which reports [n, d] are unit vectors [n]."""
        if reports.ndim != 2 or reports.shape[1] != self.dimension:
            return np.zeros(len(reports), dtype=np.bool_)
        unit: Flags = np.abs(np.einsum("nd,nd->n", reports, reports) - 1) < ROUNDING
        return unit

    def estimate(self, reports: Values) -> Estimate:
        """Server half: n reports [n, d] to the sum of all directions, none counting as zero.

        Unbiased: Σv/m. Each coordinate's error is what the reports themselves show, by their sum
        of squares; where directions differ, or some have none, it is a little too large.

        Raises:
            ParameterError: there are fewer than two reports, or they are not unit vectors in R^d.
        """
        check_integer("reports", len(reports), 2, MOST_REPORTS)
        if not self.valid(reports).all():
            raise ParameterError("reports", "others", f"unit vectors of length {self.dimension}")
        count, total = len(reports), reports.sum(axis=0)
        spread = np.maximum(np.einsum("nd,nd->d", reports, reports) - total**2 / count, 0.0)
        errors = np.sqrt(spread * count / (count - 1)) / self.mean_cosine
        return Estimate(
            estimate=total / self.mean_cosine,
            standard_error=errors,
            half_width=TWO_SIDED_QUANTILE * errors,
        )

    def variance(self, directions: int, *, reports: int) -> float:
        """Expected squared distance of the estimate, over all coordinates together.

            n/m² − k, where k of n people have a direction

        >>> mechanism = PrivUnit(dimension=3, probability=0.75, height=0.0)
        >>> round(mechanism.variance(15, reports=15), 9)
        225.0
        """
        check_integer("reports", reports, 1, MOST_REPORTS)
        check_integer("directions", directions, 0, reports)
        return reports / self.mean_cosine**2 - directions

    def charge_renyi(self, direction: bool, *, order: float) -> float:
        """D_α of releasing a direction against none, nats, rounded up. Secret.

        Args:
            direction: whether there is one.
            order: α; 1 (KL) or more, or infinite.

        Raises:
            ParameterError: an argument is outside its range.
        """
        _check_flag(direction)
        charge = levels_renyi(self.levels, order=order)
        return charge if direction else 0.0

    def charge_zcdp(self, direction: bool) -> float:
        """ρ of releasing a direction against none, nats, rounded up. Secret."""
        _check_flag(direction)
        return levels_zcdp(self.levels) if direction else 0.0

    def charge_pure(self, direction: bool) -> float:
        """ε of releasing a direction against none, nats, rounded up. Secret."""
        return self.charge_renyi(direction, order=math.inf)

    def pair_renyi(self, *, order: float) -> float:
        """D_α between two opposite directions, whose caps do not meet; nats, rounded up.

        Args:
            order: α; 1 (KL) or more, or infinite.

        Raises:
            ParameterError: it is outside its range.
        """
        often, share = self.probability, self._least_share
        rare = (1 - often) / (1 - share) * share
        ratio = math.log1p((often - rare) / rare)
        pair = (Level(mass=rare, log_ratio=ratio), Level(mass=often, log_ratio=-ratio))
        between = 1 - often - rare
        levels = (*pair, Level(mass=between, log_ratio=0.0)) if between > 1e-15 else pair
        return levels_renyi(levels, order=order)

    @property
    def levels(self) -> tuple[Level, ...]:
        """A direction against none: the cap, and outside of it.

        The smaller the cap's share of the sphere, the more p of it tells: the charge of a share
        that is certainly no larger is certainly no smaller.
        """
        often, share = self.probability, self._least_share
        return (
            Level(mass=share, log_ratio=math.log1p((often - share) / share)),
            Level(mass=1 - share, log_ratio=_log_ratio(1 - often, 1 - share)),
        )

    @property
    def _least_share(self) -> float:
        return self.share * (1 - SHARE_SLACK - share_error(self.dimension))

    def _cosines(
        self, sampler: Sampler, inside: Flags
    ) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """Cosines of uniform directions [n], given on which side of the cap's edge they lie."""
        result = np.empty(len(inside))
        steep = (self.dimension - 3) * self.height / (1 - self.height**2)
        left = np.arange(len(inside))
        while left.size:
            coins = sampler.uniform(reports=left.size, dimension=2)
            if self.share > 0.05 or steep <= 0:  # one try in twenty is in the cap
                trial = _directions(sampler, left.size, self.dimension)[:, 0]
                good = (trial >= self.height) == inside[left]
            else:
                # In the cap below an exponential that touches the density at its edge: its
                # logarithm is concave, so the tangent is above it.
                trial = self.height - np.log1p(-coins[:, 0]) / steep
                power = (self.dimension - 3) / 2
                with np.errstate(invalid="ignore"):
                    log = power * np.log1p((self.height**2 - trial**2) / (1 - self.height**2))
                good = (trial < 1) & (np.log1p(-coins[:, 1]) <= log + steep * (trial - self.height))
                outside = _directions(sampler, left.size, self.dimension)[:, 0]
                trial = np.where(inside[left], trial, outside)
                good = np.where(inside[left], good, outside < self.height)
            result[left[good]] = trial[good]
            left = left[~good]
        return result


def _directions(sampler: Sampler, count: int, dimension: int) -> Values:
    """Uniform directions [n, d] in floating point: normal vectors, by pairs of coins, to length 1."""
    half = -(-dimension // 2)
    coins = sampler.uniform(reports=count, dimension=2 * half)
    radius = np.sqrt(-2 * np.log1p(-coins[:, :half]))
    angle = 2 * np.pi * coins[:, half:]
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    normal = normal[:, :dimension]
    directions: Values = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    return directions


def _log_ratio(mine: float, theirs: float) -> float:
    """ln(mine/theirs), with all its digits also where they are nearly the same.

    >>> _log_ratio(0.25, 1.0) == math.log(0.25)
    True
    """
    part = (mine - theirs) / theirs
    return math.log1p(part) if abs(part) < 0.5 else math.log(mine / theirs)


def _check_flag(direction: bool) -> None:
    if type(direction) is not bool:
        raise ParameterError("direction", "another value", "True or False")
