"""What the tests of a ledger's trust share: a device's folder that anything may happen to."""

import shutil
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path

from demur_client.ledger.counter import FileCounter
from demur_client.ledger.file import LedgerFile
from ledger_kit import answer, ask, study_of

STUDY = study_of()
SECRET = bytes(range(32))
CHARGE, CHARGE_AT = struct.Struct(">q"), 4 + 32 + 32 + 16 + 32  #: after number, hashes and id


class Home:
    """A device's folder, and a counter elsewhere."""

    def __init__(self, folder: Path, *, counted: bool = True) -> None:
        self.folder = folder / "device"
        self.folder.mkdir()
        self.path = self.folder / "ledger"
        self.counter = FileCounter(folder / "counter") if counted else None

    def ledger(self) -> LedgerFile:
        return LedgerFile(self.path, counter=self.counter, secret=SECRET)

    def answer(self, *numbers: int) -> None:
        with self.ledger() as ledger:
            ledger.agree(STUDY)
            for number in numbers:
                answer(ledger, ask(STUDY, number))

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    def copy_to(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder)

    def copy_from(self, folder: Path) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(folder, self.folder)


def execute(statement: str) -> Callable[[Home], None]:
    def damage(home: Home) -> None:
        connection = sqlite3.connect(home.path, isolation_level=None)
        connection.execute(statement)
        connection.close()

    damage.__name__ = statement
    return damage
