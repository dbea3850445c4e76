import argparse
import json
from pathlib import Path

import pytest

from admin_kit import Admin, Capture, filled
from demur_proto.study import Study
from demur_proto.wire.definition import Defined
from demur_server.commands.admin import add_commands
from demur_server.store.durable import DurableStore
from demur_server.store.postgres import PostgresDatabase
from demur_server.store.sqlite import SqliteDatabase
from store_kit import PostgresServer


@pytest.fixture
def admin(capsys: Capture) -> Admin:
    """Run a command: its exit status, and what it printed."""

    def run(*words: str) -> tuple[int, str]:
        parser = argparse.ArgumentParser(prog="demur")
        add_commands(parser.add_subparsers())
        options = parser.parse_args(["admin", *words])
        capsys.readouterr()
        status = options.run(options)
        told = capsys.readouterr()
        assert told.err == ""
        return status, told.out

    return run


@pytest.fixture
async def folder(tmp_path: Path, study: Defined[Study]) -> Path:
    """A data folder whose collector has stopped."""
    made = tmp_path / "data"
    made.mkdir(mode=0o700)
    store = await DurableStore.open(SqliteDatabase(made / "store.sqlite"))
    async with filled(store, made / "keys", study):
        pass
    return made


@pytest.fixture
async def database(
    postgres: PostgresServer, tmp_path: Path, study: Defined[Study]
) -> tuple[str, str]:
    """The configuration of a collector on PostgreSQL that has stopped, and its address."""
    conninfo = postgres.new_database()
    store = await DurableStore.open(PostgresDatabase(conninfo))
    async with filled(store, tmp_path / "pg/keys", study):
        pass
    config = tmp_path / "postgres.toml"
    config.write_text(f"folder = 'pg'\n[store]\npostgres = {json.dumps(conninfo)}")
    return str(config), conninfo
