"""The study of a scenario's histograms, and what its rounds ask."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from demur_proto.accounting.histograms import (
    best_histogram_study,
    design_histogram_study,
    epsilon_for_answers,
)
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import Feature, Histogram
from demur_proto.running.factorisations import change_norm
from demur_proto.running.segments import doubling
from demur_proto.study import Measure, Study, View, design_study
from demur_proto.study import Purpose as StudyPurpose
from demur_proto.wire.definition import define_study
from demur_sim.engine.cohort_session import cohort_session
from demur_sim.engine.processes import device_session, process_session
from demur_sim.engine.sampling import Noise, Purpose, seed_of, stream
from demur_sim.engine.session import Fidelity, Questions, Session
from demur_sim.people.opening import population_of
from demur_sim.people.populations import Population
from demur_sim.people.presence import Turnout
from demur_sim.scenario import Kind, Scenario


def histogram_study(scenario: Scenario, *, cohort: int, answers: int, horizon: int) -> Study:
    """The study that a scenario of histograms asks for, in its measure or in the best for so many answers.

    Args:
        scenario: a histogram.
        cohort: fewest reports that may be released.
        answers: how many answers with a category fit each device.
        horizon: most rounds; 0 when not fixed.

    Raises:
        ParameterError: an argument is outside its range.
    """
    contract: dict[str, Any] = {
        "name": scenario.name,
        "epsilon": scenario.epsilon,
        "delta": scenario.delta,
        "minimum_cohort": cohort,
        "categories": scenario.categories,
        "policy": scenario.policy,
        "horizon": horizon,
    }
    if scenario.measure is None:
        mechanism = Randomiser(scenario.mechanism)
        return best_histogram_study(**contract, mechanism=mechanism, answers=answers)
    counted = answers if scenario.measure is Measure.ANSWERS else 0
    return design_histogram_study(**contract, measure=scenario.measure, answers=counted)


def query_of(scenario: Scenario, study: Study, *, answers: int | None = None) -> Histogram:
    """What a scenario's rounds ask, in the first period; the others differ in that only.

    Args:
        scenario: a histogram.
        study: the contract; it says what the devices can spend.
        answers: how many answers with a category fit each device; by default the scenario's budget.

    Raises:
        ParameterError: the categories or the answers are outside the mechanism's range.
    """
    mechanism = Randomiser(scenario.mechanism)
    epsilon = epsilon_for_answers(
        study,
        mechanism=mechanism,
        categories=scenario.categories,
        answers=scenario.budget if answers is None else answers,
    )
    return Histogram(
        feature=Feature(name=scenario.feature, parameters={**scenario.parameters, "period": 1}),
        categories=scenario.categories,
        mechanism=mechanism,
        epsilon=epsilon,
    )


# From a scenario to a session: the study, the people, the fidelity.

MOST_WORKERS = 256
LARGEST_DIMENSION = 1 << 16  #: of any question in a simulated study


def hands(workers: int | None) -> int:
    """How many threads or processes to use: as told, or one per core.

    >>> hands(3)
    3
    """
    count = min(os.cpu_count() or 1, MOST_WORKERS) if workers is None else workers
    check_integer("workers", count, 1, MOST_WORKERS)
    return count


def study_of(
    scenario: Scenario,
    *,
    devices: int,
    answers: int | None = None,
    view: View | None = None,
    horizon: int = 0,
) -> Study:
    """The study that a scenario asks for.

    Args:
        scenario: what to simulate.
        devices: how many people there are.
        answers: full-clip answers that fit each device, or changes by 1 whenever they come; by
            default the scenario's budget. In a study of histograms in zcdp or pure their number is up
            to the ε of the rounds.
        view: what the adversary sees; by default the scenario's.
        horizon: most rounds; 0 when the analyst decides as they go. Of a running count, those of
            its segment, or of all its segments together.

    Raises:
        ParameterError: the scenario does not fit this many devices, or a running count has no
            horizon.
    """
    cohort = scenario.minimum_cohort or devices
    if cohort > devices:
        raise ParameterError("minimum_cohort", cohort, f"<= the number of devices, {devices}")
    if scenario.kind is Kind.HISTOGRAM:
        return histogram_study(
            scenario, cohort=cohort, answers=answers or scenario.budget, horizon=horizon
        )
    clip = scenario.clip
    if scenario.kind is Kind.PREFIX:
        longest = horizons_of(scenario, horizon)[-1]
        clip = change_norm(scenario.factorisation, horizon=longest, exponent=scenario.grid_exponent)
    return design_study(
        name=scenario.name,
        epsilon=scenario.epsilon,
        delta=scenario.delta,
        answers=scenario.budget if answers is None else answers,
        clip=clip,
        measure=scenario.measure or Measure.GDP,
        view=scenario.view if view is None else view,
        policy=scenario.policy,
        grid_exponent=scenario.grid_exponent,
        minimum_cohort=cohort,
        dishonest=scenario.dishonest,
        horizon=horizon,
        maximum_dimension=LARGEST_DIMENSION,
    )


def horizons_of(scenario: Scenario, rounds: int) -> tuple[int, ...]:
    """Horizons of a running count's segments; none is longer than the last.

    Raises:
        ParameterError: there are no rounds.
    """
    return doubling(rounds, first=scenario.first_segment) if scenario.first_segment else (rounds,)


def deal(scenario: Scenario, population: Population | None, *, seed: int) -> Population:
    """The people, dealt to devices in an order that has nothing to do with their data.

    Args:
        scenario: says where the people come from, and whether to shuffle.
        population: one's own people; by default the scenario's.
        seed: of the whole run.
    """
    people = population_of(scenario) if population is None else population
    return people.shuffled(stream(seed, Purpose.DEALING)) if scenario.shuffle else people


@asynccontextmanager
async def open_session(
    scenario: Scenario,
    *,
    seed: int = 0,
    fidelity: Fidelity | str = Fidelity.COHORT,
    workers: int | None = None,
    population: Population | None = None,
    horizon: int = 0,
    collector_port: int = 0,
    record: bool = False,
    noise: Noise | str = Noise.SHARES,
    companions: Sequence[Study] = (),
    turnout: Turnout | None = None,
    purpose: StudyPurpose = StudyPurpose.DATA,
) -> AsyncIterator[Session]:
    """A population that can be asked, for as long as the block lasts.

    Args:
        scenario: what to simulate.
        seed: everything random follows from it; >= 0.
        fidelity: arrays in this process, worker processes over gRPC, or a process for each device.
        workers: threads (cohort) or worker processes; by default one per core.
        population: one's own people; by default the scenario's.
        horizon: most rounds; 0 when the analyst decides as they go.
        collector_port: where devices reach the collector (processes); 0 takes a free port.
        record: keep what a watcher of the network would see (processes).
        noise: every device its own share, or all of them in one draw (cohort).
        companions: other studies that the same people are in, as `session.companions` has them.
        turnout: who is there, where this is not the first study of its run; by default as the
            scenario's `presence` has it from the first round on.
        purpose: what the session asks about: people's data, or control questions of one kind, which
            other sessions and studies cannot ask.

    Raises:
        ParameterError: an argument is outside its range, or devices of which each is a process should
            come and go.
        DataError: the people's data cannot be read.
        StateError: the port is in use.
        ConnectionLost: a process of the simulation stopped.
    """
    check_integer("seed", seed, 0)
    count = hands(workers)
    check_integer("collector_port", collector_port, 0, 65535)
    try:
        how = Fidelity(fidelity)
    except ValueError:
        raise ParameterError("fidelity", fidelity, " or ".join(Fidelity)) from None
    try:
        drawn = Noise(noise)
    except ValueError:
        raise ParameterError("noise", noise, " or ".join(Noise)) from None
    if drawn is Noise.SUMMED and how is not Fidelity.COHORT:
        raise ParameterError("noise", str(drawn), f"{Noise.SHARES}: processes send real reports")
    if record and how is Fidelity.COHORT:
        raise ParameterError("record", record, "false: only processes send messages to watch")
    there = turnout or Turnout(presence=scenario.presence, seed=seed)
    if how is Fidelity.DEVICE and not there.presence.is_whole:
        raise ParameterError(
            "presence", "devices come and go", "everybody, in time (fidelity device)"
        )
    present = None if there.presence.is_whole else there
    people = deal(scenario, population, seed=seed)
    contract = study_of(scenario, devices=people.devices, horizon=horizon)
    study = define_study(replace(contract, purpose=purpose))
    questions = Questions(population=people, grid_exponent=scenario.grid_exponent)
    others = [
        (define_study(other), seed_of(seed, Purpose.COUNTS, number))
        for number, other in enumerate(companions, start=1)
    ]
    if how is Fidelity.COHORT:
        async with cohort_session(
            study,
            questions,
            seed=seed,
            refusal=scenario.refusal,
            threads=count,
            noise=drawn,
            companions=others,
            turnout=present,
        ) as session:
            yield session
        return
    if how is Fidelity.DEVICE:
        async with device_session(
            study,
            questions,
            refusal=scenario.refusal,
            collector_port=collector_port,
            record=record,
        ) as devices:
            yield devices
        return
    async with process_session(
        study,
        questions,
        seed=seed,
        refusal=scenario.refusal,
        workers=count,
        collector_port=collector_port,
        record=record,
        companions=others,
        turnout=present,
    ) as processes:
        yield processes
