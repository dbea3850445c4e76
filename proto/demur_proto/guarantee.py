"""The printed statement: what is promised, to whom, under which neighbour and view."""

from dataclasses import dataclass

from demur_proto import conversions
from demur_proto.study import Measure, Study, View

UNIT = "one device = one person, with everything it reports in the study"
NEIGHBOUR = "zero-out: the person's data replaced by a public record whose every value is nothing"
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
        in_measure = f"{study.budget:.6g}-GDP"
        pair = f"{conversions.pair_mu(study.budget):.6g}-GDP"
    else:
        in_measure = f"{study.budget:.6g}-zCDP"
        pair = f"{conversions.pair_rho(study.budget):.6g}-zCDP"
    statement = (
        f"({study.epsilon:g}, {study.delta:g})-differential privacy, from {in_measure}, over all "
        f"rounds of the study. Unit: {UNIT}. Neighbour: {NEIGHBOUR}. View: {VIEWS[study.view]}. "
        f"Between two arbitrary people: ({pair_epsilon:.6g}, {pair_delta:.3g}), from {pair}."
    )
    if study.view is View.AGGREGATE:
        statement += (
            f" The collector, its store and its backups are trusted: one report on its own is only "
            f"{per_report_mu:.2g}-GDP. The noise is split over {study.noise_shares} devices; "
            f"{study.dishonest} dishonest ones are tolerated, and fewer than "
            f"{study.minimum_cohort} reports are never released."
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
