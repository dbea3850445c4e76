"""Data sources over an owner's tables: they give numbers, and nothing can be done through them."""

import hashlib
import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from demur_client.sources.base import FunctionSource, evaluate_query
from demur_client.sources.folder import FolderSource
from demur_client.sources.sql import FUNCTIONS, Limits, TableSource, check_select
from demur_proto.errors import ParameterError
from demur_proto.queries import Feature, Linear

LIMITS = Limits(time_limit_s=0.05, most_rows=100, most_numbers=1000)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Three visits, and some data that no one should make a number of."""
    path = tmp_path / "data.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            """
            CREATE TABLE visits (day INTEGER, amount REAL);
            INSERT INTO visits VALUES (3, 1.5), (3, 2.5), (5, 4.0);
            CREATE TABLE odd (name TEXT, value);
            INSERT INTO odd VALUES ('text', 'lots'), ('number in a text', '3'), ('blob', x'00ff'),
                ('null', NULL), ('infinite', 9e999), ('minus infinite', -9e999);
            CREATE TABLE many (n INTEGER);
            WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 3000)
                INSERT INTO many SELECT n FROM c;
            CREATE VIEW bomb AS SELECT a.n FROM many a, many b, many c, many d;
            CREATE VIEW outside AS SELECT load_extension('x') AS n;
            """
        )
        connection.commit()
    return path


def linear(parameters: Mapping[str, float] | None = None, *, dimension: int = 1) -> Linear:
    return Linear(
        features=(Feature(name="x", parameters=parameters or {}),),
        dimension=dimension,
        clip=1.0,
        sigma=1.0,
        grid_exponent=-20,
        on_grid=False,
    )


def answer(database: Path, sql: str, **parameters: float) -> float | None:
    """The one number that a query gives, or None where the device would send cover."""
    source = TableSource(database, {"x": sql}, limits=LIMITS)
    value = evaluate_query(linear(parameters), source)
    return None if value is None else float(value[0, 0])


# ---- what it is for --------------------------------------------------------------------------


def test_a_feature_is_the_number_that_its_query_gives(database: Path) -> None:
    counted = "SELECT count(*) > 0 FROM visits WHERE day = :period"

    assert answer(database, counted, period=3) == 1.0
    assert answer(database, counted, period=4) == 0.0
    assert answer(database, "SELECT sum(amount) FROM visits WHERE day = :period", period=3) == 4.0
    assert answer(database, "WITH d AS (SELECT day FROM visits) SELECT max(day) FROM d") == 5.0


def test_several_numbers_come_row_by_row(database: Path) -> None:
    sql = "SELECT day, total(amount) FROM visits GROUP BY day ORDER BY day"
    source = TableSource(database, {"x": sql})

    assert source.evaluate(Feature(name="x")).tolist() == [[3.0, 4.0, 5.0, 4.0]]


def test_whole_parameters_are_bound_as_integers_and_compare_with_texts_as_such(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (day TEXT)")
        connection.execute("INSERT INTO t VALUES ('3')")
        connection.commit()

    assert answer(path, "SELECT count(*) FROM t WHERE day = :period", period=3) == 1.0


def test_what_is_written_meanwhile_is_seen_by_the_next_evaluation(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for count in (4, 5):
            connection.execute("INSERT INTO visits VALUES (9, 1.0)")
            connection.commit()
            assert answer(database, "SELECT count(*) FROM visits") == count


# ---- hostile statements: refused before any data are looked at ---------------------------------

REFUSED = [
    "",
    "DELETE FROM visits",
    "INSERT INTO visits VALUES (1, 1)",
    "UPDATE visits SET day = 0",
    "DROP TABLE visits",
    "CREATE TABLE more (n)",
    "CREATE TEMP TABLE more AS SELECT 1",
    "REPLACE INTO visits VALUES (1, 1)",
    "ALTER TABLE visits ADD COLUMN more",
    "VACUUM INTO 'copy.sqlite'",
    "ATTACH 'other.sqlite' AS other",
    "DETACH main",
    "PRAGMA query_only = OFF",
    "PRAGMA user_version = 7",
    "BEGIN",
    "ROLLBACK",
    "SAVEPOINT s",
    "EXPLAIN SELECT 1",
    "QUERY PLAN SELECT 1",
    "SELECT 1; DELETE FROM visits",
    "SELECT 1; SELECT 2",
    "; DELETE FROM visits",
    "/* SELECT */ DELETE FROM visits",
    "-- SELECT\nDELETE FROM visits",
    "WITH x AS (SELECT 1) DELETE FROM visits",
    "WITH x AS (SELECT 1) INSERT INTO visits SELECT 1, 1",
    "SELECT load_extension('./evil.so')",
    "SELECT readfile('/etc/passwd')",
    "SELECT writefile('made', 'x')",
    "SELECT randomblob(1000000000)",
    "SELECT zeroblob(1000000000)",
    "SELECT printf('%1000000000d', 1)",
    "SELECT random()",
    "SELECT fts3_tokenizer('simple', x'0000000000000000')",
    "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c",
    "SELECT file FROM pragma_database_list",
    "SELECT user_version FROM pragma_user_version",
    "SELECT count(*) FROM sqlite_master",
    "SELECT (",
    "SELECT 1\x00; DELETE FROM visits",
    "SELECT '\ud800'",
    "SELECT 1 -- " + 20_000 * "x",
    "SELECT " + 5_000 * "(" + "1" + 5_000 * ")",
    "SELECT " + " UNION ALL SELECT ".join(["1"] * 500),
]


@pytest.mark.parametrize("sql", REFUSED, ids=range(len(REFUSED)))
def test_a_hostile_statement_is_refused_when_the_policy_is_loaded(sql: str, database: Path) -> None:
    with pytest.raises(ParameterError, match=r"^features.x must be ") as caught:
        TableSource(database, {"x": sql})

    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


# ---- hostile data and expensive queries: covered -----------------------------------------------

COVERED = [
    "SELECT count(*) FROM bomb",
    "SELECT n FROM outside",
    "SELECT count(*) FROM many a, many b, many c WHERE a.n * b.n = c.n + 0.5",
    "SELECT a.n FROM many a, many b, many c ORDER BY a.n * b.n * c.n DESC LIMIT 1",
    "SELECT n FROM many",
    "SELECT n, n, n, n, n, n, n, n, n, n, n FROM many LIMIT 100",
    "SELECT value FROM odd WHERE name = 'text'",
    "SELECT value FROM odd WHERE name = 'number in a text'",
    "SELECT value FROM odd WHERE name = 'blob'",
    "SELECT value FROM odd WHERE name = 'null'",
    "SELECT value FROM odd WHERE name = 'infinite'",
    "SELECT value FROM odd WHERE name = 'minus infinite'",
    "SELECT value - value FROM odd WHERE name = 'infinite'",
    "SELECT sum(n * 1e308 * 10) FROM many",
    "SELECT abs(-9223372036854775808)",
    "SELECT day FROM visits WHERE day > 100",
    "SELECT day FROM visits WHERE day = :absent",
    "SELECT day FROM visits WHERE day = ?",
    "SELECT absent FROM visits",
    "SELECT day FROM absent",
    "SELECT load_extension('x') FROM absent",
    "SELECT count(*) FROM absent, pragma_database_list",
    "SELECT name FROM odd WHERE name LIKE '" + 60 * "%a" + "'",
]


@pytest.mark.parametrize("sql", COVERED, ids=range(len(COVERED)))
def test_hostile_data_and_expensive_queries_are_answered_with_cover_in_time(
    sql: str, database: Path
) -> None:
    before = hashlib.sha256(database.read_bytes()).digest()
    started = time.monotonic()

    value = answer(database, sql, period=3)

    assert value is None
    assert time.monotonic() - started < 2.0  # of 0.05 s, on a busy machine
    assert hashlib.sha256(database.read_bytes()).digest() == before
    assert [path.name for path in database.parent.iterdir()] == [database.name]


def test_a_query_that_takes_too_long_is_noted_by_the_limit_that_ended_it(database: Path) -> None:
    source = TableSource(database, {"x": "SELECT count(*) FROM bomb"}, limits=LIMITS)
    notes: list[str] = []

    assert evaluate_query(linear(), source, noted=notes.append) is None
    assert notes == ["DataError: the query took longer than time_limit_s (0.05 s)"]


def test_every_statement_that_was_refused_at_load_is_also_refused_by_the_database(
    database: Path,
) -> None:
    """The second fence: the same with the check at load left out."""
    source = TableSource(database, {"x": "SELECT 1"}, limits=LIMITS)
    before = hashlib.sha256(database.read_bytes()).digest()
    harmless = {"EXPLAIN SELECT 1", "SELECT 1 -- " + 20_000 * "x"}

    for sql in REFUSED:
        source._features = {"x": sql}
        value = evaluate_query(linear(), source)
        assert value is None or sql in harmless, sql[:80]

    assert hashlib.sha256(database.read_bytes()).digest() == before
    assert [path.name for path in database.parent.iterdir()] == [database.name]


@pytest.mark.parametrize(
    "content", [b"", b"no database" * 100, b"SQLite format 3\x00" + 100 * b"x"]
)
def test_a_file_that_is_no_database_is_covered(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "data.sqlite"
    path.write_bytes(content)

    assert answer(path, "SELECT count(*) FROM visits") is None
    assert path.read_bytes() == content


def test_a_file_that_is_not_there_is_covered_and_not_made(tmp_path: Path) -> None:
    assert answer(tmp_path / "data.sqlite", "SELECT 1") is None
    assert not list(tmp_path.iterdir())


def test_a_feature_that_the_policy_does_not_name_is_covered(database: Path) -> None:
    source = TableSource(database, {"y": "SELECT 1"})
    notes: list[str] = []

    assert evaluate_query(linear(), source, noted=notes.append) is None
    assert notes == ["DataError: the policy names no feature 'x'"]


def test_only_functions_without_side_effects_or_large_results_are_known() -> None:
    for name in ("load_extension", "readfile", "randomblob", "zeroblob", "printf", "format"):
        assert name not in FUNCTIONS
    for name in ("group_concat", "replace", "hex", "quote", "json", "random"):
        assert name not in FUNCTIONS


def test_a_query_over_unknown_tables_passes_at_load_since_only_data_could_tell() -> None:
    check_select("x", "SELECT count(*) FROM not_there_yet WHERE day = :period")


# ---- folders ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "export"
    made.mkdir()
    (made / "visits.csv").write_text("day,amount\n3,1.5\n3,2.5\n5,\n")
    (made / "notes.txt").write_text("not a table")
    return made


def from_folder(folder: Path, sql: str, **parameters: float) -> float | None:
    source = FolderSource(folder, {"x": sql}, limits=LIMITS)
    value = evaluate_query(linear(parameters), source)
    return None if value is None else float(value[0, 0])


def test_a_file_of_a_folder_is_a_table(folder: Path) -> None:
    assert from_folder(folder, "SELECT sum(amount) FROM visits WHERE day = :d", d=3) == 4.0
    assert from_folder(folder, "SELECT count(*) FROM visits WHERE amount IS NULL") == 1.0

    (folder / "visits.csv").write_text("day,amount\n3,10\n")
    assert from_folder(folder, "SELECT sum(amount) FROM visits") == 10.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "day,amount\n3\n",
        "day,day\n1,2\n",
        'day,amount\n"3,1\n',
        "day,amount\n3,nan\n",
        "day,amount\n3,inf\n",
        "day,amount\n3,many\n",
        "day,amount\n3,\x00\n",
        "day,amount\n3,1e999\n",
        "other\n1\n",
    ],
)
def test_a_file_that_is_not_what_was_meant_is_covered(text: str, folder: Path) -> None:
    (folder / "visits.csv").write_text(text)

    assert from_folder(folder, "SELECT amount FROM visits") is None
    assert (folder / "visits.csv").read_text() == text


def test_a_folder_is_guarded_like_a_database(folder: Path) -> None:
    for sql in REFUSED:
        with pytest.raises(ParameterError):
            FolderSource(folder, {"x": sql})
    assert from_folder(folder, "SELECT load_extension('x') FROM absent") is None
    assert from_folder(folder.parent / "not-there", "SELECT 1") is None


def test_a_parquet_file_without_pyarrow_is_one_clear_line(folder: Path) -> None:
    try:
        import pyarrow  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        pass
    else:
        pytest.skip("pyarrow is here")
    (folder / "more.parquet").write_bytes(b"PAR1")
    notes: list[str] = []
    source = FolderSource(folder, {"x": "SELECT 1"})

    assert evaluate_query(linear(), source, noted=notes.append) is None
    assert "pip install pyarrow" in notes[0]


# ---- functions, and what is noted --------------------------------------------------------------


def test_a_function_of_an_app_is_a_source() -> None:
    source = FunctionSource({"x": lambda parameters: [parameters["a"], 2.0]})

    value = evaluate_query(linear({"a": 1.0}, dimension=2), source)

    np.testing.assert_array_equal(value, [[1.0, 2.0]])


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit


def test_what_went_wrong_is_noted_in_one_line_even_where_the_error_cannot_say_it() -> None:
    def fail(error: BaseException) -> FunctionSource:
        def function(parameters: object) -> float:
            raise error

        return FunctionSource({"x": function})

    notes: list[str] = []
    for error in (LookupError("no\nsuch column"), Unspeakable(), SystemExit(3)):
        assert evaluate_query(linear(), fail(error), noted=notes.append) is None
    assert evaluate_query(linear(dimension=2), FunctionSource({"x": lambda _: 1.0})) is None
    short = FunctionSource({"x": lambda _: 1.0})
    assert evaluate_query(linear(dimension=2), short, noted=notes.append) is None

    assert notes == [
        "LookupError: no such column",
        "Unspeakable",
        "SystemExit: 3",
        "the data source gave 1 numbers, and 2 were asked for",
    ]


def test_a_note_about_a_file_whose_name_is_no_text_can_be_printed(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.csv")).mkdir()
    notes: list[str] = []
    source = FolderSource(tmp_path, {"x": "SELECT 1"})

    assert evaluate_query(linear(), source, noted=notes.append) is None

    assert "is no file" in notes[0].encode().decode()
