"""Releases as text."""

import csv
import math
from dataclasses import replace

import numpy as np

from demur_proto.arrays import fixed_floats, fixed_integers
from demur_proto.release import Estimand, Release, Withheld
from demur_server.formatting import LINES, csv_pieces, release_csv, release_table, told

RELEASE = Release(
    study_hash=bytes(32),
    round_hash=bytes(32),
    number=1,
    reports=2,
    withheld=Withheld.NOTHING,
    sums=np.arange(2 * LINES + 3),
    estimate=np.arange(2 * LINES + 3) / 128,
    standard_error=np.array([0.5]),
    half_width=np.array([1.0]),
    confidence=0.95,
    estimand=Estimand.S_ACTIVE,
    guarantee="(1, 1e-06)-differential privacy",
)


def test_a_release_of_many_numbers_is_one_table_in_several_pieces() -> None:
    nothing = fixed_floats([])
    withheld = replace(
        RELEASE,
        number=2,
        withheld=Withheld.BELOW_MINIMUM_COHORT,
        sums=fixed_integers([]),
        estimate=nothing,
        standard_error=nothing,
        half_width=nothing,
        estimand=Estimand.NOTHING,
    )

    pieces = list(csv_pieces([RELEASE, withheld]))
    rows = list(csv.DictReader("".join(pieces).splitlines()))

    assert "".join(pieces) == release_csv([RELEASE, withheld])
    assert len(pieces) == 1 + 3 + 1
    assert [row["coordinate"] for row in rows[:-1]] == [str(at) for at in range(2 * LINES + 3)]
    assert [float(row["estimate"]) * 128 for row in rows[:-1]] == RELEASE.sums.tolist()
    assert rows[LINES]["sum"] == str(LINES)
    assert {row["half_width"] for row in rows[:-1]} == {"1.0"}
    assert [float(row["high"]) for row in rows[:-1]] == RELEASE.high.tolist()
    assert {row["estimand"] for row in rows[:-1]} == {"S_active"}
    assert (rows[-1]["round"], rows[-1]["estimate"], rows[-1]["low"]) == ("2", "", "")
    assert rows[-1]["estimand"] == "nothing"


def test_intervals_with_ends_of_their_own_have_no_half_width() -> None:
    counts = replace(
        RELEASE,
        sums=np.array([3, 9]),
        estimate=np.array([-1.5, 8.0]),
        half_width=fixed_floats([]),
        low_end=np.array([0.0, 4.0]),
        high_end=np.array([2.0, 13.0]),
    )

    rows = list(csv.DictReader(release_csv([counts]).splitlines()))
    table = release_table(counts)

    assert [(row["half_width"], row["low"], row["high"]) for row in rows] == [
        ("", "0.0", "2.0"),
        ("", "4.0", "13.0"),
    ]
    assert (table["half_width"], table["low"], table["high"]) == ([], [0.0, 4.0], [2.0, 13.0])
    assert release_table(RELEASE)["low"] == RELEASE.low.tolist()


def test_a_histogram_of_one_category_is_told_as_a_count_of_yes() -> None:
    count = replace(
        RELEASE,
        sums=np.array([3]),
        estimate=np.array([8.0]),
        half_width=fixed_floats([]),
        low_end=np.array([4.0]),
        high_end=np.array([13.0]),
    )

    lines = told("rode", count, histogram=True).splitlines()

    assert lines[0] == "rode: yes: 8 (4 to 13)"
    assert (
        "interval for S_active: the number of people whose answer is yes, of those whose"
        in lines[1]
    )


def test_a_release_without_an_interval_says_what_it_is_unbiased_for() -> None:
    shrunk = replace(
        RELEASE,
        half_width=fixed_floats([]),
        confidence=math.nan,
        estimand=Estimand.S_SHRUNK,
    )

    row = next(csv.DictReader(release_csv([shrunk]).splitlines()))

    assert (row["half_width"], row["low"], row["high"], row["confidence"]) == ("", "", "", "")
    assert row["estimand"] == release_table(shrunk)["estimand"] == "S_shrunk"
