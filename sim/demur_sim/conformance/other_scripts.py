"""Scripts about refusals and about noise."""

import math

import anyio
import numpy as np

from demur_proto.definition import Defined
from demur_proto.study import Policy, Study
from demur_proto.v1 import round_pb2
from demur_proto.words import WordType
from demur_sim.conformance.bench import Bench, Unanswered
from demur_sim.conformance.decoding import (
    TOLERANCE,
    agrees,
    noise_is_right,
    noises_differ,
    shown_norm,
)
from demur_sim.conformance.device_process import Data
from demur_sim.conformance.questions import SLOT_MS, ask, feature_of, revealing_study

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
