"""Weights of a linear question: what is added up of features is a public matrix times them."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from types import MappingProxyType

import numpy as np

from demur_proto.accounting.calibration import EXPONENT_LIMIT, grid_step, squared_radius
from demur_proto.arrays import Values
from demur_proto.checks import check_hash, check_integer, check_positive, check_text
from demur_proto.errors import ParameterError
from demur_proto.running.segments import (
    Admission,
    Segment,
    WholeNumber,
    check_counting,
    check_place,
)
from demur_proto.wire.words import WordType

MOST_WEIGHTS = 1 << 12  #: of one question, so that every device can read its definition


@dataclass(frozen=True, slots=True)
class Weights:
    """W, a matrix: a person's value is z = W·x, where x are the numbers that the features give.

    Raises:
        ParameterError: there are none or more than 4,096, rows differ in length, or a weight is not
            finite.

    >>> Weights(((1.0, 2.0), (0.0, -1.0))).apply(np.array([[3.0, 4.0]]))
    array([[11., -4.]])
    """

    rows: tuple[tuple[float, ...], ...]  #: [d][v]

    def __post_init__(self) -> None:
        lengths = {len(row) for row in self.rows}
        if len(lengths) != 1 or lengths == {0}:
            raise ParameterError("weights", sorted(lengths), "rows of one length, at least 1")
        if self.dimension * self.inputs > MOST_WEIGHTS:
            count = self.dimension * self.inputs
            raise ParameterError("weights", f"{count} of them", f"at most {MOST_WEIGHTS}")
        for weight in (each for row in self.rows for each in row):
            if type(weight) is not float or not math.isfinite(weight):
                raise ParameterError("weights", weight, "finite numbers")

    @classmethod
    def of(cls, rows: Sequence[Sequence[float]]) -> "Weights":
        """From rows of numbers, an array [d, v] for one.

        Raises:
            ParameterError: they are none.
        """
        try:
            return cls(tuple(tuple(_number(each) for each in row) for row in rows))
        except TypeError:
            raise ParameterError("weights", rows, "rows of finite numbers") from None

    @classmethod
    def unpacked(cls, numbers: Sequence[float], *, dimension: int) -> "Weights | None":
        """From the numbers of a message, row after row; None where there are none.

        Raises:
            ParameterError: they do not make so many rows.
        """
        if not numbers:
            return None
        if not dimension or len(numbers) % dimension:
            raise ParameterError("weights", f"{len(numbers)} of them", f"{dimension} rows")
        width = len(numbers) // dimension
        return cls(tuple(tuple(numbers[at : at + width]) for at in range(0, len(numbers), width)))

    @property
    def dimension(self) -> int:
        """Coordinates of the value: d."""
        return len(self.rows)

    @property
    def inputs(self) -> int:
        """Numbers that the features give: v."""
        return len(self.rows[0])

    @property
    def packed(self) -> list[float]:
        """All of them, row after row."""
        return [each for row in self.rows for each in row]

    def apply(self, values: Values) -> Values:
        """W·x of every person, added up in one order, so that every machine gets the same bits.

        Args:
            values: [n, v]; NaN where a feature gives no number, and then z is none either.

        Returns:
            [n, d].

        Raises:
            ParameterError: the features give more or fewer numbers.
        """
        if values.shape[1] != self.inputs:
            raise ParameterError(
                "weights", f"rows of {self.inputs}", f"rows of {values.shape[1]}, as features give"
            )
        columns = np.array(self.rows).T
        weighted: Values = np.zeros((len(values), self.dimension))
        with np.errstate(all="ignore"):
            for column, weights in zip(values.T, columns, strict=True):
                weighted += column[:, None] * weights
        return weighted


def _number(value: object) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(
        value, int | float | np.floating | np.integer
    ):
        raise ParameterError("weights", value, "finite numbers")
    try:
        return float(value)
    except OverflowError:
        raise ParameterError("weights", value, "finite numbers") from None


# A round: one question, put to every device of a study.

LATEST_ANSWER_MS = 86_400_000  #: a day
DEFAULT_SLOT_MS = (
    1000  #: of a question, and the shortest that an owner accepts, unless they say otherwise
)
MOST_CATEGORIES = 1 << 18  #: of a histogram, so that its release fits a message


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


class Randomiser(StrEnum):
    """How a device randomises its category. Constructors are in `mechanisms.of_round`."""

    KRR = "krr"  #: k-ary randomised response
    SUE = "sue"  #: symmetric unary encoding
    OUE = "oue"  #: optimised unary encoding
    BLH = "blh"  #: binary local hashing
    OLH = "olh"  #: optimised local hashing
    HADAMARD = "hadamard"  #: Hadamard response
    SUBSET = "subset"  #: subset selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """The sum over people of a vector: the features' values one after the other, or weighted.

    Raises:
        ParameterError: a field is outside its range, or the grid is too coarse.
    """

    features: tuple[Feature, ...]  #: at least one
    dimension: int  #: coordinates of all features together; >= 1
    clip: float  #: ℓ₂ radius, data units; > 0
    sigma: float  #: noise in the study's view, data units; > 0
    grid_exponent: int  #: grid step is 2^this data units; -900 to 900
    on_grid: bool  #: every possible value is a multiple of the grid step
    weights: Weights | None = (
        None  #: [d, v], of the v numbers that features give; None: as they are
    )

    def __post_init__(self) -> None:
        if not self.features:
            raise ParameterError("features", self.features, "at least one feature")
        check_integer("dimension", self.dimension, 1, (1 << 31) - 1)
        if self.weights is not None and self.weights.dimension != self.dimension:
            raise ParameterError("dimension", self.dimension, f"{self.weights.dimension} weighted")
        given = self.dimension if self.weights is None else self.weights.inputs
        if len(self.features) > given:
            raise ParameterError("dimension", given, "at least one for each feature")
        _check_noise(self)

    @property
    def value_length(self) -> int:
        """Numbers in one person's value."""
        return self.dimension


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """The sum over people of clipped gradients of a model, at the parameters that are published.

    A person's value is the gradient of the mean loss over all of their examples; without any it is
    nothing. Devices fetch the model by its hash.

    Raises:
        ParameterError: a field is outside its range, or the grid is too coarse.
    """

    model_hash: bytes  #: SHA-256 of the model's definition
    dimension: int  #: how many parameters the model has; >= 1
    clip: float  #: ℓ₂ radius, data units; > 0
    sigma: float  #: noise in the study's view, data units; > 0
    grid_exponent: int  #: grid step is 2^this data units; -900 to 900

    def __post_init__(self) -> None:
        check_hash("model_hash", self.model_hash)
        check_integer("dimension", self.dimension, 1, (1 << 31) - 1)
        _check_noise(self)

    @property
    def parameters(self) -> int:
        """How many parameters the model has."""
        return self.dimension

    @property
    def on_grid(self) -> bool:
        """Gradients are never multiples of a grid step by nature."""
        return False

    @property
    def value_length(self) -> int:
        """Numbers in one person's value."""
        return self.dimension


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCount:
    """For how many people a model is wrong, at the parameters that are published.

    A person's value is the share of their own examples that the model labels wrongly, 0 to 1; without
    any it is nothing. Devices fetch the model by its hash.

    Raises:
        ParameterError: a field is outside its range, or the grid is too coarse.
    """

    model_hash: bytes  #: SHA-256 of the model's definition
    parameters: int  #: how many the model has; >= 1
    sigma: float  #: noise in the study's view, people; > 0
    grid_exponent: int  #: grid step is 2^this people; -900 to 0
    on_grid: bool  #: every possible share is a multiple of the grid step: one example each, or 2^j

    def __post_init__(self) -> None:
        check_hash("model_hash", self.model_hash)
        check_integer("parameters", self.parameters, 1, (1 << 31) - 1)
        _check_noise(self)

    @property
    def dimension(self) -> int:
        """One number is asked for."""
        return 1

    @property
    def clip(self) -> float:
        """Nobody is more than one person."""
        return 1.0

    @property
    def value_length(self) -> int:
        """Numbers in one person's value."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How many people are in each category of one feature.

    A person's value is one number, their category: 0 to categories − 1. Any other value counts as
    nothing. With one category it is a question of yes and no: 1 is yes, and anything else nothing.

    Raises:
        ParameterError: a field is outside its range.
    """

    feature: Feature
    categories: int  #: k; 1 to 2^18, with 1 of the mechanism krr only
    mechanism: Randomiser
    epsilon: float  #: ε of the mechanism, nats; > 0
    size: int = (
        0  #: of local hashing the range of the hash, of subset selection that of a subset; or 0
    )

    def __post_init__(self) -> None:
        if not isinstance(self.feature, Feature):
            raise ParameterError("feature", self.feature, "a Feature")
        check_integer("categories", self.categories, 1, MOST_CATEGORIES)
        if not isinstance(self.mechanism, Randomiser):
            raise ParameterError("mechanism", self.mechanism, "a Randomiser")
        check_positive("epsilon", self.epsilon)
        check_integer("size", self.size, 0, MOST_CATEGORIES)

    @property
    def features(self) -> tuple[Feature, ...]:
        """The one feature, as all queries name theirs."""
        return (self.feature,)

    @property
    def value_length(self) -> int:
        """Numbers in one person's value: their category."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix(WholeNumber):
    """A running count: the sum over people of a state that is an integer from 0 to `bound`.

    Devices send changes, weighted as their segment's factorisation says. A value that is no such state
    counts as no change.

    Raises:
        ParameterError: a field is outside its range, or the grid is too coarse or too fine.
    """

    feature: Feature  #: the state; its name is the same in all rounds of a segment
    segment: Segment
    bound: int  #: the largest state; 1 for a Boolean
    sigma: float  #: noise of one round in the study's view, units of the state; > 0
    grid_exponent: int  #: grid step is 2^this units of the state; about -14
    admission: Admission = Admission.COMMIT

    def __post_init__(self) -> None:
        if not isinstance(self.feature, Feature):
            raise ParameterError("feature", self.feature, "a Feature")
        if not isinstance(self.admission, Admission):
            raise ParameterError("admission", self.admission, "an Admission")
        check_counting(
            self.segment, bound=self.bound, sigma=self.sigma, exponent=self.grid_exponent
        )

    @property
    def features(self) -> tuple[Feature, ...]:
        """The one feature, as all queries name theirs."""
        return (self.feature,)

    @property
    def clip(self) -> float:
        """The most that a word may be: |(CΔ)_t| never exceeds the bound."""
        return float(self.bound)

    def fixed(self) -> "Prefix":
        """What all rounds of its segment have in common."""
        feature = Feature(name=self.feature.name)
        return replace(self, feature=feature, segment=self.segment.start())

    def whole(self) -> "Prefix":
        """What all rounds of its count have in common, whichever segment they are in."""
        feature = Feature(name=self.feature.name)
        return replace(self, feature=feature, segment=self.segment.whole())


@dataclass(frozen=True, slots=True, kw_only=True)
class HaltCount(WholeNumber):
    """A running count of the people who ever answered another study with less than their value.

    That is with cover, a shrunk answer, or by refusing a change, for any reason. Everybody changes at
    most once. It is asked in a study of its own: a device that ran out could not pay to say so.

    Raises:
        ParameterError: a field is outside its range, or the grid is too coarse or too fine.
    """

    halted_study: bytes  #: hash of the other study
    segment: Segment
    sigma: float  #: noise of one round in the study's view, people; > 0
    grid_exponent: int  #: grid step is 2^this people; about -14

    def __post_init__(self) -> None:
        check_hash("halted_study", self.halted_study)
        check_counting(
            self.segment, bound=self.bound, sigma=self.sigma, exponent=self.grid_exponent
        )

    @property
    def bound(self) -> int:
        """The largest state: halted, or not."""
        return 1

    @property
    def admission(self) -> Admission:
        """One change is all there is, so it is sent whole or not at all."""
        return Admission.COMMIT

    @property
    def clip(self) -> float:
        """The most that a word may be."""
        return 1.0

    def fixed(self) -> "HaltCount":
        """What all rounds of its segment have in common."""
        return replace(self, segment=self.segment.start())

    def whole(self) -> "HaltCount":
        """What all rounds of its count have in common, whichever segment they are in."""
        return replace(self, segment=self.segment.whole())


CountingQuery = Prefix | HaltCount
"""A running count, one position of a segment."""

ModelQuery = Gradient | ErrorCount
"""What is asked about a model, which devices fetch by its hash."""

GaussianQuery = Linear | ModelQuery | CountingQuery
"""The sum over people of a vector that is clipped, rounded to a grid and given Gaussian noise."""

Query = GaussianQuery | Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One question with its noise.

    Raises:
        ParameterError: a field is outside its range.
    """

    study_hash: bytes  #: SHA-256 of the study's definition
    number: int  #: 1 for the first round of the study, then consecutive
    query: Query
    weight: int  #: what one squared grid step, or one category, costs; budget units, >= 1
    word_type: WordType
    answer_after_ms: int = 0  #: a device sends this long after it received the round
    close_unix_ms: int = 0  #: the collector closes the round then; 0: the analyst does

    def __post_init__(self) -> None:
        check_hash("study_hash", self.study_hash)
        check_integer("number", self.number, 1, (1 << 32) - 1)
        if not isinstance(self.query, Query):
            raise ParameterError(
                "query",
                self.query,
                "a Linear, a Gradient, an ErrorCount, a Prefix, a HaltCount or a Histogram",
            )
        if isinstance(self.query, CountingQuery):
            check_place(self.query.segment, self.number)
        check_integer("weight", self.weight, 1, 1 << 62)
        if not isinstance(self.word_type, WordType):
            raise ParameterError("word_type", self.word_type, "a WordType")
        check_integer("answer_after_ms", self.answer_after_ms, 0, LATEST_ANSWER_MS)
        check_integer("close_unix_ms", self.close_unix_ms, 0, (1 << 53))


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


def _check_noise(query: GaussianQuery) -> None:
    check_positive("clip", query.clip)
    check_positive("sigma", query.sigma)
    check_integer("grid_exponent", query.grid_exponent, -EXPONENT_LIMIT, EXPONENT_LIMIT)
    squared_radius(query.clip, query.grid_exponent)
    check_grid(
        query.grid_exponent, clip=query.clip, dimension=query.dimension, on_grid=query.on_grid
    )


def _is_fine(exponent: int, clip: float, dimension: int) -> bool:
    steps = Fraction(clip) / grid_step(exponent)
    return steps >= 1 << 14 and steps**2 >= 4096 * dimension
