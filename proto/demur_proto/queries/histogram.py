"""How many people are in each category."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from demur_proto.accounting.calibration import charge_weight
from demur_proto.checks import check_integer, check_positive, named
from demur_proto.errors import ParameterError
from demur_proto.guarantee import Guarantee, guarantee_of
from demur_proto.mechanisms.categorical import Categorical
from demur_proto.mechanisms.registry import (
    ANY_CATEGORY,
    BIT_CODES,
    Randomiser,
    randomiser,
    size_of,
)
from demur_proto.queries.base import Feature, Query, Reads, check_feature, check_size
from demur_proto.study import Measure, Study
from demur_proto.v1 import round_pb2
from demur_proto.wire.words import WordType

if TYPE_CHECKING:
    from demur_proto.round import Round

MOST_CATEGORIES = 1 << 18  #: of a histogram, so that its release fits a message
WEIGHT_MARGIN = 2.0**-40  #: by which a histogram's weight is above what a category costs here
MOST_MARGIN = 2.0**-10  #: by which a device lets it be above what a category costs there
RANDOMISERS = {
    Randomiser.KRR: round_pb2.RANDOMISER_KRR,
    Randomiser.SUE: round_pb2.RANDOMISER_SUE,
    Randomiser.OUE: round_pb2.RANDOMISER_OUE,
    Randomiser.BLH: round_pb2.RANDOMISER_BLH,
    Randomiser.OLH: round_pb2.RANDOMISER_OLH,
    Randomiser.HADAMARD: round_pb2.RANDOMISER_HADAMARD,
    Randomiser.SUBSET: round_pb2.RANDOMISER_SUBSET,
}


@dataclass(frozen=True, slots=True)
class Histogram(Query):
    """How many people are in each category of one feature.

    A person's value is one number, their category: 0 to categories − 1. Any other value counts as
    nothing. With one category it is a question of yes and no: 1 is yes, and anything else nothing.

    Its ε is that of one answer, not the study's, which pays for all answers together:
    `histograms.epsilon_for_answers` says what each may have.

    Raises:
        ParameterError: a field is outside its range.
    """

    wire_name: ClassVar[str] = "histogram"
    label: ClassVar[str] = "histogram"
    reads: ClassVar[Reads] = Reads.CATEGORY
    categorical: ClassVar[bool] = True
    feature: Feature  #: gives each person's category
    _: KW_ONLY
    categories: int  #: k; 1 to 2^18, with 1 of the mechanism krr only
    mechanism: Randomiser  #: how devices randomise their category
    epsilon: float  #: ε of the mechanism, nats; > 0
    size: int = 0
    """Of local hashing the range of the hash, of subset selection that of a subset; 0: the mechanism's own
    choice, which `in_study` writes out."""

    def __post_init__(self) -> None:
        check_feature(self.feature)
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

    @property
    def mechanism_name(self) -> str:
        """The randomiser's."""
        return str(self.mechanism)

    @property
    def randomiser(self) -> Categorical:
        """The mechanism, whatever the study.

        Raises:
            ParameterError: categories, ε or size are outside its range.
        """
        return randomiser(
            self.mechanism, categories=self.categories, epsilon=self.epsilon, size=self.size
        )

    @property
    def report_length(self) -> int:
        """Words in one report."""
        return self.randomiser.report_length

    def in_study(self, study: Study, number: int) -> "Histogram":
        """The same with the size written out that its mechanism chooses.

        It is stated in a round because it is best only by floating point, of which not every device
        need get the same; whatever it is, charges and estimates are right.
        """
        return replace(self, size=size_of(self.randomiser))

    def check_round(self, asked: "Round") -> None:
        """Any round may ask it; whether the size is stated, `mechanism_for` looks at."""

    def mechanism_in(self, study: Study) -> Categorical:
        """How devices randomise their category."""
        self.check_family(study)
        check_size("categories", self.categories, study)
        return self.randomiser

    def weight_in(self, study: Study) -> int:
        """What a category costs, and a little more.

        So a device that computes it with its own exponential function does not find it too small. In
        measure `answers` it is 1, or more than the budget where a category costs more than the
        study's ε₀.
        """
        self.check_family(study)
        return _category_weight(study, self.randomiser, margin=WEIGHT_MARGIN)

    def word_type_in(self, study: Study) -> WordType:
        """Bits, or numbers of up to 32 bits."""
        return WordType.BIT if self.mechanism in BIT_CODES else WordType.INT32

    def mechanism_for(self, study: Study, asked: "Round", *, kept: bool) -> Categorical:
        """Refuse a size that is not stated, and a weight that is not what a category costs."""
        mechanism = self.mechanism_in(study)
        size = size_of(mechanism)
        if self.size != size:
            raise ParameterError("size", self.size, f"stated, as {size} for example")
        low = _category_weight(study, mechanism, margin=0.0)
        high = _category_weight(study, mechanism, margin=MOST_MARGIN, largest=True)
        if not low <= asked.weight <= high:
            raise ParameterError(
                "weight", asked.weight, f"from {low}, what a category costs, to {high}"
            )
        wanted = self.word_type_in(study)
        if asked.word_type is not wanted:
            raise ParameterError("word_type", str(asked.word_type), f"{wanted}")
        return mechanism

    def check_affordable(self, study: Study, weight: int) -> None:
        """Refuse what no device could afford a single answer of."""
        if weight > study.budget_units:
            raise ParameterError(
                "epsilon",
                self.epsilon,
                "less: no device of this study could afford one answer; "
                "histograms.epsilon_for_answers says what fits",
            )

    def guarantee_in(self, study: Study, *, open_access: bool = False) -> Guarantee:
        """With ε of one report on its own, against nothing and between categories."""
        self.check_family(study)
        # No likelihood ratio exceeds e^ε, between a category and nothing as between two categories; a
        # charge that is rounded up may.
        own = min(self.randomiser.charge_pure(ANY_CATEGORY), self.epsilon)
        return guarantee_of(
            study,
            per_report_epsilon=own,
            per_report_pair_epsilon=self.epsilon,
            open_access=open_access,
        )

    def write(self, message: round_pb2.Round) -> None:
        """Put it into the message of a round."""
        message.histogram.feature.CopyFrom(self.feature.message())
        message.histogram.categories = self.categories
        message.histogram.mechanism = RANDOMISERS[self.mechanism]
        message.histogram.epsilon = self.epsilon
        message.histogram.size = self.size

    @classmethod
    def read(cls, message: round_pb2.Round) -> "Histogram":
        """From the message of a round."""
        for name in ("clip", "sigma", "grid_exponent", "on_grid"):
            if getattr(message, name):
                raise ParameterError(name, getattr(message, name), "unset in a histogram")
        asked = message.histogram
        return cls(
            Feature.read(asked.feature),
            categories=asked.categories,
            mechanism=named(RANDOMISERS, asked.mechanism, "mechanism"),
            epsilon=asked.epsilon,
            size=asked.size,
        )


def _category_weight(
    study: Study, mechanism: Categorical, *, margin: float, largest: bool = False
) -> int:
    """What a category weighs if it costs more than is computed here by this share of it.

    Args:
        study: the contract.
        mechanism: of the round.
        margin: the share.
        largest: for the most that a round may ask, in place of what a category costs.
    """
    if study.measure is Measure.ZCDP:
        rho = mechanism.largest_charge if largest else mechanism.charge_zcdp(ANY_CATEGORY)
        return charge_weight(
            rho * (1 + margin), budget=study.budget, budget_units=study.budget_units
        )
    # No likelihood ratio exceeds e^ε, exactly; only what is computed of a smaller one may.
    pure = min(mechanism.charge_pure(ANY_CATEGORY) * (1 + margin), mechanism.epsilon)
    if study.measure is Measure.ANSWERS:
        return 1 if pure <= study.answer_epsilon else study.budget_units + 1
    return charge_weight(pure, budget=study.budget, budget_units=study.budget_units)
