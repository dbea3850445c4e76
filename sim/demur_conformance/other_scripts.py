"""Scripts about the kinds of rounds that a device need not offer; it may say so, by keeping away.

A device that takes no part in a study of histograms, or passes over a running count and answers the
linear round behind it, does not offer them. One that begins must go on as it should.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import numpy as np

from demur_conformance.budget_scripts import APART_MS, Due, Plan, check_due, in_slot, like, planned
from demur_conformance.device_process import Data, Examples
from demur_conformance.harness import Answer, Bench, Declined, Unanswered
from demur_conformance.questions import (
    COORDINATES,
    SIGMA,
    SLOT_MS,
    TOLERANCE,
    Asked,
    agrees,
    ask,
    feature_of,
    noise_is_right,
    noises_differ,
    of_squared_norm,
    revealing_study,
    shown_norm,
)
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.models.architectures import Softmax
from demur_proto.models.definition import ModelDefinition, define_model
from demur_proto.models.gradients import person_gradient
from demur_proto.queries import Feature, Gradient, Histogram, RunningCount
from demur_proto.round import Round, round_of
from demur_proto.running.factorisations import factors_of
from demur_proto.running.segments import Factorisation, Segment
from demur_proto.study import Measure, MechanismFamily, Policy, Study, View
from demur_proto.v1 import round_pb2
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_proto.wire.words import WordType

HISTOGRAMS, RUNNING, GRADIENTS = "histograms", "running-counts", "gradients"
CATEGORIES = 4
PLAIN = 50.0  #: ε at which k-ary randomised response errs once in 10^21 reports
LARGEST_BUDGET = 200.0  #: that the owner of the device with histograms accepts
ANSWERS = 3  #: plain answers that its budget holds, and half of one more

EXPONENT = -14  #: of the grid of running counts
SHOWN = 16.0  #: standard deviations of a state of 1 in its first word, hence 8 in the second
STEEP = 12.0  #: standard deviations of a gradient at its clip: two of them fit
GRADIENT_SLOT_MS = 1000  #: a gradient takes longer to evaluate than a number
HELD = 60  #: σ²; would fit beside the first word, and not beside the second, which is held


def histogram_study() -> Defined[Study]:
    """A study of histograms alone, whose answers hide nothing."""
    return define_study(
        Study(
            name="conformance, histograms",
            view=View.LOCAL,
            measure=Measure.ZCDP,
            policy=Policy.SKIP,
            budget=(ANSWERS + 0.5) * PLAIN,
            epsilon=8 * PLAIN,
            delta=1e-6,
            mechanism_family=MechanismFamily.PURE,
            minimum_cohort=1,
            horizon=8,
            maximum_dimension=64,
        )
    )


HISTOGRAM_DUE = (("second", 3), ("none", 0), ("first", 1), ("absent", 0), ("last", 4), ("first", 0))
"""What is asked in each round, and the symbol due: after three answers the budget is gone."""


def histogram_data() -> Data:
    """Categories by feature; −1 is none, and one feature is not there at all."""
    return {"first": (0.0,), "second": (2.0,), "last": (3.0,), "none": (-1.0,)}


async def run_histograms(bench: Bench, study: Defined[Study]) -> None:
    """Categories, none, data that are not there, and cover."""
    await bench.begin(HISTOGRAMS)
    for number, (name, due) in enumerate(HISTOGRAM_DUE, start=1):
        query = round_of(
            study,
            Histogram(
                Feature(name=name), categories=CATEGORIES, mechanism=Randomiser.KRR, epsilon=PLAIN
            ),
            number=number,
            answer_after_ms=SLOT_MS,
        )
        asked = Asked(defined=define_round(query), value=(due,))
        answer = await bench.accepted(asked, rule=HISTOGRAMS)
        symbol = int(answer.words[0])
        text = f"round {number}: symbol {symbol}, {due} is due"
        bench.verdicts.check(HISTOGRAMS, symbol == due, text)


def running_study() -> Defined[Study]:
    """The study that running counts share with linear rounds."""
    return revealing_study(Policy.SKIP)


def running_data() -> Data:
    """Somebody who is in the state, and stays."""
    dear = tuple(map(float, of_squared_norm(_dear())))
    return {"state": (1.0,), "nobody": (0.0,), "plain": (0.0,), "dear": dear}


async def run_running_counts(bench: Bench, study: Defined[Study]) -> None:
    """A running count of two positions, and between them an answer that no longer fits."""
    probe = _position(study, Segment(horizon=1, cohort=1), number=1, name="nobody")
    plain = ask(study, 2, (0,), features=("plain",))
    await bench.offered(probe, rule=RUNNING, before=plain)
    segment = Segment(horizon=2, cohort=1, factorisation=Factorisation.SQUARE_ROOT).begun(3)
    first = _position(study, segment, number=3, name="state")
    dear = ask(study, 4, of_squared_norm(_dear()), features=("dear",))
    second = _position(study, segment.after(), number=5, name="state")
    for asked, due in ((first, first.squared_norm), (dear, 0), (second, second.squared_norm)):
        answer = await bench.accepted(asked, rule=RUNNING)
        bench.verdicts.check(RUNNING, *agrees(asked, answer.words, squared_norm=due))


MODEL = define_model(ModelDefinition(architecture=Softmax(inputs=7, classes=2), theta=np.zeros(16)))
EXAMPLES: Examples = (
    [[8.0, -3.0, 5.0, 0.0, 1.0, -7.0, 2.0], [1.0, 9.0, 0.0, 4.0, -6.0, 2.0, 3.0]],
    [1, 0],
)
"""Inputs and labels. Their gradient is far longer than the clip."""


async def run_gradients(bench: Bench, study: Defined[Study]) -> None:
    """Two gradients that are clipped, and a third that no longer fits."""
    asked = [_gradient(study, number) for number in (1, 3, 4)]
    plain = ask(study, 2, (0,), features=("plain",))
    await bench.offered(asked[0], rule=GRADIENTS, before=plain)
    for each, due in zip(asked[1:], (asked[1].squared_norm, 0), strict=True):
        answer = await bench.accepted(each, rule=GRADIENTS)
        bench.verdicts.check(GRADIENTS, *agrees(each, answer.words, squared_norm=due))


def _gradient(study: Defined[Study], number: int) -> Asked:
    """A gradient round, with the words that are due: clipped to 1, in grid steps."""
    query = round_of(
        study,
        Gradient(
            model_hash=MODEL.hash,
            dimension=MODEL.parameters,
            sigma=1 / STEEP,
            grid_exponent=EXPONENT,
        ),
        number=number,
        answer_after_ms=GRADIENT_SLOT_MS,
    )
    gradient = person_gradient(MODEL.value, *EXAMPLES)[0]
    due = np.rint(gradient / np.linalg.norm(gradient) * 2.0**-EXPONENT).astype(int)
    return Asked(defined=define_round(query), value=tuple(due.tolist()))


def _dear() -> int:
    """The squared norm of an answer that what is held leaves no room for, grid steps²."""
    return HELD * int(SIGMA) ** 2


def _position(study: Defined[Study], segment: Segment, *, number: int, name: str) -> Asked:
    """A round of a running count, with the word that is due of a state that was 1 from the first."""
    asked: Round = round_of(
        study,
        RunningCount(Feature(name=name), segment, sigma=1 / SHOWN, grid_exponent=EXPONENT),
        number=number,
        answer_after_ms=SLOT_MS,
    )
    factors = factors_of(segment.factorisation, horizon=segment.horizon, exponent=EXPONENT)
    word = int(factors.row(segment.position)[0]) if name == "state" else 0
    return Asked(defined=define_round(asked), value=(word,))


# Scripts about refusals and about noise.

NOISY = 4096  #: coordinates of the rounds that show the law of the noise
CHUNKED = (1 << 17) + 10  #: so many 64-bit words take two chunks
NOISY_SLOT_MS = 1000  #: a tenth of a slot is left for a report
CHUNKED_SLOT_MS = 5000
FAR = 1e200  #: data units; beyond any clip, and its square beyond any double
NARROW = 57_344.0  #: ℓ₂ radius of the round that clips: it costs half the budget
HORIZON = 16
ALONE = 50_000  #: data units; costs .46 of the budget, and shows by 12 standard deviations
BEFORE = 48_000  #: costs .42
UNKNOWN_FIELD = bytes.fromhex("f80701")  #: at the end of a definition
FETCH_S = 30.0  #: until it has fetched the study; it may have to start
NO_VISIT_S = (
    10.0  #: after the study was fetched, a device has visited or ended by then, or will not
)


def refusal_study() -> Defined[Study]:
    """For wrong rounds, and a few right ones."""
    return revealing_study(Policy.SKIP, horizon=HORIZON)


def refusal_data() -> Data:
    """Every round has data: nobody refuses for want of them."""
    whole = {feature_of(number): (1.0,) * 16 for number in range(1, HORIZON + 2)}
    return {**whole, "alone": (float(ALONE),), "before": (float(BEFORE), 0.0), "behind": (0.0,)}


def noise_study() -> Defined[Study]:
    """For long vectors."""
    return revealing_study(Policy.SKIP, maximum_dimension=CHUNKED)


def noise_data() -> Data:
    """One value beyond the clip, and nothing in the others."""
    nothing = {feature_of(2): NOISY, feature_of(3): NOISY, feature_of(4): CHUNKED}
    return {
        feature_of(1): (FAR,) + (-FAR,) * 15,
        **{name: (0.0,) * size for name, size in nothing.items()},
    }


async def run_refusals(bench: Bench, study: Defined[Study]) -> None:
    """Wrong rounds, one after the other, each with a sound one behind it."""
    first = ask(study, 1, (1,) * 16)
    await bench.accepted(first, rule="wrong-rounds")
    sound = 2
    for rule, what, definition in _wrong(study):
        good = ask(study, sound, (1,) * 16)
        if await bench.refuse(definition, rule=rule, what=what, good=good):
            sound += 1
    last = ask(study, sound, (1,) * 16)
    await bench.accepted(last, rule="wrong-rounds")
    for asked in (
        ask(study, HORIZON - 1, (ALONE,), features=("alone",)),
        ask(study, HORIZON, (BEFORE, 0, 0), features=("before", "behind")),
    ):
        answer = await bench.accepted(asked, rule="features")
        shown = agrees(asked, answer.words, squared_norm=asked.squared_norm)
        bench.verdicts.check("features", *shown)


async def run_noise(bench: Bench, study: Defined[Study]) -> None:
    """Clipping, the law of the noise, and chunks."""
    far = ask(study, 1, (1,) + (-1,) * 15, clip=NARROW, on_grid=False)
    answer = await bench.accepted(far, rule="clipping")
    seen = shown_norm(far, answer.words)
    due = NARROW * (1 - 2.0**-12) / far.noise_steps
    bench.verdicts.check(
        "clipping",
        abs(seen - due) <= TOLERANCE,
        f"{seen:.1f} standard deviations in its direction, {due:.1f} are due",
    )
    noises = []
    for number in (2, 3):
        asked = ask(study, number, (0,) * NOISY, slot_ms=NOISY_SLOT_MS)
        answer = await bench.accepted(asked, rule="noise-law")
        bench.verdicts.check("noise-law", *noise_is_right(answer.words, steps=asked.noise_steps))
        noises.append(answer.words / asked.noise_steps)
    bench.verdicts.check("fresh-noise", *noises_differ(noises))
    large = ask(study, 4, (0,) * CHUNKED, slot_ms=CHUNKED_SLOT_MS, word_type=WordType.INT64)
    answer = await bench.accepted(large, rule="chunks")
    holds, text = noise_is_right(answer.words, steps=large.noise_steps)
    bench.verdicts.check("noise-law", holds, text)
    halves = np.array_split(answer.words[: CHUNKED // 2 * 2] / large.noise_steps, 2)
    bench.verdicts.check("fresh-noise", *noises_differ(halves))


async def stays_away(bench: Bench, *, rule: str, why: str) -> int | None:
    """Watch that a device which fetched the study does not visit; gives its exit status.

    Args:
        bench: with a device that must refuse the study.
        rule: that it breaks by visiting.
        why: it must refuse.
    """
    await bench.runner.start()
    with anyio.move_on_after(FETCH_S):
        async with anyio.create_task_group() as tasks:

            async def give_up() -> None:
                if await bench.runner.ended(FETCH_S):
                    tasks.cancel_scope.cancel()

            tasks.start_soon(give_up)
            await bench.stand.study_asked.wait()
            tasks.cancel_scope.cancel()
    if not bench.stand.study_asked.is_set():
        raise Unanswered(rule, f"the study was never fetched ({why})")
    await bench.runner.ended(NO_VISIT_S)
    visited = "Visit" in bench.stand.calls
    bench.verdicts.check(rule, not visited, f"it {'visits' if visited else 'stays away'}: {why}")
    return bench.runner.exit_code()


def _wrong(study: Defined[Study]) -> list[tuple[str, str, bytes]]:
    """Rule, what is wrong, and the definition."""
    number = 11
    plain = ask(study, number, (1,) * 16).defined.definition
    other = revealing_study(Policy.RETIRE)
    cheaper = _changed(plain, weight=ask(study, number, (1,) * 16).defined.value.weight - 1)
    return [
        (
            "one-number",
            "another question under number 1",
            ask(study, 1, (1,) * 16, features=(feature_of(12),)).defined.definition,
        ),
        (
            "owners-slot",
            "a round without a slot",
            ask(study, number, (1,) * 16, slot_ms=0).defined.definition,
        ),
        (
            "owners-slot",
            "a slot shorter than the owner accepts",
            ask(study, number, (1,) * 16, slot_ms=SLOT_MS - 1).defined.definition,
        ),
        ("wrong-rounds", "of another study", ask(other, number, (1,) * 16).defined.definition),
        ("wrong-rounds", "a field that nobody knows", plain + UNKNOWN_FIELD),
        ("wrong-rounds", "a weight one too small", cheaper),
        (
            "wrong-rounds",
            "beyond the horizon",
            ask(study, HORIZON + 1, (1,) * 16).defined.definition,
        ),
        ("wrong-rounds", "more coordinates than the study allows", _changed(plain, dimension=17)),
        ("wrong-rounds", "a grid that does not divide the clip", _changed(plain, clip=math.pi)),
        ("wrong-rounds", "words too narrow for the noise", _changed(plain, word_type=3)),
        ("wrong-rounds", "no round at all", b"\xff\xff\xff"),
    ]


def _changed(definition: bytes, **fields: object) -> bytes:
    message = round_pb2.Round.FromString(definition)
    for name, value in fields.items():
        setattr(message, name, value)
    return message.SerializeToString()


# Scripts about what an evaluation may do to a device, and what must not show of it.
#
# The device's data have a value for each of the features `burn`, `die` and `eat` in `FEATURES`. A source that is
# tried gives none of these values: it burns the processor, ends its own process by signal 9, or takes
# memory, without end. A device that answers such a round with the value does not offer to be tried so.

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
