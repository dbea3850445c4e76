"""Releases as text."""

import csv
from dataclasses import replace

import numpy as np

from demur_proto.arrays import fixed_floats, fixed_integers
from demur_proto.release import Release, Withheld
from demur_server.exporting import LINES, csv_pieces, release_csv

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
    )

    pieces = list(csv_pieces([RELEASE, withheld]))
    rows = list(csv.DictReader("".join(pieces).splitlines()))

    assert "".join(pieces) == release_csv([RELEASE, withheld])
    assert len(pieces) == 1 + 3 + 1
    assert [row["coordinate"] for row in rows[:-1]] == [str(at) for at in range(2 * LINES + 3)]
    assert [float(row["estimate"]) * 128 for row in rows[:-1]] == RELEASE.sums.tolist()
    assert rows[LINES]["sum"] == str(LINES)
    assert {row["half_width"] for row in rows[:-1]} == {"1.0"}
    assert (rows[-1]["round"], rows[-1]["estimate"]) == ("2", "")
