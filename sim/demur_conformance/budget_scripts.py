"""Scripts about budgets: what a device answers, what it covers, and that crashes change nothing.

What it has to do is what the reference filter does with the same values, so every decision is known
beforehand.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from demur_client.budget.filters import Filter
from demur_conformance.device_process import Data
from demur_conformance.harness import Answer, Bench
from demur_conformance.questions import (
    CLIP,
    COORDINATES,
    SIGMA,
    SLOT_MS,
    Asked,
    agrees,
    ask,
    feature_of,
    largest_of,
    noise_of,
    noises_differ,
    of_squared_norm,
    revealing_study,
)
from demur_conformance.scripted_collector import Visit
from demur_proto.arrays import Values
from demur_proto.study import Policy, Study
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import Defined
from demur_proto.wire.words import WordType

LATE_MS = 2000.0  #: after its slot, a report is late
APART_MS = 150.0  #: and kinds of reports that never overlap by so much tell what was decided
KILLED_AT = (0.0, 0.1, 0.905, 0.95)  #: of a slot; about .9 of it the report is sealed
UNKNOWN_MESSAGE = bytes.fromhex("fa0700")  #: of a kind that no version has
OVERSIZED = 5 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A round and the squared norm that its answer should have; 0 for cover."""

    asked: Asked
    squared_norm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A study, its rounds, and what is due in each."""

    study: Defined[Study]
    due: tuple[Due, ...]

    @property
    def data(self) -> Data:
        """What the device's owner has."""
        return {feature_of(each.asked.number): each.asked.value for each in self.due}


def skip_plan() -> Plan:
    """Policy skip: .6 of the budget; one unit too much; exactly the rest; and then nothing fits."""
    study = revealing_study(Policy.SKIP)
    total, weight = study.value.budget_units, study.value.base_weight
    first = ask(study, 1, of_squared_norm(total // weight * 3 // 5))
    left = total - weight * first.squared_norm
    second = like(study, 2, left, sigma=2 * SIGMA, more=1)
    third = like(study, 3, left, sigma=1.375 * SIGMA)
    fourth = ask(study, 4, first.value, word_type=WordType.INT64)
    return planned(study, (first, second, third, fourth, ask(study, 5, second.value)))


def retire_plan() -> Plan:
    """Policy retire: after the first refusal even what would fit is refused.

    Three answers take .6 of the budget, and between them are rounds that the data cannot answer.
    """
    study = revealing_study(Policy.RETIRE)
    total, weight = study.value.budget_units, study.value.base_weight
    value = of_squared_norm(total // weight // 5)
    first, second, third = (ask(study, number, value) for number in (1, 3, 5))
    left = total - 3 * weight * first.squared_norm
    too_much = like(study, 6, left, sigma=SIGMA, more=1)
    enough = like(study, 7, left, sigma=SIGMA)
    failing = [
        _without_data(study, 2, "no such feature"),
        _without_data(study, 4, "not a number"),
    ]
    return planned(study, (first, second, third, too_much, enough), covered=failing)


def clip_plan() -> Plan:
    """Policy clip: .8 of the budget, what is left of another .8, and nothing."""
    study = revealing_study(Policy.CLIP)
    total, weight = study.value.budget_units, study.value.base_weight
    value = of_squared_norm(total // weight * 4 // 5)
    return planned(study, tuple(ask(study, number, value, on_grid=False) for number in range(1, 4)))


async def run_skip(bench: Bench, plan: Plan) -> None:
    """Losses and crashes in the midst of policy skip."""
    rule = "budget-skip"
    first, second, third, fourth, fifth = plan.due
    bench.stand.lose_enrolments = 1
    bench.stand.enrolment_lost = bench.runner.kill
    noises: list[Values] = []

    answer = await bench.ask(first.asked, rule="enrol-once")
    _check_enrolments(bench)
    bench.lose()
    answer = await bench.ask(first.asked, rule="retry-same")
    await bench.settle(answer, report_pb2.DISPOSITION_TRY_LATER)
    await bench.again(first.asked, rule="retry-same")
    await bench.kill()
    answer = await bench.accepted(first.asked, rule="crash-same", same="crash-same")
    noises.append(check_due(bench, first, answer, rule))

    await bench.push(first.asked, rule="repeated-round")
    await bench.ask(second.asked, rule="exhausted")
    bench.verdicts.check("repeated-round", True, "round 1 came again after it was counted")
    for part in KILLED_AT:
        await bench.kill()
        visit = await bench.visit("crash-points")
        await visit.push(second.asked.defined)
        await anyio.sleep(part * SLOT_MS / 1000)
    bench.verdicts.check("crash-points", True, f"killed {len(KILLED_AT)} times")
    await bench.kill()
    answer = await bench.accepted(second.asked, rule="crash-points", same="crash-points")
    noises.append(check_due(bench, second, answer, rule))

    answer = await bench.accepted(third.asked, rule=rule)
    noises.append(check_due(bench, third, answer, rule))
    await _send_unknown(bench, await bench.visit("unknown-message"))
    answer = await bench.ask(fourth.asked, rule="exhausted")
    await _send_oversized(bench, fourth.asked)
    await bench.settle(answer, report_pb2.DISPOSITION_ACCEPTED)
    noises.append(check_due(bench, fourth, answer, rule))
    bench.verdicts.check("exhausted", True, "round 4 came, as large as any")
    answer = await bench.accepted(fifth.asked, rule="exhausted")
    noises.append(check_due(bench, fifth, answer, rule))
    bench.verdicts.check("fresh-noise", *noises_differ(noises))

    ended = await bench.runner.terminate(5.0)
    bench.verdicts.check("terminates", ended, "SIGTERM ends it" if ended else "5 s after SIGTERM")


async def run_retire(bench: Bench, plan: Plan) -> None:
    """Slots, refusals for good, and data that fail, in policy retire."""
    rule = "budget-retire"
    given: list[float] = []
    covered: list[float] = []
    for due in plan.due:
        number, is_failing = due.asked.number, due.asked.number in (2, 4)
        silent = "failing" if is_failing else rule if due.squared_norm else "exhausted"
        answer = await bench.ask(due.asked, rule=silent)
        closed = number == 1
        await bench.settle(
            answer,
            report_pb2.DISPOSITION_ROUND_CLOSED if closed else report_pb2.DISPOSITION_ACCEPTED,
        )
        if is_failing:
            bench.verdicts.check("failing", True, f"round {number} came, as large as any")
        else:
            check_due(bench, due, answer, rule)
        _check_slot(bench, answer)
        if number > 1:  # the first one may take longer, whatever it holds
            (given if due.squared_norm else covered).append(answer.after_ms)
    await bench.restart()
    last = ask(plan.study, 8, plan.due[0].asked.value)
    answer = await bench.accepted(last, rule="settled")
    check_due(bench, Due(asked=last, squared_norm=0), answer, rule)
    bench.verdicts.check("settled", True, "round 1 was closed, and did not come again")
    bench.verdicts.check("exhausted", True, "the slot is the same")
    apart_ms = max(min(covered) - max(given), min(given) - max(covered))
    bench.verdicts.check(
        "slots",
        apart_ms <= APART_MS,
        f"answers came {min(given):.0f} to {max(given):.0f} ms after the round, cover "
        f"{min(covered):.0f} to {max(covered):.0f} ms",
    )


async def run_clip(bench: Bench, plan: Plan) -> None:
    """A shrunk answer."""
    for due in plan.due:
        answer = await bench.accepted(due.asked, rule="budget-clip")
        check_due(bench, due, answer, "budget-clip")


def planned(
    study: Defined[Study], rounds: tuple[Asked, ...], *, covered: Sequence[Asked] = ()
) -> Plan:
    """What is due by the reference filter, in the order of numbers; of some rounds cover is, for nothing."""
    mine = Filter.of(study.value)
    due = []
    for asked in rounds:
        weight, norm = asked.defined.value.weight, asked.squared_norm
        shrunk = False
        if study.value.policy is Policy.CLIP:
            largest = mine.radius(weight=weight, largest=largest_of(study, asked))
            shrunk, norm = norm > largest, min(norm, largest)
        given = mine.try_spend(norm, weight=weight, shrunk=shrunk)
        due.append(Due(asked=asked, squared_norm=norm if given else 0))
    due += [Due(asked=asked, squared_norm=0) for asked in covered]
    return Plan(study=study, due=tuple(sorted(due, key=lambda each: each.asked.number)))


def like(study: Defined[Study], number: int, left: int, *, sigma: float, more: int = 0) -> Asked:
    """A round under this noise in which the largest answer that still fits, or `more`, is due."""
    weight = ask(study, number, (1,) * COORDINATES, sigma=sigma).defined.value.weight
    value = of_squared_norm(left // weight + more)
    clip = CLIP if sum(each * each for each in value) <= CLIP**2 else 4 * CLIP
    return ask(study, number, value, sigma=sigma, clip=clip)


def _without_data(study: Defined[Study], number: int, feature: str) -> Asked:
    value = (1,) * COORDINATES
    return ask(study, number, value, features=(feature,))


def check_due(bench: Bench, due: Due, answer: Answer, rule: str) -> Values:
    """Hold an answer against the reference; gives its noise."""
    holds, text = agrees(due.asked, answer.words, squared_norm=due.squared_norm)
    bench.verdicts.check(rule, holds, text)
    return noise_of(due.asked, answer.words, given=due.squared_norm > 0)


def _check_slot(bench: Bench, answer: Answer) -> None:
    slot_ms = answer.asked.defined.value.answer_after_ms
    text = (
        f"round {answer.asked.number} came after {answer.after_ms:.0f} ms, its slot is {slot_ms} ms"
    )
    bench.verdicts.check("slots", in_slot(answer), text)


def in_slot(answer: Answer) -> bool:
    """Whether a report came in its slot.

    Before it none may come; the clock of another process may be a millisecond off.
    """
    slot_ms = answer.asked.defined.value.answer_after_ms
    return slot_ms - 1 <= answer.after_ms <= slot_ms + LATE_MS


def _check_enrolments(bench: Bench) -> None:
    asked = bench.stand.enrolments
    shown = {(each.token, each.nonce) for each in asked}
    holds = len(shown) == 1 and all(len(each.nonce) == 16 for each in asked)
    bench.verdicts.check(
        "enrol-once",
        holds and len(asked) > 1,
        f"asked {len(asked)} times, with {len({each.nonce for each in asked})} nonces",
    )


async def _send_unknown(bench: Bench, visit: Visit) -> None:
    await visit.send(UNKNOWN_MESSAGE)
    bench.verdicts.check("unknown-message", True, "the visit went on")


async def _send_oversized(bench: Bench, owed: Asked) -> None:
    visit = await bench.visit("oversized")
    await visit.push_bytes(bytes(OVERSIZED))
    bench.lose()
    await bench.ask(owed, rule="oversized", same="oversized")
