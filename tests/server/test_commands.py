"""`demur serve`, mostly as a process of its own."""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from demur_client.connection import connected
from demur_proto.errors import (
    AccessError,
    DemurError,
    ParameterError,
    StateError,
    StorageError,
    UnsupportedError,
)
from demur_proto.queries import Feature, Linear
from demur_proto.study import Study
from demur_proto.transport.channels import ClientTls
from demur_proto.transport.credentials import read_token
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import Defined
from demur_server.admin.admin import make_tokens
from demur_server.admin.data_folder import find_listening
from demur_server.analyst import Analyst
from demur_server.analyst_calls import list_studies
from demur_server.commands.certs import make_folder
from demur_server.commands.serve import add_commands
from demur_server.store.inspect import sqlite_door
from serve_kit import DEADLINE_S, Server, answer, enrolled, serving, start
from store_kit import PostgresServer

X = Feature(name="x")
ACCEPTED, DUPLICATE = report_pb2.DISPOSITION_ACCEPTED, report_pb2.DISPOSITION_DUPLICATE


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demur")
    add_commands(parser.add_subparsers())
    return parser.parse_args(words)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


async def refused(server: Server, study: Study) -> bool:
    """Whether somebody without a credential is."""
    try:
        async with Analyst.create(server.analysts, study, answer_after_ms=0):
            return False
    except AccessError:
        return True


# ---- the life of a collector -----------------------------------------------------------------


async def test_the_first_start_makes_a_private_folder_and_a_credential_that_works(
    tmp_path: Path, study: Defined[Study]
) -> None:
    with serving(tmp_path / "data") as server:
        async with Analyst.create(
            server.analysts, study.value, credential=server.analyst, answer_after_ms=0
        ):
            let_in = True
        shut_out = await refused(server, study.value)
        listening = find_listening(tmp_path / "data")
        modes = {mode(each) for each in server.folder.rglob("*") if each.is_file()}
        server.process.send_signal(signal.SIGINT)
        status, out, err = server.ended()

    folder, said = server.folder, server.said
    assert let_in
    assert shut_out
    assert listening is not None
    assert (listening.collector, listening.analyst) == (server.devices, server.analysts)
    assert find_listening(folder) is None
    assert (said["made_folder"], said["access"]) == (True, "credentials")
    assert said["made_analyst_credential"] == str(folder / "analyst.credential")
    assert {mode(folder), mode(folder / "keys"), mode(folder / "keys/rounds")} == {0o700}
    files = [each for each in folder.rglob("*") if each.is_file()]
    assert modes | {mode(each) for each in files} == {0o600}
    assert {each.name for each in files} >= {"store.sqlite", "master.key", "analyst.credential"}
    assert server.analyst.text not in f"{said}{out}{err}"
    assert (status, out, err) == (0, "", "")


def test_without_json_the_lines_are_for_people_and_the_credential_is_not_in_them(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    with start("serve", "--folder", str(folder)) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.terminate()
        out, err = process.communicate(timeout=DEADLINE_S)

    assert lines[0].startswith(f"made {folder}: ")
    assert lines[1] == f"made a credential for an analyst: {folder}/analyst.credential\n"
    assert re.fullmatch(
        r"listening on 127\.0\.0\.1:\d+ for devices, 127\.0\.0\.1:\d+ for analysts\n", lines[2]
    )
    assert (process.returncode, out, err) == (0, "", "")


async def test_after_a_kill_and_after_a_stop_it_goes_on_where_it_was(
    tmp_path: Path, study: Defined[Study]
) -> None:
    with serving(tmp_path) as server:
        with sqlite_door(server.folder / "store.sqlite") as door:
            tokens = [read_token(text) for text in make_tokens(door, count=2)]
        one, two = await enrolled(server.devices, *tokens)
        async with (
            Analyst.create(
                server.analysts, study.value, credential=server.analyst, answer_after_ms=0
            ) as analyst,
            connected(server.devices) as channel,
        ):
            asked = await analyst.open(Linear([X], on_grid=True))
            first = await answer(channel, one, study, word=5)
        server.process.kill()
    with serving(tmp_path) as server:
        assert server.said["made_analyst_credential"] is None
        async with connected(server.devices) as channel:
            again = await answer(channel, one, study, word=5)
            second = await answer(channel, two, study, word=7)
        server.process.terminate()
        status, _, _ = server.ended()
    with serving(tmp_path) as server:
        async with Analyst.resume(server.analysts, credential=server.analyst) as analyst:
            release = await analyst.close(asked)
            following = await analyst.open(Linear([X], on_grid=True))

    assert (first, again, second) == (ACCEPTED, DUPLICATE, ACCEPTED)
    assert status == 0
    assert (release.reports, release.sums.tolist()) == (2, [12])
    assert following.value.number == 2


async def test_told_to_stop_it_ends_open_streams_in_time(
    tmp_path: Path, study: Defined[Study]
) -> None:
    config = write(tmp_path / "server.toml", "drain_s = 1")
    with serving(tmp_path / "data", "--config", config) as server:
        async with Analyst.create(
            server.analysts, study.value, credential=server.analyst, answer_after_ms=0
        ) as analyst:
            watching = anyio.Event()

            async def watch() -> None:
                watching.set()
                with pytest.raises(DemurError):
                    await anext(analyst.watch())

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                await watching.wait()
                await anyio.sleep(0.1)
                started = time.monotonic()
                server.process.terminate()
                status, out, err = await anyio.to_thread.run_sync(server.ended)
                took = time.monotonic() - started

    assert took < 5.0
    assert (status, out, err) == (0, "", "")


async def test_a_second_signal_stops_it_at_once(tmp_path: Path, study: Defined[Study]) -> None:
    config = write(tmp_path / "server.toml", "drain_s = 8")
    with serving(tmp_path / "data", "--config", config) as server:
        async with Analyst.create(
            server.analysts, study.value, credential=server.analyst, answer_after_ms=0
        ) as analyst:

            async def watch() -> None:
                with pytest.raises(DemurError):
                    await anext(analyst.watch())

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                await anyio.sleep(0.1)
                started = time.monotonic()
                server.process.terminate()
                await anyio.sleep(0.5)
                server.process.terminate()
                status, _, err = await anyio.to_thread.run_sync(server.ended)
                took = time.monotonic() - started

    assert took < 4.0
    assert status == 1
    assert err == "demur: stopped at once; what was acknowledged is kept\n"


async def test_open_access_lets_everybody_in_and_makes_no_credential(
    tmp_path: Path, study: Defined[Study]
) -> None:
    with serving(tmp_path, "--open-access") as server:
        shut_out = await refused(server, study.value)

    assert server.said["access"] == "open"
    assert not shut_out
    assert not (tmp_path / "analyst.credential").exists()


async def test_with_a_certificate_both_ports_speak_tls_only(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    make_folder(certs, hosts=("127.0.0.1",), clients=("client",), days=1)
    files = ("--certificate", f"{certs}/server.pem", "--key", f"{certs}/server.key")
    with serving(tmp_path / "data", *files) as server:
        tls = ClientTls.read(certs / "ca.pem")
        found = await list_studies(server.analysts, credential=server.analyst, tls=tls)
        for port in (server.analysts, server.devices):
            with pytest.raises(AccessError, match="speaks TLS only"):
                await list_studies(port, credential=server.analyst)

    assert found == []


async def test_on_postgresql_each_shard_has_one_collector_and_all_share_a_key(
    tmp_path: Path, postgres: PostgresServer, study: Defined[Study]
) -> None:
    config = write(
        tmp_path / "server.toml",
        f"[store]\npostgres = {json.dumps(postgres.new_database())}\nshards = 2",
    )
    words = ("--config", config)

    async def refusal(name: str, *more: str) -> str:
        process = start("serve", "--folder", str(tmp_path / name), *words, *more)
        _, err = await anyio.to_thread.run_sync(process.communicate)
        assert (process.returncode, err.count("\n")) == (1, 1)
        return err

    with serving(tmp_path / "zero", *words) as zero:
        taken = await refusal("other")
        keyless = await refusal("keyless", "--shard", "1")
        shutil.copytree(tmp_path / "zero/keys", tmp_path / "one/keys")
        with serving(tmp_path / "one", *words, "--shard", "1") as one:
            async with Analyst.create(
                zero.analysts, study.value, credential=zero.analyst, answer_after_ms=0
            ) as made:
                await made.open(Linear([X], on_grid=True))
            with anyio.fail_after(DEADLINE_S):  # it follows the other one
                while True:
                    try:
                        found = await list_studies(one.analysts, credential=zero.analyst)
                    except AccessError:
                        found = []
                    if found == [(study, 1)]:
                        break
                    await anyio.sleep(0.1)
            one.process.terminate()
            status, out, err = one.ended()

    assert re.match(r"error: shard 0 of PostgreSQL .* has another collector; stop that one", taken)
    assert "master.key is missing; copy it from shard 0" in keyless
    assert one.said["made_analyst_credential"] is None
    assert (status, out, err) == (0, "", "")


# ---- what cannot start -----------------------------------------------------------------------


def test_a_second_collector_on_a_folder_or_a_store_is_refused_in_one_line(tmp_path: Path) -> None:
    text = f"[store]\nsqlite = '{tmp_path}/one/store.sqlite'"
    config = write(tmp_path / "server.toml", text)
    with serving(tmp_path / "one"):
        same_folder = parsed("serve", "--folder", f"{tmp_path}/one")
        same_store = parsed("serve", "--folder", f"{tmp_path}/two", "--config", config)
        (tmp_path / "three").mkdir()
        (tmp_path / "three/store.sqlite").symlink_to(tmp_path / "one/store.sqlite")
        by_another_name = parsed("serve", "--folder", f"{tmp_path}/three")

        with pytest.raises(StateError, match=r"one is in use by another collector; stop that one"):
            same_folder.run(same_folder)
        with pytest.raises(StateError, match=r"store\.sqlite is in use by another collector"):
            same_store.run(same_store)
        with pytest.raises(StateError, match=r"one/store\.sqlite is in use by another collector"):
            by_another_name.run(by_another_name)


@pytest.mark.parametrize("option", ["--port", "--analyst-port"])
def test_a_port_in_use_is_one_clear_error(
    option: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = parsed("serve", "--folder", str(tmp_path), option, str(port))

        with pytest.raises(StateError, match=f"^port {port} on 127.0.0.1 is in use; choose"):
            options.run(options)

    assert capfd.readouterr() == ("", "")


def unusable(path: Path) -> list[str]:
    return ["--folder", write(path / "file", "") + "/data"]


def open_to_others(path: Path) -> list[str]:
    (path / "data/keys").mkdir(parents=True)
    (path / "data/keys").chmod(0o755)
    return ["--folder", f"{path}/data"]


def newer(path: Path) -> list[str]:
    with sqlite3.connect(path / "store.sqlite") as connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.execute("INSERT INTO alembic_version VALUES ('9999')")
    connection.close()
    return ["--folder", str(path)]


def open_to_writers(path: Path) -> list[str]:
    path.joinpath("shared").mkdir()
    path.joinpath("shared").chmod(0o775)
    return ["--folder", f"{path}/shared"]


def store_gone(path: Path) -> list[str]:
    path.joinpath("keys").mkdir(mode=0o700)
    path.joinpath("keys/master.key").write_bytes(bytes(32))
    return ["--folder", str(path)]


def no_database(path: Path) -> list[str]:
    path.joinpath("store.sqlite").write_bytes(b"no database at all, " * 100)
    return ["--folder", str(path)]


def no_postgres(path: Path) -> list[str]:
    file = write(
        path / "server.toml", "[store]\npostgres = 'postgresql://me:secret@127.0.0.1:1/none'"
    )
    return ["--folder", str(path), "--config", file]


def postgres_with_a_password(path: Path) -> list[str]:
    return ["--folder", str(path), "--postgres", "postgresql://me:secret@127.0.0.1:1/none"]


def no_certificate(path: Path) -> list[str]:
    file = write(path / "server.pem", "nothing")
    return ["--folder", str(path), "--certificate", file, "--key", file]


@pytest.mark.parametrize(
    ("wrong", "kind", "said"),
    [
        (unusable, StorageError, "nothing can be kept in .*; name another folder"),
        (open_to_others, StorageError, "holds keys and is open to others; chmod 700 it"),
        (open_to_writers, StorageError, "others may write to .*; chmod go-w it"),
        (store_gone, StateError, "the store .* is gone and its key is here; put it back, restore"),
        (newer, UnsupportedError, "has schema 9999, which this version does not know"),
        (no_database, StorageError, "not a database; restore a backup"),
        (no_postgres, StorageError, "PostgreSQL none at 127.0.0.1 is out of reach"),
        (postgres_with_a_password, ParameterError, "put the password into PGPASSFILE"),
        (no_certificate, AccessError, "holds no certificate in PEM form"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(
    wrong: Callable[[Path], list[str]], kind: type[DemurError], said: str, tmp_path: Path
) -> None:
    options = parsed("serve", *wrong(tmp_path))

    with pytest.raises(kind, match=said) as caught:
        options.run(options)

    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.skipif(os.name != "posix", reason="folders are protected otherwise")
def test_a_folder_that_nobody_may_write_is_one_clear_error() -> None:
    options = parsed("serve", "--folder", "/proc/demur-data")

    with pytest.raises(StorageError, match="nothing can be kept in /proc/demur-data: "):
        options.run(options)


def test_more_than_this_machine_needs_a_certificate_or_plain_words(tmp_path: Path) -> None:
    words = ["serve", "--folder", str(tmp_path), "--host", "0.0.0.0"]
    for more in ([], ["--open-access"], ["--open-access", "--insecure-plaintext"]):
        options = parsed(*words, *more)

        with pytest.raises(ParameterError, match=r"^listen\.host on the command line must be a lo"):
            options.run(options)

    assert list(tmp_path.iterdir()) == []


# ---- its face --------------------------------------------------------------------------------


@pytest.mark.parametrize("port", ["-1", "65536", "http", "1.5", "٣"])
def test_what_is_no_port_is_bad_usage(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed("serve", f"--port={port}")

    assert caught.value.code == 2
    assert f"'{port}' is not a port from 0 to 65535" in capsys.readouterr().err


def test_the_help_says_who_is_let_in_and_where_it_listens(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed("serve", "--help")

    told = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0
    assert "nobody is let in without a credential" in told
    assert "127.0.0.1 only" in told


@pytest.mark.parametrize("name", ["serve", "admin", "ask", "close"])
def test_the_module_costs_nothing_to_import(name: str) -> None:
    check = (
        f"import sys, demur_server.commands.{name};"
        "sys.exit(any(name in sys.modules for name in ('grpc', 'numpy', 'anyio', 'google')))"
    )

    run = subprocess.run([sys.executable, "-c", check], timeout=DEADLINE_S, check=False)

    assert run.returncode == 0


def test_a_port_that_was_asked_for_is_the_one_that_is_served(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]

    with serving(tmp_path, "--port", str(port)) as server:
        pass

    assert server.devices == f"127.0.0.1:{port}"
