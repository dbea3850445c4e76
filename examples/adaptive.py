"""An analyst who decides what to ask next from what was released so far.

Which of fourteen days had the most buyers, and what did half of them spend at least? One question
for each day finds the day. One more counts its buyers again, because the largest of fourteen noisy
counts is a flattering one. Six halve the range in which the typical amount must lie. Each person
pays only for the questions that their own purchases touch, so a budget of nine full answers, which
would end after nine questions if everybody paid for all of them, is enough for these 21.

    python examples/adaptive.py [--fidelity processes] [--seed S]
"""

import argparse
import math
from dataclasses import dataclass

import anyio

from demur_proto.queries import Feature, Linear
from demur_proto.release import Release
from demur_sim.engine.session import Session
from demur_sim.engine.simulation import open_session
from demur_sim.scenario import load_scenario

DAYS = range(50, 64)  #: counted from 1 January 1997
HALVINGS = 6
QUESTIONS = len(DAYS) + 1 + HALVINGS
HIGHEST = 80.0  #: US dollars; where the search starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What the analyst knows in the end."""

    day: int
    buyers: Release  #: of that day
    spenders: dict[float, Release]  #: how many of them spent so many dollars or more
    typical: float  #: what half of them spent at least, US dollars; an estimate


async def follow(session: Session) -> None:
    """What anybody sees who watches the study: every release, as it is published."""
    async for release in session.watch():
        print(f"  release {release.number:2}: {shown(release)} people")
        if release.number == QUESTIONS:
            return


async def investigate(session: Session) -> Learned:
    """Ask, learn, ask on."""
    counts = {day: await session.ask(Linear([bought(day)], on_grid=True)) for day in DAYS}
    day = max(counts, key=lambda day: counts[day].estimate[0])
    buyers = await session.ask(Linear([bought(day)], on_grid=True))

    spenders = {}
    low, high = 0.0, HIGHEST
    for _ in range(HALVINGS):
        dollars = (low + high) / 2
        spenders[dollars] = await session.ask(Linear([spent(day, dollars)], on_grid=True))
        if spenders[dollars].estimate[0] > buyers.estimate[0] / 2:
            low = dollars
        else:
            high = dollars
    return Learned(day=day, buyers=buyers, spenders=spenders, typical=(low + high) / 2)


def bought(day: int) -> Feature:
    """Did this device's owner buy on that day?"""
    return Feature(name="active", parameters={"period": day})


def spent(day: int, dollars: float) -> Feature:
    """Did this device's owner spend so much or more on that day?"""
    return Feature(name="amount_at_least", parameters={"period": day, "threshold": dollars})


def shown(release: Release) -> str:
    """A count with its interval."""
    return f"{release.estimate[0]:.0f} ± {release.half_width[0]:.0f}"


def share(part: Release, whole: Release) -> str:
    """A share in per cent, with its interval: both counts are noisy, and independently so."""
    ratio = part.estimate[0] / whole.estimate[0]
    half_width = math.hypot(part.half_width[0], ratio * whole.half_width[0]) / whole.estimate[0]
    return f"{ratio:3.0%} ± {half_width:.0%}"


async def main(*, fidelity: str, seed: int) -> None:
    """Open a study on the shipped customers, put all questions to them, say what came of it."""
    scenario = load_scenario("cdnow", overrides=["budget=9"])
    async with open_session(scenario, fidelity=fidelity, seed=seed, horizon=QUESTIONS) as session:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow, session)
            learned = await investigate(session)
        refused = (await session.finish()).refused
    print(f"busiest day: {learned.day}, with {shown(learned.buyers)} buyers")
    for dollars in sorted(learned.spenders):
        part = share(learned.spenders[dollars], learned.buyers)
        print(f"  spent {dollars:5.2f} dollars or more: {part}")
    print(f"half of them spent at least about {learned.typical:.0f} dollars")
    print(f"{QUESTIONS} questions; {refused.sum()} of {len(refused)} devices were refused once")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An analyst who asks adaptively.")
    parser.add_argument("--fidelity", choices=["cohort", "processes"], default="cohort")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    anyio.run(lambda: main(fidelity=options.fidelity, seed=options.seed))
