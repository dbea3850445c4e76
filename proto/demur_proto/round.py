"""A round: one question, put to every device of a study."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType

from demur_proto.checks import check_hash, check_integer, check_positive, check_text
from demur_proto.errors import ParameterError
from demur_proto.grid import EXPONENT_LIMIT, grid_step, squared_radius
from demur_proto.words import WordType


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Something that a device's own data source knows how to compute.

    >>> Feature(name="active", parameters={"period": 3.0}).parameters["period"]
    3.0
    """

    name: str  #: 1 to 100 printable characters
    parameters: Mapping[str, float] = field(default_factory=dict)  #: names to finite numbers

    def __post_init__(self) -> None:
        check_text("feature", self.name, longest=100)
        for name, value in self.parameters.items():
            check_text("parameter name", name, longest=100)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ParameterError(f"parameter {name}", value, "a number")
            if not abs(value) <= sys.float_info.max:
                raise ParameterError(f"parameter {name}", value, "finite")
        frozen = MappingProxyType({key: float(self.parameters[key]) for key in self.parameters})
        object.__setattr__(self, "parameters", frozen)

    def __hash__(self) -> int:
        return hash((self.name, tuple(sorted(self.parameters.items()))))

    def __reduce__(self) -> tuple[object, tuple[str, dict[str, float]]]:
        """Mapping proxies do not pickle; workers get features all the same."""
        return _feature, (self.name, dict(self.parameters))


def _feature(name: str, parameters: dict[str, float]) -> Feature:
    return Feature(name=name, parameters=parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """The sum over people of a vector: the features' values, one after the other."""

    features: tuple[Feature, ...]  #: at least one

    def __post_init__(self) -> None:
        if not self.features:
            raise ParameterError("features", self.features, "at least one feature")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One question with its noise.

    Raises:
        ParameterError: a field is outside its range, or the grid is too coarse.
    """

    study_hash: bytes  #: SHA-256 of the study's definition
    number: int  #: 1 for the first round of the study, then consecutive
    query: Linear
    dimension: int  #: words of a report; >= 1
    clip: float  #: ℓ₂ radius, data units; > 0
    sigma: float  #: noise in the study's view, data units; > 0
    grid_exponent: int  #: grid step is 2^this data units; -900 to 900
    on_grid: bool  #: every possible value is a multiple of the grid step
    weight: int  #: what one squared grid step costs, budget units; >= 1
    word_type: WordType
    answer_after_ms: int = 0  #: a device sends this long after it received the round
    close_unix_ms: int = 0  #: the collector closes the round then; 0: the analyst does

    def __post_init__(self) -> None:
        check_hash("study_hash", self.study_hash)
        check_integer("number", self.number, 1, (1 << 32) - 1)
        check_integer("dimension", self.dimension, 1, (1 << 31) - 1)
        if len(self.query.features) > self.dimension:
            raise ParameterError("dimension", self.dimension, "at least one for each feature")
        check_positive("clip", self.clip)
        check_positive("sigma", self.sigma)
        check_integer("grid_exponent", self.grid_exponent, -EXPONENT_LIMIT, EXPONENT_LIMIT)
        check_integer("weight", self.weight, 1, 1 << 62)
        if not isinstance(self.word_type, WordType):
            raise ParameterError("word_type", self.word_type, "a WordType")
        check_integer("answer_after_ms", self.answer_after_ms, 0, 86_400_000)
        check_integer("close_unix_ms", self.close_unix_ms, 0, (1 << 53))
        squared_radius(self.clip, self.grid_exponent)
        check_grid(
            self.grid_exponent, clip=self.clip, dimension=self.dimension, on_grid=self.on_grid
        )


def check_grid(exponent: int, *, clip: float, dimension: int, on_grid: bool) -> None:
    """Refuse a grid too coarse for its clip.

    Off the grid, rounding must not matter: γ ≤ C / max(2^14, 64√d). When every value lies on the
    grid anyway, it is enough that γ divides C.

    >>> check_grid(-7, clip=1.0, dimension=1, on_grid=True)
    """
    check_positive("clip", clip)
    check_integer("dimension", dimension, 1, (1 << 31) - 1)
    if on_grid:
        if (Fraction(clip) / grid_step(exponent)).denominator != 1:
            raise ParameterError("grid_exponent", exponent, f"such that 2^it divides clip {clip}")
    elif not _is_fine(exponent, clip, dimension):
        coarsest = math.floor(math.log2(clip)) - 13
        while not _is_fine(coarsest, clip, dimension):
            coarsest -= 1
        raise ParameterError(
            "grid_exponent",
            exponent,
            f"at most {coarsest} for clip {clip} and dimension {dimension}, "
            "or on_grid where all values are multiples of the grid step",
        )


def _is_fine(exponent: int, clip: float, dimension: int) -> bool:
    steps = Fraction(clip) / grid_step(exponent)
    return steps >= 1 << 14 and steps**2 >= 4096 * dimension
