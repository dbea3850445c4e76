"""The configuration of a collector."""

import os
from pathlib import Path
from typing import Any

import pytest

from demur_proto.errors import ParameterError
from demur_server.config import AccessMode, ServerConfig, load_config
from demur_server.grpc.interceptor import Limits


def file(path: Path, text: str) -> Path:
    path = path / "server.toml"
    path.write_text(text)
    return path


def test_without_a_file_everything_has_its_default() -> None:
    assert load_config() == ServerConfig()
    assert ServerConfig().access is AccessMode.CREDENTIALS
    assert ServerConfig().limits == Limits()


def test_every_key_is_read_and_paths_start_from_the_folder_of_the_file(tmp_path: Path) -> None:
    text = """
        folder = "data"
        access = "credentials"
        drain_s = 3
        large_reports_mib = 40

        [store]
        postgres = "postgresql://me@db/demur"
        shard = 1
        shards = 4

        [listen]
        host = "0.0.0.0"
        port = 7001
        analyst_host = "127.0.0.1"
        analyst_port = 7002

        [tls]
        certificate = "server.pem"
        key = "/etc/server.key"
        client_ca = "ca.pem"

        [analyst_tls]
        certificate = "analyst.pem"
        key = "analyst.key"

        [limits]
        all_calls = 50
    """

    config = load_config(file(tmp_path, text))

    assert config.folder == tmp_path / "data"
    assert (config.drain_s, config.store.shard, config.store.shards) == (3, 1, 4)
    assert config.large_reports_mib == 40
    assert (config.listen.host, config.listen.port) == ("0.0.0.0", 7001)
    assert (config.listen.analyst_host, config.listen.analyst_port) == ("127.0.0.1", 7002)
    assert config.tls.certificate == tmp_path / "server.pem"
    assert config.tls.key == Path("/etc/server.key")
    assert config.analyst_tls.key == tmp_path / "analyst.key"
    assert config.limits == Limits(all_calls=50)


def test_what_the_command_line_says_goes_before_the_file(tmp_path: Path) -> None:
    path = file(tmp_path, "folder = 'data'\n[listen]\nport = 1\nanalyst_port = 2")

    config = load_config(path, overrides={"listen.port": 3, "folder": "here", "access": None})

    assert (config.listen.port, config.listen.analyst_port) == (3, 2)
    assert config.folder == Path("here")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fodler = 'x'", r"key in .*server\.toml must be one of .* \(did you mean folder\?\)"),
        ("port = 5", r"must be one of .* \(did you mean listen\.port\?\)"),
        ("[listen]\nprot = 5", r"\(did you mean listen\.port\?\), got 'listen\.prot'"),
        ("listen = 5", r"^listen in .*server\.toml must be a table: \[listen\], got 5"),
        ("[listen]\nport = '5'", r"^listen\.port in .*server\.toml must be an integer, got '5'"),
        ("[listen]\nport = true", r"^listen\.port in .* must be an integer, got True"),
        ("[listen]\nport = 65536", r"^listen\.port in .* <= 65535, got 65536"),
        ("[listen]\nport = 5\nanalyst_port = 5", r"^listen\.analyst_port in .* another than"),
        ("[listen]\nhost = 5", r"^listen\.host in .* must be a text in quotes, got 5"),
        ("folder = 5", r"^folder in .* must be 1 to 4096 printable characters, got 5"),
        ("access = 'none'", r"^access in .* must be credentials or open, got 'none'"),
        ("insecure_plaintext = 1", r"^insecure_plaintext in .* must be true or false, got 1"),
        ("drain_s = 9", r"^drain_s in .* <= 8, got 9"),
        ("large_reports_mib = 0", r"^large_reports_mib in .* >= 1 .*, got 0"),
        ("[limits]\nall_calls = 0", r"^limits\.all_calls in .* >= 1, got 0"),
        ("[store]\nshards = 2", r"^store\.shards in .* must be 1 without store\.postgres, got 2"),
        ("[store]\npostgres = 'x'\nshard = 1", r"^store\.shard in .* <= 0, got 1"),
        ("[store]\npostgres = 'x'\nsqlite = 'y'", r"^store\.sqlite in .* must be left out where"),
        ("[tls]\nkey = 'x'", r"^tls\.certificate in .* must be a file, as the others are given"),
        ("[tls]\ncertificate = 'x'", r"^tls\.key in .* must be the file of the key of tls\.cert"),
        ("[listen]\nhost = '0.0.0.0'", r"^listen\.host in .* must be a loopback address, unless"),
        (
            "[listen]\nanalyst_host = '::'",
            r"^listen\.analyst_host in .* must be a loopback address, unless",
        ),
        (
            "access = 'open'\ninsecure_plaintext = true\n[listen]\nhost = '::'",
            r"^listen\.host in .* must be a loopback address under open access",
        ),
        (
            "insecure_plaintext = true\n[tls]\ncertificate = 'x'\nkey = 'y'",
            r"^insecure_plaintext in .* must be left out where tls\.certificate",
        ),
        ("folder = ?", r"^--config must be a TOML file \(it cannot be parsed at line 1, "),
    ],
)
def test_what_is_wrong_is_said_in_one_line_that_names_the_key(
    text: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ParameterError, match=said) as caught:
        load_config(file(tmp_path, text))

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "[store]\npostgres = 'postgresql://me:secret@db/x'\nsqlite = 'y'",
        "[store]\npostgres = ['secret']",
        '[store]\npostgres = "secret\\n"',
        "[store]\npostgres = 'postgresql://me:secret@db/x",
        "[store]\npostgres = 'postgresql://me:secret@db/x'\nshard = 7",
    ],
)
def test_a_password_in_the_file_is_never_repeated(text: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError) as caught:
        load_config(file(tmp_path, text))

    assert "secret" not in str(caught.value)


def test_a_password_is_not_shown_with_the_configuration(tmp_path: Path) -> None:
    path = file(tmp_path, "[store]\npostgres = 'postgresql://me:secret@db/x'")

    assert "secret" not in repr(load_config(path))


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:secret@db/x",
        "postgresql://db/x?user=me&password=secret",
        "postgresql://db/x?p%61ssword=secret",
        "host=db user=me password=secret",
        "password = 'secret' host=db",
    ],
)
def test_a_password_on_the_command_line_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(
        ParameterError, match=r"^store.postgres on the command line .* PGPASSFILE"
    ) as told:
        load_config(overrides={"store.postgres": address})

    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    "address",
    ["postgresql://me:@/x?host=/run", "host=db user=me passfile=p", "postgresql://[::1]/x"],
)
def test_an_address_without_a_password_is_taken_from_the_command_line(address: str) -> None:
    config = load_config(overrides={"store.postgres": address})

    assert config.store.postgres == address


def test_a_file_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"^--config must be a TOML file that can be read"):
        load_config(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("key", "value"), [("listen.port", -1), ("store.shard", 5), ("access", "closed")]
)
def test_an_error_on_the_command_line_is_not_blamed_on_the_file(
    key: str, value: Any, tmp_path: Path
) -> None:
    with pytest.raises(ParameterError, match=rf"^{key} on the command line must be"):
        load_config(file(tmp_path, ""), overrides={key: value})


@pytest.mark.parametrize("key", ["folder", "store.sqlite", "tls.certificate"])
def test_an_empty_path_is_not_the_folder_of_the_file(key: str, tmp_path: Path) -> None:
    table, _, name = key.rpartition(".")
    text = f"[{table}]\n{name} = ''" if table else f"{name} = ''"

    with pytest.raises(ParameterError, match=f"^{key} in .* must be 1 to 4096 printable"):
        load_config(file(tmp_path, text))


def test_a_key_cannot_be_given_twice_by_way_of_quotes(tmp_path: Path) -> None:
    text = "'store.shards' = 2\n[store]\npostgres = 'postgresql://me@db/x'\nshards = 3"

    with pytest.raises(
        ParameterError, match=r"did you mean store\.shards\?\), got 'store\.shards'"
    ):
        load_config(file(tmp_path, text))


@pytest.mark.skipif(os.name != "posix", reason="has no such files")
def test_what_is_no_file_or_endless_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    large = file(tmp_path, "#" * (1 << 20) + "\n")

    for path, said in (
        (tmp_path / "pipe", "it is no file"),
        (Path("/dev/zero"), "it is no file"),
        (tmp_path, "it is a folder"),
        (large, "of at most 1 MiB"),
    ):
        with pytest.raises(ParameterError, match=f"^--config must be a TOML file.*{said}"):
            load_config(path)
