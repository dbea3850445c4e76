"""From a training scenario to what the trainer is told."""

from demur_server.training.averages import Averaging, ExponentialAverage, Last, TailAverage
from demur_server.training.optimisers import Adam, Momentum, Optimiser, Rate, Sgd
from demur_server.training.stopping import HaltThreshold, Plateau
from demur_server.training.trainer import Settings
from demur_sim.training.people import Task
from demur_sim.training.scenario import TrainingScenario
from demur_sim.training.scenario_parts import Average, Kind


def settings_of(scenario: TrainingScenario, task: Task) -> Settings:
    """What the trainer is told."""
    counts = scenario.counts
    return Settings(
        architecture=task.architecture,
        features=task.features,
        cohort=task.people.devices,
        steps=scenario.steps,
        optimiser=_optimiser(scenario),
        averaging=_averaging(scenario),
        every=counts.every,
        plateau=Plateau(patience=counts.patience, margin=counts.margin)
        if counts.patience
        else None,
        halt=HaltThreshold(share=counts.most_halts) if counts.most_halts else None,
    )


def _optimiser(scenario: TrainingScenario) -> Optimiser:
    chosen = scenario.optimiser
    rate = Rate(first=chosen.rate, last=chosen.last_rate, steps=scenario.steps)
    if chosen.kind is Kind.SGD:
        return Sgd(rate=rate)
    if chosen.kind is Kind.MOMENTUM:
        return Momentum(rate=rate, momentum=chosen.momentum)
    return Adam(rate=rate, momentum=chosen.momentum, squares=chosen.squares)


def _averaging(scenario: TrainingScenario) -> Averaging:
    chosen = scenario.average
    if chosen.kind is Average.NONE:
        return Last()
    if chosen.kind is Average.EXPONENTIAL:
        return ExponentialAverage(decay=chosen.decay)
    return TailAverage(start=int(chosen.start * scenario.steps) + 1)
