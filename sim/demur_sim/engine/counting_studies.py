"""The studies of a running count: its own, and one that counts who ran out if that is bought."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from demur_proto.accounting.together import guarantee_together, split_target
from demur_proto.guarantee import Guarantee
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries import Feature, HaltCount, RunningCount
from demur_proto.running.segments import Factorisation, Segment
from demur_proto.study import Measure, Policy, Purpose, Study, sampler_delta
from demur_sim.engine.simulation import LARGEST_DIMENSION, horizons_of, study_of
from demur_sim.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingDesign:
    """Everything that is fixed before the first round."""

    scenario: Scenario  #: of the count alone: with its own share of the promise
    study: Study  #: of the count
    halts: Study | None  #: of those who ran out: room for one change, whenever it comes
    segment: Segment  #: position 1 of the first one, of both
    horizons: tuple[int, ...]  #: of all segments
    guarantee: Guarantee  #: of both together

    @property
    def query(self) -> RunningCount:
        """What the first round asks."""
        return query_of(self.scenario, self.study, self.segment)


def design_counting(scenario: Scenario, *, devices: int, rounds: int) -> CountingDesign:
    """The studies that keep a scenario's promise together.

    Args:
        scenario: of a running count.
        devices: how many people there are.
        rounds: how many there are, in all segments together.

    Raises:
        ParameterError: the scenario does not fit so many devices or rounds, or too little of the
            promise is left for a study.
    """
    horizons = horizons_of(scenario, rounds)
    segment = Segment(horizon=horizons[0], cohort=devices, factorisation=scenario.factorisation)
    if not scenario.halts:
        study = study_of(scenario, devices=devices, horizon=rounds)
        query = query_of(scenario, study, segment)
        return CountingDesign(
            scenario=scenario,
            study=study,
            halts=None,
            segment=segment,
            horizons=horizons,
            guarantee=query.guarantee_in(study),
        )
    sampler = sampler_delta(
        epsilon=scenario.epsilon,
        view=scenario.view,
        minimum_cohort=scenario.minimum_cohort or devices,
        horizon=rounds,
        maximum_dimension=LARGEST_DIMENSION,
    )
    rest = math.nextafter(float(1 - Fraction(scenario.halts)), 0)
    own, others = split_target(
        [rest, float(scenario.halts)],
        epsilon=scenario.epsilon,
        delta=scenario.delta,
        measure=scenario.measure or Measure.GDP,
        sampler=2 * sampler,
    )
    main = replace(scenario, epsilon=own, halts=0.0)
    beside = replace(
        main,
        name=f"{scenario.name}: halts",
        question="Did this device ever tell less than its owner's state?",
        feature="halts",
        parameters={},
        epsilon=others,
        budget=1,
        policy=Policy.SKIP,
        factorisation=Factorisation.SQUARE_ROOT,
    )
    study, halts = (study_of(each, devices=devices, horizon=rounds) for each in (main, beside))
    halts = replace(halts, purpose=Purpose.HALTS)
    mechanisms = [
        GaussianLinear.of(study, query_of(main, study, segment)),
        GaussianLinear.of(halts, _halts_query(halts, segment)),
    ]
    return CountingDesign(
        scenario=main,
        study=study,
        halts=halts,
        segment=segment,
        horizons=horizons,
        guarantee=guarantee_together(
            [study, halts],
            epsilon=scenario.epsilon,
            delta=scenario.delta,
            per_report_mus=[mechanism.report_mu for mechanism in mechanisms],
        ),
    )


def query_of(scenario: Scenario, study: Study, segment: Segment) -> RunningCount:
    """What a scenario's first round asks."""
    return RunningCount(
        feature=Feature(name=scenario.feature, parameters={**scenario.parameters, "period": 1}),
        segment=segment.begun(1),
        bound=1,
        sigma=study.base_sigma,
        grid_exponent=study.base_grid_exponent,
        admission=scenario.admission,
    )


def _halts_query(study: Study, segment: Segment) -> HaltCount:
    return HaltCount(
        halted_study=bytes(32),
        segment=halts_segment(segment).begun(1),
        sigma=study.base_sigma,
        grid_exponent=study.base_grid_exponent,
    )


def halts_segment(segment: Segment) -> Segment:
    """The segment that counts who ran out: whatever the other's factorisation, the best one."""
    return replace(segment, factorisation=Factorisation.SQUARE_ROOT)
