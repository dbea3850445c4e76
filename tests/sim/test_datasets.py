import contextlib
import csv
import datetime as dt
import gzip
import io
import os
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demur_proto.arrays import Values
from demur_proto.errors import DataError, ParameterError
from demur_proto.queries import Feature
from demur_sim.datasets.events import load_cdnow, read_events
from demur_sim.people.populations import EventLog

GOOD = "customer_id,date,usd\n7,2026-01-03,1.5\n12,2026-01-01,2\n7,2026-01-03,.25\n"


def table(log: EventLog, name: str) -> list[list[float]]:
    """A feature of every device in every period."""
    columns = [evaluate(log, name, period)[:, 0].tolist() for period in range(1, log.periods + 1)]
    return [list(row) for row in zip(*columns, strict=True)]


def evaluate(log: EventLog, name: str, period: int) -> Values:
    return log.evaluate(Feature(name=name, parameters={"period": period}), slice(None))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "events.csv"


def test_people_become_devices_in_the_order_of_their_ids_and_days_become_periods(
    file: Path,
) -> None:
    file.write_text(GOOD)

    log = read_events(file, amount="usd")

    assert table(log, "events") == [[0, 0, 2], [1, 0, 0]]
    assert table(log, "amount") == [[0, 0, 1.75], [2, 0, 0]]


def test_start_and_end_may_reach_beyond_the_events(file: Path) -> None:
    file.write_text(GOOD)

    log = read_events(file, start="2025-12-31", end="2026-01-04")

    assert table(log, "active") == [[0, 0, 0, 1, 0], [0, 1, 0, 0, 0]]
    assert log.features == ("active", "events")


@pytest.mark.parametrize(
    "content",
    [
        GOOD.encode(),
        GOOD.encode("utf-8-sig"),
        GOOD.replace("\n", "\r\n").encode(),
        GOOD.replace("\n", "\n\n").encode(),
        GOOD.rstrip().encode(),
        gzip.compress(GOOD.encode(), mtime=0),
        gzip.compress(GOOD.encode("utf-8-sig"), mtime=0),
        gzip.compress(GOOD[:20].encode(), mtime=0) + gzip.compress(GOOD[20:].encode(), mtime=0),
        GOOD.replace("7,", '"7",').encode(),
        GOOD.replace("7,", "007,").encode(),
        GOOD.replace("2\n", "+2.e0\n").encode(),
        "\n".join(f"{line},né" for line in GOOD.splitlines()).encode(),
        "\n".join(f'"a, ""b""",{line}' for line in GOOD.splitlines()).encode(),
        "\n".join(f'"a\nb",{line}' for line in GOOD.splitlines()).encode(),
    ],
)
@pytest.mark.parametrize("name", ["events.csv", "events.csv.gz", "events"])
def test_all_forms_of_one_table_say_the_same(tmp_path: Path, name: str, content: bytes) -> None:
    file = tmp_path / name
    file.write_bytes(content)

    log = read_events(str(file), amount="usd")

    assert table(log, "amount") == [[0, 0, 1.75], [2, 0, 0]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=st.lists(
        st.tuples(
            st.integers(min_value=0, max_value=10**18 - 1) | st.integers(0, 3),
            st.dates(min_value=dt.date(2025, 12, 20), max_value=dt.date(2026, 1, 10)),
        ),
        min_size=1,
        max_size=20,
    ),
    zipped=st.booleans(),
)
def test_every_event_is_found_again_where_its_line_says(
    tmp_path: Path, events: list[tuple[int, Any]], zipped: bool
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("who", "when"), *events])
    raw = text.getvalue().encode()
    file = tmp_path / "written.csv"
    file.write_bytes(gzip.compress(raw) if zipped else raw)

    log = read_events(file, person="who", date="when")

    people = sorted({who for who, _ in events})
    first = min(day for _, day in events)
    expected = np.zeros((log.devices, log.periods))
    for who, day in events:
        expected[people.index(who), (day - first).days] += 1
    assert table(log, "events") == expected.tolist()


HEADER = "customer_id,date,usd\n"
ROW = "1,2026-01-01,1\n"
AT_DATE = "expected a day as yyyy-mm-dd in column 'date', got"
AT_ID = "expected an integer of 1 to 18 digits in column 'customer_id', got"
AT_USD = "expected a number within ±1e100 in column 'usd', got"
ZIPPED = gzip.compress((HEADER + ROW * 20_000).encode(), compresslevel=0, mtime=0)


@pytest.mark.parametrize(
    ("content", "line", "expected"),
    [
        ("", 1, "expected a header line, found an empty file"),
        ("\ufeff", 1, "expected one column 'customer_id', found the columns none"),
        ("\n" + HEADER + ROW, 1, "expected one column 'customer_id', found the columns none"),
        (HEADER, 2, "expected an event after the header, found none"),
        (HEADER + "\n\n", 4, "expected an event after the header, found none"),
        (
            "id,date,usd\n" + ROW,
            1,
            "expected one column 'customer_id', found the columns 'id', 'date', 'usd'",
        ),
        (HEADER.replace("usd", "USD") + ROW, 1, "expected one column 'usd', found the columns"),
        (HEADER.replace(",", ";"), 1, "found the columns 'customer_id;date;usd'"),
        (HEADER.replace("usd", "date") + ROW, 1, "expected one column 'date', found the columns"),
        (HEADER + ROW + "1,2026-02-30,1\n", 3, f"{AT_DATE} '2026-02-30'"),
        (HEADER + ROW + "1,01/02/2026,1\n", 3, f"{AT_DATE} '01/02/2026'"),
        (HEADER + ROW + "1,20260102,1\n", 3, f"{AT_DATE} '20260102'"),
        (HEADER + ROW + "1,2026-W01-1,1\n", 3, f"{AT_DATE} '2026-W01-1'"),
        (HEADER + ROW + "1,0000-01-01,1\n", 3, f"{AT_DATE} '0000-01-01'"),
        (HEADER + ROW + "1,2026-01-01T10:00,1\n", 3, f"{AT_DATE} '2026-01-01T10:00'"),
        (HEADER + ROW + "1,٢٠٢٦-01-01,1\n", 3, f"{AT_DATE} '٢٠٢٦-01-01'"),
        (HEADER + ROW + "1,,1\n", 3, f"{AT_DATE} ''"),
        (HEADER + ROW + "-1,2026-01-01,1\n", 3, f"{AT_ID} '-1'"),
        (HEADER + ROW + "1.0,2026-01-01,1\n", 3, f"{AT_ID} '1.0'"),
        (HEADER + ROW + "bob,2026-01-01,1\n", 3, f"{AT_ID} 'bob'"),
        (HEADER + ROW + "1_0,2026-01-01,1\n", 3, f"{AT_ID} '1_0'"),
        (HEADER + ROW + "٣,2026-01-01,1\n", 3, f"{AT_ID} '٣'"),
        (HEADER + ROW + " 1,2026-01-01,1\n", 3, f"{AT_ID} ' 1'"),
        (HEADER + ROW + ",2026-01-01,1\n", 3, f"{AT_ID} ''"),
        (HEADER + ROW + "9" * 19 + ",2026-01-01,1\n", 3, f"{AT_ID} '9999999999999999999'"),
        (HEADER + ROW + "9" * 9999 + ",2026-01-01,1\n", 3, f"{AT_ID} '{'9' * 40}…'"),
        (HEADER + ROW + '"a\nb",2026-01-01,1\n', 4, rf"{AT_ID} 'a\nb'"),
        (HEADER + ROW + "1,2026-01-01,\n", 3, f"{AT_USD} ''"),
        (HEADER + ROW + "1,2026-01-01,$5\n", 3, f"{AT_USD} '$5'"),
        (HEADER + ROW + "1,2026-01-01,1_0\n", 3, f"{AT_USD} '1_0'"),
        (HEADER + ROW + "1,2026-01-01,0x10\n", 3, f"{AT_USD} '0x10'"),
        (HEADER + ROW + "1,2026-01-01,nan\n", 3, f"{AT_USD} 'nan'"),
        (HEADER + ROW + "1,2026-01-01,inf\n", 3, f"{AT_USD} 'inf'"),
        (HEADER + ROW + "1,2026-01-01,-1e999\n", 3, f"{AT_USD} '-1e999'"),
        (HEADER + ROW + "1,2026-01-01,2e100\n", 3, f"{AT_USD} '2e100'"),
        (HEADER + ROW + "1,2026-01-01\n", 3, "expected 3 fields as in the header, got 2"),
        (HEADER + ROW + "1,2026-01-01,1,1\n", 3, "expected 3 fields as in the header, got 4"),
        (HEADER + ROW + " \n", 3, "expected 3 fields as in the header, got 1"),
        (HEADER + ROW + '1,2026-01-01,"1\n' + ROW, 4, "expected well-formed CSV: "),
        (HEADER + ROW + '1,2026-01-01,"1"1\n', 3, "expected well-formed CSV: "),
        (
            HEADER + ROW + "1,2026-01-01," + "1" * 200_000,
            3,
            "expected lines of at most 65536 bytes",
        ),
        ((HEADER + ROW).replace("\n", "\r"), 1, "expected well-formed CSV: "),
        (HEADER + ROW + "1,9999-12-31,1\n", 3, "expected a day less than 100,000 days from the"),
        (HEADER + ROW + "1,0001-01-01,1\n" + ROW, 3, "expected a day less than 100,000 days"),
        ((HEADER + ROW).encode() + b"1,2026-01-0\xff,1\n", 3, "expected text in UTF-8, found"),
        ((HEADER + ROW).encode("utf-16"), 1, "expected text in UTF-8, found other bytes"),
        (
            gzip.compress(b"\xfc," + HEADER.encode(), mtime=0),
            1,
            "expected text in UTF-8, found other",
        ),
        (gzip.compress(b"", mtime=0), 1, "expected a header line, found an empty file"),
        (gzip.compress((HEADER + ROW + ",,\n").encode(), mtime=0), 3, f"{AT_ID} ''"),
    ],
    ids=lambda value: "long" if isinstance(value, str) and len(value) > 100 else None,
)
def test_a_malformed_file_is_one_line_with_file_and_line_number_and_what_was_expected(
    file: Path, content: str | bytes, line: int, expected: str
) -> None:
    file.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(DataError) as caught:
        read_events(file, amount="usd")

    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 300
    assert message.startswith(f"{file}:{line}: ")
    assert expected in message


@pytest.mark.parametrize(
    ("content", "last"),
    [
        (ZIPPED[:12], 0),
        (b"\x1f\x8b\x07" + ZIPPED[3:], 0),
        (ZIPPED[: len(ZIPPED) // 2], 10_000),
        (ZIPPED[:-9], 20_001),
        (ZIPPED[:-4], 20_001),
        (ZIPPED[:-8] + bytes(8), 20_001),
        (ZIPPED + b"more", 20_001),
    ],
)
def test_a_damaged_gzip_file_is_refused_close_to_the_damage(
    file: Path, content: bytes, last: int
) -> None:
    file.write_bytes(content)

    with pytest.raises(DataError, match="expected a whole gzip file, found damage") as caught:
        read_events(file)

    line = int(str(caught.value).removeprefix(f"{file}:").partition(":")[0])
    buffer = (1 << 17) // len(ROW) + 1  # lines; the most that any Python unpacks at once
    assert last - buffer <= line <= last + 1
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("2026-01-02", None, "expected a day from 2026-01-02 in column 'date', got '2026-01-01'"),
        (None, "2026-01-02", "expected a day to 2026-01-02 in column 'date', got '2026-01-03'"),
        ("2026-01-01", "2026-01-02", "expected a day from 2026-01-01 to 2026-01-02 in column"),
        ("1700-01-01", None, "expected a day less than 100,000 days from the others"),
        (None, "2700-01-01", "expected a day less than 100,000 days from the others"),
    ],
)
def test_events_outside_start_and_end_are_refused(
    file: Path, start: str | None, end: str | None, expected: str
) -> None:
    file.write_text(GOOD)

    with pytest.raises(DataError, match=expected) as caught:
        read_events(file, start=start, end=end)

    assert str(caught.value).startswith(f"{file}:{3 if start == '2026-01-02' else 2}: ")


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("yesterday", None, "start must be a day as yyyy-mm-dd, got 'yesterday'"),
        (None, "2026-02-30", "end must be a day as yyyy-mm-dd, got '2026-02-30'"),
        (None, 20260101, "end must be a day as yyyy-mm-dd, got 20260101"),
        ("2026-01-02", "2026-01-01", "end must be 0 to 99,999 days after start 2026-01-02, got"),
        ("1000-01-01", "2026-01-01", "end must be 0 to 99,999 days after start 1000-01-01, got"),
    ],
)
def test_start_and_end_are_days_in_order_and_not_too_far_apart(
    file: Path, start: Any, end: Any, expected: str
) -> None:
    with pytest.raises(ParameterError, match=expected):
        read_events(file, start=start, end=end)


def test_the_longest_allowed_study_is_read(file: Path) -> None:
    first = dt.date(2026, 1, 3) - dt.timedelta(days=99_999)
    file.write_text(GOOD.replace("2026-01-01", first.isoformat()))

    assert read_events(file).periods == 100_000


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError) as missing:
        read_events(tmp_path / "gone.csv")
    with pytest.raises(DataError) as folder:
        read_events(tmp_path)

    assert str(missing.value) == f"{tmp_path}/gone.csv: cannot be read: No such file or directory"
    assert str(folder.value) == f"{tmp_path}: cannot be read: Is a directory"


def test_an_endless_line_is_refused_before_it_fills_the_memory(file: Path) -> None:
    file.write_bytes(gzip.compress(b"ids,date" + bytes(50_000_000)))

    with pytest.raises(DataError, match=r":1: expected lines of at most 65536 bytes"):
        read_events(file)


def test_a_file_that_may_not_be_read_is_named(file: Path) -> None:
    file.write_text(GOOD)
    file.chmod(0)
    me = os.geteuid()

    if me == 0:  # root may read everything, so be nobody for a moment
        os.seteuid(65_534)
    try:
        with pytest.raises(DataError, match="cannot be read: Permission denied"):
            read_events(file)
    finally:
        os.seteuid(me)


@given(content=st.binary(max_size=200) | st.text(alphabet='ids,da\n"\r1-0\x00é').map(str.encode))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_content_whatever_gives_another_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "any.csv"
    for raw in (content, b"d,i\n" + content, gzip.compress(content)[: len(content)]):
        file.write_bytes(raw)

        with contextlib.suppress(DataError):
            read_events(file, person="i", date="d")


def test_a_period_may_be_a_week_in_which_a_person_is_active_once(file: Path) -> None:
    file.write_text(
        "customer_id,date,usd\n7,2026-01-01,1\n7,2026-01-07,2\n7,2026-01-08,4\n5,2026-01-14,8\n"
        "5,2026-01-16,16\n"
    )

    log = read_events(file, amount="usd", period_days=7)

    assert log.periods == 3  # the last one of two days
    assert table(log, "active") == [[0, 1, 1], [1, 1, 0]]
    assert table(log, "events") == [[0, 1, 1], [2, 1, 0]]
    assert table(log, "amount") == [[0, 8, 16], [3, 4, 0]]


@given(
    days=st.lists(st.integers(min_value=0, max_value=40), min_size=1, max_size=30),
    period_days=st.integers(min_value=1, max_value=9),
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_period_holds_the_events_of_its_days_and_no_others(
    file: Path, days: list[int], period_days: int
) -> None:
    first = dt.date(2026, 1, 1)
    lines = [f"1,{first + dt.timedelta(days=day)}\n" for day in days]
    file.write_text("customer_id,date\n" + "".join(lines))

    by_day = read_events(file, start="2026-01-01", end="2026-02-10")
    log = read_events(file, start="2026-01-01", end="2026-02-10", period_days=period_days)

    (events,), (periods,) = table(by_day, "events"), table(log, "events")
    starts = range(0, 41, period_days)
    assert periods == [sum(events[start : start + period_days]) for start in starts]


@pytest.mark.parametrize("period_days", [0, -7, 367, 7.0, "week"])
def test_a_period_has_a_whole_number_of_days(file: Path, period_days: Any) -> None:
    file.write_text(GOOD)

    with pytest.raises(ParameterError, match="period_days must be an integer >= 1 and <= 366"):
        read_events(file, period_days=period_days)


@pytest.fixture(scope="module")
def cdnow() -> EventLog:
    return load_cdnow()


def test_cdnow_is_23570_people_over_546_days(cdnow: EventLog) -> None:
    assert (cdnow.devices, cdnow.periods) == (23_570, 546)
    assert cdnow.features == ("active", "events", "amount", "amount_at_least", "amount_bin")


def test_cdnow_agrees_with_its_file_line_by_line(cdnow: EventLog) -> None:
    file = resources.files("demur_sim.datasets") / "cdnow.csv.gz"
    rows = list(csv.DictReader(gzip.decompress(file.read_bytes()).decode().splitlines()))
    by_day: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        by_day.setdefault(row["date"], []).append(row)

    days = sorted(by_day)  # somebody bought something on every day
    events = [evaluate(cdnow, "events", period).sum() for period in range(1, 547)]
    active = [evaluate(cdnow, "active", period).sum() for period in range(1, 547)]
    amount = [evaluate(cdnow, "amount", period).sum() for period in range(1, 547)]

    assert len(rows) == sum(events) == 69_659
    assert sum(active) == len({(row["customer_id"], row["date"]) for row in rows}) == 67_591
    assert events == [len(by_day[day]) for day in days]
    assert active == [len({row["customer_id"] for row in by_day[day]}) for day in days]
    np.testing.assert_allclose(
        amount, [sum(float(row["amount_usd"]) for row in by_day[day]) for day in days], rtol=1e-12
    )


def test_the_weeks_of_cdnow_are_its_days_by_seven(cdnow: EventLog) -> None:
    weeks = load_cdnow(period_days=7)

    assert (weeks.devices, weeks.periods) == (23_570, 78)
    for week in (1, 40, 78):
        days = range(7 * week - 6, 7 * week + 1)
        active = np.any([evaluate(cdnow, "active", day) for day in days], axis=0)
        np.testing.assert_array_equal(evaluate(weeks, "active", week), active)


def test_everybody_in_cdnow_buys_first_in_the_first_three_months(cdnow: EventLog) -> None:
    first_days = sum(evaluate(cdnow, "active", period) for period in range(1, 91))

    assert (np.asarray(first_days) > 0).all()


def test_shuffling_cdnow_preserves_the_totals_of_every_day(cdnow: EventLog) -> None:
    shuffled = cdnow.shuffled(np.random.default_rng(1))

    for name in ("active", "events"):
        for period in range(1, 547, 5):
            one, other = evaluate(cdnow, name, period), evaluate(shuffled, name, period)
            assert one.sum() == other.sum()
    assert not np.array_equal(evaluate(cdnow, "active", 1), evaluate(shuffled, "active", 1))


def test_parts_of_cdnow_put_together_are_the_whole(cdnow: EventLog) -> None:
    starts = range(0, cdnow.devices, 4096)
    parts = [cdnow.part(slice(start, start + 4096)) for start in starts]

    for period in (1, 7, 90, 546):
        for name in ("active", "events", "amount"):
            pieces = [evaluate(part, name, period) for part in parts]
            np.testing.assert_array_equal(np.concatenate(pieces), evaluate(cdnow, name, period))
