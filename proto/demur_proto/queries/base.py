"""What every kind of question declares of itself: how it travels, what it costs, which mechanism it has.

A query is a frozen value. It says all that one round asks; what it leaves out, its noise for example,
is filled in from the study when the round is made (`Query.in_study`). Everything else asks the query.
"""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy.typing as npt

from demur_proto.accounting.calibration import (
    EXPONENT_LIMIT,
    grid_step,
    round_weight,
    squared_radius,
)
from demur_proto.arrays import Values
from demur_proto.checks import check_hash, check_integer, check_positive, check_text
from demur_proto.errors import ParameterError, WireError
from demur_proto.guarantee import Guarantee, guarantee_of
from demur_proto.mechanisms.base import Mechanism
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.models.definition import DefinedModel, ModelDefinition, define_model
from demur_proto.running.segments import Admission, Segment, check_counting, check_place
from demur_proto.study import Policy, Purpose, Study
from demur_proto.v1 import round_pb2
from demur_proto.wire.words import WordType, word_type_for

if TYPE_CHECKING:
    from demur_proto.round import Round


class Reads(StrEnum):
    """What a query reads of a person's data."""

    FEATURES = "features"  #: numbers that the device's source computes
    CATEGORY = "category"  #: one feature that gives a category
    STATE = "state"  #: one feature that gives a state
    EXAMPLES = "examples"  #: labelled examples
    HALTS = "halts"  #: the device's own ledger


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that a device's own data source knows how to compute.

    Raises:
        ParameterError: a field is outside its range.

    >>> Feature("active", {"period": 3.0}).parameters["period"]
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
        return Feature, (self.name, dict(self.parameters))

    def message(self) -> round_pb2.Feature:
        """For the wire."""
        return round_pb2.Feature(
            name=self.name,
            parameters=[
                round_pb2.Parameter(name=name, value=value)
                for name, value in sorted(self.parameters.items())
            ],
        )

    @classmethod
    def read(cls, message: round_pb2.Feature) -> "Feature":
        """From the wire.

        Raises:
            WireError: it repeats a parameter.
            ParameterError: it is no feature.
        """
        parameters = {parameter.name: parameter.value for parameter in message.parameters}
        if len(parameters) != len(message.parameters):
            raise WireError(f"not a valid round: feature {message.name!r} repeats a parameter")
        return cls(message.name, parameters)


def check_feature(feature: object) -> None:
    """Refuse what is no `Feature`.

    Raises:
        ParameterError: it is something else.
    """
    if not isinstance(feature, Feature):
        raise ParameterError("feature", feature, "Feature(name, {parameter: number})")


class Query(ABC):
    """One question that a round can put to every device. Each kind is a frozen dataclass.

    `sim/demur_sim` asks it of a simulated population, an `Analyst` of real devices.
    """

    __slots__ = ()
    wire_name: ClassVar[str]  #: its field in the schema
    label: ClassVar[str]  #: what messages call it
    reads: ClassVar[Reads]
    purpose: ClassVar[Purpose] = Purpose.DATA  #: of the studies in which it may be asked
    categorical: ClassVar[bool] = False  #: asks for a category, with a mechanism of a finite ε

    if TYPE_CHECKING:  # fields of some kinds and properties of others

        @property
        def features(self) -> Sequence[Feature]:
            """What the device's source computes for it; empty where it reads something else."""

        @property
        def value_length(self) -> int:
            """Numbers in one person's value."""

    @property
    @abstractmethod
    def mechanism_name(self) -> str:
        """What owners call its mechanism in their policies."""

    @property
    @abstractmethod
    def report_length(self) -> int:
        """Words in one report.

        Raises:
            ParameterError: the query is outside its mechanism's range.
        """

    @abstractmethod
    def in_study(self, study: Study, number: int) -> Self:
        """The same with all that it leaves to the study filled in.

        Args:
            study: in which it is asked.
            number: of the round that asks it.

        Raises:
            ParameterError: what is filled in does not fit the rest.
        """

    @abstractmethod
    def check_round(self, asked: "Round") -> None:
        """Refuse to be asked in a round before all is filled in.

        Raises:
            ParameterError: something is not.
        """

    @abstractmethod
    def mechanism_in(self, study: Study) -> Mechanism:
        """How devices randomise their value.

        Raises:
            ParameterError: the study does not allow such a query, or not one of this size.
        """

    @abstractmethod
    def weight_in(self, study: Study) -> int:
        """The integer weight that it has in a study: what one unit of charge costs; budget units.

        Raises:
            ParameterError: as `mechanism_in`.
        """

    @abstractmethod
    def word_type_in(self, study: Study) -> WordType:
        """How the words of reports are encoded: the smallest type that holds them.

        Raises:
            ParameterError: as `mechanism_in`.
        """

    @abstractmethod
    def mechanism_for(self, study: Study, asked: "Round", *, kept: bool) -> Mechanism:
        """The mechanism of a round; one that says of its query what is not true is refused.

        Args:
            study: of the round.
            asked: the round, which has this query.
            kept: it was asked before, and maybe under older rules.

        Raises:
            ParameterError: the round is wrong, or as `mechanism_in`.
        """

    @abstractmethod
    def guarantee_in(self, study: Study, *, open_access: bool = False) -> Guarantee:
        """The guarantee of a study, with what one report to this query shows on its own.

        Args:
            study: the contract.
            open_access: reports were taken from anybody, so nobody knows how many devices sent them.

        Raises:
            ParameterError: the study does not allow the query.
        """

    @abstractmethod
    def write(self, message: round_pb2.Round) -> None:
        """Put it into the message of a round."""

    @classmethod
    @abstractmethod
    def read(cls, message: round_pb2.Round) -> Self:
        """From the message of a round.

        Raises:
            ParameterError: it is no such query.
            UnsupportedError: this version does not know something that it names.
        """

    def check_affordable(self, study: Study, weight: int) -> None:  # noqa: B027 - most kinds
        """Refuse what no device could afford a single answer of: all would be cover.

        An analyst wants to know; that it is so is public, so a device need not.

        Args:
            study: the contract.
            weight: of the round.

        Raises:
            ParameterError: an answer costs more than the whole budget.
        """

    def fitted(self, given: int) -> Self:
        """The same, asked of a source whose features give so many numbers together.

        Raises:
            ParameterError: the query is not for so many.
        """
        if given != self.value_length:
            expected = f"one that gives one number, the {self.reads}"
            raise ParameterError("feature", self.features[0].name, expected)
        return self

    def weighted(self, values: Values) -> Values:
        """A person's value [n, d] of the numbers [n, v] that the features give; here the same.

        Raises:
            ParameterError: there are more or fewer numbers than the query is for.
        """
        return values

    @classmethod
    def check_kind(cls, study: Study) -> None:
        """Refuse a study in which this kind may not be asked.

        Raises:
            ParameterError: the study's mechanisms are not for it, or the study is for other questions.
        """
        cls.check_family(study)
        cls.check_purpose(study)

    @classmethod
    def check_family(cls, study: Study) -> None:
        """Refuse a study whose mechanisms are not for this kind.

        Raises:
            ParameterError: it is one.
        """
        family = study.mechanism_family
        if not cls.categorical and not family.has_linear:
            expected = f"a histogram, in a study of the family {family}"
            raise ParameterError("query", cls.label, expected)
        if cls.categorical and not family.has_histograms:
            expected = f"linear, in a study of the family {family}"
            raise ParameterError("query", cls.label, expected)

    @classmethod
    def check_purpose(cls, study: Study) -> None:
        """Refuse a control question in a study that is not for it, and others in a study that is.

        Raises:
            ParameterError: it is one of those.
        """
        if study.purpose is not cls.purpose:
            expected = f"{cls.purpose} in a study with questions of the kind {cls.label}"
            raise ParameterError("purpose", str(study.purpose), expected)


def check_size(name: str, size: int, study: Study) -> None:
    """Refuse more coordinates or categories than a study allows.

    Raises:
        ParameterError: there are more.
    """
    if size > study.maximum_dimension:
        raise ParameterError(name, size, f"<= {study.maximum_dimension}, the study's most")


GAUSSIAN = "gaussian"  #: the mechanism of sums, in policies


class Noise(NamedTuple):
    """The noise of a sum, and the grid that it is on."""

    sigma: float  #: in the study's view, data units; > 0
    grid_exponent: int  #: grid step is 2^this data units


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianQuery(Query):
    """The sum over people of a vector that is clipped, rounded to a grid and given Gaussian noise."""

    sigma: float | None = None
    """Noise in the study's view, data units; > 0. None: that of the study's base round."""
    grid_exponent: int | None = None
    """The grid step is 2^this data units; -900 to 900. None: that of the study's base round."""

    if TYPE_CHECKING:

        @property
        def dimension(self) -> int:
            """Coordinates of the sum; >= 1."""

        @property
        def clip(self) -> float:
            """ℓ₂ radius of one person's value, data units; > 0."""

        @property
        def on_grid(self) -> bool:
            """Whether every possible value is a multiple of the grid step."""

    @property
    def noise(self) -> Noise:
        """What is added, once it is stated.

        Raises:
            ParameterError: it is not; `in_study` states it.
        """
        if self.sigma is None:
            raise ParameterError("sigma", None, "stated; query.in_study fills it in")
        if self.grid_exponent is None:
            raise ParameterError("grid_exponent", None, "stated; query.in_study fills it in")
        return Noise(self.sigma, self.grid_exponent)

    @property
    def mechanism_name(self) -> str:
        """The same for all sums."""
        return GAUSSIAN

    @property
    def report_length(self) -> int:
        """Words in one report: one for each coordinate."""
        return self.dimension

    def in_study(self, study: Study, number: int) -> Self:
        """The same with the noise and grid of the study's base round where it has none of its own."""
        return replace(
            self,
            sigma=study.base_sigma if self.sigma is None else self.sigma,
            grid_exponent=(
                study.base_grid_exponent if self.grid_exponent is None else self.grid_exponent
            ),
        )

    def check_round(self, asked: "Round") -> None:
        """Refuse to be asked without a noise or a grid."""
        _ = self.noise

    def mechanism_in(self, study: Study) -> GaussianLinear:
        """Clipping, rounding and discrete Gaussian noise."""
        self.check_family(study)
        check_size("dimension", self.dimension, study)
        return GaussianLinear.of(study, self)

    def weight_in(self, study: Study) -> int:
        """What one squared grid step costs."""
        self.check_family(study)
        sigma, exponent = self.noise
        return round_weight(
            sigma=sigma,
            exponent=exponent,
            base_sigma=study.base_sigma,
            base_exponent=study.base_grid_exponent,
            base_weight=study.base_weight,
            budget_units=study.budget_units,
        )

    def word_type_in(self, study: Study) -> WordType:
        """The smallest that holds the largest word."""
        return word_type_for(GaussianLinear.of(study, self).word_limit)

    def mechanism_for(self, study: Study, asked: "Round", *, kept: bool) -> GaussianLinear:
        """Refuse a weight that is not what noise and grid imply, and words that do not fit."""
        mechanism = self.mechanism_in(study)
        weight = self.weight_in(study)
        if asked.weight != weight:
            raise ParameterError(
                "weight", asked.weight, f"{weight}, which the noise and grid imply"
            )
        limit = mechanism.word_limit
        if asked.word_type is WordType.BIT or limit > asked.word_type.limit:
            expected = f"able to hold {limit} and its negative"
            raise ParameterError("word_type", str(asked.word_type), expected)
        if limit * study.minimum_cohort >= 1 << 63:
            raise ParameterError(
                "grid_exponent", self.noise.grid_exponent, "coarser: sums would overflow"
            )
        return mechanism

    def guarantee_in(self, study: Study, *, open_access: bool = False) -> Guarantee:
        """With μ of one report on its own."""
        self.check_family(study)
        report_mu = GaussianLinear.of(study, self).report_mu
        return guarantee_of(study, per_report_mu=report_mu, open_access=open_access)

    def write(self, message: round_pb2.Round) -> None:
        """Put clip, noise and grid into the message of a round."""
        message.clip = self.clip
        message.sigma, message.grid_exponent = self.noise
        message.on_grid = self.on_grid

    def _check_noise(self) -> None:
        """Refuse a clip, a noise or a grid outside its range, as far as they are stated."""
        check_positive("clip", self.clip)
        if self.sigma is not None:
            check_positive("sigma", self.sigma)
        exponent = self.grid_exponent
        if exponent is None:
            return
        check_integer("grid_exponent", exponent, -EXPONENT_LIMIT, EXPONENT_LIMIT)
        squared_radius(self.clip, exponent)
        check_grid(exponent, clip=self.clip, dimension=self.dimension, on_grid=self.on_grid)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelQuery(GaussianQuery):
    """What is asked about a model, which devices fetch by its hash."""

    reads: ClassVar[Reads] = Reads.EXAMPLES
    size_field: ClassVar[str] = "parameters"  #: how a round names the number of parameters
    model_hash: bytes  #: SHA-256 of the model's definition
    model: DefinedModel | None = field(default=None, compare=False, repr=False)
    """The model itself, for whoever asks: it is published first. It is no part of the question."""

    if TYPE_CHECKING:

        @property
        def parameters(self) -> int:
            """How many parameters the model has."""

    @property
    def features(self) -> tuple[Feature, ...]:
        """None: it is computed of examples."""
        return ()

    def in_study(self, study: Study, number: int) -> Self:
        """The same with the study's noise, and without the model itself: its hash says which."""
        return replace(GaussianQuery.in_study(self, study, number), model=None)

    def check_model(self, model: DefinedModel) -> None:
        """Refuse a model that is not what it names.

        Raises:
            WireError: it has another hash, or another number of parameters than the query says.
        """
        if model.hash != self.model_hash:
            raise WireError("this is another model than the one that the round names")
        if model.parameters != self.parameters:
            raise WireError(
                f"not a valid round: {self.size_field} must be {model.parameters}, the number of the "
                f"model's parameters, got {self.parameters}"
            )

    @abstractmethod
    def value_of(
        self, model: ModelDefinition, data: npt.ArrayLike, labels: npt.ArrayLike
    ) -> Values:
        """One person's value [1, d], of their examples [k, …] and labels [k].

        Raises:
            ParameterError: the examples do not fit the model.
            UnsupportedError: this version computes nothing of it.
        """

    @classmethod
    def _about(cls, model: ModelDefinition | DefinedModel, **told: Any) -> Self:
        """Of this model, which it has with it.

        Raises:
            ParameterError: it is no model, or as the kind.
        """
        if not isinstance(model, ModelDefinition | DefinedModel):
            raise ParameterError("model", type(model).__name__, "a ModelDefinition")
        published = model if isinstance(model, DefinedModel) else define_model(model)
        size = {cls.size_field: published.parameters}
        return cls(model_hash=published.hash, model=published, **size, **told)

    def _check_model(self) -> None:
        check_hash("model_hash", self.model_hash)
        if self.model is not None and not isinstance(self.model, DefinedModel):
            raise ParameterError("model", type(self.model).__name__, "a DefinedModel")
        if self.model is not None and self.model.hash != self.model_hash:
            raise ParameterError("model_hash", self.model_hash.hex()[:16], "that of the model")
        check_integer(self.size_field, self.parameters, 1, (1 << 31) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingQuery(GaussianQuery):
    """A running count, one position of a segment: each person answers with one whole number."""

    if TYPE_CHECKING:

        @property
        def segment(self) -> Segment:
            """Which of its rounds this is."""

        @property
        def bound(self) -> int:
            """The largest state; 1 for a Boolean."""

        @property
        def admission(self) -> Admission:
            """What a device does with a change that does not fit."""

    @property
    def dimension(self) -> int:
        """One number is sent."""
        return 1

    @property
    def on_grid(self) -> bool:
        """The rows of C are whole grid steps, so nothing is rounded."""
        return True

    @property
    def value_length(self) -> int:
        """Numbers in one person's value: their state."""
        return 1

    @property
    def clip(self) -> float:
        """The most that a word may be: |(CΔ)_t| never exceeds the bound."""
        return float(self.bound)

    @abstractmethod
    def at(self, segment: Segment) -> Self:
        """The same at another position."""

    @abstractmethod
    def fixed(self) -> Self:
        """What all rounds of its segment have in common."""

    @abstractmethod
    def whole(self) -> Self:
        """What all rounds of its count have in common, whichever segment they are in."""

    def in_study(self, study: Study, number: int) -> Self:
        """The same with the study's noise, and begun in this round unless it began before."""
        return GaussianQuery.in_study(self, study, number).at(self.segment.begun(number))

    def check_round(self, asked: "Round") -> None:
        """Refuse a position that the round cannot be."""
        GaussianQuery.check_round(self, asked)
        check_place(self.segment, asked.number)

    def mechanism_in(self, study: Study) -> GaussianLinear:
        """As of every sum; but no change is shrunk."""
        if study.policy is Policy.CLIP:
            expected = "skip or retire: no change is shrunk"
            raise ParameterError("policy", str(study.policy), expected)
        return GaussianQuery.mechanism_in(self, study)

    def write(self, message: round_pb2.Round) -> None:
        """Put clip, noise and grid into the message of a round."""
        GaussianQuery.write(self, message)
        message.on_grid = False

    def _check_counting(self) -> None:
        check_counting(
            self.segment, bound=self.bound, sigma=self.sigma, exponent=self.grid_exponent
        )


def bound_of(message: round_pb2.Round) -> int:
    """The largest state of a running count, which is its clip.

    Raises:
        ParameterError: it is no whole number, or the round has a promise that it has no use for.
    """
    if message.on_grid:
        raise ParameterError("on_grid", True, "unset in a running count")
    if not 0 < message.clip < 1 << 31 or message.clip != int(message.clip):
        raise ParameterError("clip", message.clip, "an integer from 1 to 2^31, the largest state")
    return int(message.clip)


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
