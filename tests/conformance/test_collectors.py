"""Collectors on trial: the real one conforms, wrong ones do not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from access_kit import House, opened
from demur_proto.asking import next_round
from demur_proto.definition import Defined, define_round, define_study
from demur_proto.round import Feature
from demur_proto.study import Policy, Study, View, design_study
from demur_server.store.base import Role
from demur_sim.conformance.collector_run import Visitor, try_collector
from demur_sim.conformance.rules import COLLECTOR_RULES
from demur_sim.conformance.verdicts import Verdict, Verdicts


def small_study() -> Defined[Study]:
    return define_study(
        design_study(
            name="tried out",
            epsilon=1.0,
            delta=1e-6,
            answers=4,
            minimum_cohort=2,
            view=View.LOCAL,
            policy=Policy.SKIP,
            horizon=8,
            maximum_dimension=4,
        )
    )


@asynccontextmanager
async def a_collector() -> AsyncIterator[tuple[House, Visitor]]:
    """The real one, with an open round and four tokens."""
    study = small_study()
    asked = define_round(next_round(study, [Feature(name=n) for n in "ab"], number=1))
    async with opened(study) as house:
        await house.collector.open_round(asked.definition)

        async def close() -> None:
            await house.collector.close_round(asked.hash)

        yield (
            house,
            Visitor(
                target=f"127.0.0.1:{house.ports.collector}",
                tokens=tuple([await house.token() for _ in range(4)]),
                gateway=await house.named("gateway", Role.GATEWAY),
                close=close,
            ),
        )


async def test_the_real_collector_keeps_every_rule() -> None:
    verdicts = Verdicts(COLLECTOR_RULES)

    async with a_collector() as (_, visitor):
        await try_collector(visitor, verdicts)

    assert [found for found in verdicts.findings() if found.verdict is not Verdict.PASS] == []
