"""A study: the privacy contract, fixed before the first round."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from demur_proto.accounting import calibration, conversions
from demur_proto.accounting.calibration import EXPONENT_LIMIT, GRAIN, base_units, squared_radius
from demur_proto.accounting.numerics import check_amount
from demur_proto.accounting.pure import (
    LARGEST_ANSWER,
    MOST_ANSWERS,
    composition_delta,
    pure_delta,
    pure_rho,
)
from demur_proto.checks import check_integer, check_positive, check_text
from demur_proto.errors import ParameterError

EXACT_SAMPLER_VARIATION = 2.0**-120  #: total variation of one coordinate of the exact sampler
OPEN_HORIZON = 1 << 32  #: rounds assumed for the sampler's share of δ when none are fixed


class View(StrEnum):
    """What the adversary of the guarantee sees."""

    LOCAL = "local"  #: every report, and who sent it; each device adds the full noise
    AGGREGATE = "aggregate"  #: released sums only; each device adds a share of the noise


class Measure(StrEnum):
    """The currency of charges and budget."""

    GDP = "gdp"  #: Gaussian differential privacy: budget μ, charges add as μ²
    ZCDP = "zcdp"  #: zero-concentrated differential privacy: budget ρ in nats
    PURE = "pure"  #: pure differential privacy: budget ε in nats, charges add as they are
    ANSWERS = "answers"
    """Exact composition: the budget is a number of answers, each of at most `answer_epsilon` nats."""


class Policy(StrEnum):
    """What a filter does after an answer that no longer fits."""

    SKIP = "skip"  #: a later, smaller charge may still fit
    RETIRE = "retire"  #: the first refusal is final; only answers that cost nothing follow
    CLIP = "clip"  #: it is shrunk to what still fits; the first shrunk answer is the last


class MechanismFamily(StrEnum):
    """The mechanisms that the rounds of a study may use."""

    GAUSSIAN = "gaussian"  #: linear queries on an integer grid, with rounded Gaussian noise
    PURE = "pure"  #: histograms, with randomised responses of a finite ε
    MIXED = "mixed"  #: both

    @property
    def has_linear(self) -> bool:
        """Whether its rounds may be linear."""
        return self is not MechanismFamily.PURE

    @property
    def has_histograms(self) -> bool:
        """Whether its rounds may be histograms."""
        return self is not MechanismFamily.GAUSSIAN


class Purpose(StrEnum):
    """What the questions of a study are for.

    Control questions have studies of their own. In the study that they are about, a device that has
    run out could not pay to answer them; and one kind in the study of the other could not be paid for
    either, once that has spent the budget.
    """

    DATA = "data"  #: about people: every kind but the next two
    HALTS = "halts"  #: control questions: halt counts, and nothing else
    ERRORS = "errors"  #: control questions: error counts, and nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Everything a device agrees to before it answers.

    Unit: one device, which is one person. Neighbour: zero-out, the person's data replaced by the
    reference record whose every value is nothing: zero, or no category.

    Raises:
        ParameterError: a field is outside its range, or the budget does not keep the stated
            (ε, δ).
    """

    name: str  #: 1 to 200 printable characters
    view: View
    measure: Measure
    policy: Policy
    budget: float  #: per device, in the measure: μ, ρ or ε in nats, or a number of answers; > 0
    epsilon: float  #: the same guarantee as (ε, δ), zero-out: nats, > 0
    delta: float  #: in (0, 1), in measure pure also 0; includes what the exact sampler may add
    minimum_cohort: int  #: fewest reports that may be released; >= 1
    mechanism_family: MechanismFamily = MechanismFamily.GAUSSIAN
    base_sigma: float = 0.0  #: noise of the base round, data units; > 0, or 0 without linear rounds
    base_grid_exponent: int = 0  #: grid step of the base round is 2^this data units; -900 to 900
    dishonest: int = 0  #: how many of the minimum cohort may add no noise; < minimum_cohort
    horizon: int = 0  #: most rounds; 0 when not fixed beforehand
    maximum_dimension: int = 1  #: most coordinates, or categories, of one answer; >= 1
    purpose: Purpose = Purpose.DATA  #: what its questions are for
    answer_epsilon: float = 0.0  #: ε₀, the most that one answer costs; nats, > 0 in measure answers

    def __post_init__(self) -> None:
        check_text("name", self.name, longest=200)
        # An enum's own text compares equal to it, yet is not it: "gdp" must not pass for zcdp.
        for name, kind in _KINDS.items():
            if not isinstance(getattr(self, name), kind):
                raise ParameterError(name, getattr(self, name), f"a {kind.__name__}")
        for name in ("budget", "epsilon"):
            check_positive(name, getattr(self, name))
        check_target_delta(self.delta, self.measure)
        check_integer("minimum_cohort", self.minimum_cohort, 1, (1 << 31) - 1)
        check_integer("dishonest", self.dishonest, 0, self.minimum_cohort - 1)
        check_integer("horizon", self.horizon, 0, OPEN_HORIZON - 1)
        check_integer("maximum_dimension", self.maximum_dimension, 1, (1 << 31) - 1)
        self._check_family()
        self._check_purpose()
        self._check_measure()
        spent = self.measure_delta + self.sampler_delta
        if not spent <= self.delta:
            raise ParameterError(
                "budget",
                self.budget,
                f"small enough for delta {self.delta} (it needs {spent:.17g})",
            )

    def _check_family(self) -> None:
        """What the mechanisms ask of the other fields."""
        family = self.mechanism_family
        if family.has_linear:
            check_positive("base_sigma", self.base_sigma)
            check_integer(
                "base_grid_exponent", self.base_grid_exponent, -EXPONENT_LIMIT, EXPONENT_LIMIT
            )
            base_units(self.budget_norm, self.base_grid_exponent)
        else:
            for name in ("base_sigma", "base_grid_exponent"):
                stated = getattr(self, name)
                if type(stated) not in (int, float) or stated:
                    raise ParameterError(name, stated, f"0 in a study of the family {family}")
        if family.has_histograms:
            measures = [Measure.ZCDP] if family.has_linear else CATEGORICAL
            if self.measure not in measures:
                # μ-GDP says nothing about a randomised response; its ρ adds up with a Gaussian's.
                possible = " or ".join(measures)
                raise ParameterError(
                    "measure", str(self.measure), f"{possible} in the family {family}"
                )
            if self.view is not View.LOCAL:
                # Each report carries all of its noise, so there is no share to hide in a sum.
                raise ParameterError("view", str(self.view), f"local in the family {family}")
            if self.policy is Policy.CLIP:
                raise ParameterError(
                    "policy", str(self.policy), "skip or retire: no category shrinks"
                )

    def _check_purpose(self) -> None:
        """What control questions ask of the other fields."""
        if self.purpose is Purpose.DATA:
            return
        if self.mechanism_family is not MechanismFamily.GAUSSIAN:
            expected = f"gaussian in a study for {self.purpose}"
            raise ParameterError("mechanism_family", str(self.mechanism_family), expected)
        if self.purpose is Purpose.HALTS and self.policy is Policy.CLIP:
            raise ParameterError("policy", "clip", "skip or retire in a study for halts")

    def _check_measure(self) -> None:
        """What the measures `pure` and `answers` ask of the other fields."""
        if self.measure in (Measure.PURE, Measure.ANSWERS) and self.mechanism_family.has_linear:
            # Gaussian noise is no pure mechanism: no ε₀ bounds what one answer costs.
            expected = f"gdp or zcdp in the family {self.mechanism_family}"
            raise ParameterError("measure", str(self.measure), expected)
        if self.measure is not Measure.ANSWERS:
            if type(self.answer_epsilon) not in (int, float) or self.answer_epsilon:
                raise ParameterError(
                    "answer_epsilon", self.answer_epsilon, f"0 in measure {self.measure}"
                )
            return
        check_positive("answer_epsilon", self.answer_epsilon)
        if self.answer_epsilon > LARGEST_ANSWER:
            expected = f"at most {LARGEST_ANSWER:g}"
            raise ParameterError("answer_epsilon", self.answer_epsilon, expected)
        if not (float(self.budget).is_integer() and self.budget <= MOST_ANSWERS):
            expected = f"a whole number of answers, at most {MOST_ANSWERS}"
            raise ParameterError("budget", self.budget, expected)

    @property
    def budget_norm(self) -> Fraction:
        """B_norm: how much ‖q‖² fits when every round is like the base round; data units².

        gdp: σ₀²μ²;  zcdp: 2σ₀²ρ;  0 without linear rounds.
        """
        variance = Fraction(self.base_sigma) ** 2
        if self.measure is Measure.GDP:
            return variance * Fraction(self.budget) ** 2
        return 2 * variance * Fraction(self.budget)

    @property
    def budget_units(self) -> int:
        """T, the filter's integer budget.

        Without linear rounds lcm(1 … 40), or in measure `answers` just the number of these.
        """
        if self.measure is Measure.ANSWERS:
            return int(self.budget)
        if not self.mechanism_family.has_linear:
            return GRAIN
        return base_units(self.budget_norm, self.base_grid_exponent)[0]

    @property
    def base_weight(self) -> int:
        """W, what one squared grid step costs in a round like the base round; or 0 without one."""
        if not self.mechanism_family.has_linear:
            return 0
        return base_units(self.budget_norm, self.base_grid_exponent)[1]

    @property
    def noise_shares(self) -> int:
        """How many devices split the noise: m − c in view aggregate, 1 in view local."""
        return self.minimum_cohort - self.dishonest if self.view is View.AGGREGATE else 1

    @property
    def measure_delta(self) -> float:
        """The δ at this ε that the budget alone costs, rounded up."""
        match self.measure:
            case Measure.GDP:
                return conversions.gdp_delta(self.budget, epsilon=self.epsilon)
            case Measure.ZCDP:
                return conversions.zcdp_delta(self.budget, epsilon=self.epsilon)
            case Measure.PURE:
                return pure_delta(self.budget, epsilon=self.epsilon)
            case Measure.ANSWERS:
                return composition_delta(
                    int(self.budget), each=self.answer_epsilon, epsilon=self.epsilon
                )

    @property
    def rho(self) -> Fraction:
        """The whole budget in zCDP, nats; where that is irrational, a little above.

            gdp: ½μ²;  zcdp: ρ;  pure: ε tanh(ε/2);  answers: n ε₀ tanh(ε₀/2)

        A share of the budget costs at most that share of ρ, in every measure. For `pure` that is
        so because every ε_t that fits is at most ε and tanh grows: with Σ ε_t ≤ f ε,

            Σ ρ(ε_t) ≤ Σ ε_t tanh(ε_t/2) ≤ tanh(ε/2) Σ ε_t ≤ f ρ(ε)

        (ρ(ε) itself is not convex: it bends down beyond ε = 2.4.) In the others charges are
        proportional to ρ.

        Source: `pure_rho`; for gdp Bun & Steinke 2016, arXiv:1605.02065, Proposition 1.6.
        """
        match self.measure:
            case Measure.GDP:
                return Fraction(self.budget) ** 2 / 2
            case Measure.ZCDP:
                return Fraction(self.budget)
            case Measure.PURE:
                return Fraction(pure_rho(self.budget))
            case Measure.ANSWERS:
                return int(self.budget) * Fraction(pure_rho(self.answer_epsilon))

    @property
    def sampler_delta(self) -> float:
        """What an exact sampler may add to δ over the whole study.

        Randomised responses add nothing: given uniform bits, their law is exact.
        """
        return self.sampler_delta_at(self.epsilon)

    def sampler_delta_at(self, epsilon: float) -> float:
        """The same for a promise with another ε, such as one over several studies; nats, >= 0."""
        if not self.mechanism_family.has_linear:
            return 0.0
        return sampler_delta(
            epsilon=epsilon,
            view=self.view,
            minimum_cohort=self.minimum_cohort,
            horizon=self.horizon,
            maximum_dimension=self.maximum_dimension,
        )


_KINDS: Mapping[str, type[StrEnum]] = {
    "view": View,
    "measure": Measure,
    "policy": Policy,
    "mechanism_family": MechanismFamily,
    "purpose": Purpose,
}


CATEGORICAL = (Measure.PURE, Measure.ZCDP, Measure.ANSWERS)
"""What a study of histograms only may count in."""


def check_target_delta(delta: float, measure: Measure) -> None:
    """Refuse what is no δ of a study in this measure: only the pure one may promise 0."""
    if not isinstance(measure, Measure):
        raise ParameterError("measure", measure, "a Measure")
    zero = measure is Measure.PURE
    if isinstance(delta, float) and (0 < delta < 1 or (zero and delta == 0)):
        return
    expected = "at least 0 and below 1" if zero else "between 0 and 1, both excluded"
    raise ParameterError("delta", delta, expected)


def sampler_delta(
    *, epsilon: float, view: View, minimum_cohort: int, horizon: int, maximum_dimension: int
) -> float:
    """What a sampler within total variation 2⁻¹²⁰ per coordinate may add to δ.

        (1 + e^ε) · N · 2⁻¹²⁰,  N = d·T coordinates (local) or m·d·T (aggregate)

    A horizon of 0 counts as 2³² rounds.

    >>> sampler_delta(epsilon=1.0, view=View.LOCAL, minimum_cohort=1, horizon=1,
    ...               maximum_dimension=1) < 3e-36
    True
    """
    check_amount("epsilon", epsilon)
    if not isinstance(view, View):
        raise ParameterError("view", view, "a View")
    check_integer("minimum_cohort", minimum_cohort, 1, (1 << 31) - 1)
    check_integer("horizon", horizon, 0, OPEN_HORIZON - 1)
    check_integer("maximum_dimension", maximum_dimension, 1, (1 << 31) - 1)
    devices = minimum_cohort if view is View.AGGREGATE else 1
    coordinates = devices * maximum_dimension * (horizon or OPEN_HORIZON)
    # Above 700, e^ε would overflow; such an ε promises nothing, and neither does δ = 1.
    factor = 1.0 + math.exp(epsilon) if epsilon < 700 else math.inf
    return min(1.0, factor * coordinates * EXACT_SAMPLER_VARIATION * (1 + 2.0**-40))


def design_study(
    *,
    name: str,
    epsilon: float,
    delta: float,
    answers: int,
    minimum_cohort: int,
    clip: float = 1.0,
    measure: Measure = Measure.GDP,
    view: View = View.AGGREGATE,
    policy: Policy = Policy.SKIP,
    mechanism_family: MechanismFamily = MechanismFamily.GAUSSIAN,
    grid_exponent: int = -14,
    dishonest: int = 0,
    horizon: int = 0,
    maximum_dimension: int = 1,
    purpose: Purpose = Purpose.DATA,
) -> Study:
    """The study with the least noise in which `answers` full-clip answers fit each device.

    A study of histograms only is made by `histograms.design_histogram_study`.

    Args:
        name: what people call it.
        epsilon: target ε, nats, zero-out; > 0.
        delta: target δ, in (0, 1).
        answers: how many answers at the full clip one device can afford; >= 1.
        minimum_cohort: fewest reports that may be released; >= 1.
        clip: ℓ₂ radius of one answer, data units; > 0.
        measure: currency of the budget.
        view: what the adversary sees.
        policy: what a filter does after a refusal.
        mechanism_family: gaussian, or mixed, in which histograms may be asked too.
        grid_exponent: grid step is 2^this data units.
        dishonest: how many of the minimum cohort may add no noise.
        horizon: most rounds; 0 when not fixed.
        maximum_dimension: most coordinates, or categories, of one answer.
        purpose: what its questions are for: people's data, or control questions of one kind.

    Raises:
        ParameterError: an argument is outside its range.

    >>> study = design_study(name="hello", epsilon=1.0, delta=1e-6, answers=15,
    ...                      minimum_cohort=1000, grid_exponent=-7, horizon=546)
    >>> round(study.base_sigma, 1), study.budget_units // study.base_weight // 128**2
    (16.4, 15)
    """
    check_positive("epsilon", epsilon)
    check_positive("clip", clip)
    check_integer("base_grid_exponent", grid_exponent, -EXPONENT_LIMIT, EXPONENT_LIMIT)
    squared_radius(clip, grid_exponent)  # or no round of this clip fits the grid
    check_integer("answers", answers, 1, (1 << 53))
    check_integer("minimum_cohort", minimum_cohort, 1, (1 << 31) - 1)
    if not isinstance(delta, float) or not 0 < delta < 1:
        raise ParameterError("delta", delta, "between 0 and 1, both excluded")
    if mechanism_family not in [family for family in MechanismFamily if family.has_linear]:
        raise ParameterError("mechanism_family", str(mechanism_family), "gaussian or mixed")
    reserve = sampler_delta(
        epsilon=epsilon,
        view=view,
        minimum_cohort=minimum_cohort,
        horizon=horizon,
        maximum_dimension=maximum_dimension,
    )
    remaining = math.nextafter(delta - reserve, 0.0)  # so that both add up to at most delta
    if not remaining > 0:
        needed = f"> {reserve:.3g}, which the sampler may need at epsilon {epsilon:g}"
        raise ParameterError("delta", delta, f"{needed}; a smaller epsilon needs less")
    if measure is Measure.GDP:
        budget = conversions.gdp_mu(epsilon, delta=remaining)
        sigma = calibration.sigma_for_answers(answers, clip=clip, mu=budget)
    elif measure is Measure.ZCDP:
        budget = largest_rho(epsilon, delta=remaining)
        sigma = calibration.sigma_for_answers_zcdp(answers, clip=clip, rho=budget)
    else:
        raise ParameterError("measure", measure, "gdp or zcdp, with linear rounds")
    return Study(
        name=name,
        view=view,
        measure=measure,
        policy=policy,
        budget=budget,
        epsilon=epsilon,
        delta=delta,
        mechanism_family=mechanism_family,
        base_sigma=sigma,
        base_grid_exponent=grid_exponent,
        minimum_cohort=minimum_cohort,
        dishonest=dishonest,
        horizon=horizon,
        maximum_dimension=maximum_dimension,
        purpose=purpose,
    )


def largest_rho(epsilon: float, *, delta: float) -> float:
    """The largest zCDP budget ρ, in nats, that a study of this (ε, δ) accepts.

    >>> conversions.zcdp_delta(largest_rho(1.0, delta=1e-6), epsilon=1.0) <= 1e-6
    True
    """
    rho = conversions.zcdp_rho(epsilon, delta=delta)
    # Both conversions round outward, so the way back may miss by a few units in the last place.
    # Where δ is almost 1 it hardly depends on ρ, and they would be many: so each step is longer.
    step = 2.0**-50
    while conversions.zcdp_delta(rho, epsilon=epsilon) > delta:
        rho *= 1 - step
        step *= 2
    return rho
