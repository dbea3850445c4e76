"""Nothing public accepts a number that it has no answer for.

Every public function, constructor and method of the modules below is called with each of its
numeric parameters out of range in turn. It either answers with numbers that are numbers, or raises
ParameterError that says which argument, what came and what was expected. An object that refused
is as it was before. What is not in the table fails, so new functions have to be added.
"""

import contextlib
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

from demur_client import connection, policy
from demur_client.budget import charges, decide, filters, odometers, running_counts
from demur_client.ledger import scope
from demur_client.sources import sql
from demur_proto import everyone, queries, round, study
from demur_proto.accounting import (
    calibration,
    conversions,
    divergences,
    histograms,
    intervals,
    laws,
    pure,
    targets,
    together,
    windows,
)
from demur_proto.errors import ParameterError
from demur_proto.mechanisms import (
    base,
    categorical,
    hadamard,
    local_hashing,
    randomised_response,
    registry,
    subset_selection,
    thresholds,
    unary,
)
from demur_proto.mechanisms import gaussian as mechanisms_gaussian
from demur_proto.mechanisms.for_study import duchi, numeric, piecewise, privunit
from demur_proto.mechanisms.for_study import gaussian as study_gaussian
from demur_proto.mechanisms.for_study import laplace as study_laplace
from demur_proto.models import architectures, definition, features, layers, whitened_gradients
from demur_proto.models import base as models_base
from demur_proto.queries import base as queries_base
from demur_proto.queries import error_count, halt_count, histogram, linear, running_count
from demur_proto.queries import gradient as queries_gradient
from demur_proto.queries import registry as queries_registry
from demur_proto.running import estimates, factorisations, following, segments
from demur_proto.samplers import exact
from demur_proto.samplers import gaussian as samplers_gaussian
from demur_proto.samplers import laplace as samplers_laplace
from demur_proto.study import Measure, MechanismFamily, Policy, Purpose, View
from demur_proto.wire.definition import define_study
from demur_server.training import optimisers
from demur_sim.comparison import by_name, design, flips, levels, memoised
from demur_sim.datasets import labelled
from demur_sim.datasets.activity import Activity, Counted
from demur_sim.engine import float_cohort
from demur_sim.planning import model

MODULES: tuple[ModuleType, ...] = (
    samplers_laplace,
    intervals,
    error_count,
    queries_gradient,
    halt_count,
    histogram,
    linear,
    running_count,
    queries_base,
    queries_registry,
    targets,
    calibration,
    pure,
    conversions,
    divergences,
    round,
    study,
    mechanisms_gaussian,
    histograms,
    registry,
    thresholds,
    categorical,
    randomised_response,
    unary,
    hadamard,
    local_hashing,
    subset_selection,
    laws,
    duchi,
    piecewise,
    numeric,
    study_laplace,
    study_gaussian,
    privunit,
    odometers,
    decide,
    charges,
    filters,
    scope,
    connection,
    sql,
    policy,
    samplers_gaussian,
    exact,
    models_base,
    architectures,
    features,
    layers,
    definition,
    whitened_gradients,
    labelled,
    float_cohort,
    together,
    optimisers,
    segments,
    factorisations,
    estimates,
    following,
    running_counts,
    everyone,
    windows,
    design,
    levels,
    flips,
    memoised,
    by_name,
    model,
)

NEVER: tuple[Any, ...] = (math.nan, np.float64("nan"), -math.inf, True, "1", None, 1j, [1.0])
"""No parameter of any function accepts these."""

NEGATIVE: tuple[Any, ...] = (-1, -0.5, -(10**400), Fraction(-1, 3), -5e-324)
"""Nor these, except the few that have a sign."""

PERHAPS: tuple[Any, ...] = (
    *(0, 0.0, -0.0, 1, 0.5, 1.0, 1.5, 2, Fraction(1, 3), math.inf),
    *(5e-324, 1e-300, 1e-12, 1e15, 1e16, 1e300, 1.7976931348623157e308),
    *(2**53 + 1, 2**61, 2**62 - 1, 2**62, 2**63, 10**400, Fraction(1, 10**400)),
)
"""Some accept these and some do not."""

TEXTS: tuple[Any, ...] = (math.nan, 1, None, "", "exactly", b"simple")
"""For parameters that choose by name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """A call that is right, from which each wrong one is made by changing one argument."""

    valid: Mapping[str, Any]
    on: Callable[[], Any] | None = None  #: the object whose method it is, fresh each time
    infinite: bool = False  #: an infinite answer is documented
    signed: frozenset[str] = frozenset()  #: parameters that may be negative
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)  #: as errors call them


def example(
    *,
    on: Callable[[], Any] | None = None,
    infinite: bool = False,
    signed: Sequence[str] = (),
    aliases: Mapping[str, str] | None = None,
    **valid: Any,
) -> Example:
    return Example(
        valid=valid,
        on=on,
        infinite=infinite,
        signed=frozenset(signed),
        aliases=aliases or {},
    )


STUDY = study.design_study(
    name="all of it",
    epsilon=1.0,
    delta=1e-6,
    answers=15,
    minimum_cohort=1000,
    grid_exponent=-7,
    horizon=546,
)
DEFINED = define_study(STUDY)
FEATURE = queries.Feature(name="active", parameters={"period": 3.0})
LINEAR = queries.Linear(
    features=(FEATURE,),
    dimension=1,
    clip=1.0,
    sigma=STUDY.base_sigma,
    grid_exponent=-7,
    on_grid=True,
)
GRADIENT = queries.Gradient(
    model_hash=bytes(32), dimension=1, clip=1.0, sigma=STUDY.base_sigma, grid_exponent=-15
)
ROUND = round.round_of(DEFINED, LINEAR, number=1)
SEGMENT = segments.Segment(horizon=30, cohort=1000)
PREFIX = queries.RunningCount(
    feature=FEATURE, segment=SEGMENT.begun(1), bound=1, sigma=20.0, grid_exponent=-14
)
HALTS = queries.HaltCount(
    halted_study=bytes(32), segment=SEGMENT.begun(1), sigma=20.0, grid_exponent=-14
)
FACTORS: dict[str, Callable[[], Any]] = {
    "factorisations.Identity": lambda: factorisations.Identity(horizon=8, exponent=-14),
    "factorisations.SquareRoot": lambda: factorisations.SquareRoot(horizon=8, exponent=-14),
    "factorisations.Tree": lambda: factorisations.Tree(horizon=8, exponent=-14),
}
HISTOGRAMS = histograms.design_histogram_study(
    name="all of it", epsilon=1.0, delta=1e-6, minimum_cohort=1000, categories=64, horizon=546
)
HISTOGRAM: dict[str, Any] = {
    "categories": 64,
    "mechanism": registry.Randomiser.OLH,
    "epsilon": 1.0,
}
KINDS = {
    f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}": kind
    for kind in queries_registry.KINDS.values()
}
QUERY_METHODS = (
    *("at", "check_affordable", "check_family", "check_kind", "check_model", "check_purpose"),
    *("check_round", "mechanism_for", "fitted", "guarantee_in", "in_study", "mechanism_in", "read"),
    *("value_of", "weight_in", "weighted", "word_type_in", "write"),
)
LOSSES = targets.PureLosses().plus(0.01, rounds=100)


def fields(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.init}


def mechanism() -> mechanisms_gaussian.GaussianLinear:
    return mechanisms_gaussian.GaussianLinear.of(STUDY, LINEAR)


def quarters() -> categorical.Frequencies:
    return categorical.Frequencies(own=Fraction(3, 4), other=Fraction(1, 4))


def basic(losses: targets.PureLosses) -> bool:
    return targets.basic_fits(losses, epsilon=1.0)


def one_filter() -> filters.Filter:
    return filters.Filter(budget_units=10, policy=Policy.CLIP)


def one_cap() -> scope.LifetimeCap:
    return scope.LifetimeCap(measure=Measure.ZCDP, budget=1.0)


def one_purse() -> scope.Purse:
    return scope.Purse(one_filter())


DECLARED = scope.Declared(measure=Measure.GDP, budget=1.0, gaussian=True, budget_units=10)


def two_counters() -> filters.RenyiFilter:
    return filters.RenyiFilter(budget_units=10, counters=2, policy=Policy.SKIP)


def one_baseline() -> odometers.BaselineFilter:
    return odometers.BaselineFilter.rogers(epsilon=1.0, delta=1e-6)


def orders() -> charges.RenyiBudget:
    return charges.RenyiBudget(bounds={2.0: 1.0, math.inf: 2.0})


TARGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
STEPS = {"exponent": "grid_exponent"}

MISSING = model.Truncation(mean_square=0.25, wrong=0.5, modelled=100)
EVERYBODY = model.Truncations(mean_square=np.ones(3), wrong=np.ones(3), modelled=100)
ACTIVE_TWICE = Activity(counted=Counted.ACTIVE, rounds=np.array([2]), people=np.array([9]))

EXAMPLES: dict[str, Example] = {
    "model.Truncation": example(mean_square=0.25, wrong=0.5, modelled=100),
    "model.Truncation.mean_squared_bias": example(on=lambda: MISSING, people=100),
    "model.Truncations.of": example(on=lambda: EVERYBODY, budget=2),
    "model.spread_truncations": example(law=ACTIVE_TWICE, rounds=8, aliases={"rounds": "periods"}),
    "connection.Backoff": example(first_s=1.0, longest_s=1e300),
    "sql.Limits": example(time_limit_s=1.0, most_rows=10, most_numbers=10),
    "policy.OwnerPolicy": example(
        opt_out=False,
        views=(study.View.LOCAL,),
        mechanisms=("krr",),
        questions=("linear",),
        largest_epsilon=1.0,
        largest_delta=1e-6,
        lifetime_epsilon=2.0,
        smallest_sigma=0.0,
        largest_round_epsilon=1.0,
        smallest_cohort=1,
        studies=(),
        certificates=(),
        quiet_hours=(),
        shortest_slot_ms=0,
        evaluation_memory_mib=64,
        evaluation_processor_s=1,
        evaluation_wall_s=1.0,
        fill_processor=False,
    ),
    "policy.epsilon_together": example(studies=[STUDY], delta=1e-6),
    "intervals.supremum_failure": example(radius=1.0, dimension=3, two_sided=True),
    "intervals.supremum_radius": example(dimension=3, failure=0.1),
    "intervals.supremum_radius_bound": example(dimension=3, failure=0.1),
    "segments.Segment": Example(valid=fields(SEGMENT)),
    "segments.Segment.after": example(on=lambda: SEGMENT, number=3),
    "segments.Segment.begun": example(on=lambda: SEGMENT, number=3),
    "segments.Segment.doubled": example(
        on=lambda: segments.Segment(horizon=1, cohort=1000), number=3
    ),
    "segments.Segment.following": example(on=lambda: SEGMENT, number=3),
    "segments.doubling": example(rounds=8, first=2),
    "segments.check_counting": example(
        segment=SEGMENT,
        bound=1,
        sigma=1.0,
        exponent=-14,
        signed=["exponent"],
        aliases=STEPS,
    ),
    "factorisations.factors_of": example(
        factorisation=segments.Factorisation.TREE, horizon=8, exponent=-14, signed=["exponent"]
    ),
    "factorisations.change_norm": example(
        factorisation=segments.Factorisation.TREE, horizon=8, exponent=-14, signed=["exponent"]
    ),
    "factorisations.noise_gains": example(factors=FACTORS["factorisations.Tree"](), rounds=8),
    **{
        name: example(horizon=8, exponent=-14, signed=["exponent"])
        for name in ("factorisations.Identity", "factorisations.SquareRoot", "factorisations.Tree")
    },
    **{
        f"{owner}.{method}": example(on=make, position=3)
        for owner, make in FACTORS.items()
        for method in ("row", "shared", "solution")
    },
    "estimates.solution_of": example(segment=SEGMENT.begun(1), exponent=-14, signed=["exponent"]),
    "estimates.RoundTotal": example(sum=3, reports=2, signed=["sum"]),
    "estimates.running_estimate": example(
        query=PREFIX,
        mechanism=mechanisms_gaussian.GaussianLinear.of(STUDY, PREFIX),
        totals=[estimates.RoundTotal(sum=3, reports=900)],
        energy=1 << 40,
        added=True,
    ),
    "everyone.Measured": example(estimate=3.0, standard_error=2.0, bias=1.0, signed=["estimate"]),
    "everyone.everyone_interval": Example(
        valid={
            "active": everyone.Measured(estimate=3.0, standard_error=2.0),
            "halted": everyone.Measured(estimate=3.0, standard_error=2.0),
            "largest": 1.0,
            "signed": True,
            "missing": 1.0,
            "confidence": 0.95,
            "share": 0.5,
        }
    ),
    "running_count.RunningCount": example(**fields(PREFIX), signed=["grid_exponent"]),
    "halt_count.HaltCount": example(**fields(HALTS), signed=["grid_exponent"]),
    "filters.Filter.commit": example(
        on=one_filter,
        change=1,
        planned=0,
        cross=0,
        alone=4,
        weight=1,
        beside=(),
        signed=["change", "cross"],
    ),
    "targets.PureLosses": example(total=Fraction(1), squares=Fraction(1), drift=Fraction(1)),
    "targets.PureLosses.plus": example(on=lambda: LOSSES, epsilon=0.1, rounds=2),
    "targets.basic_fits": example(losses=LOSSES, epsilon=1.0),
    "targets.rogers_fits": example(losses=LOSSES, **TARGET, halve_delta=True),
    "targets.whitehouse_fits": example(losses=LOSSES, **TARGET),
    "targets.rounds_that_fit": example(
        round_epsilon=0.25, fits=basic, aliases={"round_epsilon": "epsilon"}
    ),
    "calibration.answers_that_fit": example(sigma=1.0, clip=1.0, mu=1.0),
    "calibration.answers_that_fit_zcdp": example(sigma=1.0, clip=1.0, rho=1.0),
    "calibration.mu_of_answers": example(answers=3, clip=1.0, sigma=1.0),
    "calibration.rho_of_answers": example(answers=3, clip=1.0, sigma=1.0),
    "calibration.sigma_for_answers": example(answers=3, clip=1.0, mu=1.0),
    "calibration.sigma_for_answers_zcdp": example(answers=3, clip=1.0, rho=1.0),
    "conversions.gdp_delta": example(mu=1.0, epsilon=1.0),
    "conversions.gdp_epsilon": example(mu=1.0, delta=1e-6),
    "conversions.gdp_mu": example(**TARGET),
    "conversions.zcdp_delta": example(rho=0.1, epsilon=1.0, grade="improved"),
    "conversions.zcdp_epsilon": example(rho=0.1, delta=1e-6, grade="improved"),
    "conversions.zcdp_rho": example(**TARGET, grade="improved"),
    "calibration.base_units": example(
        budget_norm=Fraction(15),
        exponent=-7,
        signed=["exponent"],
        aliases={"exponent": "grid_exponent", "budget_norm": "budget"},
    ),
    "calibration.charge_weight": example(charge=0.25, budget=0.75, budget_units=6),
    "calibration.grid_step": example(exponent=-7, signed=["exponent"], aliases=STEPS),
    "calibration.round_weight": example(
        sigma=2.0,
        exponent=-7,
        base_sigma=4.0,
        base_exponent=-7,
        base_weight=8,
        budget_units=1000,
        signed=["exponent", "base_exponent"],
        aliases={"exponent": "grid_exponent", "base_exponent": "grid_exponent"},
    ),
    "calibration.squared_radius": example(
        clip=1.0, exponent=-7, signed=["exponent"], aliases=STEPS
    ),
    "charges.CompositionBudget": example(answers=26, each=0.05),
    "charges.CompositionBudget.charge": example(
        on=lambda: charges.CompositionBudget(answers=26, each=0.05), epsilon=0.05, infinite=True
    ),
    "charges.PureBudget": example(epsilon=1.0, budget_units=1000),
    "charges.PureBudget.charge": example(
        on=lambda: charges.PureBudget(epsilon=1.0), epsilon=0.05, infinite=True
    ),
    "pure.composition_answers": example(each=0.1, **TARGET),
    "pure.composition_delta": example(answers=10, each=0.1, epsilon=0.5),
    "pure.composition_each": example(answers=10, **TARGET),
    "pure.composition_epsilon": example(answers=10, each=0.1, delta=1e-6),
    "histograms.design_histogram_study": example(
        name="all of it",
        **TARGET,
        minimum_cohort=1000,
        categories=64,
        policy=Policy.SKIP,
        horizon=546,
        measure=Measure.ANSWERS,
        answers=10,
    ),
    "histograms.best_histogram_study": example(
        name="all of it",
        **TARGET,
        minimum_cohort=1000,
        categories=64,
        mechanism=registry.Randomiser.OUE,
        answers=10,
        policy=Policy.SKIP,
        horizon=546,
    ),
    "histograms.histogram_study_for_epsilon": example(
        name="all of it",
        **TARGET,
        minimum_cohort=1000,
        categories=64,
        mechanism=registry.Randomiser.OUE,
        each=0.1,
        measures=(Measure.PURE,),
        policy=Policy.SKIP,
        horizon=546,
        aliases={"each": "epsilon"},
    ),
    "histograms.epsilon_for_answers": example(
        study=HISTOGRAMS, mechanism=registry.Randomiser.OLH, categories=64, answers=10
    ),
    "conversions.pair_epsilon_delta": example(epsilon=1.0, delta=1e-6),
    "conversions.pair_mu": example(mu=1.0),
    "conversions.pair_renyi": example(bound=1.0, order=4.0, infinite=True),
    "conversions.pair_rho": example(rho=1.0),
    "pure.pure_budget": example(**TARGET),
    "pure.pure_delta": example(pure=1.0, epsilon=0.5),
    "pure.pure_epsilon": example(pure=1.0, delta=0.25),
    "pure.pure_of_rho": example(rho=0.5, charge="tight"),
    "pure.pure_rho": example(pure=1.0, charge="tight"),
    "divergences.gaussian_renyi": example(distance=1.0, sigma=1.0, order=2.0, infinite=True),
    "divergences.laplace_renyi": example(distance=1.0, scale=1.0, order=2.0, infinite=True),
    "divergences.randomized_response_renyi": example(epsilon=1.0, options=3, order=2.0),
    "divergences.uniform_response_renyi": example(epsilon=1.0, options=3, order=2.0),
    "conversions.curve_delta": example(
        curve=[(2.0, 1.0)], epsilon=1.0, grade="simple", aliases={"curve": "bound"}
    ),
    "conversions.curve_epsilon": example(
        curve=[(2.0, 1.0)], delta=0.1, grade="simple", infinite=True, aliases={"curve": "bound"}
    ),
    "conversions.gdp_renyi": example(mu=1.0, order=2.0, infinite=True),
    "conversions.renyi_budget": example(**TARGET, order=20.0, grade="improved"),
    "conversions.renyi_delta": example(bound=1.0, order=2.0, epsilon=2.0, grade="improved"),
    "conversions.renyi_epsilon": example(
        bound=1.0, order=2.0, delta=0.1, grade="improved", infinite=True
    ),
    "conversions.zcdp_renyi": example(rho=1.0, order=2.0, infinite=True),
    "error_count.ErrorCount": example(
        model_hash=bytes(32),
        model=None,
        parameters=1,
        sigma=20.0,
        grid_exponent=-15,
        on_grid=False,
        signed=["grid_exponent"],
    ),
    "base.Feature": example(
        name="x", parameters={"a": 1.0}, signed=["parameters"], aliases={"parameters": "a"}
    ),
    "gradient.Gradient": example(**fields(GRADIENT), signed=["grid_exponent"]),
    "histogram.Histogram": example(feature=FEATURE, **HISTOGRAM, size=3),
    "linear.Linear": example(**fields(LINEAR), signed=["grid_exponent"]),
    "round.Round": example(**fields(ROUND)),
    "round.round_of": example(
        study=DEFINED, query=LINEAR, number=1, answer_after_ms=0, close_unix_ms=0
    ),
    **{
        f"{name}.about": example(
            on=functools.partial(lambda kind: kind, kind),
            model=definition.define_model(
                definition.ModelDefinition(
                    architecture=architectures.Softmax(inputs=1, classes=2), theta=np.zeros(4)
                )
            ),
            **told,
            sigma=20.0,
            grid_exponent=-15,
            signed=["grid_exponent"],
        )
        for name, kind, told in (
            ("gradient.Gradient", queries.Gradient, {"clip": 1.0}),
            ("error_count.ErrorCount", queries.ErrorCount, {"on_grid": False}),
        )
    },
    "base.check_grid": example(
        exponent=-14, clip=1.0, dimension=1, on_grid=False, signed=["exponent"], aliases=STEPS
    ),
    "study.Study": example(**fields(STUDY), signed=["base_grid_exponent"]),
    "study.Study.sampler_delta_at": example(on=lambda: STUDY, epsilon=1.0),
    "study.check_target_delta": example(delta=1e-6, measure=Measure.ZCDP),
    "study.design_study": example(
        name="all of it",
        epsilon=1.0,
        delta=1e-6,
        answers=15,
        minimum_cohort=1000,
        clip=1.0,
        measure=Measure.ZCDP,
        view=View.AGGREGATE,
        policy=Policy.SKIP,
        mechanism_family=MechanismFamily.GAUSSIAN,
        grid_exponent=-7,
        dishonest=0,
        horizon=546,
        maximum_dimension=1,
        purpose=Purpose.ERRORS,
        signed=["grid_exponent"],
        aliases={"grid_exponent": "base_grid_exponent"},
    ),
    "study.largest_rho": example(**TARGET),
    "categorical.Frequencies": example(own=Fraction(3, 4), other=Fraction(1, 4)),
    "categorical.Frequencies.estimate": example(
        on=quarters, supports=np.array([3]), reports=7, confidence=0.95
    ),
    "categorical.Frequencies.variance": example(on=quarters, count=3.0, reports=7),
    "categorical.check_categories": example(categories=3),
    "randomised_response.response_levels": example(epsilon=1.0, options=3),
    "thresholds.Threshold": example(numerator=3),
    "thresholds.check_epsilon": example(epsilon=1.0),
    "thresholds.exp_below": example(exponent=1.0),
    "thresholds.keep_threshold": example(epsilon=1.0, others=3),
    "unary.half_levels": example(epsilon=1.0),
    "local_hashing.HashFamily": example(size=3, symbols=9, aliases={"size": "hash_range"}),
    "local_hashing.best_range": example(epsilon=1.0, symbols=9),
    "local_hashing.uniform_levels": example(epsilon=1.0, hash_range=3),
    "local_hashing.joint_levels": example(epsilon=1.0, hash_range=3),
    "subset_selection.best_size": example(epsilon=1.0, options=9),
    "subset_selection.subset_levels": example(epsilon=1.0, options=9, size=2),
    "study.sampler_delta": example(
        epsilon=1.0, view=View.LOCAL, minimum_cohort=1, horizon=1, maximum_dimension=1
    ),
    "targets.answers_for_target": example(sigma=9.0, clip=1.0, **TARGET, grade="exact"),
    "targets.epsilon_of_answers": example(
        answers=3, clip=1.0, sigma=9.0, delta=1e-6, grade="exact"
    ),
    "targets.pure_rounds_for_target": example(
        round_epsilon=0.1, **TARGET, grade="improved", charge="tight"
    ),
    "targets.sigma_for_target": example(answers=3, clip=1.0, **TARGET, grade="exact"),
    "gaussian.GaussianLinear": example(**fields(mechanism()), signed=["grid_exponent"]),
    "gaussian.GaussianLinear.charge_gdp": example(on=mechanism, squared_norm=100),
    "gaussian.GaussianLinear.charge_zcdp": example(on=mechanism, squared_norm=100),
    "gaussian.GaussianLinear.clipping_bias": example(on=mechanism, reports=1000),
    "gaussian.GaussianLinear.estimate": example(on=mechanism, sums=np.array([3]), reports=1000),
    "gaussian.GaussianLinear.standard_error": example(on=mechanism, reports=1000),
    "odometers.BaselineFilter.basic": example(epsilon=1.0, policy=Policy.SKIP),
    "odometers.BaselineFilter.rogers": example(**TARGET, policy=Policy.SKIP),
    "odometers.BaselineFilter.whitehouse": example(**TARGET, policy=Policy.SKIP),
    "odometers.BaselineFilter.try_spend": example(on=one_baseline, epsilon=0.1),
    "charges.AnswersBudget": example(answers=45),
    "charges.AnswersBudget.charge": example(
        on=lambda: charges.AnswersBudget(answers=45), answers=1
    ),
    "charges.ApproxDpBudget": example(
        **TARGET,
        grade="improved",
        charging="tight",
        budget_units=1000,
        aliases={"charging": "charge"},
    ),
    "charges.ApproxDpBudget.charge": example(
        on=lambda: charges.ApproxDpBudget(epsilon=1.0, delta=1e-6), epsilon=0.1
    ),
    "charges.GdpBudget": example(mu=1.0, budget_units=1000),
    "charges.GdpBudget.charge": example(on=lambda: charges.GdpBudget(mu=1.0), mu=0.1),
    "charges.GdpBudget.charge_square": example(on=lambda: charges.GdpBudget(mu=1.0), square=0.1),
    "charges.RenyiBudget": example(bounds={2.0: 1.0}, budget_units=1000),
    "charges.RenyiBudget.charge": example(on=orders, losses=[0.5, 0.5]),
    "charges.RenyiBudget.charge_zcdp": example(on=orders, rho=0.1),
    "charges.RenyiBudget.of": example(
        **TARGET,
        orders=[20.0],
        grade="improved",
        budget_units=1000,
        infinite=True,
        aliases={"orders": "order"},
    ),
    "charges.ZcdpBudget": example(rho=1.0, budget_units=1000),
    "charges.ZcdpBudget.charge": example(on=lambda: charges.ZcdpBudget(rho=1.0), rho=0.1),
    "filters.Filter": example(budget_units=10, policy=Policy.SKIP),
    "filters.Filter.radius": example(on=one_filter, weight=1, largest=9),
    "filters.Filter.charge_of": example(on=one_filter, squared_norm=3, weight=2),
    "filters.Filter.resumed": example(
        budget_units=10, policy=Policy.SKIP, remaining_units=3, refused=True
    ),
    "scope.Declared": example(measure=Measure.GDP, budget=1.0, gaussian=True, budget_units=10),
    "scope.LifetimeCap": example(measure=Measure.GDP, budget=1.0),
    "scope.LifetimeCap.room": example(on=one_cap, study=DECLARED, taken=3),
    "scope.LifetimeCap.units": example(on=one_cap, study=DECLARED, spent=3),
    "scope.Purse.commit": example(
        on=one_purse, change=1, planned=0, cross=0, alone=4, weight=1, signed=["change", "cross"]
    ),
    "scope.Purse.radius": example(on=one_purse, weight=1, largest=9),
    "scope.Purse.try_spend": example(on=one_purse, squared_norm=3, weight=2, shrunk=True),
    "filters.Filter.try_charge": example(on=one_filter, charge=3),
    "filters.Filter.try_spend": example(on=one_filter, squared_norm=3, weight=2, shrunk=True),
    "filters.RenyiFilter": example(budget_units=10, counters=2, policy=Policy.SKIP),
    "filters.RenyiFilter.try_charge": example(on=two_counters, charges=[1, 2]),
    "odometers.ExactSumOdometer.add": example(on=odometers.ExactSumOdometer, loss=0.1),
    "odometers.NestedOdometer": example(step=1.0),
    "odometers.NestedOdometer.add": example(
        on=lambda: odometers.NestedOdometer(step=1.0), loss=0.1
    ),
    "odometers.RestartOdometer": example(step=1.0),
    "odometers.RestartOdometer.add": example(
        on=lambda: odometers.RestartOdometer(step=1.0), loss=0.1
    ),
}

CATEGORICAL: Mapping[str, Callable[[], Any]] = {
    "randomised_response.KaryRandomisedResponse": lambda: (
        randomised_response.KaryRandomisedResponse(categories=3, epsilon=1.0)
    ),
    "randomised_response.BinaryRandomisedResponse": lambda: (
        randomised_response.BinaryRandomisedResponse(epsilon=1.0)
    ),
    "unary.UnaryEncoding": lambda: unary.UnaryEncoding(categories=3, epsilon=1.0),
    "hadamard.HadamardResponse": lambda: hadamard.HadamardResponse(categories=3, epsilon=1.0),
    "local_hashing.LocalHashing": lambda: local_hashing.LocalHashing(categories=3, epsilon=1.0),
    "subset_selection.SubsetSelection": lambda: subset_selection.SubsetSelection(
        categories=3, epsilon=1.0
    ),
}


def three_reports(mechanism: Any) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Sums that they may add up to, whichever sums a mechanism keeps."""
    sums: np.ndarray[tuple[int], np.dtype[np.int64]] = np.zeros(
        mechanism.sums_length, dtype=np.int64
    )
    sums[0] = 3
    return sums


for owner, make in CATEGORICAL.items():
    EXAMPLES[owner] = example(**fields(make()))
    EXAMPLES[f"{owner}.charge_renyi"] = example(on=make, symbol=1, order=2.0)
    EXAMPLES[f"{owner}.charge_zcdp"] = example(on=make, symbol=1)
    EXAMPLES[f"{owner}.charge_pure"] = example(on=make, symbol=1)
    EXAMPLES[f"{owner}.estimate"] = example(
        on=make, sums=three_reports(make()), reports=3, confidence=0.95
    )


@functools.cache  # it holds tables
def duchi_mean() -> duchi.DuchiMean:
    return duchi.DuchiMean(epsilon=1.0)


@functools.cache  # it holds tables
def piecewise_mean() -> piecewise.PiecewiseMean:
    return piecewise.PiecewiseMean(epsilon=1.0)


@functools.cache  # it holds tables
def laplace_sum() -> study_laplace.LaplaceSum:
    return study_laplace.LaplaceSum(clip=1.0, grid_exponent=-14, scale=2.0)


@functools.cache  # it holds tables
def discrete_gaussian_sum() -> study_gaussian.DiscreteGaussianLinear:
    return study_gaussian.DiscreteGaussianLinear(dimension=1, clip=1.0, grid_exponent=-7, sigma=4.0)


def post_map(values: Any) -> Any:
    return values


def lipschitz_gaussian() -> study_gaussian.LipschitzGaussian:
    return study_gaussian.LipschitzGaussian(linear=mechanism(), post_map=post_map, reference=(3,))


def priv_unit() -> privunit.PrivUnit:
    return privunit.PrivUnit(dimension=3, probability=0.75, height=0.5)


LEVELS = (
    divergences.Level(mass=0.25, log_ratio=math.log(3)),
    divergences.Level(mass=0.75, log_ratio=-math.log(3)),
)
ONE_SUM = np.array([3])
EXAMPLES |= {
    "divergences.Level": example(mass=0.5, log_ratio=0.1, signed=["log_ratio"]),
    "divergences.levels_renyi": example(levels=LEVELS, order=2.0),
    "divergences.levels_zcdp": example(levels=LEVELS),
    "laws.discrete_laplace_renyi": example(steps=1, scale=2.0, order=2.0, infinite=True),
    "laws.discrete_laplace_zcdp": example(steps=1, scale=2.0),
    "laws.laplace_zcdp": example(distance=1.0, scale=2.0),
    "laws.discrete_gaussian_renyi": example(steps=1, sigma=2.0, order=2.0, infinite=True),
    "laws.discrete_gaussian_variance": example(sigma=2.0, infinite=True),
    "laws.discrete_gaussian_zcdp": example(squared_norm=1, sigma=2.0, infinite=True),
    "unary.half_pair_levels": example(epsilon=1.0),
    "unary.unary_pair_levels": example(epsilon=1.0, flip=unary.Flip.OPTIMISED),
    "unary.block_pair_levels": example(epsilon=1.0, outputs=16, size=2, same_block=True),
    "duchi.DuchiMean": example(epsilon=1.0),
    "duchi.DuchiMean.charge_pure": example(on=duchi_mean, value=0.5, signed=["value"]),
    "duchi.DuchiMean.charge_renyi": example(on=duchi_mean, value=0.5, order=2.0, signed=["value"]),
    "duchi.DuchiMean.charge_zcdp": example(on=duchi_mean, value=0.5, signed=["value"]),
    "duchi.DuchiMean.estimate": example(on=duchi_mean, sums=ONE_SUM, reports=3),
    "duchi.DuchiMean.probability": example(on=duchi_mean, step=1, signed=["step"]),
    "duchi.DuchiMean.variance": example(on=duchi_mean, squares=1.0, reports=3),
    "piecewise.PiecewiseMean": example(epsilon=1.0),
    "piecewise.PiecewiseMean.charge_pure": example(on=piecewise_mean, shift=1, signed=["shift"]),
    "piecewise.PiecewiseMean.charge_renyi": example(
        on=piecewise_mean, shift=1, order=2.0, signed=["shift"]
    ),
    "piecewise.PiecewiseMean.charge_zcdp": example(on=piecewise_mean, shift=1, signed=["shift"]),
    "piecewise.PiecewiseMean.estimate": example(
        on=piecewise_mean, sums=np.array([1, 3]), reports=3
    ),
    "piecewise.PiecewiseMean.variance": example(on=piecewise_mean, squares=1.0, reports=3),
    "piecewise.piecewise_renyi": example(distance=1.0, epsilon=1.0, order=2.0),
    "laplace.LaplaceSum.charge_pure": example(on=laplace_sum, steps=1, signed=["steps"]),
    "laplace.LaplaceSum.charge_renyi": example(
        on=laplace_sum, steps=1, order=2.0, signed=["steps"]
    ),
    "laplace.LaplaceSum.charge_zcdp": example(on=laplace_sum, steps=1, signed=["steps"]),
    "laplace.LaplaceSum.estimate": example(on=laplace_sum, sums=ONE_SUM, reports=3),
    "laplace.LaplaceSum.variance": example(on=laplace_sum, reports=3),
    "gaussian.DiscreteGaussianLinear.charge_pure": example(
        on=discrete_gaussian_sum, squared_norm=1, infinite=True
    ),
    "gaussian.DiscreteGaussianLinear.charge_renyi": example(
        on=discrete_gaussian_sum, steps=[1], order=2.0, signed=["steps"], infinite=True
    ),
    "gaussian.DiscreteGaussianLinear.charge_zcdp": example(
        on=discrete_gaussian_sum, squared_norm=1
    ),
    "gaussian.DiscreteGaussianLinear.estimate": example(
        on=discrete_gaussian_sum, sums=ONE_SUM, reports=3
    ),
    "gaussian.DiscreteGaussianLinear.variance": example(on=discrete_gaussian_sum, reports=3),
    "gaussian.LipschitzGaussian": example(
        linear=mechanism(), post_map=post_map, reference=(3,), signed=["reference"]
    ),
    "gaussian.LipschitzGaussian.around": example(
        query=[0.5], post_map=post_map, linear=mechanism(), signed=["query"]
    ),
    "gaussian.LipschitzGaussian.charge_bound": example(
        on=lipschitz_gaussian, distance=1.0, lipschitz=1.0
    ),
    "gaussian.LipschitzGaussian.charge_gdp": example(on=lipschitz_gaussian, squared_norm=1),
    "gaussian.LipschitzGaussian.charge_zcdp": example(on=lipschitz_gaussian, squared_norm=1),
    "gaussian.LipschitzGaussian.estimate": example(on=lipschitz_gaussian, sums=ONE_SUM, reports=3),
    "privunit.PrivUnit": example(dimension=3, probability=0.75, height=0.5),
    "privunit.PrivUnit.charge_pure": example(on=priv_unit, direction=True),
    "privunit.PrivUnit.charge_renyi": example(on=priv_unit, direction=True, order=2.0),
    "privunit.PrivUnit.charge_zcdp": example(on=priv_unit, direction=True),
    "privunit.PrivUnit.variance": example(on=priv_unit, directions=2, reports=3),
    "privunit.PrivUnit.pair_renyi": example(on=priv_unit, order=2.0),
}

FOUND_SUM = base.Estimate(
    estimate=np.array([3.0]), standard_error=np.array([1.0]), half_width=np.array([2.0])
)
LABELS = np.array([0, 1, 1])
THREE = models_base.Examples.one_each(np.zeros((3, 2)), LABELS)
LABELLED = labelled.Labelled(examples=np.zeros((3, 2)), labels=LABELS)
IMAGE: dict[str, Any] = {"height": 4, "width": 8, "white": 255.0}
EXAMPLES |= {
    "base.check_sizes": example(parameters=6, inputs=2, classes=2),
    "architectures.Softmax": example(inputs=2, classes=2),
    "architectures.HiddenLayer": example(inputs=2, hidden=3, classes=2),
    "definition.Module": example(path="a:b", inputs=2, classes=2, parameters=6),
    "features.Pixels": example(**IMAGE),
    "features.OrientedGradients": Example(
        valid={**IMAGE, "cell": 2, "bins": 9, "block": 1, "cap": 0.5, "signed": False}
    ),
    "whitened_gradients.WhitenedGradients": example(
        height=8,
        width=8,
        white=255.0,
        cells=2,
        bins=4,
        synthetic=100,
        seed=1,
        power=0.5,
        floor=0.001,
        norm=8.0,
    ),
    "base.Examples.of_people": example(on=lambda: THREE, start=0, stop=1),
    "labelled.deal_equally": example(examples=3, per_person=2, rng=np.random.default_rng(1)),
    "labelled.deal_skewed": example(
        labels=LABELS, per_person=2, alpha=0.5, rng=np.random.default_rng(1)
    ),
    "together.added_budget": example(budgets=[1.0, 2.0], measure=Measure.GDP),
    "together.split_target": example(
        shares=[0.5, 0.5], **TARGET, measure=Measure.GDP, sampler=1e-9
    ),
    "together.guarantee_together": example(
        studies=[STUDY, STUDY], epsilon=2.0, delta=1e-6, per_report_mus=[1.0, 2.0]
    ),
    "optimisers.TailAverage": example(start=3),
    "optimisers.ExponentialAverage": example(decay=0.5),
    "optimisers.Rate": example(first=1.0, last=0.5, steps=3),
    "optimisers.Rate.at": example(on=lambda: optimisers.Rate(first=1.0), number=2),
    "optimisers.Momentum": example(rate=optimisers.Rate(first=1.0), momentum=0.5),
    "optimisers.Adam": example(rate=optimisers.Rate(first=1.0), momentum=0.5, squares=0.5),
    "optimisers.check_share": example(name="momentum", value=0.5, aliases={"value": "momentum"}),
    "optimisers.Count": example(step=1, value=3.0, standard_error=1.0, signed=["value"]),
    "optimisers.Plateau": example(patience=2, margin=1.0),
    "optimisers.HaltThreshold": example(share=0.5),
    "labelled.Labelled.split": example(
        on=lambda: LABELLED, held_out=1, rng=np.random.default_rng(1)
    ),
    "float_cohort.FloatPrice": example(
        clip=1.0, budget_norm=STUDY.budget_norm, budget_units=STUDY.budget_units
    ),
    "labelled.LabelledData": example(name="three", train=LABELLED, test=LABELLED, classes=2),
}

EXAMPLES |= {
    "everyone.scaled_up": Example(
        valid={"found": FOUND_SUM, "reports": 3, "cohort": 5, "largest": 2.0, "signed": False},
    ),
    "windows.Window": example(first=1, last=3),
    "windows.Windows": example(windows=(windows.Window(first=1, last=3),), horizon=3),
    "windows.Windows.every": example(window=2, horizon=3),
    "windows.over_windows": example(windows=[[STUDY]], stay=1, delta=1e-6),
    "windows.told_stays": example(windows=3),
}

SAMPLERS = "makes large tables or draws; tests/proto/samplers gives it wrong numbers"

TABLES = "makes large tables; tests/proto/mechanisms gives it wrong numbers"

DRAWS = "draws as much as it is asked for; tests/proto/mechanisms gives it wrong numbers"

ARRAYS = "takes arrays, of which any may be wrong; its own tests give them"

EXAMPLES |= {
    "memoised.BitFlip": example(horizon=8, categories=3, bits=2, epsilon=1.0, infinite=True),
    "by_name.designs_of": example(
        name=by_name.DesignName.L_SUE, horizon=8, epsilon=1.0, delta=1e-6
    ),
    "levels.ComposedResponse": example(horizon=8, flips=flips.Flips(weights=(3, 3, 1))),
    "flips.Flips": example(weights=(3, 3, 1)),
    "flips.annulus_flips": example(changes=3, epsilon=1.0),
    "flips.threshold_flips": example(changes=3, epsilon=1.0, pair=False),
    "levels.KeptChange": example(horizon=8, changes=3, epsilon=1.0, pair=False),
    "memoised.MemoisedResponse": example(horizon=8, categories=3, forever=2.0, once=1.0),
    "memoised.MemoisedUnary": example(
        horizon=8, categories=3, forever=2.0, once=1.0, first=unary.Flip.SYMMETRIC
    ),
    "design.RepeatedResponse": example(horizon=8, epsilon=1.0, delta=1e-6),
    "design.response_rho": example(lean=0.5),
}

WORKS_OUT = "gets what feature maps work out of fields that they checked"

ELSEWHERE = {
    "by_name.names_of": "takes a text; tests/sim/test_beside.py gives it wrong ones",
    **{
        f"{owner}.{method}": ARRAYS
        for owner, methods in {
            "memoised.BitFlip": ("estimates", "frequencies", "memo", "reports"),
            "levels.ComposedResponse": ("answers", "estimates"),
            "flips.Flips": ("draw",),
            "levels.KeptChange": ("answers", "estimates"),
            "memoised.MemoisedResponse": ("estimates", "frequencies", "memo", "reports"),
            "memoised.MemoisedUnary": ("estimates", "frequencies", "memo", "reports"),
            "design.RepeatedResponse": ("answers", "estimates"),
            "flips": ("best_changes", "truncation_errors", "truncation_sums"),
        }.items()
        for method in methods
    },
    **{
        f"{owner}.{method}": ARRAYS
        for owner in ("architectures.Softmax", "architectures.HiddenLayer")
        for method in ("gradients", "clipped_sum", "predict", "errors")
    },
    "architectures.Softmax.initial": "draws",
    "architectures.HiddenLayer.initial": "draws",
    "base.as_doubles": ARRAYS,
    "architectures.best": ARRAYS,
    "architectures.slopes": ARRAYS,
    "architectures.wrong": ARRAYS,
    "base.Examples": ARRAYS,
    "base.Examples.one_each": ARRAYS,
    "base.check_people": ARRAYS,
    "features.OrientedGradients.of": ARRAYS,
    "features.Pixels.of": ARRAYS,
    "features.at_once": WORKS_OUT,
    "features.check_images": ARRAYS,
    "features.pieces": WORKS_OUT,
    "features.scaled": ARRAYS,
    "whitened_gradients.straightened": ARRAYS,
    "whitened_gradients.upright": ARRAYS,
    "whitened_gradients.strokes_working_set": WORKS_OUT,
    "whitened_gradients.strokes": "makes as many as it is asked for; feature maps check what comes in",
    "whitened_gradients.WhitenedGradients.of": ARRAYS,
    "whitened_gradients.Whitening": ARRAYS,
    "whitened_gradients.Whitening.of": ARRAYS,
    "whitened_gradients.fit_whitening": ARRAYS,
    "layers.Layer": ARRAYS,
    "layers.affine": ARRAYS,
    "layers.clipped_gradient_sum": ARRAYS,
    "layers.gradient_rows": ARRAYS,
    "layers.rows_times": ARRAYS,
    "layers.squared_lengths": ARRAYS,
    "layers.sum_of_products": ARRAYS,
    "definition.DefinedModel": "takes a model and its bytes",
    "definition.ModelDefinition": ARRAYS,
    "definition.check_module_path": "takes a path; the tests of scenarios give it wrong ones",
    "definition.define_model": "takes a model",
    "definition.read_model": "takes bytes; its own tests give it wrong ones",
    "labelled.Deal": ARRAYS,
    "labelled.Deal.examples": ARRAYS,
    "float_cohort.FloatPrice.affordable": ARRAYS,
    "float_cohort.FloatPrice.charge": ARRAYS,
    **{
        f"optimisers.{kind}.take": "takes arrays"
        for kind in ("Last", "TailAverage", "ExponentialAverage")
    },
    **{
        f"optimisers.{kind}.{method}": "takes arrays, or a model's size"
        for kind in ("Sgd", "Momentum", "Adam")
        for method in ("start", "step")
    },
    "optimisers.Sgd": "takes a rate",
    "optimisers.Plateau.has_come": "takes counts",
    "optimisers.HaltThreshold.has_come": "takes counts; its own test gives it a cohort",
    "labelled.Labelled": ARRAYS,
    "labelled.Labelled.inputs": "takes a feature map",
    "labelled.Labelled.of": ARRAYS,
    "labelled.LabelledData.of": "takes labelled examples",
    "decide.affordable_radius": "inner loop over arrays; filters check what comes in",
    "decide.charge_units": "inner loop over arrays; filters check what comes in",
    "running_counts.commit": "inner loop over arrays; filters check what comes in",
    "running_counts.check_change": "a step of Filter.commit",
    "running_counts.projected": "inner loop over arrays; filters check what comes in",
    "segments.check_place": "a check; the tests of running counts' bytes give it wrong ones",
    "following.check_follows": "takes rounds",
    "following.check_next": "takes rounds",
    "following.counting_of": "takes a round",
    "everyone.sampling_factors": "inner loop over arrays; who calls it checks what comes in",
    "windows.OverWindows": "only holds what over_windows found",
    "everyone.Measured.of": "takes a release; its tests give wrong indices",
    "everyone.EveryoneInterval": "only holds what everyone_interval found",
    "following.changes_wanted": "takes people's values, of which any may be wrong",
    "decide.decide": "inner loop over arrays; filters check what comes in",
    "decide.decide_every": "inner loop over arrays; filters check what comes in",
    "odometers.BaselineFilter": "takes a function",
    "charges.RenyiBudget.charge_curve": "takes a function",
    "charges.charge_each": "takes a function",
    "filters.Filter.of": "takes a study",
    "scope.Declared.of": "takes a study",
    "scope.LifetimeCap.measures": "takes a study",
    "scope.Purse": "takes filters",
    "scope.Purse.of": "takes filters' numbers, which they check",
    "filters.Filter.within": "takes a budget",
    "filters.RenyiFilter.within": "takes a budget",
    "filters.spend_all": "takes filters; it has a test of its own below",
    **{
        f"{short_name}.{method}": "takes a study, a round, a message or a person's value"
        for short_name, kind in KINDS.items()
        for method in QUERY_METHODS
        if hasattr(kind, method)
    },
    "gaussian.GaussianLinear.clipped": "takes people's values, of which any may be wrong",
    "gaussian.GaussianLinear.encode": "takes people's values, of which any may be wrong",
    "gaussian.GaussianLinear.encode_within": "takes people's values, of which any may be wrong",
    "gaussian.GaussianLinear.sound": "takes people's values, of which any may be wrong",
    "gaussian.GaussianLinear.of": "takes a study and a query",
    "gaussian.GaussianLinear.noise": "draws; takes a sampler",
    "gaussian.GaussianLinear.randomise": "takes words and draws",
    "gaussian.GaussianLinear.tally": "takes reports",
    "gaussian.GaussianLinear.valid": "takes reports, of which any may be wrong",
    "gaussian.on_grid": "takes values that its caller checked",
    "gaussian.plain_words": "takes values that its caller checked",
    "gaussian.scaled_within": "takes values that its caller checked",
    "gaussian.rounded": "takes values that its caller checked",
    "gaussian.squared_norms": "takes words",
    "gaussian.DiscreteGaussianSampler": SAMPLERS,
    "gaussian.DiscreteGaussianSampler.draw": SAMPLERS,
    "laplace.DiscreteLaplaceSampler": SAMPLERS,
    "laplace.DiscreteLaplaceSampler.draw": SAMPLERS,
    "exact.ExactSampler": "refuses whatever it is given",
    "exact.ExactSampler.gaussian": SAMPLERS,
    "exact.ExactSampler.uniform": SAMPLERS,
    "exact.ExactSampler.words": SAMPLERS,
    "laplace.RoundedLaplaceSampler": SAMPLERS,
    "laplace.RoundedLaplaceSampler.draw": SAMPLERS,
    "divergences.apart_levels": "inner part of levels; mechanisms check what comes in",
    "divergences.blur": "inner part of divergences, which check what comes in",
    "divergences.curvature": "inner part of divergences, which check what comes in",
    "gaussian.DiscreteGaussianLinear": TABLES,
    "laplace.LaplaceSum": TABLES,
    "duchi.coin_levels": "inner part of charges; mechanisms check what comes in",
    "numeric.GradedCharges": "takes a function; test_graded gives it wrong numbers",
    "numeric.GradedCharges.of_steps": "takes steps, within reach",
    "numeric.check_squares": "a check; mechanisms' variances are asked for wrong ones",
    "numeric.check_steps": "takes words",
    "numeric.check_value": "a check; mechanisms' charges are asked for wrong values",
    "numeric.to_steps": "takes people's values, of which any may be wrong",
    "privunit.PrivUnit.estimate": "takes reports",
    "privunit.PrivUnit.valid": "takes reports, of which any may be wrong",
    "privunit.PrivUnit.randomise": "takes directions, of which any may be wrong",
    **{
        f"{owner}.{method}": "takes arrays, of which any may be wrong; its own tests give them"
        for owner in (
            "duchi.DuchiMean",
            "piecewise.PiecewiseMean",
            "laplace.LaplaceSum",
            "gaussian.DiscreteGaussianLinear",
            "gaussian.LipschitzGaussian",
        )
        for method in ("encode", "randomise", "valid", "tally")
    },
    "gaussian.RoundedGaussianSampler": SAMPLERS,
    "gaussian.RoundedGaussianSampler.draw": SAMPLERS,
    "registry.mechanism_for": "takes a study and a round",
    "registry.read_query": "takes a message",
    "registry.room_of": "takes a mechanism",
    "registry.randomiser": "takes what a histogram has; its own constructor is above",
    "registry.size_of": "takes a mechanism",
    "categorical.check_reports": "takes reports",
    "categorical.check_sums": "takes sums",
    "categorical.check_symbol": "a check; mechanisms' charges are asked for wrong symbols",
    "categorical.fits": "takes reports, of which any may be wrong",
    "categorical.tally_indices": "takes reports",
    "hadamard.walsh_hadamard": "takes counts",
    "local_hashing.HashFamily.hash": "takes arrays of public numbers; mechanisms check them",
    "local_hashing.HashFamily.supports": "takes arrays of public numbers; mechanisms check them",
    "local_hashing.digits_of": "a step of HashFamily, which checks",
    "local_hashing.family_fits": "a step of HashFamily, which checks",
    "local_hashing.is_prime": "a step of HashFamily, which checks",
    "local_hashing.ranges_near": "a step of HashFamily, which checks",
    "categorical.categories_of": "takes people's values, of which any may be wrong",
    "categorical.check_one_column": "takes people's values, of which any may be wrong",
    "sql.check_select": "takes a text; its own tests give it hostile ones",
    "sql.guard": "takes limits, which check themselves",
    "sql.select_numbers": "takes what a database holds; its own tests give it hostile data",
    "policy.OwnerPolicy.check_round": "takes a round, which checks itself",
    "policy.OwnerPolicy.check_study": "takes studies, which check themselves",
    "policy.OwnerPolicy.quiet_for": "takes a time",
    "policy.QuietHours": "takes times",
    "policy.QuietHours.left": "takes a time",
    "policy.QuietHours.read": "takes a text",
    "model.Truncations": ARRAYS,
    "model.answer_truncations": ARRAYS,
    "categorical.check_range": "takes symbols",
    "categorical.check_symbols": "takes words",
    "categorical.encode_categories": "takes people's values, of which any may be wrong",
    "thresholds.Threshold.after_tie": DRAWS,
    "thresholds.Threshold.draw": DRAWS,
    "thresholds.Threshold.draw_bits": DRAWS,
    "thresholds.halves": DRAWS,
    "thresholds.narrow_below": DRAWS,
    "thresholds.uniform_below": DRAWS,
    "unary.UnaryEncoding.tally_codes": "takes reports",
    "unary.bit_counts": "takes reports",
    "unary.unpacked": "takes reports",
    **{
        f"{owner}.{method}": "takes arrays, of which any may be wrong; its own tests give them"
        for owner, make in CATEGORICAL.items()
        for method in ("sound", "encode", "randomise", "draw", "valid", "tally")
        if hasattr(make(), method)
    },
}
"""What has no numbers of its own to get wrong, and why."""

HELPERS = {
    "categorical": "Chance Chance.of count_intervals",
    "connection": "connected send",
    "conversions": "is_simple",
    "design": "Estimates Protection check_horizon checked_rounds largest_probability odds_of",
    "divergences": "zcdp_supremum",
    "factorisations": "check_factors",
    "float_cohort": "FloatCohort FloatCohort.model FloatCohort.noisy_sum FloatCohort.restore float_statement in_real_arithmetic",
    "segments": "Segment.read",
    "base": "Feature.read Noise bound_of check_feature check_size",
    "halt_count": "check_payable most_cost",
    "linear": "Weights Weights.apply Weights.of Weights.unpacked",
    "gaussian": "GaussianLevels GaussianLevels.discrete GaussianLevels.draw GaussianLevels.rounded check_width discrete_table rounded_table",
    "intervals": "Intervals.interval_at no_numbers",
    "labelled": "idx_bytes read_idx read_labelled_csv read_labelled_idx read_labelled_npz",
    "laws": "cap_density cap_share check_dimension check_height gamma_ratio share_error",
    "levels": "Answers answers_of coins estimates_of interval_counts levels_of noise_error run_levels",
    "memoised": "Memo Memo.check Memo.load Memo.save Noise bits_chain check_memoised frequencies_of largest_own log_up response run_memoised symbols_chain",
    "model": "Model Weights Weights.of change_truncation check_kind model_of",
    "round": "check_query",
    "running_counts": "RunningState RunningState.after RunningState.answer RunningState.check Told count_of",
    "sql": "TableSource TableSource.evaluate check_features query_of",
}
"""Steps of what is in the table, which checks what it gives them; and what reads files, by module."""


def short(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def is_ours(value: Any, module: ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__


def discovered() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Everything public that takes parameters, by name."""
    for module in MODULES:
        for name, value in vars(module).items():
            if name.startswith("_") or not is_ours(value, module):
                continue
            if inspect.isfunction(value):
                yield f"{short(module)}.{name}", value
            elif inspect.isclass(value) and is_concrete(value):
                yield from members(f"{short(module)}.{name}", value)


def is_concrete(kind: type) -> bool:
    protocol = getattr(kind, "_is_protocol", False)
    return not (inspect.isabstract(kind) or issubclass(kind, Enum) or protocol)


def members(prefix: str, kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    if inspect.signature(kind).parameters:
        yield prefix, kind
    for name, member in inspect.getmembers(kind):
        function = getattr(member, "__func__", member)
        if name.startswith("_") or not isinstance(function, FunctionType):
            continue
        if len(inspect.signature(function).parameters) > 1:  # besides self or cls
            yield f"{prefix}.{name}", member


FOUND = dict(discovered())


def parameters_of(name: str) -> set[str]:
    return set(inspect.signature(FOUND[name]).parameters) - {"self"}


def call(name: str, arguments: Mapping[str, Any]) -> Any:
    """The answer, or our error; others pass through."""
    receiver = None if (make := EXAMPLES[name].on) is None else make()
    function = FOUND[name] if receiver is None else getattr(receiver, name.rpartition(".")[2])
    before = state(receiver)
    try:
        return function(**arguments)
    except ParameterError as error:
        assert state(receiver) == before, "a refused call changed the state"
        return error


def state(receiver: Any) -> Any:
    """All that an object holds, locks and functions apart."""
    names = {name for kind in type(receiver).__mro__ for name in getattr(kind, "__slots__", ())}
    kept = {name: getattr(receiver, name) for name in names - {"_lock", "_fits", "__weakref__"}}
    return {name: list(held) if isinstance(held, list) else held for name, held in kept.items()}


def faults(value: Any, *, infinite: bool) -> Iterator[str]:
    """What in an answer is no number, its fields, items and properties included."""
    match value:
        case float() | np.floating():
            if math.isnan(value) or (math.isinf(value) and not infinite):
                yield f"the answer {value}"
        case Mapping():
            yield from faults([*value.values()], infinite=infinite)
        case list() | tuple():
            for each in value:
                yield from faults(each, infinite=infinite)
        case np.ndarray():
            yield from faults(value.reshape(-1).tolist(), infinite=infinite)
        case _ if dataclasses.is_dataclass(value):
            kinds = inspect.getmembers(type(value), lambda member: isinstance(member, property))
            for name in [each.name for each in dataclasses.fields(value)] + [n for n, _ in kinds]:
                with contextlib.suppress(ParameterError):  # a documented refusal
                    for fault in faults(getattr(value, name), infinite=infinite):
                        yield f"{fault} in {name}"


def hostile(name: str, parameter: str) -> Iterator[tuple[Any, bool]]:
    """Values for one parameter, and whether it must refuse them; nothing if it is no number."""
    valid = EXAMPLES[name].valid[parameter]
    if isinstance(valid, Enum):
        yield from ((value, True) for value in (*TEXTS, valid.value))
        return
    if isinstance(valid, str):
        if parameter != "name":
            yield from ((value, True) for value in TEXTS)
        return
    wrap = wrapping(valid)
    if wrap is None:
        return
    signed = parameter in EXAMPLES[name].signed
    yield from ((wrap(value), True) for value in NEVER if not (name in NULLABLE and value is None))
    yield from ((wrap(value), not signed) for value in NEGATIVE)
    yield from ((wrap(value), False) for value in PERHAPS)


NULLABLE = (
    *KINDS,
    "gradient.Gradient.about",
    "error_count.ErrorCount.about",
    "segments.check_counting",
    "optimisers.Rate",
    "model.Truncation",
)  #: None stands for a default there


def wrapping(valid: Any) -> Callable[[Any], Any] | None:
    """How a number gets into this parameter; None if it holds none."""
    match valid:
        case bool():
            return None
        case int() | float() | Fraction():
            return lambda value: value
        case [(order, _)]:
            return lambda value: [(order, value)]
        case [int() | float(), *rest]:
            return lambda value: [value, *rest]
        case {**entries} if all(isinstance(each, float) for each in entries.values()):
            return lambda value: dict.fromkeys(entries, value)
    return None


def numbers() -> Iterator[Any]:
    """The cases of the walk: a function and one of its parameters that holds numbers."""
    for name, one in EXAMPLES.items():
        for parameter in one.valid:
            if [*hostile(name, parameter)]:
                yield pytest.param(name, parameter)


def test_every_public_function_is_in_the_table_with_all_its_parameters() -> None:
    helpers = {f"{module}.{name}" for module, names in HELPERS.items() for name in names.split()}
    assert set(FOUND) == set(EXAMPLES) | set(ELSEWHERE) | helpers
    assert not set(EXAMPLES) & (set(ELSEWHERE) | helpers)
    assert {name: set(one.valid) for name, one in EXAMPLES.items()} == {
        name: parameters_of(name) for name in EXAMPLES
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_in_the_table_is_answered(name: str) -> None:
    answer = call(name, EXAMPLES[name].valid)

    assert not isinstance(answer, ParameterError)
    assert [*faults(answer, infinite=EXAMPLES[name].infinite)] == []


def violations(name: str, parameter: str, value: Any, *, must_refuse: bool) -> list[str]:
    """What is wrong about a call in which one argument is replaced by this value."""
    one = EXAMPLES[name]
    try:
        answer = call(name, {**one.valid, parameter: value})
        if not isinstance(answer, ParameterError):
            return ["accepted"] if must_refuse else [*faults(answer, infinite=one.infinite)]
    except Exception as error:  # noqa: BLE001 - whatever it is, it is not ours
        return [f"{type(error).__name__}: {error}"[:110]]
    found = []
    if must_refuse and one.aliases.get(parameter, parameter) not in answer.name:
        found.append(f"the error is about {answer.name}")
    if not answer.expected or answer.expected not in str(answer):
        found.append("the error does not say what was expected")
    return found


@pytest.mark.parametrize(("name", "parameter"), [*numbers()])
def test_a_wrong_argument_is_refused_by_name_and_nothing_else_happens(
    name: str, parameter: str
) -> None:
    wrong = [
        f"{value!r:.40}: {violation}"
        for value, must_refuse in hostile(name, parameter)
        for violation in violations(name, parameter, value, must_refuse=must_refuse)
    ]

    assert wrong == []


def kind(value: object) -> str:
    return f"{type(value).__name__}:{value!r:.12}"


@pytest.mark.parametrize("wrong", [*NEVER, *NEGATIVE, 0.5, math.inf], ids=kind)
def test_a_step_with_a_wrong_charge_spends_from_no_filter(wrong: Any) -> None:
    mine, counters = one_filter(), two_counters()

    for steps in ((mine, 1), (counters, [1, wrong])), ((counters, [1, 1]), (mine, wrong)):
        with pytest.raises(ParameterError, match="charge"):
            filters.spend_all(*steps)

    assert state(mine) == state(one_filter())
    assert state(counters) == state(two_counters())
