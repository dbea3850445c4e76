"""`demur device`: a folder, from its making to its end, against a collector in a process of its own."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from demur_client.device_folder import DeviceFolder
from demur_client.enrolment import pinned
from demur_client.ledger.file import LedgerFile
from demur_proto.accounting.numerics import text_up
from demur_proto.errors import AccessError
from demur_proto.queries import Feature, Linear
from demur_proto.study import View, design_study
from demur_proto.transport.credentials import write_token
from demur_proto.wire.definition import define_study
from demur_server.admin.admin import make_tokens
from demur_server.blocking import BlockingAnalyst
from demur_server.grpc.tls import Authority
from demur_server.store.inspect import sqlite_door
from demur_sim.cli import main
from serve_kit import Server, serving

pytestmark = pytest.mark.alone  # evaluations have the lowest priority

DEADLINE_S = 30.0
STUDY = design_study(
    name="visits", epsilon=1.0, delta=1e-6, answers=3, minimum_cohort=1, view=View.LOCAL
)
POLICY = """
shortest_slot_ms = 500
[source]
database = "../data.sqlite"
[features]
active = "SELECT count(*) > 0 FROM visits WHERE day = :period"
broken = "SELECT absent FROM visits"
large = "SELECT 6000000"
"""


Demur = Callable[..., "Said"]


@dataclass(frozen=True)
class Said:
    """What a command said, and its exit status."""

    code: int
    out: str
    err: str


@pytest.fixture
def demur(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Demur:
    """A verb of `demur device`, in an otherwise empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, fails: bool = False) -> Said:
        if words[0] == "run":  # in a process of its own, which has one thread when it begins
            with running(tmp_path, *words[1:]) as process:
                out, err = process.communicate(timeout=DEADLINE_S)
            return Said(process.returncode, out, err)
        try:
            code = main(["device", *words])
        except SystemExit as error:  # of argparse
            code = int(error.code or 0)
        said = Said(code, *capsys.readouterr())
        assert fails or (said.code, said.err) == (0, "")
        return said

    return run


@contextmanager
def running(folder: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """`demur device run`; killed at the end if need be."""
    command = [sys.executable, "-m", "demur_sim.cli", "device", "run", *words]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def token_of(server: Server) -> str:
    with sqlite_door(server.folder / "store.sqlite") as door:
        [token] = make_tokens(door, count=1)
    return token


@pytest.fixture
def home(tmp_path: Path, demur: Demur) -> Path:
    """A device's folder with data beside it."""
    with closing(sqlite3.connect(tmp_path / "data.sqlite")) as connection:
        connection.executescript("CREATE TABLE visits (day); INSERT INTO visits VALUES (3);")
    demur("init")
    (tmp_path / "demur-device" / "policy.toml").write_text(POLICY)
    return tmp_path


def test_a_device_is_made_enrolled_run_explained_and_forgotten(home: Path, demur: Demur) -> None:
    study = define_study(STUDY)
    with serving(home / "server", longest_s=DEADLINE_S) as server:
        (home / "token").write_text(token_of(server))
        enrolled = json.loads(
            demur("enrol", "--target", server.devices, "--token", "token", "--json").out
        )
        again = demur("enrol", "--target", server.devices, "--token", "token", fails=True)
        with running(home, "--verbose", "--json") as process:
            with BlockingAnalyst.connect(
                server.analysts, STUDY, credential=server.analyst
            ) as notebook:
                releases = [
                    notebook.ask(
                        Linear([Feature(name=name, parameters={"period": 3.0})], on_grid=True)
                    )
                    for name in ("active", "broken", "other")
                ]
            status = json.loads(demur("status", "--json").out)  # while it runs
            second = demur("run", fails=True)
            wait_until_sent(home)
            process.send_signal(signal.SIGTERM)
            out, log = process.communicate(timeout=DEADLINE_S)
        explained = json.loads(demur("explain", "--json").out)
        text = demur("explain", "--study", study.hash.hex()[:8]).out

    assert [release.reports for release in releases] == [1, 1, 1]
    assert (again.code, again.err.count("\n")) == (1, 1)
    assert "is enrolled at" in again.err
    assert (second.code, second.err.count("\n")) == (1, 1)
    assert "in use" in second.err
    assert (process.returncode, out) == (0, "")
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["message"] for line in (lines[0], lines[-1])] == ["started", "stopped"]
    assert not any(word in log for word in ("active", "cover", "absent", "budget"))
    assert status["device"] == enrolled["device"]
    [known] = status["studies"]
    assert (known["hash"], known["view"]) == (study.hash.hex(), "local")
    assert not {"left", "answers", "cost"} & set(known)
    [told] = explained
    answers = [(row["answer"].split(":")[0], row["state"]) for row in told["answers"]]
    assert answers == [("answered", "acked"), ("cover", "acked"), ("cover", "acked")]
    assert told["answers"][0]["asked"].startswith("active(period=3), clipped to 1")
    assert told["answers"][0]["cost"] == pytest.approx(1 / 3, rel=1e-3)
    assert [row["cost"] for row in told["answers"][1:]] == [0, 0]
    assert "no such column: absent" in text
    assert "the policy names no feature 'other'" in text
    assert "left: 66.6 % of the budget" in text

    demur("forget", "--all")
    forgotten = json.loads(demur("status", "--json").out)
    assert (forgotten["studies"], forgotten["device"], forgotten["target"]) == ([], None, None)
    for path in (home / "demur-device").iterdir():
        content = path.read_bytes()
        assert study.definition not in content
        assert bytes.fromhex(enrolled["device"]) not in content


def test_a_collector_that_wants_certificates_is_shown_the_devices_own(
    home: Path, demur: Demur
) -> None:
    authority = Authority()
    for name, issued in {
        "ca": authority.issued,
        "server": authority.server(["127.0.0.1"]),
        "tablet": authority.client("tablet"),
    }.items():
        (home / f"{name}.pem").write_bytes(issued.certificate)
        (home / f"{name}.key").write_bytes(issued.key)
    tls = ("--certificate", "server.pem", "--key", "server.key", "--client-ca", "ca.pem")
    with serving(home / "server", *tls, longest_s=DEADLINE_S) as server:
        (home / "token").write_text(token_of(server))
        words = ("enrol", "--target", server.devices, "--token", "token", "--ca", "ca.pem")
        refused = demur(*words, fails=True)
        demur(*words, "--certificate", "tablet.pem", "--key", "tablet.key")
        with running(home / "server", "--verbose", "--folder", "../demur-device") as process:
            assert process.stderr is not None
            log = [process.stderr.readline() for _ in range(2)]

    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert "wants a client certificate" in refused.err
    assert "waits for a study" in log[1]  # so it was let in, from another folder


def wait_until_sent(home: Path) -> None:
    end = time.monotonic() + DEADLINE_S
    ledger = DeviceFolder(home / "demur-device")
    while time.monotonic() < end:
        copy = ledger.look()
        [study] = copy.studies()
        if all(row.settled for row in copy.history(study.hash)):
            return
        time.sleep(0.05)
    pytest.fail("a receipt never came")


def test_try_shows_the_owner_a_value_or_why_there_is_none(home: Path, demur: Demur) -> None:
    value = json.loads(demur("try", "active", "period=3", "--json").out)
    broken = demur("try", "broken", fails=True)

    assert value == {"feature": "active", "value": [1.0]}
    assert demur("try", "active", "period=4").out == "active(period=4) = 0\n"
    assert demur("try", "large").out == "large = 6000000\n"
    assert (broken.code, broken.out) == (1, "")
    assert broken.err == (
        "demur: error: broken is answered with cover: OperationalError: no such column: absent\n"
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["status", "--folder", "none"], 1, "demur device init"),
        (["run"], 1, "demur device enrol"),
        (["init"], 1, "holds a device already"),
        (["explain", "--study", "ab"], 1, "0 studies begin with 'ab'"),
        (["forget"], 2, "--study"),
        (["forget", "--study", "ab"], 1, "0 studies begin with 'ab'"),
        (["try", "active", "period"], 2, "NAME=NUMBER"),
        (["try", "active", "period=nan"], 2, "finite"),
        (["enrol", "--target", "127.0.0.1:9", "--token", "none"], 2, "--token"),
        (["enrol", "--target", "127.0.0.1:9", "--token", "data.sqlite"], 2, "token"),
        (["enrol", "--target", "a.example:9", "--token", "token"], 2, "--target"),
        (["enrol", "--target", "127.0.0.1:9", "--token", "token"], 1, "lost the collector"),
        (["enrol", "--target", "127.0.0.1:9", "--token", "token", "--ca", "none"], 1, "none"),
        (["enrol", "--target", "127.0.0.1:9", "--token", "token", "--key", "k"], 2, "--ca"),
        (["forget", "--study", ""], 1, "begin with ''"),
        (["explain", "--study", ""], 1, "begin with ''"),
        (["status", "--folder", 300 * "a"], 1, "demur device init"),
        (["init", "--folder", 300 * "a"], 1, "too long"),
        (["walk"], 2, "walk"),
    ],
)
def test_every_mistake_is_one_line_and_its_exit_status(
    words: list[str], code: int, said: str, home: Path, demur: Demur
) -> None:
    (home / "token").write_text(write_token(bytes(32)))

    done = demur(*words, fails=True)

    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("demur: error: ")
    assert done.err.count("\n") == 1
    assert said in done.err


@pytest.mark.parametrize("view", list(View))
def test_status_and_explain_print_the_whole_guarantee_of_each_study(
    view: View, home: Path, demur: Demur
) -> None:
    study = define_study(replace(STUDY, view=view, minimum_cohort=400))
    with DeviceFolder(home / "demur-device").ledger() as ledger:
        ledger.agree(study)

    fields = json.loads(demur("status", "--json").out)
    told, explained = demur("status").out, demur("explain").out
    mine = json.loads(demur("explain", "--json").out)[0]

    for said in (fields["studies"][0]["guarantee"], mine["guarantee"], told, explained):
        assert "(1, 1e-06)-differential privacy" in said
        for word in ("Unit: one device = one person", "Neighbour: zero-out", f"View: {view}: the"):
            assert word in said
        # 400 devices split the noise: one report has a twentieth of it.
        trusted = f"its backups are trusted: one report on its own is only {text_up(20 * STUDY.budget, digits=2)}-GDP"
        assert (trusted in said) is (view is View.AGGREGATE)
    assert fields["control_refusal"] is None
    assert "control questions" not in told


def test_status_says_that_a_device_answers_no_control_questions_and_not_what_was_spent(
    home: Path, demur: Demur
) -> None:
    study = define_study(STUDY)
    with DeviceFolder(home / "demur-device").ledger() as ledger:
        ledger.agree(study)
    path = home / "demur-device" / "policy.toml"
    path.write_text("lifetime_epsilon = 0.1\n" + POLICY)

    refusal = json.loads(demur("status", "--json").out)["control_refusal"]

    assert refusal == "a lifetime cap does not hold all that its studies have declared"
    assert demur("status").out.endswith(f"it answers no control questions: {refusal}\n")


def test_a_ledger_that_was_damaged_is_said_to_be_so_where_nothing_could_be_saved(
    home: Path, demur: Demur
) -> None:
    (home / "demur-device" / "ledger.sqlite").write_bytes(b"no database" * 1000)

    ran = demur("run", fails=True)

    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert "error: the ledger was damaged, and no identity could be saved from it" in ran.err
    assert "demur device enrol" in ran.err
    why = (
        "the ledger cannot be relied on, so every budget counts as spent: the ledger was damaged\n"
    )
    assert demur("explain").out == f"it takes part in no study\n{why}"
    assert why in demur("status").out
    assert json.loads(demur("status", "--json").out)["doubt"] == "the ledger was damaged"


def test_a_policy_with_a_mistake_keeps_the_device_from_running(home: Path, demur: Demur) -> None:
    path = home / "demur-device" / "policy.toml"
    path.write_text(POLICY + 'bad = "DELETE FROM visits"\n')

    said = demur("run", fails=True)

    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "features.bad" in said.err


def test_a_nonce_is_kept_before_enrolment_so_that_a_lost_answer_costs_nothing(
    home: Path, demur: Demur
) -> None:
    (home / "token").write_text(write_token(bytes(32)))
    nonces: list[Any] = []
    for _ in range(2):
        demur("enrol", "--target", "127.0.0.1:9", "--token", "token", fails=True)
        with LedgerFile(home / "demur-device" / "ledger.sqlite") as ledger:
            assert ledger.identity is not None
            nonces.append(ledger.identity.nonce)

    assert nonces[0] is not None
    assert nonces[0] == nonces[1]


def test_the_folder_is_for_its_owner_only(home: Path, demur: Demur) -> None:
    folder = home / "demur-device"

    assert folder.stat().st_mode & 0o077 == 0
    assert all(
        path.stat().st_mode & 0o077 == 0 for path in folder.iterdir() if path.suffix != ".toml"
    )


def test_the_unit_names_program_folder_and_user_and_nothing_is_left_open(
    home: Path, demur: Demur
) -> None:
    unit = demur("unit", "--user", "ada").out

    assert "@" not in unit.replace("SystemCallFilter=@system-service", "")
    assert f"--folder {home.resolve() / 'demur-device'}\n" in unit
    assert "User=ada\n" in unit
    for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "LimitCORE=0", "UMask=0077"):
        assert f"{line}\n" in unit


def read_unit(text: str) -> dict[str, list[tuple[str, str]]]:
    """The sections of a unit, with their keys and values in order."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for line in filter(None, text.splitlines()):
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), [])
        elif not line.startswith("#"):
            key, separator, value = line.partition("=")
            assert separator, line
            current.append((key, value))
    return sections


def test_the_unit_starts_a_program_that_is_there_with_words_that_it_takes(
    home: Path, demur: Demur
) -> None:
    sections = read_unit(demur("unit", "--user", "ada").out)

    assert list(sections) == ["Unit", "Service", "Install"]
    assert all(len(dict(pairs)) == len(pairs) for pairs in sections.values())  # no key twice
    program, *words = dict(sections["Service"])["ExecStart"].split()
    assert os.access(program, os.X_OK)
    assert words == ["device", "run", "--folder", str(home.resolve() / "demur-device")]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_finds_nothing_wrong_with_the_unit(home: Path, demur: Demur) -> None:
    unit = demur("unit", "--user", "root").out
    said = []
    for name, text in (("right", unit), ("wrong", unit.replace("LimitCORE", "LimitCOREs"))):
        path = home / f"demur-{name}.service"
        path.write_text(text)
        command = ["systemd-analyze", "verify", "--man=no", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said.append([line for line in done.stderr.splitlines() if path.name in line])

    assert said[0] == []
    assert len(said[1]) == 1
    assert "LimitCOREs" in said[1][0]


def test_certificates_outside_the_policy_may_not_vouch() -> None:
    mine, other = (Authority().issued.certificate for _ in range(2))
    pin = x509.load_pem_x509_certificate(mine).fingerprint(hashes.SHA256())
    disguised = other.replace(b"BEGIN CERT", b"BEGIN X509 CERT").replace(b"END C", b"END X509 C")

    assert pinned(other, ()) == other
    assert pinned(mine, (bytes(32), pin)).split() == mine.split()
    assert pinned(mine + disguised, (pin,)).split() == mine.split()
    for pem in (other, mine + other, disguised, b""):
        with pytest.raises(AccessError, match=r"certificates"):
            pinned(pem, (pin,))


def test_a_counter_elsewhere_knows_an_old_copy_of_the_ledger(home: Path) -> None:
    folder = DeviceFolder(home / "demur-device")
    (home / "elsewhere").mkdir()
    folder.policy_path.write_text(POLICY + '[ledger]\ncounter = "../elsewhere/mark"\n')
    with folder.ledger() as ledger:
        ledger.agree(define_study(STUDY))
    old = folder.ledger_path.read_bytes()
    with folder.ledger() as ledger:
        for name in ("one", "two"):
            ledger.agree(define_study(replace(STUDY, name=name)))
        assert ledger.trusted

    folder.ledger_path.write_bytes(old)

    with folder.ledger() as ledger:
        assert not ledger.trusted


def test_a_unit_lets_the_counter_be_written(home: Path, demur: Demur) -> None:
    policy = home / "demur-device" / "policy.toml"
    policy.write_text(POLICY + '[ledger]\ncounter = "../elsewhere/mark"\n')

    unit = demur("unit").out

    folder, elsewhere = home.resolve() / "demur-device", home.resolve() / "elsewhere"
    assert f"ReadWritePaths={folder} {elsewhere}\n" in unit


@pytest.mark.parametrize("counter", ['"mark"', '"../demur-device/x/mark"', "1", '""'])
def test_a_counter_that_a_copy_of_the_folder_would_take_along_is_refused(
    home: Path, demur: Demur, counter: str
) -> None:
    policy = home / "demur-device" / "policy.toml"
    policy.write_text(POLICY + f"[ledger]\ncounter = {counter}\n")

    said = demur("run", fails=True)

    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "ledger.counter" in said.err
