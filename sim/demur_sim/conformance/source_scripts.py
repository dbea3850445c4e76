"""Scripts about what an evaluation may do to a device, and what must not show of it.

The device's data have a value for each of the features `burn`, `die` and `eat` in `FEATURES`. A source that is
tried gives none of these values: it burns the processor, ends its own process by signal 9, or takes
memory, without end. A device that answers such a round with the value does not offer to be tried so.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from demur_proto.study import Policy
from demur_sim.conformance.bench import Answer, Bench, Declined
from demur_sim.conformance.budget_scripts import (
    APART_MS,
    Due,
    Plan,
    check_due,
    in_slot,
    like,
    planned,
)
from demur_sim.conformance.decoding import shown_norm
from demur_sim.conformance.device_process import Data
from demur_sim.conformance.questions import (
    COORDINATES,
    SIGMA,
    SLOT_MS,
    ask,
    of_squared_norm,
    revealing_study,
)

FEATURES = {
    "burns": "conformance: burn",
    "dies": "conformance: die",
    "eats": "conformance: eat",
}
"""What is asked, by the rule that it tries."""

READY = 0.9  #: of a slot: when a device seals its report
BEGUN_SLOT_MS = 600  #: killed in its middle, a device has begun and has sealed nothing
MOST_BYTES = 1 << 30  #: in memory of a device, with everything that it started
RELIEF_S = 0.05


def can_relieve() -> bool:
    """Whether a device that takes all memory can be stopped here."""
    return Path("/proc/self/stat").exists()


def source_plan(rule: str) -> tuple[Plan, Data]:
    """Five rounds, and the data: quick sources at odd numbers, the one of this rule at even ones.

    The last quick answer costs exactly what the first two leave, so it is given only if the others
    were charged nothing.
    """
    study = revealing_study(Policy.SKIP)
    total, weight = study.value.budget_units, study.value.base_weight
    value = of_squared_norm(total // weight // 3)
    first, second = (ask(study, number, value) for number in (1, 3))
    left = total - 2 * weight * first.squared_norm
    third = like(study, 5, left, sigma=SIGMA)
    feature = FEATURES[rule]
    failing = [ask(study, number, value, features=(feature,)) for number in (2, 4)]
    plan = planned(study, (first, second, third), covered=failing)
    return plan, {**plan.data, feature: value}


async def run_source(bench: Bench, plan: Plan, rule: str) -> None:
    """Rounds about a source of this kind between others: nothing may differ.

    Raises:
        Declined: the device's source gives the value.
    """
    quick: list[float] = []
    failing: list[float] = []
    answers: list[tuple[Due, Answer]] = []
    async with _relieving(bench):
        for due in plan.due:
            answer = await bench.accepted(due.asked, rule=rule)
            if not due.squared_norm and in_slot(answer) and _gives(answer):
                raise Declined(rule, f"its source gives the value of {FEATURES[rule]!r}")
            answers.append((due, answer))
    for due, answer in answers:
        _check_shape(bench, answer, rule)
        check_due(bench, due, answer, rule)
        if due.asked.number > 1:  # the first one may take longer, whatever it holds
            (quick if due.squared_norm else failing).append(answer.after_ms)
    for due in plan.due:
        copies = bench.copies(due.asked)
        text = f"round {due.asked.number} came {copies} times"
        bench.verdicts.check(rule, copies == 1, "every report came once" if copies == 1 else text)
    apart_ms = max(min(quick) - max(failing), min(failing) - max(quick))
    bench.verdicts.check(
        rule,
        apart_ms <= APART_MS,
        f"with a quick source reports came {min(quick):.0f} to {max(quick):.0f} ms after the round, "
        f"with this one {min(failing):.0f} to {max(failing):.0f} ms",
    )


def begun_plan() -> Plan:
    """A cheap round, and two that would each take exactly the rest of the budget."""
    study = revealing_study(Policy.SKIP)
    total, weight = study.value.budget_units, study.value.base_weight
    first = ask(study, 1, (1,) * COORDINATES)
    left = total - weight * first.squared_norm
    third = like(study, 3, left, sigma=SIGMA)
    second = ask(study, 2, third.value, slot_ms=BEGUN_SLOT_MS)
    return planned(study, (first, third), covered=[second])


async def run_begun(bench: Bench, plan: Plan) -> None:
    """Kill the device in the middle of a slot."""
    rule = "begun"
    first, second, third = plan.due
    await bench.accepted(first.asked, rule=rule)
    await bench.push(second.asked, rule=rule)
    pushed_s = time.monotonic()
    await anyio.sleep(BEGUN_SLOT_MS / 2000)
    await bench.runner.kill()
    killed_ms = 1000 * (time.monotonic() - pushed_s)
    await bench.kill()
    if killed_ms > READY * BEGUN_SLOT_MS:
        bench.verdicts.omit(rule, f"it was killed after {killed_ms:.0f} ms, too late in the slot")
        return
    early = bench.copies(second.asked) > 0
    bench.verdicts.check(
        rule, not early, f"round 2 came {'before' if early else 'not before'} its slot"
    )
    for due in (second, third):
        answer = await bench.accepted(due.asked, rule=rule)
        check_due(bench, due, answer, rule)


def _gives(answer: Answer) -> bool:
    """Whether the value is in the words: it shows by more than ten standard deviations."""
    asked = answer.asked
    return shown_norm(asked, answer.words) > math.sqrt(asked.squared_norm) / asked.noise_steps / 2


def _check_shape(bench: Bench, answer: Answer, rule: str) -> None:
    """It came in the visit in which it was asked for, and in its slot."""
    number = answer.asked.number
    ended = answer.visits - 1
    text = "no visit ended" if not ended else f"round {number}: {ended} visits ended before it came"
    bench.verdicts.check(rule, not ended, text)
    text = f"round {number} came after {answer.after_ms:.0f} ms, its slot is {SLOT_MS} ms"
    bench.verdicts.check(rule, in_slot(answer), "it came in its slot" if in_slot(answer) else text)


@asynccontextmanager
async def _relieving(bench: Bench) -> AsyncIterator[None]:
    """Keep a device that takes memory without end from taking all there is."""

    async def relieve() -> None:
        while True:
            await anyio.to_thread.run_sync(bench.runner.relieve, MOST_BYTES)
            await anyio.sleep(RELIEF_S)

    task = asyncio.create_task(relieve())  # a task group would wrap what the script raises
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
