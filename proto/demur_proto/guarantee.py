"""The printed statement: what is promised, to whom, under which neighbour and view."""

from dataclasses import dataclass

from demur_proto import pairs
from demur_proto.outward import text_up
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


def guarantee_of(study: Study, *, per_report_mu: float, open_access: bool = False) -> Guarantee:
    """The guarantee of a study.

    Args:
        study: the contract.
        per_report_mu: μ-GDP of a single report at the full clip (`GaussianLinear.report_mu`).
        open_access: reports were taken from anybody, so nobody knows how many devices sent them.
    """
    pair_epsilon, pair_delta = pairs.pair_epsilon_delta(study.epsilon, study.delta)
    if study.measure is Measure.GDP:
        in_measure = f"{text_up(study.budget)}-GDP"
        pair = f"{text_up(pairs.pair_mu(study.budget))}-GDP"
    else:
        in_measure = f"{text_up(study.budget)}-zCDP"
        pair = f"{text_up(pairs.pair_rho(study.budget))}-zCDP"
    statement = (
        f"({text_up(study.epsilon)}, {text_up(study.delta)})-differential privacy, from "
        f"{in_measure}, over all rounds of the study. Unit: {UNIT}. Neighbour: {NEIGHBOUR}. "
        f"View: {VIEWS[study.view]}. Between two arbitrary people: ({text_up(pair_epsilon)}, "
        f"{text_up(pair_delta, digits=3)}), from {pair}. Noise: {NOISE}."
    )
    if study.view is View.AGGREGATE:
        statement += (
            " The collector, its store and its backups are trusted: one report on its own is only "
            f"{text_up(per_report_mu, digits=2)}-GDP. The noise is split over "
            f"{study.noise_shares} devices; {study.dishonest} may be dishonest, that is add none or "
            f"tell what they added. Fewer than {study.minimum_cohort} reports are never released."
        )
    if open_access:
        statement += (
            " Reports were not authenticated: whoever reached the collector could send any number "
            "of them"
        )
        if study.view is View.AGGREGATE:
            statement += (
                f", so this holds only where {study.noise_shares} of them came from as many devices "
                "that added their noise"
            )
        statement += "."
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
