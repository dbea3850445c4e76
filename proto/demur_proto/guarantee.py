"""The printed statement: what is promised, to whom, under which neighbour and view."""

import math
from dataclasses import dataclass
from fractions import Fraction

from demur_proto.accounting import conversions
from demur_proto.accounting.numerics import text_up
from demur_proto.errors import ParameterError
from demur_proto.study import Measure, MechanismFamily, Study, View

UNIT = "one device = one person, with everything it reports in the study"
NEIGHBOUR = "zero-out: the person's data replaced by a public record whose every value is nothing"
GAUSSIAN_NOISE = (
    "exact, that is within total variation 2^-120 of the rounded Gaussian in each coordinate; "
    "devices that draw it otherwise are not covered"
)
PURE_NOISE = (
    "randomised responses from integer thresholds over a cryptographic source; devices that draw "
    "otherwise are not covered"
)
NOISE = {
    MechanismFamily.GAUSSIAN: GAUSSIAN_NOISE,
    MechanismFamily.PURE: PURE_NOISE,
    MechanismFamily.MIXED: f"{GAUSSIAN_NOISE}. Histograms: {PURE_NOISE}",
}
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
    budget: float  #: in the measure: μ, ρ or ε in nats, or a number of answers
    view: View
    pair_epsilon: float  #: between two arbitrary people, nats
    pair_delta: float
    per_report_mu: float | None  #: μ of one report on its own at the full clip, if it is Gaussian
    per_report_epsilon: float | None  #: ε of one report on its own, if that is finite; nats
    per_report_pair_epsilon: float | None  #: the same between two arbitrary people
    statement: str  #: all of it in plain words


def largest_report_mu(study: Study) -> float | None:
    """μ of one report on its own, whatever the study asks for; None where its noise need not be Gaussian.

    No answer costs more than the budget, so its norm is at most μ_B times the noise of the view, √(2ρ_B)
    times in zcdp. A report has the share 1/√k of that noise, of k devices that split it: μ_B √k.

    >>> from demur_proto.study import design_study
    >>> local = design_study(name="x", epsilon=1.0, delta=1e-6, answers=3, minimum_cohort=9,
    ...                      view=View.LOCAL)
    >>> shared = design_study(name="x", epsilon=1.0, delta=1e-6, answers=3, minimum_cohort=9)
    >>> round(largest_report_mu(local) / local.budget, 9)
    1.0
    >>> round(largest_report_mu(shared) / shared.budget, 9)  # the noise is split over 9 devices
    3.0
    """
    if study.mechanism_family is not MechanismFamily.GAUSSIAN:
        return None
    budget = Fraction(study.budget)
    squared = budget**2 if study.measure is Measure.GDP else 2 * budget
    mu = math.sqrt(squared * study.noise_shares)
    while Fraction(mu) ** 2 < squared * study.noise_shares:
        mu = math.nextafter(mu, math.inf)
    return mu


def in_words(measure: Measure, budget: float, *, each: float) -> tuple[str, str]:
    """A budget with its measure, and what follows from it between two people, as statements end.

    >>> in_words(Measure.PURE, 1.0, each=0.0)
    ('pure 1-DP', ', from pure 2-DP')
    >>> in_words(Measure.ANSWERS, 26.0, each=0.05)
    ('at most 26 answers of pure 0.05-DP each, composed exactly', '')
    """
    match measure:
        case Measure.GDP:
            return f"{text_up(budget)}-GDP", f", from {text_up(conversions.pair_mu(budget))}-GDP"
        case Measure.ZCDP:
            return f"{text_up(budget)}-zCDP", f", from {text_up(conversions.pair_rho(budget))}-zCDP"
        case Measure.PURE:
            return f"pure {text_up(budget)}-DP", f", from pure {text_up(2 * budget)}-DP"
        case Measure.ANSWERS:
            return (
                f"at most {budget:,.0f} answers of pure {text_up(each)}-DP each, composed exactly",
                "",
            )


def guarantee_of(
    study: Study,
    *,
    per_report_mu: float | None = None,
    per_report_epsilon: float | None = None,
    per_report_pair_epsilon: float | None = None,
    open_access: bool = False,
) -> Guarantee:
    """The guarantee of a study, and of one report on its own.

    Args:
        study: the contract.
        per_report_mu: μ-GDP of a single report at the full clip (`GaussianLinear.report_mu`).
        per_report_epsilon: ε of a single report by the same neighbour, nats.
        per_report_pair_epsilon: ε of a single report between two arbitrary people, nats.
        open_access: reports were taken from anybody, so nobody knows how many devices sent them.

    Raises:
        ParameterError: without `per_report_mu` in view aggregate, where it is what matters.
    """
    if study.view is View.AGGREGATE and per_report_mu is None:
        raise ParameterError("per_report_mu", per_report_mu, "given in view aggregate")
    pair_epsilon, pair_delta = conversions.pair_epsilon_delta(study.epsilon, study.delta)
    in_measure, pair = in_words(study.measure, study.budget, each=study.answer_epsilon)
    if study.measure is Measure.PURE:
        # The chain through the reference needs no δ, whatever the study states.
        pair_epsilon, pair_delta = conversions.pair_epsilon_delta(study.budget, 0.0)
    statement = (
        f"({text_up(study.epsilon)}, {text_up(study.delta)})-differential privacy, from "
        f"{in_measure}, over all rounds of the study. Unit: {UNIT}. Neighbour: {NEIGHBOUR}. "
        f"View: {VIEWS[study.view]}. Between two arbitrary people: ({text_up(pair_epsilon)}, "
        f"{text_up(pair_delta, digits=3)}){pair}. Noise: {NOISE[study.mechanism_family]}."
    )
    if per_report_epsilon is not None and per_report_pair_epsilon is not None:
        statement += (
            f" One report on its own: {text_up(per_report_epsilon)}-differential privacy, by the "
            f"same neighbour; {text_up(per_report_pair_epsilon)} between two arbitrary people."
        )
    if study.view is View.AGGREGATE and per_report_mu is not None:
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
        per_report_epsilon=per_report_epsilon,
        per_report_pair_epsilon=per_report_pair_epsilon,
        statement=statement,
    )
