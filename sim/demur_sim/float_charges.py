"""What a gradient costs whose norm is a float, in integer budget units."""

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from demur_proto.arrays import Flags, Integers, Vector
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError
from demur_proto.grid import UNITS_LIMIT

MARGIN = 1e-12  #: relative; what a squared norm may be off by in double precision


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatPrice:
    """What answers to a round cost, by their norm, so that k = ⌊B_norm/C²⌋ full answers fit.

        F = ⌊T/k⌋ for a full answer,  ⌈(1 + 10⁻¹²)‖ḡ‖² F/C²⌉ for one's own gradient,
        and never more than min(T, ⌊F B_norm/C²⌋) in all

    A unit stands for C²/F. So what is paid is never less than what it costs, and all of it together is
    at most B_norm. Nothing inside the clip costs more than a full answer: a norm that is rounded upwards
    and no larger than C belongs to a gradient that is no longer than that. A charge above the budget T is
    T + 1. Charges grow with the norm.

    The study's own unit, γ²/W, would not do here: devices count whole squared steps of the grid, but C²
    need not be one, and k times what it would be rounded up to is more than T.

    Raises:
        ParameterError: a field is outside its range.

    >>> price = FloatPrice(clip=2.0, budget_norm=Fraction(12), budget_units=3 << 46)
    >>> price.full == 1 << 46, (price.charge(np.array([0.0, 0.5, 1.0, 9.0])) / 2**42).round(9)
    (True, array([ 0.,  1.,  4., 48.]))
    """

    clip: float  #: C, data units; > 0
    budget_norm: Fraction  #: B_norm, the squared norms that fit in all, data units²; > 0
    budget_units: int  #: T
    full: int = field(init=False)  #: what a full answer costs; at most T + 1
    limit: int = field(init=False)  #: what may be spent in all: T, or less than k units below it
    _scale: float = field(init=False)  # units of a squared data unit, F/C²

    def __post_init__(self) -> None:
        check_positive("clip", self.clip)
        check_integer("budget_units", self.budget_units, 1, UNITS_LIMIT - 1)
        if not (type(self.budget_norm) is Fraction and self.budget_norm > 0):
            raise ParameterError("budget_norm", self.budget_norm, "a Fraction > 0")
        answers = self.budget_norm / Fraction(self.clip) ** 2
        k = int(answers)
        full = self.budget_units // k if k else math.ceil(self.budget_units / answers)
        scale = full / Fraction(self.clip) ** 2
        if not 2.0**-900 <= scale <= 2.0**900:
            raise ParameterError("clip", self.clip, "nearer to 1, so that a float holds its square")
        object.__setattr__(self, "full", min(full, self.budget_units + 1))
        object.__setattr__(self, "limit", min(int(full * answers), self.budget_units))
        object.__setattr__(self, "_scale", float(scale))

    def charge(self, norms: Vector) -> Integers:
        """What gradients of these norms cost [n], budget units. Secret.

        Args:
            norms: data units, rounded upwards [n]; finite and ≥ 0.
        """
        with np.errstate(over="ignore", under="ignore"):
            units = np.ceil(norms * norms * (1 + MARGIN) * self._scale)
        units = np.maximum(units, norms > 0)  # where squares are too small for a float
        fits = units <= self.budget_units
        charges = np.where(fits, units, 0.0).astype(np.int64) + (self.budget_units + 1) * ~fits
        return np.where(norms <= self.clip, np.minimum(charges, self.full), charges)

    def affordable(self, remaining: Integers, *, refused: Flags) -> Vector:
        """The largest norm that each person can still pay for, or a little less [n].

            min(C, √(what remains of B)), and 0 after an answer was shrunk or refused

        What it costs is never more than what remains. Secret.

        Source: Feldman & Zrnic 2021, arXiv:2008.11193, Algorithm "filtered-gd".

        >>> price = FloatPrice(clip=2.0, budget_norm=Fraction(12), budget_units=3 << 46)
        >>> left = np.array([3 << 46, 1 << 42, 0, 3 << 46])
        >>> price.affordable(left, refused=np.array([False, False, False, True])).round(9)
        array([2. , 0.5, 0. , 0. ])
        """
        radii = np.sqrt(remaining / self._scale) * (1 - 2 * MARGIN)
        radii = np.minimum(radii, self.clip)
        radii[self.charge(radii) > remaining] = 0.0  # a ceiling that a few units cannot pay
        radii[remaining >= self.full] = self.clip
        radii[refused] = 0.0
        return radii
