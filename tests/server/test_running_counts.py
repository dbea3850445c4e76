"""Running counts at a real collector: what goes on with a segment, what is lost, what is withheld."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
import sqlalchemy as sa

from agent_kit import visit
from counting_kit import STATE, NoNoise, a_study, chain_of, rounds_of
from demur_client.connection import connected
from demur_client.device import Device
from demur_proto.arrays import Values
from demur_proto.errors import DemurError, ParameterError, StateError, WireError
from demur_proto.queries import Feature, Linear, RunningCount
from demur_proto.release import Release, Withheld
from demur_proto.round import Round, round_of
from demur_proto.running.segments import Admission, Factorisation, Segment
from demur_proto.study import Purpose, Study
from demur_proto.wire.definition import Defined, define_round
from demur_server.admin.verifying import verify
from demur_server.analyst import Analyst
from demur_server.collector.collector import Collector
from demur_server.collector.estimates import make_release
from demur_server.collector.keys import MemoryKeys
from demur_server.formatting import csv_pieces, told
from demur_server.grpc.serving import Ports, served
from demur_server.store.durable import DurableStore
from demur_server.store.memory import MemoryStore
from demur_server.store.sqlite import SqliteDatabase
from demur_server.training.analyst_source import AnalystHalts

DEADLINE_S = 30.0
KINDS = list(Factorisation)


class Steady:
    """A person whose state is a function of the feature's `day`."""

    def __init__(self, states: Sequence[float]) -> None:
        self._states = states

    def evaluate(self, feature: Feature) -> Values:
        return np.array([[self._states[int(feature.parameters.get("day", 0))]]])


def on(day: int) -> Feature:
    return Feature(name=STATE.name, parameters={"day": float(day)})


@pytest.fixture
def study() -> Defined[Study]:
    return a_study(answers=30, minimum_cohort=2)


@asynccontextmanager
async def visiting(ports: Ports, *devices: Device, last_round: int) -> AsyncIterator[None]:
    with anyio.fail_after(DEADLINE_S):
        async with (
            connected(f"127.0.0.1:{ports.collector}") as channel,
            anyio.create_task_group() as tasks,
        ):
            for device in devices:

                async def attend(device: Device) -> None:
                    await visit(device, channel, last_round=last_round)

                tasks.start_soon(attend, device)
            yield


async def count(analyst: Analyst, days: Sequence[int], segment: Segment) -> list[Release]:
    releases = []
    for day in days:
        releases.append(await analyst.ask(RunningCount(on(day), segment, bound=3)))
        segment = segment.after(releases[-1].number) if segment.position < len(days) else segment
    return releases


@pytest.mark.parametrize("kind", KINDS)
async def test_devices_are_counted_over_grpc(
    ports: Ports, study: Defined[Study], kind: Factorisation
) -> None:
    states = [[0, 1, 3, 3, 2], [1, 1, 0, 2, 2]]
    devices = [Device(study, Steady(each), NoNoise()) for each in states]
    segment = Segment(horizon=5, cohort=2, factorisation=kind)

    async with (
        Analyst.create(f"127.0.0.1:{ports.analyst}", study.value, answer_after_ms=0) as analyst,
        visiting(ports, *devices, last_round=5),
    ):
        releases = await count(analyst, range(5), segment)

    found = [release.estimate[0] for release in releases]
    np.testing.assert_allclose(found, np.sum(states, axis=0), atol=1e-9)
    assert all(release.standard_error[0] > 0 for release in releases)


async def test_those_who_ran_out_in_another_study_are_counted_over_grpc(ports: Ports) -> None:
    main = a_study(answers=2, minimum_cohort=2, name="main")
    about = a_study(answers=3, minimum_cohort=2, name="halts", purpose=Purpose.HALTS)
    owners = [Device(main, Steady([1.0]), NoNoise()), Device(main, Steady([0.0]), NoNoise())]
    beside = [Device(about, Steady([]), NoNoise(), ledger=each.ledger) for each in owners]

    async with (
        Analyst.create(f"127.0.0.1:{ports.analyst}", main.value, answer_after_ms=0) as sums,
        Analyst.create(f"127.0.0.1:{ports.analyst}", about.value, answer_after_ms=0) as analyst,
        visiting(ports, *owners, last_round=4),
        visiting(ports, *beside, last_round=4),
    ):
        source = AnalystHalts(analyst, main.hash, horizon=4, cohort=2, timeout_s=DEADLINE_S)
        counts = []
        for number in range(1, 5):
            await sums.ask(Linear([STATE], on_grid=True))
            counts.append(await source.halts(number=number, step=number))
        again = await source.halts(number=4, step=4)

    values = [each.value for each in counts]
    np.testing.assert_allclose(values, [0, 0, 1, 1], atol=1e-9)  # the third answer did not fit
    assert again == counts[-1]


# ---- what goes on with a segment --------------------------------------------------------------


@pytest.fixture
async def known(study: Defined[Study]) -> Collector:
    made = Collector(MemoryStore(), open_access=True)
    await made.create_study(study.definition)
    return made


def with_segment(asked: Round, **changes: Any) -> Round:
    query: Any = asked.query
    return replace(asked, query=replace(query, segment=replace(query.segment, **changes)))


async def test_a_position_opens_only_after_the_one_before_is_closed(
    known: Collector, study: Defined[Study]
) -> None:
    first, second = rounds_of(study, Segment(horizon=3, cohort=2))[:2]
    await known.open_round(first.definition)

    with pytest.raises(StateError, match="before round 1 of its running count is closed"):
        await known.open_round(second.definition)

    await known.close_round(first.hash)
    assert (await known.open_round(second.definition)).hash == second.hash


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"horizon": 4}, ParameterError, "the same but for its position"),
        ({"cohort": 3}, ParameterError, "the same but for its position"),
        ({"factorisation": Factorisation.TREE}, ParameterError, "the same but for its position"),
        ({"first_round": 2, "position": 1}, None, ""),
    ],
)
async def test_a_round_must_go_on_with_its_segment_or_begin_one(
    known: Collector,
    study: Defined[Study],
    changes: dict[str, Any],
    error: type[DemurError] | None,
    said: str,
) -> None:
    first, second = rounds_of(study, Segment(horizon=3, cohort=2))[:2]
    await known.open_round(first.definition)
    await known.close_round(first.hash)
    odd = define_round(with_segment(second.value, **changes))

    if error is None:
        await known.open_round(odd.definition)
        return
    with pytest.raises(error, match=said) as caught:
        await known.open_round(odd.definition)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "between", "error", "said"),
    [
        ({}, True, StateError, "cannot follow round 1, at position 1 of 2"),
        ({"earlier": (1,)}, False, ParameterError, "goes on with it"),
        ({"cohort": 3}, False, ParameterError, "goes on with it"),
        ({"horizon": 3}, False, None, ""),  # any length is as good
    ],
    ids=["too early", "earlier", "cohort", "horizon"],
)
async def test_a_later_segment_must_go_on_where_the_one_before_has_ended(
    known: Collector,
    study: Defined[Study],
    changes: dict[str, Any],
    between: bool,
    error: type[DemurError] | None,
    said: str,
) -> None:
    rounds = chain_of(study, (2, 4), cohort=2)
    if between:  # instead of the last position
        rounds[1] = define_round(round_of(study, Linear([STATE]), number=2))
    for each in rounds[:2]:
        await known.open_round(each.definition)
        await known.close_round(each.hash)
    odd = define_round(with_segment(rounds[2].value, **changes))

    if error is None:
        await known.open_round(odd.definition)
        return
    with pytest.raises(error, match=said) as caught:
        await known.open_round(odd.definition)
    assert len(str(caught.value).splitlines()) == 1


async def test_a_segment_that_nobody_began_cannot_go_on(
    ports: Ports, study: Defined[Study]
) -> None:
    orphan = Segment(horizon=3, cohort=2, position=2, first_round=1)

    async with Analyst.create(
        f"127.0.0.1:{ports.analyst}", study.value, answer_after_ms=0
    ) as analyst:
        await analyst.close(await analyst.open(Linear([STATE])))  # round 1 asks something else
        with pytest.raises(StateError, match="of a segment that no round has begun"):
            await analyst.ask(RunningCount(STATE, orphan, bound=3))


# ---- what is lost, and what is withheld -------------------------------------------------------


def released(
    study: Defined[Study],
    rounds: Sequence[Defined[Round]],
    totals: Sequence[tuple[int, int]],
) -> list[Release]:
    releases: list[Release] = []
    for asked, (total, reports) in zip(rounds, totals, strict=True):
        releases.append(
            make_release(study, asked, [total], reports=reports, earlier=list(releases))
        )
    return releases


@pytest.mark.parametrize("horizons", [(4,), (2, 4)], ids=["one segment", "two"])
def test_after_a_round_without_numbers_the_rest_of_its_count_is_withheld(
    study: Defined[Study], horizons: tuple[int, ...]
) -> None:
    rounds = chain_of(study, horizons, cohort=2)[:4]

    releases = released(study, rounds, [(5, 2), (3, 1), (4, 2), (4, 2)])

    assert [each.withheld for each in releases] == [
        Withheld.NOTHING,
        Withheld.BELOW_MINIMUM_COHORT,
        Withheld.SEGMENT_BROKEN,
        Withheld.SEGMENT_BROKEN,
    ]
    assert not releases[2].sums.size
    assert Release.of(releases[2].message()) == releases[2]


def test_lost_reports_widen_every_interval_after_them(study: Defined[Study]) -> None:
    rounds = rounds_of(study, Segment(horizon=3, cohort=100))

    whole = released(study, rounds, [(0, 100)] * 3)
    lost = released(study, rounds, [(0, 100), (0, 90), (0, 100)])

    assert lost[0] == whole[0]
    assert lost[1].standard_error[0] > whole[1].standard_error[0]
    assert lost[2].standard_error[0] > whole[2].standard_error[0]


def test_a_release_without_an_interval_survives_the_wire(study: Defined[Study]) -> None:
    asked = rounds_of(study, Segment(horizon=3, cohort=2), admission=Admission.HALT)[0]

    release = make_release(study, asked, [7], reports=2)
    back = Release.of(release.message())

    assert back == release
    assert np.isnan(back.interval_at(0)).all()
    assert np.isnan(back.confidence)


def test_only_a_running_count_may_lack_its_interval(study: Defined[Study]) -> None:
    asked = rounds_of(study, Segment(horizon=3, cohort=2))[0]
    message = make_release(study, asked, [7], reports=2).message()
    del message.half_width[:]

    with pytest.raises(WireError):
        Release.of(message)


async def test_a_restarted_collector_goes_on_with_a_count_and_its_store_holds_together(
    study: Defined[Study], tmp_path: Path
) -> None:
    path = tmp_path / "store.sqlite"
    segment = Segment(horizon=1, cohort=2)
    devices = [Device(study, Steady(each), NoNoise()) for each in ([1, 2, 0, 0], [0, 1, 3, 2])]
    found = []
    for day in range(4):  # another process each day, and segments of 1, 2 and 4 rounds
        store = await DurableStore.open(SqliteDatabase(path))
        collector = Collector(store, open_access=True)
        await collector.refresh()
        async with (
            served(collector, drain_s=0.1) as ports,
            Analyst.create(f"127.0.0.1:{ports.analyst}", study.value, answer_after_ms=0) as analyst,
            visiting(ports, *devices, last_round=day + 1),
        ):
            release = await analyst.ask(RunningCount(on(day), segment, bound=3))
            found.append(release.estimate[0])
            segment = segment.following(release.number)
        await store.close()

    assert segment.earlier == (1, 2)
    np.testing.assert_allclose(found, [1, 3, 3, 2], atol=1e-9)
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as sql:
        assert verify(sql, keys_folder=None).problems == ()
    engine.dispose()


# ---- told to people ---------------------------------------------------------------------------


def test_people_are_told_why_a_count_is_withheld_and_where_it_has_no_interval(
    study: Defined[Study],
) -> None:
    broken = released(study, rounds_of(study, Segment(horizon=2, cohort=2)), [(3, 1), (4, 2)])[1]
    halting = rounds_of(study, Segment(horizon=2, cohort=2), admission=Admission.HALT)[0]
    bare = make_release(study, halting, [7], reports=2)

    assert "an earlier round of the running count published nothing" in told(
        "state", broken, histogram=False
    )
    said = told("state", bare, histogram=False)
    assert "no interval" in said
    assert "nan" not in said
    lines = "".join(csv_pieces([broken, bare]))
    assert "nan" not in lines
    assert "segment_broken" in lines


async def test_a_collector_that_shares_its_store_sees_that_another_has_closed_the_round_before(
    study: Defined[Study],
) -> None:
    store, keys = MemoryStore(), MemoryKeys()
    one, other = (Collector(store, keys=keys, open_access=True) for _ in range(2))
    first, second = rounds_of(study, Segment(horizon=2, cohort=2))
    await one.create_study(study.definition)
    await one.open_round(first.definition)
    await other.refresh()  # it knows the round as open
    await one.close_round(first.hash)

    assert (await other.open_round(second.definition)).hash == second.hash
