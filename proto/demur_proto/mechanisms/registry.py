"""Which mechanism a round uses, and whether the round says of it what is true."""

from collections.abc import Mapping
from dataclasses import replace

from demur_proto.accounting.calibration import charge_weight, round_weight
from demur_proto.errors import ParameterError
from demur_proto.guarantee import Guarantee, guarantee_of
from demur_proto.mechanisms.base import Mechanism
from demur_proto.mechanisms.categorical import Categorical
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.mechanisms.hadamard import HadamardResponse
from demur_proto.mechanisms.local_hashing import LocalHashing
from demur_proto.mechanisms.randomised_response import (
    BinaryRandomisedResponse,
    KaryRandomisedResponse,
)
from demur_proto.mechanisms.subset_selection import SubsetSelection
from demur_proto.mechanisms.unary import Flip, UnaryEncoding
from demur_proto.round import (
    CountingQuery,
    ErrorCount,
    GaussianQuery,
    Gradient,
    HaltCount,
    Histogram,
    Linear,
    Prefix,
    Query,
    Randomiser,
    Round,
)
from demur_proto.running.following import check_payable
from demur_proto.study import Measure, Policy, Purpose, Study
from demur_proto.wire.words import WordType, word_type_for

Kind = (
    type[Linear]
    | type[Gradient]
    | type[ErrorCount]
    | type[Prefix]
    | type[HaltCount]
    | type[Histogram]
)
MOST_REPORTS = 1 << 53  #: of one round
ANY_CATEGORY = 1  #: the symbol of the first; all of them cost the same
BIT_CODES = frozenset({Randomiser.SUE, Randomiser.OUE, Randomiser.SUBSET})  #: words 0 or 1
SIZED = frozenset({Randomiser.BLH, Randomiser.OLH, Randomiser.SUBSET})  #: with a size of their own
WEIGHT_MARGIN = 2.0**-40  #: by which a histogram's weight is above what a category costs here
MOST_MARGIN = 2.0**-10  #: by which a device lets it be above what a category costs there


def mechanism_for(study: Study, asked: Round, *, kept: bool = False) -> Mechanism:
    """The mechanism of a round, checked against the study it claims to belong to.

    Args:
        study: the contract.
        asked: the round.
        kept: the round was asked before, maybe when studies did not say what they are for. Otherwise
            it is refused in a study that is not for such questions, and a halt count also where its
            study could not pay for a change by everybody.

    Raises:
        ParameterError: the round does not fit the study.
    """
    if study.horizon and asked.number > study.horizon:
        raise ParameterError("number", asked.number, f"<= the horizon {study.horizon}")
    query = asked.query
    if isinstance(query, HaltCount) and query.halted_study == asked.study_hash:
        # Whoever has run out in it could not pay to say so.
        raise ParameterError("study_hash", "this study's own", "that of another study")
    if not kept:
        check_purpose(study, type(query))
        check_payable(study, asked)
    mechanism = mechanism_of(study, query)
    if isinstance(query, Histogram) and isinstance(mechanism, Categorical):
        _check_histogram(study, asked, query, mechanism)
    elif isinstance(mechanism, GaussianLinear):
        _check_gaussian(study, asked, mechanism)
    return mechanism


def mechanism_of(study: Study, query: Query) -> Mechanism:
    """The mechanism that a query has in a study.

    Raises:
        ParameterError: the study does not allow such a query, or not one of this size.
    """
    check_family(study, type(query))
    if isinstance(query, CountingQuery) and study.policy is Policy.CLIP:
        raise ParameterError("policy", str(study.policy), "skip or retire: no change is shrunk")
    if isinstance(query, GaussianQuery):
        _check_size("dimension", query.dimension, study)
        return GaussianLinear.of(study, query)
    _check_size("categories", query.categories, study)
    return randomiser_of(query)


def check_kind(study: Study, kind: Kind) -> None:
    """Refuse a kind of query that may not be asked in this study.

    Raises:
        ParameterError: the study's mechanisms are not for it, or the study is for other questions.
    """
    check_family(study, kind)
    check_purpose(study, kind)


def check_purpose(study: Study, kind: Kind) -> None:
    """Refuse a control question in a study that is not for it, and any other one in a study that is.

    Raises:
        ParameterError: it is one of those.
    """
    wanted = _PURPOSES.get(kind, Purpose.DATA)
    if study.purpose is not wanted:
        expected = f"{wanted} in a study with questions of the kind {_NAMES[kind]}"
        raise ParameterError("purpose", str(study.purpose), expected)


def check_family(study: Study, kind: Kind) -> None:
    """Refuse a kind of query that the study's mechanisms are not for.

    Raises:
        ParameterError: it is one of those.
    """
    family = study.mechanism_family
    if kind is not Histogram and not family.has_linear:
        name = _NAMES[kind]
        raise ParameterError("query", name, f"a histogram, in a study of the family {family}")
    if kind is Histogram and not family.has_histograms:
        raise ParameterError("query", "histogram", f"linear, in a study of the family {family}")


def randomiser_of(query: Histogram) -> Categorical:
    """How a histogram's devices randomise their category.

    A size of 0 stands for the mechanism's own choice.

    Raises:
        ParameterError: categories, ε or size are outside the mechanism's range.
    """
    k, epsilon, size = query.categories, query.epsilon, query.size
    if k == 1 and query.mechanism is not Randomiser.KRR:
        raise ParameterError("mechanism", str(query.mechanism), "krr, with one category")
    if size and query.mechanism not in SIZED:
        raise ParameterError("size", size, f"0 for {query.mechanism}")
    match query.mechanism:
        case Randomiser.KRR if k == 1:
            return BinaryRandomisedResponse(epsilon=epsilon)
        case Randomiser.KRR:
            return KaryRandomisedResponse(categories=k, epsilon=epsilon)
        case Randomiser.SUE:
            return UnaryEncoding(categories=k, epsilon=epsilon, flip=Flip.SYMMETRIC)
        case Randomiser.OUE:
            return UnaryEncoding(categories=k, epsilon=epsilon, flip=Flip.OPTIMISED)
        case Randomiser.BLH:
            if size not in (0, 2):
                raise ParameterError("size", size, "2, the hash range of blh")
            return LocalHashing(categories=k, epsilon=epsilon, hash_range=2)
        case Randomiser.OLH:
            return LocalHashing(categories=k, epsilon=epsilon, hash_range=size)
        case Randomiser.HADAMARD:
            return HadamardResponse(categories=k, epsilon=epsilon)
        case Randomiser.SUBSET:
            return SubsetSelection(categories=k, epsilon=epsilon, size=size)


def sized(query: Histogram) -> Histogram:
    """The same query with the size written out that its mechanism chooses.

    It is stated in a round because it is best only by floating point, of which not every device
    need get the same; whatever it is, charges and estimates are right.

    Raises:
        ParameterError: as `randomiser_of`.
    """
    return replace(query, size=_size_of(randomiser_of(query)))


def guarantee_for(study: Study, query: Query, *, open_access: bool = False) -> Guarantee:
    """The guarantee of a study, with what one report to this query shows on its own.

    Args:
        study: the contract.
        query: what is asked.
        open_access: reports were taken from anybody, so nobody knows how many devices sent them.

    Raises:
        ParameterError: the study does not allow the query.
    """
    check_family(study, type(query))
    if isinstance(query, GaussianQuery):
        report_mu = GaussianLinear.of(study, query).report_mu
        return guarantee_of(study, per_report_mu=report_mu, open_access=open_access)
    # No likelihood ratio exceeds e^ε, between a category and nothing as between two categories; a
    # charge that is rounded up may.
    own = min(randomiser_of(query).charge_pure(ANY_CATEGORY), query.epsilon)
    return guarantee_of(
        study,
        per_report_epsilon=own,
        per_report_pair_epsilon=query.epsilon,
        open_access=open_access,
    )


def room_of(mechanism: Mechanism) -> int:
    """How many reports fit before a sum could leave 64 bits, or a count a float."""
    if isinstance(mechanism, GaussianLinear):
        return min(MOST_REPORTS, ((1 << 63) - 1) // mechanism.word_limit)
    return MOST_REPORTS  # one report of a randomiser adds at most 1 to any sum


def weight_of(study: Study, query: Query) -> int:
    """The integer weight that a query has in a study: what one unit of charge costs.

    A histogram's is a little above what its category costs, so that a device which computes that
    with its own exponential function does not find it too small. In measure `answers` it is 1, or
    more than the budget where a category costs more than the study's ε₀.

    Raises:
        ParameterError: as `mechanism_of`.
    """
    check_family(study, type(query))
    if isinstance(query, GaussianQuery):
        return round_weight(
            sigma=query.sigma,
            exponent=query.grid_exponent,
            base_sigma=study.base_sigma,
            base_exponent=study.base_grid_exponent,
            base_weight=study.base_weight,
            budget_units=study.budget_units,
        )
    return _category_weight(study, randomiser_of(query), margin=WEIGHT_MARGIN)


def word_type_of(study: Study, query: Query) -> WordType:
    """How the words of reports to a query are encoded: the smallest type that holds them.

    Raises:
        ParameterError: as `mechanism_of`.
    """
    if isinstance(query, GaussianQuery):
        return word_type_for(GaussianLinear.of(study, query).word_limit)
    return WordType.BIT if query.mechanism in BIT_CODES else WordType.INT32


def report_length_of(query: Query) -> int:
    """Words in one report to a query.

    Raises:
        ParameterError: as `randomiser_of`.
    """
    if isinstance(query, GaussianQuery):
        return query.dimension
    return randomiser_of(query).report_length


_PURPOSES: Mapping[type, Purpose] = {HaltCount: Purpose.HALTS, ErrorCount: Purpose.ERRORS}
_NAMES: Mapping[type, str] = {
    Linear: "linear",
    Gradient: "gradient",
    ErrorCount: "error count",
    Prefix: "running count",
    HaltCount: "running count of halts",
    Histogram: "histogram",
}


def _size_of(mechanism: Categorical) -> int:
    """What a round states as the mechanism's size; 0 where it has none."""
    if isinstance(mechanism, LocalHashing):
        return mechanism.hash_range
    return mechanism.size if isinstance(mechanism, SubsetSelection) else 0


def _check_histogram(study: Study, asked: Round, query: Histogram, mechanism: Categorical) -> None:
    size = _size_of(mechanism)
    if query.size != size:
        raise ParameterError("size", query.size, f"stated, as {size} for example")
    low = _category_weight(study, mechanism, margin=0.0)
    high = _category_weight(study, mechanism, margin=MOST_MARGIN, largest=True)
    if not low <= asked.weight <= high:
        raise ParameterError(
            "weight", asked.weight, f"from {low}, what a category costs, to {high}"
        )
    wanted = word_type_of(study, query)
    if asked.word_type is not wanted:
        raise ParameterError("word_type", str(asked.word_type), f"{wanted}")


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


def _check_size(name: str, size: int, study: Study) -> None:
    if size > study.maximum_dimension:
        raise ParameterError(name, size, f"<= {study.maximum_dimension}, the study's most")


def _check_gaussian(study: Study, asked: Round, mechanism: GaussianLinear) -> None:
    weight = weight_of(study, asked.query)
    if asked.weight != weight:
        raise ParameterError("weight", asked.weight, f"{weight}, which the noise and grid imply")
    limit = mechanism.word_limit
    if asked.word_type is WordType.BIT or limit > asked.word_type.limit:
        expected = f"able to hold {limit} and its negative"
        raise ParameterError("word_type", str(asked.word_type), expected)
    if limit * study.minimum_cohort >= 1 << 63:
        raise ParameterError(
            "grid_exponent", mechanism.grid_exponent, "coarser: sums would overflow"
        )
