"""Run a scenario whose budgets are for windows of rounds: one study after the other, of the same people."""

import time
from dataclasses import replace

from demur_proto.windows import Window, Windows, over_windows
from demur_sim.how import How, Progress
from demur_sim.populations import Population
from demur_sim.results import Result
from demur_sim.run import Plan, make_plan, run_anywhere, run_plan
from demur_sim.scenario import Scenario
from demur_sim.seeds import Purpose, seed_of
from demur_sim.session import Fidelity
from demur_sim.windowed_results import WindowedResult, studies_of

LONGEST_NAME = 160  #: of a scenario, within the names of its studies


def simulate_windows(
    scenario: Scenario,
    *,
    seed: int = 0,
    fidelity: Fidelity | str = Fidelity.COHORT,
    workers: int | None = None,
    population: Population | None = None,
    collector_port: int = 0,
    record: bool = False,
    progress: Progress | None = None,
) -> WindowedResult:
    """Run a scenario that has a `window` to its end, as `run.simulate` runs one without.

    The same people live on the same devices in all windows, and come and go once. In each there is a
    study of its own: fresh filters, and noise that no other window draws. A running count begins anew.

    Args:
        scenario: what to simulate; `window` at least 1.
        seed: everything random follows from it; >= 0.
        fidelity: as of `run.simulate`, and so are the others.
        workers: likewise.
        population: likewise.
        collector_port: likewise.
        record: likewise.
        progress: likewise.

    Raises:
        DemurError: see `open_session`.
    """
    how = How(
        seed=seed,
        fidelity=fidelity,
        workers=workers,
        population=population,
        collector_port=collector_port,
        record=record,
        progress=progress,
    )
    return run_anywhere(lambda: run_windows(scenario, how))


async def run_windows(scenario: Scenario, how: How) -> WindowedResult:
    """The same, for those who have an event loop."""
    started = time.monotonic()
    plan = make_plan(scenario, how)
    schedule = Windows.every(scenario.window, horizon=len(plan.questions))
    results: list[Result] = []
    for number, window in enumerate(schedule.windows, start=1):
        name = f"{scenario.name[:LONGEST_NAME]}: window {number}"
        part = replace(scenario, name=name, window=0)
        begun = time.monotonic()
        results.append(await run_plan(part, _part(plan, window, number=number), started=begun))
        if number == 1:  # windows that promise nothing together are refused before the others run
            many = len(schedule.windows)
            over_windows([studies_of(results[0])] * many, stay=many, delta=scenario.delta)
    return WindowedResult(
        scenario=scenario,
        schedule=schedule,
        results=tuple(results),
        wall_s=time.monotonic() - started,
    )


def _part(plan: Plan, window: Window, *, number: int) -> Plan:
    """What is asked in one window."""
    before = window.first - 1
    return replace(
        plan,
        questions=plan.questions[before : window.last],
        turnout=replace(plan.turnout, before=before),
        streams=seed_of(plan.how.seed, Purpose.WINDOWS, number),
    )
