"""From a training scenario to its studies: one for gradients, and one for each kind of counts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from demur_proto.accounting.together import guarantee_together, split_target
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.guarantee import Guarantee
from demur_proto.mechanisms.gaussian import FEWEST_NOISE_STEPS, GaussianLinear
from demur_proto.running.factorisations import change_norm
from demur_proto.running.segments import COARSEST_COUNTING, MOST_POSITIONS, Factorisation
from demur_proto.study import Policy, Purpose, Study, View, sampler_delta
from demur_proto.wire.definition import Defined, define_study
from demur_sim.engine.simulation import LARGEST_DIMENSION, study_of
from demur_sim.scenario import Refusal, Scenario
from demur_sim.training.scenario import TrainingScenario

TUNING = (
    " What was tried in order to choose the settings of this training is not part of the promise: "
    "choosing them with these people's data needs a budget of its own."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The studies of a training, and what they promise together."""

    scenario: Scenario  #: of the gradients' study
    study: Defined[Study]
    errors: Defined[Study] | None
    halts: Defined[Study] | None
    dimension: int
    guarantee: Guarantee

    @property
    def mechanism(self) -> GaussianLinear:
        """Of every gradient round."""
        return _mechanism(self.study.value, dimension=self.dimension, clip=self.scenario.clip)


def design(scenario: TrainingScenario, *, devices: int, dimension: int) -> Design:
    """The studies with the least noise that keep the scenario's promise together.

    Args:
        scenario: what to train.
        devices: how many people there are; public.
        dimension: how many parameters the model has.

    Raises:
        ParameterError: the scenario does not fit so many people or parameters.
    """
    check_integer("parameters", dimension, 1, LARGEST_DIMENSION)
    kinds = {name: getattr(scenario.counts, name) for name in ("errors", "halts")}
    reserved = {name: share for name, share in kinds.items() if share}
    base = Scenario(
        name=scenario.name,
        title=scenario.title,
        question="What is the gradient of the model on this device's examples?",
        feature="gradient",
        epsilon=scenario.epsilon,
        delta=scenario.delta,
        measure=scenario.measure,
        budget=scenario.budget,
        view=scenario.view,
        policy=scenario.policy,
        refusal=Refusal.COVER,
        minimum_cohort=scenario.minimum_cohort,
        dishonest=scenario.dishonest,
        clip=scenario.clip,
        grid_exponent=coarsest_exponent(scenario.clip, dimension),
        on_grid=False,
        shuffle=scenario.shuffle,
    )
    counts = -(-scenario.steps // scenario.counts.every) if reserved else 0
    if "halts" in reserved and counts > MOST_POSITIONS:
        least = -(-scenario.steps // MOST_POSITIONS)
        expected = f"at least {least}: those who ran out are counted at most {MOST_POSITIONS} times"
        raise ParameterError("counts.every", scenario.counts.every, expected)
    epsilons = [scenario.epsilon]
    if reserved:
        left = 1 - sum(map(Fraction, reserved.values()))
        epsilons = _split(
            scenario,
            [math.nextafter(float(left), 0), *reserved.values()],
            sampler=sum(
                sampler_delta(
                    epsilon=scenario.epsilon,
                    view=scenario.view,
                    minimum_cohort=scenario.minimum_cohort or devices,
                    horizon=horizon,
                    maximum_dimension=LARGEST_DIMENSION,
                )
                for horizon in (scenario.steps, *[counts] * len(reserved))
            ),
        )
    base = replace(base, epsilon=epsilons[0])
    base, main = _study(base, devices=devices, horizon=scenario.steps)
    studies = {"gradients": (main, dimension, scenario.clip, False)}
    for name, epsilon in zip(reserved, epsilons[1:], strict=True):
        if name == "halts":
            studies[name] = (_halts(base, epsilon, devices=devices, counts=counts), 1, 1.0, True)
            continue
        whole = scenario.data.per_person == 1
        question = replace(
            base,
            name=f"{scenario.name}: {name}",
            question="Of how many of this device's examples is the model wrong?",
            feature=name,
            epsilon=epsilon,
            budget=counts,
            policy=Policy.SKIP,
            clip=1.0,
            grid_exponent=-7 if whole else -14,
            on_grid=whole,
        )
        _, beside = _study(question, devices=devices, horizon=counts)
        studies[name] = (replace(beside, purpose=Purpose.ERRORS), 1, 1.0, whole)
    mus = [
        _mechanism(study, dimension=size, clip=clip, on_grid=on_grid).report_mu
        for study, size, clip, on_grid in studies.values()
    ]
    defined = {name: define_study(study) for name, (study, *_) in studies.items()}
    return Design(
        scenario=base,
        study=defined["gradients"],
        errors=defined.get("errors"),
        halts=defined.get("halts"),
        dimension=dimension,
        guarantee=guarantee_together(
            [study for study, *_ in studies.values()],
            epsilon=scenario.epsilon,
            delta=scenario.delta,
            per_report_mus=mus,
        ),
    )


def _split(scenario: TrainingScenario, shares: Sequence[float], *, sampler: float) -> list[float]:
    """The ε of the gradients' study, and of each kind of counts; see `split_target`."""
    try:
        return split_target(
            shares,
            epsilon=scenario.epsilon,
            delta=scenario.delta,
            measure=scenario.measure,
            sampler=sampler,
        )
    except ParameterError as error:
        if error.name != "shares":
            raise
        expected = (
            f"more at delta {scenario.delta:g}, so that {min(shares):g} of it, the share of one study, "
            "has an epsilon of its own"
        )
        raise ParameterError("epsilon", scenario.epsilon, expected) from None


def _halts(base: Scenario, epsilon: float, *, devices: int, counts: int) -> Study:
    """The study of those who gave less than their gradient: room for one change, whenever it comes."""
    exponent = COARSEST_COUNTING
    while True:
        question = replace(
            base,
            name=f"{base.name}: halts",
            question="Has this device ever given less than its gradient?",
            feature="halts",
            epsilon=epsilon,
            budget=1,
            policy=Policy.SKIP,
            clip=change_norm(Factorisation.SQUARE_ROOT, horizon=counts, exponent=exponent),
            grid_exponent=exponent,
            on_grid=False,
        )
        settled, study = _study(question, devices=devices, horizon=counts)
        if settled.grid_exponent == exponent:
            return replace(study, purpose=Purpose.HALTS)
        exponent = settled.grid_exponent  # the rows of C follow from it


def coarsest_exponent(clip: float, dimension: int) -> int:
    """The coarsest grid on which rounding does not matter: 2^this ≤ C / max(2^14, 64√d).

    >>> coarsest_exponent(1.0, 100), coarsest_exponent(1.0, 1 << 18)
    (-14, -15)
    """
    exponent = math.floor(math.log2(clip)) + 1
    limit = Fraction(clip) ** 2 / max(1 << 28, 4096 * dimension)
    while Fraction(2) ** (2 * exponent) > limit:
        exponent -= 1
    return exponent


def _study(scenario: Scenario, *, devices: int, horizon: int) -> tuple[Scenario, Study]:
    """A study on a grid that is fine enough for its shares of noise, and its scenario."""
    study = study_of(scenario, devices=devices, horizon=horizon)
    if scenario.view is View.AGGREGATE:
        share = study.base_sigma / math.sqrt(study.noise_shares)
        finest = math.floor(math.log2(share / FEWEST_NOISE_STEPS))
        if finest < scenario.grid_exponent:
            scenario = replace(scenario, grid_exponent=finest)
            study = study_of(scenario, devices=devices, horizon=horizon)
    return scenario, study


def _mechanism(
    study: Study, *, dimension: int, clip: float, on_grid: bool = False
) -> GaussianLinear:
    try:
        return GaussianLinear(
            dimension=dimension,
            clip=clip,
            grid_exponent=study.base_grid_exponent,
            sigma=study.base_sigma,
            shares=study.noise_shares,
            on_grid=on_grid,
        )
    except ParameterError as error:
        if error.name == "grid_exponent":
            expected = "more: words of its noise would not fit 64 bits"
            raise ParameterError(f"epsilon of {study.name}", study.epsilon, expected) from None
        raise ParameterError(f"{error.name} of {study.name}", error.value, error.expected) from None
