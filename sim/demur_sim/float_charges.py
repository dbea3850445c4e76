"""What a gradient costs whose norm is a float, in integer budget units."""

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from demur_proto.arrays import Flags, Integers, Vector
from demur_proto.checks import check_integer, check_positive
from demur_proto.grid import UNITS_LIMIT, grid_step

MARGIN = 1e-12  #: relative; what a squared norm may be off by in double precision


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatPrice:
    """What answers to a round cost, by their norm.

        charge = ⌈(1 + 10⁻¹²)‖ḡ‖² w/γ²⌉ for one's own gradient,  w⌈C²/γ²⌉ for a full answer

    Nothing inside the clip costs more than a full answer, so as many of those fit as the study says: a
    norm that is rounded upwards and no larger than C belongs to a gradient that is no longer than that.
    A charge above the budget T is T + 1. Charges grow with the norm.

    Raises:
        ParameterError: a field is outside its range.

    >>> price = FloatPrice(clip=2.0, grid_exponent=-1, weight=1 << 40, budget_units=3 << 46)
    >>> price.full >> 40, price.charge(np.array([0.0, 0.5, 1.0, 9.0])) / 2**40
    (16, array([  0.,   1.,   4., 192.]))
    """

    clip: float  #: C, data units; > 0
    grid_exponent: int  #: γ = 2^this, data units
    weight: int  #: w, what a squared grid step costs; >= 1
    budget_units: int  #: T
    full: int = field(init=False)  #: what a full answer costs; at most T + 1

    def __post_init__(self) -> None:
        check_positive("clip", self.clip)
        check_integer("budget_units", self.budget_units, 1, UNITS_LIMIT - 1)
        check_integer("weight", self.weight, 1, self.budget_units + 1)
        steps = (Fraction(self.clip) / grid_step(self.grid_exponent)) ** 2
        full = self.weight * -(-steps.numerator // steps.denominator)
        object.__setattr__(self, "full", min(full, self.budget_units + 1))

    def charge(self, norms: Vector) -> Integers:
        """What gradients of these norms cost [n], budget units. Secret.

        Args:
            norms: data units, rounded upwards [n]; finite and ≥ 0.
        """
        with np.errstate(over="ignore", under="ignore"):
            steps = np.ldexp(norms, -self.grid_exponent)
            units = np.ceil(steps * steps * (1 + MARGIN) * self.weight)
        units = np.maximum(units, norms > 0)  # where squares are too small for a float
        fits = units <= self.budget_units
        charges = np.where(fits, units, 0.0).astype(np.int64) + (self.budget_units + 1) * ~fits
        return np.where(norms <= self.clip, np.minimum(charges, self.full), charges)

    def affordable(self, remaining: Integers, *, refused: Flags) -> Vector:
        """The largest norm that each person can still pay for, or a little less [n].

            min(C, √(what remains of B)), and 0 after an answer was shrunk or refused

        What it costs is never more than what remains. Secret.

        Source: Feldman & Zrnic 2021, arXiv:2008.11193, Algorithm "filtered-gd".

        >>> price = FloatPrice(clip=2.0, grid_exponent=-1, weight=1 << 40, budget_units=3 << 46)
        >>> left = np.array([3 << 46, 1 << 40, 0, 3 << 46])
        >>> price.affordable(left, refused=np.array([False, False, False, True])).round(9)
        array([2. , 0.5, 0. , 0. ])
        """
        steps = np.sqrt(remaining / self.weight) * (1 - 2 * MARGIN)
        radii = np.ldexp(steps, self.grid_exponent)
        radii = np.minimum(radii, self.clip)
        radii[self.charge(radii) > remaining] = 0.0  # a ceiling that a few units cannot pay
        radii[remaining >= self.full] = self.clip
        radii[refused] = 0.0
        return radii
