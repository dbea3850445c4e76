"""The printed statement: what is promised, to whom, under which neighbour and view."""

from dataclasses import dataclass
from decimal import ROUND_CEILING, Context

from demur_proto import conversions
from demur_proto.study import Measure, Study, View

UNIT = "one device = one person, with everything it reports in the study"
NEIGHBOUR = "zero-out: the person's data replaced by a public record whose every value is nothing"
NOISE = (
    "exact, that is within total variation 2^-120 of the rounded Gaussian in each coordinate; "
    "devices that draw it otherwise are not covered"
)
VIEWS = {
    View.LOCAL: "local: the adversary sees every report and who sent it",
    View.AGGREGATE: "aggregate: the adversary sees released sums only",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """A study's privacy guarantee. A number without unit, neighbour and view is none."""

    epsilon: float  #: nats
    delta: float
    measure: Measure
    budget: float  #: in the measure: μ, or ρ in nats
    view: View
    pair_epsilon: float  #: between two arbitrary people, nats
    pair_delta: float
    per_report_mu: float  #: μ of one report on its own at the full clip: what the collector sees
    statement: str  #: all of it in plain words


def guarantee_of(study: Study, *, per_report_mu: float) -> Guarantee:
    """The guarantee of a study.

    Args:
        study: the contract.
        per_report_mu: μ-GDP of a single report at the full clip (`GaussianLinear.report_mu`).
    """
    pair_epsilon, pair_delta = conversions.pair_epsilon_delta(study.epsilon, study.delta)
    if study.measure is Measure.GDP:
        in_measure = f"{at_least(study.budget)}-GDP"
        pair = f"{at_least(conversions.pair_mu(study.budget))}-GDP"
    else:
        in_measure = f"{at_least(study.budget)}-zCDP"
        pair = f"{at_least(conversions.pair_rho(study.budget))}-zCDP"
    statement = (
        f"({at_least(study.epsilon)}, {at_least(study.delta)})-differential privacy, from "
        f"{in_measure}, over all rounds of the study. Unit: {UNIT}. Neighbour: {NEIGHBOUR}. "
        f"View: {VIEWS[study.view]}. Between two arbitrary people: ({at_least(pair_epsilon)}, "
        f"{at_least(pair_delta, digits=3)}), from {pair}. Noise: {NOISE}."
    )
    if study.view is View.AGGREGATE:
        statement += (
            " The collector, its store and its backups are trusted: one report on its own is only "
            f"{at_least(per_report_mu, digits=2)}-GDP. The noise is split over "
            f"{study.noise_shares} devices; {study.dishonest} dishonest ones are tolerated, and "
            f"fewer than {study.minimum_cohort} reports are never released."
        )
    return Guarantee(
        epsilon=study.epsilon,
        delta=study.delta,
        measure=study.measure,
        budget=study.budget,
        view=study.view,
        pair_epsilon=pair_epsilon,
        pair_delta=pair_delta,
        per_report_mu=per_report_mu,
        statement=statement,
    )


def at_least(value: float, *, digits: int = 6) -> str:
    """A number in so many significant digits, rounded up: a promise must hold as printed.

    >>> at_least(1.0), at_least(1e-6), at_least(9.41, digits=2)
    ('1', '1e-06', '9.5')
    """
    outward = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value)))
    return f"{float(outward):.{digits}g}"
