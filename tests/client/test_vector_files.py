"""Files of vectors: what they may be, and what is wrong with one is one line."""

import copy
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_conformance.vectors.checker import FAMILIES, check_file
from demur_proto.errors import DataError
from vectors_kit import ACCOUNTING, CASES, GOLDEN, check_vectors, leaves, written

# Files.


def test_the_command_prints_cases_worst_error_and_failures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = check_vectors(GOLDEN / "accounting.json")

    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert lines[0].split() == ["family", "cases", "worst", "error", "failures", "unknown"]
    assert lines[1].split()[0::3] == ["zcdp_to_dp", "0"]
    assert "filter_traces             35            -         0        0" in lines
    assert lines[-1] == "all 15 families hold, 159 cases"


def test_the_command_prints_json_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, {"pure_to_zcdp": ACCOUNTING["pure_to_zcdp"], "new": [{"x": 1}]})

    code = check_vectors("--json", path)

    found = json.loads(capsys.readouterr().out)
    assert code == 1
    assert found["holds"] is False
    known, unknown = found["families"]
    assert 0 < known.pop("worst_relative_error") < 1e-12
    assert known == {
        "file": str(path),
        "family": "pure_to_zcdp",
        "known": True,
        "holds": True,
        "cases": 5,
        "failures": [],
        "unknown": [],
    }
    assert unknown["family"] == "new"
    assert (unknown["known"], unknown["holds"], unknown["cases"]) == (False, False, 0)


def test_an_unknown_family_is_named_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = check_vectors(written(tmp_path, {"brand_new": [{"x": 1}]}))

    printed = capsys.readouterr().out
    assert code == 1
    assert "brand_new      -            -         -  the family" in printed
    assert printed.endswith("1 of 1 families fail: brand_new\n")


def test_a_family_without_cases_proves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = check_vectors(written(tmp_path, {"zcdp_to_dp": []}))

    assert code == 1
    assert "no cases" in capsys.readouterr().out


def test_several_files_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = written(tmp_path, {"mnist": ACCOUNTING["mnist"]})

    code = check_vectors(mine, GOLDEN / "divergences.json")

    printed = capsys.readouterr().out
    assert code == 0
    assert f"{mine}: mnist" in printed
    assert f"{GOLDEN / 'divergences.json'}: divergences.gaussian" in printed


def test_many_failures_are_counted_and_a_few_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = [{**row, "zcdp_BS": 1.0} for row in ACCOUNTING["pure_to_zcdp"] * 2]

    check_vectors(written(tmp_path, {"pure_to_zcdp": wrong}))

    printed = capsys.readouterr().out
    assert printed.count("quadratic charge") == 5
    assert "pure_to_zcdp: 5 more (--json lists all)" in printed


MALFORMED = [
    ("", "not JSON at line 1"),
    ("{\n", "not JSON at line 2"),
    ("[]", "the top level must be an object"),
    ("{}", "it has no family"),
    ('{"meta": {"made": 1}, "about": "nothing"}', "it has no family"),
    ('{"a": 3}', "a must be a list of objects"),
    ('{"a": [1]}', "a must be a list of objects"),
    ('{"a": {}, "a": {}}', "the name 'a' is there twice"),
    ('{"a": {"x": NaN}}', "NaN is not JSON"),
    ('{"a": {"x": Infinity}}', 'infinity is the text "inf"'),
    ('{"a": {"x": ' + "9" * 5000 + "}}", "not JSON that can be read"),
    ('{"a": ' + "[" * 100_000, "nested too deeply"),
]


@pytest.mark.parametrize(("text", "message"), MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_file_is_one_clear_error(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)

    with pytest.raises(DataError) as caught:
        check_vectors(path)

    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 200


UNKNOWN: list[tuple[str, dict[str, Any], str]] = [
    ("pure_to_zcdp", {"zcdp_BS": 1}, " has no 'eps'"),
    ("pure_to_zcdp", {"eps": "a lot"}, ".eps must be a number, got 'a lot'"),
    ("pure_to_zcdp", {"eps": True}, ".eps must be a number, got True"),
    ("mnist", {"C": 1, "k": 1.5}, ".k must be an integer, got 1.5"),
    (
        "rdp_curves",
        {"kind": "new", "params": {}},
        ".kind 'new' is not one that this implementation",
    ),
    ("rdp_curves", {"kind": "gaussian", "params": 3}, ".params must be an object, got 3"),
    (
        "charge_traces",
        {"budget_units": "9", "policy": "lend"},
        ".policy must be skip or retire or ",
    ),
    ("study_definitions", {"definition": "9a0101"}, ".definition must be a study"),
]


@pytest.mark.parametrize(("family", "case", "why"), UNKNOWN, ids=range(len(UNKNOWN)))
def test_one_case_that_is_not_known_is_named_and_all_others_are_checked(
    family: str, case: dict[str, Any], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = CASES[family]
    others = {"zcdp_to_dp": ACCOUNTING["zcdp_to_dp"], "odometer_traces": CASES["odometer_traces"]}
    path = written(tmp_path, {family: [good[0], case, *good[1:]], **others})

    codes = check_vectors(path), check_vectors("--json", path)

    *printed, last = capsys.readouterr().out.splitlines()
    assert codes == (1, 1)
    assert f"1 of 3 families fail: {family}" in printed
    assert [line for line in printed if line.startswith(f"unknown: {family}[1]{why}")]
    found = {each["family"]: each for each in json.loads(last)["families"]}
    mine = found.pop(family)
    assert (mine["holds"], mine["known"], mine["cases"]) == (False, True, len(good))
    assert mine["failures"] == []
    assert len(mine["unknown"]) == 1
    assert mine["unknown"][0].startswith(f"{family}[1]{why}")
    assert [each["holds"] for each in found.values()] == [True, True]


def test_a_single_divergence_that_names_no_mechanism_is_named_and_all_others_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json.loads((GOLDEN / "divergences.json").read_text())["vectors"]

    code = check_vectors(written(tmp_path, {"vectors": [*good[:3], {"x": 1}, *good[3:]]}))

    assert code == 1
    assert capsys.readouterr().out.endswith(" families fail: vectors[3]\n")


def test_a_file_that_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b'{"caf\xe9": []}')

    with pytest.raises(DataError, match=r"missing cannot be read: No such file"):
        check_file(tmp_path / "missing")
    with pytest.raises(DataError, match=r"cannot be read: Is a directory"):
        check_file(tmp_path)
    with pytest.raises(DataError, match=r"latin is not UTF-8 text at byte 5"):
        check_file(tmp_path / "latin")


def test_what_this_implementation_refuses_to_compute_does_not_hold(tmp_path: Path) -> None:
    path = written(tmp_path, {"pure_to_zcdp": [{"eps": -1, "zcdp_BS": 0.5, "zcdp_tight": 0.4}]})

    (finding,) = check_file(path)

    assert finding.verdict is not None
    assert finding.verdict.failures == (
        "pure_to_zcdp[0]: pure must be at least 0 and at most 1e15, got -1.0",
    )


HOSTILE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.just(10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["inf", "-inf", "nan", "1/0", "1e999999999", "0x1p99999", "1/3", "", "CONT"]),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=3,
)


@settings(max_examples=300)
@given(data=st.data(), family=st.sampled_from(sorted(CASES)))
def test_a_hostile_field_is_an_error_or_a_failure_and_never_a_crash(
    data: st.DataObject, family: str
) -> None:
    case = min(CASES[family], key=lambda case: len(json.dumps(case)))
    path = data.draw(st.sampled_from([*leaves(case)]))
    hostile = copy.deepcopy(case)
    inside: Any = hostile
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = data.draw(HOSTILE)

    with suppress(DataError):
        FAMILIES[family]([hostile])


def test_checking_needs_no_more_than_a_device_has_installed() -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from demur_conformance.vectors.checker import check_file\n"
        f"assert all(finding.holds for finding in check_file(Path({str(GOLDEN)!r}, "
        "'accounting.json')))\n"
        "extra = {'demur_sim', 'demur_server', 'scipy', 'sklearn', 'matplotlib'}\n"
        "assert not extra & {name.partition('.')[0] for name in sys.modules}\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
