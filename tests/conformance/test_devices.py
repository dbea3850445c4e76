"""Devices on trial: right ones conform, and each wrong one is found by the rule that it breaks."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from demur_conformance.command import text
from demur_conformance.device_run import SCRIPTS, Trial, try_device
from demur_conformance.verdicts import COLLECTOR_RULES, DEVICE_RULES, Rule, Verdict, Verdicts
from demur_sim import cli

pytestmark = pytest.mark.alone  # evaluations have the lowest priority

HERE = Path(__file__).parent
MINIMAL = (sys.executable, str(HERE / "minimal_device.py"))
PYTHON = (sys.executable, str(HERE / "python_device.py"))
JAVASCRIPT = HERE.parents[1] / "client" / "js"
NODE = shutil.which("node")

needs_node = pytest.mark.skipif(
    NODE is None or not (JAVASCRIPT / "node_modules").is_dir(),
    reason="needs Node.js 20 and its packages: `make setup-js`",
)


async def tried(command: tuple[str, ...], *only: str, patience_s: float = 20.0) -> Verdicts:
    verdicts = Verdicts(DEVICE_RULES, only)
    # The Python client evaluates at the lowest priority: devices that start beside it would make it late.
    jobs = 2 if command[: len(PYTHON)] == PYTHON else 4
    await try_device(Trial(command=command, patience_s=patience_s, jobs=jobs), verdicts)
    return verdicts


def against(verdicts: Verdicts) -> str:
    """What was found against a device, for a failing test to show."""
    findings = [found for found in verdicts.findings() if not found.suffices]
    return text(findings) if findings else ""


def failed(verdicts: Verdicts) -> set[str]:
    return {f.rule.id for f in verdicts.findings() if f.verdict is Verdict.FAIL}


KINDS = ("histograms", "running-counts", "gradients")
SOURCES = ("burns", "dies", "eats")


async def test_the_least_right_device_keeps_every_rule_and_says_what_it_does_not_offer() -> None:
    verdicts = await tried(MINIMAL)

    assert against(verdicts) == ""
    declined = {f.rule.id: f.evidence for f in verdicts.findings() if f.verdict is not Verdict.PASS}
    assert set(declined) == set(KINDS)
    assert "its last words: refused: another study" in declined["histograms"]
    assert "passes over such a round" in declined["running-counts"]


async def test_the_python_client_answers_every_kind_of_question() -> None:
    verdicts = await tried(PYTHON, *KINDS)

    assert [f.verdict for f in verdicts.findings()] == [Verdict.PASS] * 3


@pytest.mark.long
async def test_conformance_of_a_device_that_lies_about_its_data_fails_in_every_kind() -> None:
    assert failed(await tried((*PYTHON, "Lies"), *KINDS)) == set(KINDS)


def test_only_optional_rules_may_be_declined() -> None:
    rules = [Rule(id="a", text="must"), Rule(id="b", text="may", optional=True)]
    for rule, conforms in (("a", False), ("b", True)):
        verdicts = Verdicts(rules)
        verdicts.check("b" if rule == "a" else "a", True, "seen")
        verdicts.decline(rule, "not mine")

        assert verdicts.all_pass() is conforms
        verdicts.check(rule, False, "but it tried")
        assert not verdicts.all_pass()
        assert failed(verdicts) == {rule}


async def test_the_python_client_keeps_its_budget_and_its_slots() -> None:
    # `make long-conformance` tries it on every rule, with all the crashes.
    assert against(await tried(PYTHON, "budget-retire", "budget-clip", "slots", "failing")) == ""


async def test_the_python_client_shows_nothing_of_its_evaluations() -> None:
    verdicts = await tried(PYTHON, "begun", *SOURCES)

    assert against(verdicts) == ""
    assert {f.verdict for f in verdicts.findings()} == {Verdict.PASS}


@pytest.mark.long
async def test_conformance_of_the_python_client() -> None:
    assert against(await tried(PYTHON)) == ""


@needs_node
async def test_the_javascript_device_keeps_every_rule() -> None:
    verdicts = await tried((str(NODE), str(JAVASCRIPT / "device.js")))

    assert against(verdicts) == ""
    declined = {f.rule.id for f in verdicts.findings() if f.verdict is Verdict.NOT_OFFERED}
    assert declined == set(KINDS)


@needs_node
def test_the_javascript_device_passes_its_own_tests() -> None:
    done = subprocess.run(
        [str(NODE), "--test"], cwd=JAVASCRIPT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout


# Wrong devices. The rule that each breaks decides; others may go untested once it is broken.

WRONG = {
    "Redraws": "retry-same",
    "Silent": "exhausted",
    "ChargesLate": "crash-points",
    "ReusesNoise": "fresh-noise",
}
WRONG_AS_WELL = {
    "ChargesLateKeepsReport": "budget-skip",
    "Refunds": "budget-retire",
    "NewNonce": "enrol-once",
    "Obedient": "owners-policy",
    "Jumbles": "features",
    "Hurries": "slots",
    "Whispers": "noise-law",
    "Forgetful": "resume",
    "EvaluatesAgain": "begun",
}


async def test_wrong_devices_break_the_rule_that_they_are_wrong_about() -> None:
    found: dict[str, set[str]] = {}

    async def judge(fault: str, rule: str) -> None:
        patience_s = 4.0 if fault == "Silent" else 20.0  # that one is waited for in vain
        verdicts = await tried((*MINIMAL, fault), rule, patience_s=patience_s)
        found[fault] = failed(verdicts)

    async with anyio.create_task_group() as tasks:
        for fault, rule in WRONG.items():
            tasks.start_soon(judge, fault, rule)

    assert found == {fault: {rule} for fault, rule in WRONG.items()}


async def test_a_device_that_evaluates_where_it_sends_shows_every_source() -> None:
    rules = {"begun", *SOURCES}

    assert failed(await tried((*MINIMAL, "Naive"), *rules, patience_s=2.0)) == rules


async def test_a_device_whose_source_gives_the_value_does_not_offer_to_be_tried_so() -> None:
    verdicts = await tried((*MINIMAL, "Tame"), *SOURCES)

    assert [f.verdict for f in verdicts.findings()] == [Verdict.NOT_OFFERED] * 3
    assert "gives the value of 'conformance: burn'" in verdicts.findings()[0].evidence


@pytest.mark.long
@pytest.mark.parametrize(("fault", "rule"), [*WRONG.items(), *WRONG_AS_WELL.items()])
async def test_conformance_of_a_wrong_device_fails(fault: str, rule: str) -> None:
    assert rule in failed(await tried((*MINIMAL, fault), patience_s=4.0))


async def test_a_device_that_ends_at_once_is_found_with_its_last_words() -> None:
    program = "import sys; sys.exit('no such study')"

    verdicts = await tried((sys.executable, "-c", program), "budget-clip", patience_s=2.0)

    [finding] = verdicts.findings()
    assert finding.verdict is Verdict.FAIL
    assert "exit status 1" in finding.evidence
    assert "no such study" in finding.evidence


# The command.


def test_every_rule_of_a_device_belongs_to_a_script() -> None:
    of_scripts = {rule for rules, _ in SCRIPTS for rule in rules}

    assert of_scripts | {"credential", "fields", "report-form", "resume"} == {
        rule.id for rule in DEVICE_RULES
    }


def test_the_rules_are_listed_for_people_and_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["conformance", "--rules", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert cli.main(["conformance", "--rules"]) == 0
    printed = capsys.readouterr().out

    assert list(listed["device"]) == [rule.id for rule in DEVICE_RULES]
    assert list(listed["collector"]) == [rule.id for rule in COLLECTOR_RULES]
    assert all(rule.text in printed for rule in (*DEVICE_RULES, *COLLECTOR_RULES))


def test_the_exit_status_is_one_unless_every_rule_holds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = f"{sys.executable} -c pass"
    options = ["conformance", "--listen", "127.0.0.1:0", "--only", "study-pinned", "--json"]

    code = cli.main([*options, "--device-command", wrong])

    said = json.loads(capsys.readouterr().out)
    assert code == 1
    assert said["conforms"] is False
    assert [rule["verdict"] for rule in said["rules"]] == ["fail"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", "127.0.0.1:0", "--only", "honest"], "only must be one of enrol-once"),
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--connect", "127.0.0.1:1"], "a file of tokens"),
        (["--listen", "127.0.0.1:0", "--jobs", "0"], "from 1 to 64"),
        (["--listen", "127.0.0.1:0", "--patience", "nan"], "above 0"),
        (["--listen", "127.0.0.1:0", "--device-command", "/nowhere"], "can be run"),
        (["--listen", "127.0.0.1:0", "--device-command", "'"], "a shell can read"),
    ],
)
def test_wrong_usage_is_refused_in_one_line(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["conformance", *options]) == 2

    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_a_file_of_tokens_that_is_no_text_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_bytes(b"\xbf")

    assert cli.main(["conformance", "--connect", "127.0.0.1:1", "--token-file", str(tokens)]) == 1

    said = capsys.readouterr().err
    assert "it is no text" in said
    assert said.count("\n") == 1


def test_a_port_in_use_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        target = f"127.0.0.1:{taken.getsockname()[1]}"
        command = ["conformance", "--listen", target, "--device-command", "true"]
        code = cli.main([*command, "--only", "budget-clip"])

    assert code == 1
    assert "take another port" in capsys.readouterr().err
