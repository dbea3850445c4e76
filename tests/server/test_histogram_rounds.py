"""Histogram rounds at a real collector: devices and gateways, and reports that nobody may make."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import grpc
import numpy as np
import pytest
import sqlalchemy as sa

from admin_kit import spoil
from agent_kit import visit
from demur_client.connection import connected
from demur_client.device import Device
from demur_proto.accounting.histograms import design_histogram_study
from demur_proto.arrays import Integers, Values, Words
from demur_proto.errors import DemurError, ParameterError, WireError
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import MOST_CATEGORIES, Feature, Histogram
from demur_proto.queries.registry import mechanism_for
from demur_proto.release import Withheld
from demur_proto.round import Round, round_of
from demur_proto.study import Measure, MechanismFamily, Policy, Study, View
from demur_proto.v1 import collector_pb2, report_pb2
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_proto.wire.words import WordType, encode_words
from demur_server.admin.verifying import verify
from demur_server.analyst import Analyst
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import Ports, served
from demur_server.store.durable import DurableStore
from demur_server.store.link import checksum
from demur_server.store.records import find_releases
from demur_server.store.sqlite import SqliteDatabase
from demur_sim.engine.sampling import FastSampler

DEADLINE_S = 30.0
CATEGORIES = 11
EVENT = Feature(name="event")
ACCEPTED, DUPLICATE, CONFLICT, INVALID = (
    int(report_pb2.DISPOSITION_ACCEPTED),
    int(report_pb2.DISPOSITION_DUPLICATE),
    int(report_pb2.DISPOSITION_CONFLICT),
    int(report_pb2.DISPOSITION_INVALID),
)


@pytest.fixture
def study() -> Defined[Study]:
    """A contract under which two reports make a release, and rounds may have any ε."""
    return define_study(
        Study(
            name="histograms",
            view=View.LOCAL,
            measure=Measure.ZCDP,
            policy=Policy.SKIP,
            budget=2.5 * 50.0,
            epsilon=400.0,
            delta=1e-6,
            mechanism_family=MechanismFamily.PURE,
            minimum_cohort=2,
            maximum_dimension=MOST_CATEGORIES,
        )
    )


@pytest.fixture
async def analyst(ports: Ports, study: Defined[Study]) -> AsyncIterator[Analyst]:
    async with Analyst.create(f"127.0.0.1:{ports.analyst}", study.value, answer_after_ms=0) as made:
        yield made


def ask(
    study: Defined[Study],
    number: int = 1,
    *,
    mechanism: Randomiser,
    epsilon: float = 1.0,
    categories: int = CATEGORIES,
) -> Defined[Round]:
    return define_round(
        round_of(
            study,
            Histogram(EVENT, categories=categories, mechanism=mechanism, epsilon=epsilon),
            number=number,
        )
    )


def reports_about(study: Defined[Study], asked: Defined[Round], *symbols: int) -> Words:
    """Reports [n, w] of devices with these symbols."""
    mechanism = mechanism_for(study.value, asked.value)
    sampler = FastSampler(np.random.default_rng(1))
    return mechanism.randomise(np.array(symbols)[:, None], sampler)


def ids(reports: int, *, first: int = 0) -> bytes:
    return b"".join(who.to_bytes(16, "big") for who in range(first, first + reports))


class Always:
    """A source with one value."""

    def __init__(self, value: float) -> None:
        self._value = np.array([[value]])

    def evaluate(self, feature: Feature) -> Values:
        assert feature == EVENT
        return self._value


# ---- counting --------------------------------------------------------------------------------


async def test_real_devices_on_streams_of_their_own_are_counted_by_category(
    analyst: Analyst, channel: grpc.aio.Channel, study: Defined[Study]
) -> None:
    # At ε = 50 nobody errs, and two answers fit: the counts can be read, and so can the refusals.
    held = [float("nan"), 0.0, 0.0, 3.0, 3.0, 3.0, 10.0, 11.0, -1.0, 0.5]
    releases = []

    async with anyio.create_task_group() as tasks:
        for value in held:

            async def attend(value: float) -> None:
                await visit(Device(study, Always(value)), channel, last_round=3)

            tasks.start_soon(attend, value)
        with anyio.fail_after(DEADLINE_S):
            for _ in range(3):
                releases.append(
                    await analyst.ask(
                        Histogram(
                            EVENT, categories=CATEGORIES, mechanism=Randomiser.KRR, epsilon=50.0
                        ),
                        reports=len(held),
                    )
                )

    counts = [2, 0, 0, 3, 0, 0, 0, 0, 0, 0, 1]
    assert [list(release.sums) for release in releases] == [counts, counts, [0] * CATEGORIES]
    for release in releases:
        assert release.reports == len(held)
        assert np.allclose(release.estimate, release.sums, rtol=0, atol=1e-9)
        assert len(release.standard_error) == len(release.low) == len(release.high) == CATEGORIES
        assert (release.low <= release.sums).all()
        assert (release.sums <= release.high).all()
        assert "One report on its own: 50-differential privacy" in release.guarantee
        assert "View: local" in release.guarantee


async def test_a_store_whose_counts_have_the_intervals_of_before_is_read_and_holds_together(
    study: Defined[Study], tmp_path: Path
) -> None:
    path = tmp_path / "store.sqlite"
    store = await DurableStore.open(SqliteDatabase(path))
    options: Any = {"categories": 3, "mechanism": Randomiser.KRR, "epsilon": 2.0}
    async with (
        served(Collector(store, open_access=True), drain_s=0.1) as ports,
        Analyst.create(f"127.0.0.1:{ports.analyst}", study.value) as analyst,
        connected(f"127.0.0.1:{ports.collector}") as channel,
        anyio.create_task_group() as tasks,
    ):
        for value in (0.0, 2.0):
            device = Device(study, Always(value))
            tasks.start_soon(partial(visit, device, channel, last_round=1))
        with anyio.fail_after(DEADLINE_S):
            release = await analyst.ask(Histogram(EVENT, **options), reports=2)
    await store.close()
    before = release.message()
    del before.low_end[:], before.high_end[:], before.half_width[:]
    before.half_width.extend(1.959963984540054 * release.standard_error)
    message = before.SerializeToString(deterministic=True)

    statement = "UPDATE releases SET message = ?, checksum = ? WHERE round_id = 1"
    spoil(tmp_path, statement, message, checksum(message, 1))

    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as sql:
        assert verify(sql, keys_folder=None).problems == ()
        [kept] = find_releases(sql)
    engine.dispose()
    assert kept.half_width.size == kept.low.size == 3
    assert kept.estimate.tolist() == release.estimate.tolist()


@pytest.mark.parametrize("mechanism", Randomiser)
async def test_devices_of_every_mechanism_are_counted_over_the_wire(
    collector: Collector, channel: grpc.aio.Channel, study: Defined[Study], mechanism: Randomiser
) -> None:
    asked = await collector.open_round(ask(study, mechanism=mechanism, epsilon=3.0).definition)
    held = [index % 3.0 for index in range(30)]

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            for value in held:

                async def attend(value: float) -> None:
                    await visit(Device(study, Always(value)), channel, last_round=1)

                tasks.start_soon(attend, value)

    release = await collector.close_round(asked.hash)
    assert release.reports == 30
    assert len(release.sums) == mechanism_for(study.value, asked.value).sums_length
    # Ten people in each of the first three categories. Devices draw from the operating system, so
    # no seed fixes this; all eleven within six standard errors fail once in 10^7 runs or so.
    truth = np.repeat([10.0, 0.0], [3, CATEGORIES - 3])
    own = mechanism_for(study.value, asked.value).estimate(release.sums, reports=release.reports)
    assert own.estimate.tolist() == release.estimate.tolist()
    errors = np.maximum(release.standard_error, max(release.standard_error))
    assert (np.abs(np.array(release.estimate) - truth) <= 6 * errors).all()


@pytest.mark.parametrize("mechanism", Randomiser)
async def test_frames_add_up_to_the_tally_of_their_reports(
    collector: Collector, devices: Any, study: Defined[Study], mechanism: Randomiser
) -> None:
    asked = await collector.open_round(ask(study, mechanism=mechanism).definition)
    rows = reports_about(study, asked, *(index % (CATEGORIES + 1) for index in range(500)))
    call = devices.SubmitFrames(timeout=DEADLINE_S)
    hello = collector_pb2.Hello(protocol_version=1, study_hash=study.hash)
    await call.write(collector_pb2.SubmitFramesRequest(hello=hello))
    for number in range(5):
        part = rows[100 * number : 100 * number + 100]
        frame = report_pb2.ReportFrame(
            frame_number=number,
            round_hash=asked.hash,
            report_ids=ids(100, first=100 * number),
            words=encode_words(part, asked.value.word_type),
        )
        await call.write(collector_pb2.SubmitFramesRequest(frame=frame))
    settled = 0
    while settled < 5:
        message = await call.read()
        if message.WhichOneof("message") == "receipt":
            assert list(message.receipt.dispositions) == [ACCEPTED] * 100
            settled += 1
    await call.done_writing()

    release = await collector.close_round(asked.hash)

    expected: Integers = mechanism_for(study.value, asked.value).tally(rows)
    assert release.sums.tolist() == expected.tolist()
    assert release.reports == 500


async def test_the_same_report_again_is_a_duplicate_and_other_bits_a_conflict(
    collector: Collector, study: Defined[Study]
) -> None:
    asked = await collector.open_round(ask(study, mechanism=Randomiser.SUE).definition)
    one, other = b"\x05\x00", b"\x04\x00"

    told = [await collector.intake.submit(asked.hash, ids(1), words) for words in (one, one, other)]
    together = await collector.intake.submit(asked.hash, ids(2) + ids(1, first=1), one + one + one)

    assert told == [[ACCEPTED], [DUPLICATE], [CONFLICT]]
    assert together == [DUPLICATE, ACCEPTED, DUPLICATE]
    totals = await collector._store.totals(asked.hash)
    assert totals.reports == 2
    assert totals.sums.tolist() == [2, 0, 2] + [0] * (CATEGORIES - 3)


async def test_below_the_minimum_cohort_no_count_is_released(
    collector: Collector, study: Defined[Study]
) -> None:
    asked = await collector.open_round(ask(study, mechanism=Randomiser.OUE).definition)
    await collector.intake.submit(asked.hash, ids(1), b"\x05\x00")

    release = await collector.close_round(asked.hash)

    assert release.withheld is Withheld.BELOW_MINIMUM_COHORT
    assert (release.sums.size, release.estimate.size, release.standard_error.size) == (0, 0, 0)


@pytest.mark.parametrize("mechanism", [Randomiser.BLH, Randomiser.HADAMARD, Randomiser.OUE])
async def test_the_largest_histogram_there_is_gets_through_to_the_analyst(
    collector: Collector, analyst: Analyst, mechanism: Randomiser
) -> None:
    asked = await analyst.open(
        Histogram(EVENT, categories=MOST_CATEGORIES, mechanism=mechanism, epsilon=1.0)
    )
    rows = reports_about(analyst.study, asked, 1, MOST_CATEGORIES)
    words = encode_words(rows, asked.value.word_type)
    assert await collector.intake.submit(asked.hash, ids(2), words) == [ACCEPTED] * 2

    release = await analyst.close(asked, timeout_s=DEADLINE_S)

    assert len(release.estimate) == MOST_CATEGORIES
    expected = mechanism_for(analyst.study.value, asked.value).tally(rows)
    np.testing.assert_array_equal(release.sums, expected)


# ---- hostile reports ---------------------------------------------------------------------------


def forged(asked: Defined[Round], good: Words) -> dict[str, bytes]:
    """Texts of the right length that no device could have sent in this round."""
    mechanism = asked.value.query
    first = encode_words(good[:1], asked.value.word_type)
    if asked.value.word_type is WordType.BIT:
        # Eleven bits in two bytes: the upper five of the second are spare.
        spare = {f"spare bit {bit}": bytes([first[0], first[1] | 1 << bit]) for bit in range(3, 8)}
        wrong = {"every bit": b"\xff\xff"}
        if mechanism.mechanism is Randomiser.SUBSET:  # type: ignore[attr-defined]
            wrong |= {"too many": b"\xff\x07", "none at all": b"\x00\x00"}
        return spare | wrong
    largest = {
        Randomiser.KRR: CATEGORIES,
        Randomiser.HADAMARD: 15,
    }.get(mechanism.mechanism)  # type: ignore[attr-defined]
    beyond = [-1, -(1 << 31), (1 << 31) - 1]
    beyond += [] if largest is None else [largest + 1]
    return {str(word): int(word).to_bytes(4, "little", signed=True) for word in beyond}


@pytest.mark.parametrize("mechanism", Randomiser)
async def test_a_forged_report_is_invalid_and_harms_none_beside_it(
    collector: Collector, study: Defined[Study], mechanism: Randomiser
) -> None:
    asked = await collector.open_round(ask(study, mechanism=mechanism).definition)
    good = reports_about(study, asked, 1, 0, 5, CATEGORIES)
    texts = [encode_words(row[None, :], asked.value.word_type) for row in good]
    wrong = [*forged(asked, good).values()]

    told = await collector.intake.submit(
        asked.hash,
        ids(len(wrong) + len(texts)),
        b"".join([texts[0], *wrong, *texts[1:]]),
    )

    assert told == [ACCEPTED] + [INVALID] * len(wrong) + [ACCEPTED] * 3
    totals = await collector._store.totals(asked.hash)
    assert totals.reports == 4
    tally = mechanism_for(study.value, asked.value).tally(good)
    assert totals.sums.tolist() == tally.tolist()
    # The ids of what was invalid were not taken: their owners may still report.
    again = await collector.intake.submit(asked.hash, ids(1, first=1), texts[0])
    assert again == [ACCEPTED]


@pytest.mark.parametrize("theirs", Randomiser)
@pytest.mark.parametrize("mechanism", Randomiser)
async def test_another_mechanisms_report_counts_only_where_this_one_could_have_made_it(
    collector: Collector, study: Defined[Study], mechanism: Randomiser, theirs: Randomiser
) -> None:
    asked = await collector.open_round(ask(study, mechanism=mechanism).definition)
    other = ask(study, mechanism=theirs)
    text = encode_words(reports_about(study, other, 3), other.value.word_type)
    good = reports_about(study, asked, 5)

    try:
        told = await collector.intake.submit(asked.hash, ids(1), text)
    except WireError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
        told = [INVALID]
    after = await collector.intake.submit(
        asked.hash, ids(1, first=1), encode_words(good, asked.value.word_type)
    )

    assert told in ([ACCEPTED], [INVALID])
    if asked.value.word_type is not other.value.word_type:
        assert told == [INVALID]
    assert after == [ACCEPTED]
    totals = await collector._store.totals(asked.hash)
    assert totals.reports == told.count(ACCEPTED) + 1


@pytest.mark.parametrize("mechanism", [Randomiser.OUE, Randomiser.KRR])
@pytest.mark.parametrize("length", [0, 1, 3, 5, 44])
async def test_words_of_another_length_fail_the_call_in_one_line(
    collector: Collector, study: Defined[Study], mechanism: Randomiser, length: int
) -> None:
    asked = await collector.open_round(ask(study, mechanism=mechanism).definition)

    with pytest.raises(WireError, match="words take") as caught:
        await collector.intake.submit(asked.hash, ids(1), bytes(length))

    assert len(str(caught.value).splitlines()) == 1
    assert (await collector.totals(asked.hash)).reports == 0


# ---- what may not be asked -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"categories": 0}, "categories must be"),
        ({"categories": MOST_CATEGORIES + 1}, "categories must be"),
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"epsilon": float("nan")}, "epsilon must be"),
        ({"epsilon": 51.0}, "epsilon must be"),
        ({"mechanism": "oue"}, "mechanism must be"),
    ],
)
async def test_a_histogram_that_cannot_be_is_refused_before_anybody_is_asked(
    analyst: Analyst, change: dict[str, Any], problem: str
) -> None:
    options: dict[str, Any] = {
        "categories": CATEGORIES,
        "mechanism": Randomiser.OUE,
        "epsilon": 1.0,
        **change,
    }

    with pytest.raises(ParameterError, match=problem) as caught:
        await analyst.open(Histogram(EVENT, **options))

    assert len(str(caught.value).splitlines()) == 1
    asked = await analyst.open(
        Histogram(EVENT, categories=CATEGORIES, mechanism=Randomiser.OUE, epsilon=1.0)
    )
    assert asked.value.number == 1


async def test_more_categories_than_the_study_allows_are_refused(collector: Collector) -> None:
    small = define_study(
        design_histogram_study(
            name="small", epsilon=1.0, delta=1e-6, minimum_cohort=2, categories=4
        )
    )
    large = define_study(
        design_histogram_study(
            name="large", epsilon=1.0, delta=1e-6, minimum_cohort=2, categories=64
        )
    )
    await collector.create_study(small.definition)
    asked = ask(large, mechanism=Randomiser.OUE)

    with pytest.raises(DemurError, match="categories must be"):
        await collector.open_round(asked.definition.replace(large.hash, small.hash))
