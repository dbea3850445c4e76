"""Keys outlive a process, stay out of the store, and are really gone when they are destroyed."""

import os
import sys
from pathlib import Path

import pytest

from demur_proto.errors import StorageError
from demur_server.collector.keys import KeyFolder, Keys, MemoryKeys

ROUND, OTHER = b"\x01" * 32, b"\x02" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data" / "keys"


def both(folder: Path) -> list[Keys]:
    return [MemoryKeys(), KeyFolder(folder)]


def test_a_key_is_made_once_and_found_until_it_is_destroyed(folder: Path) -> None:
    for keys in both(folder):
        assert keys.find(ROUND) is None
        made = keys.make(ROUND)
        assert len(made) == 32
        assert keys.make(ROUND) == keys.find(ROUND) == made
        assert keys.make(OTHER) != made
        assert sorted(keys.rounds()) == [ROUND, OTHER]

        keys.destroy(ROUND)
        keys.destroy(ROUND)

        assert keys.find(ROUND) is None
        assert keys.rounds() == [OTHER]
        assert keys.make(ROUND) != made


def test_keys_in_a_folder_outlive_their_process(folder: Path) -> None:
    first = KeyFolder(folder)
    made = first.master(), first.make(ROUND)

    again = KeyFolder(folder)

    assert (again.master(), again.find(ROUND)) == made
    assert made[0] != made[1]
    assert MemoryKeys().master() != MemoryKeys().master()


@pytest.mark.skipif(sys.platform == "win32", reason="no modes there")
def test_nobody_else_can_read_the_keys(folder: Path) -> None:
    keys = KeyFolder(folder)
    keys.master()
    keys.make(ROUND)

    modes = {each.name: each.stat().st_mode & 0o777 for each in [folder, *folder.rglob("*")]}

    assert modes == {
        "keys": 0o700,
        "rounds": 0o700,
        "master.key": 0o600,
        f"{ROUND.hex()}.key": 0o600,
    }


@pytest.mark.skipif(sys.platform == "win32", reason="no modes there")
def test_a_folder_that_is_open_to_others_is_refused(folder: Path) -> None:
    KeyFolder(folder)
    folder.chmod(0o750)

    with pytest.raises(StorageError, match=r"keys holds keys and is open to others; chmod 700 it"):
        KeyFolder(folder)


def test_a_destroyed_key_is_overwritten_before_its_name_goes(folder: Path) -> None:
    keys = KeyFolder(folder)
    made = keys.make(ROUND)
    other_name = folder / "linked"
    os.link(folder / "rounds" / f"{ROUND.hex()}.key", other_name)
    assert other_name.read_bytes() == made

    keys.destroy(ROUND)

    assert other_name.read_bytes() == bytes(32)


def test_what_a_process_left_half_written_is_gone_at_the_next_start(folder: Path) -> None:
    keys = KeyFolder(folder)
    master = keys.master()
    for half in (folder / "master.new", folder / "rounds" / f"{ROUND.hex()}.new"):
        half.write_bytes(b"half a key")

    again = KeyFolder(folder)

    assert again.master() == master
    assert again.rounds() == []
    assert not list(folder.rglob("*.new"))


@pytest.mark.parametrize("content", [b"", b"short", bytes(33)])
def test_a_key_that_is_none_is_said_in_one_line(folder: Path, content: bytes) -> None:
    KeyFolder(folder)
    (folder / "master.key").write_bytes(content)

    with pytest.raises(StorageError, match=rf"must be 32 bytes, and is {len(content)}$") as refused:
        KeyFolder(folder).master()

    assert "\n" not in str(refused.value)


def test_files_of_somebody_else_are_no_keys(folder: Path) -> None:
    keys = KeyFolder(folder)
    (folder / "rounds" / "notes.key").write_text("mine")

    assert keys.rounds() == []


def test_a_folder_that_cannot_be_made_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(StorageError, match=r"no keys can be kept in .*file") as refused:
        KeyFolder(tmp_path / "file" / "keys")

    assert "\n" not in str(refused.value)


def test_no_key_is_shown(folder: Path) -> None:
    for keys in both(folder):
        shown = repr(keys) + str(keys)

        assert keys.master().hex() not in shown
        assert repr(keys.make(ROUND))[2:-1] not in shown
