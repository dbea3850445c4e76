"""What is installed, where from, and what it drags along.

`make test` runs the suite against the built wheel and says where that was unpacked in
DEMUR_WHEEL_SITE; without it the packages have to be those of this working tree.
"""

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("proto", "client", "server", "sim")
BASE = ("anyio", "grpcio", "numpy", "protobuf")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# Argument 1 lists the top-level modules there are: no other can be found, as if not installed.
# Then imports the other arguments, "package.*" with all its modules, and prints which rooms that
# reached for: those found, and those not.
AS_IF_INSTALLED = """
import importlib, json, pkgutil, sys

there = {*json.loads(sys.argv[1]), *sys.stdlib_module_names}
missed = set()

class Installed:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in there:
            missed.add(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def broken(name):
    raise ImportError(f"cannot import {name}")

sys.meta_path.insert(0, Installed())
for name in sys.argv[2:]:
    module = importlib.import_module(name.removesuffix(".*"))
    if name.endswith(".*"):
        prefix = module.__name__ + "."
        for found in pkgutil.walk_packages(module.__path__, prefix, onerror=broken):
            if not found.name.endswith(".__main__"):
                importlib.import_module(found.name)
tops = {name.partition(".")[0] for name in [*sys.modules, *missed]}
print(json.dumps(sorted(top for top in tops if top.startswith("demur_"))))
"""


def wanted_home(room: str) -> Path:
    """Where demur_ROOM has to come from in this run."""
    site = os.environ.get("DEMUR_WHEEL_SITE")
    return Path(site).resolve() if site else ROOT / room


def requirements(names: Iterable[str]) -> set[str]:
    """The distributions named, and all that they require here without any extra."""
    closure: set[str] = set()
    todo = list(names)
    while todo:
        name = canonicalize_name(todo.pop())
        if name in closure:
            continue
        closure.add(name)
        for line in metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                todo.append(requirement.name)
    return closure


def rooms_reached_on_base_install(*names: str, rooms: Iterable[str]) -> list[str]:
    """Import the modules where only the rooms and the base distributions can be found.

    A library may try what it can do without (grpc looks for grpc_tools); ours must not need it.
    """
    base = requirements(BASE)
    there = {f"demur_{room}" for room in rooms} | {
        name
        for name, owners in metadata.packages_distributions().items()
        if not base.isdisjoint(map(canonicalize_name, owners))
    }
    done = subprocess.run(
        [sys.executable, "-c", AS_IF_INSTALLED, json.dumps(sorted(there)), *names],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reached: list[str] = json.loads(done.stdout)
    return reached


@pytest.mark.parametrize("room", ROOMS)
def test_the_packages_under_test_are_the_ones_meant(room: str) -> None:
    module = importlib.import_module(f"demur_{room}")

    assert module.__file__ is not None
    assert Path(module.__file__).resolve() == wanted_home(room) / f"demur_{room}" / "__init__.py"


@pytest.mark.parametrize("room", ROOMS)
def test_a_process_started_by_a_test_runs_the_same_packages(room: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import demur_{room}; print(demur_{room}.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert Path(done.stdout.strip()).resolve().is_relative_to(wanted_home(room))


def test_the_base_install_is_exactly_four_distributions() -> None:
    declared = {Requirement(line).name for line in PROJECT["project"]["dependencies"]}
    built = {
        requirement.name
        for requirement in map(Requirement, metadata.requires("demur") or [])
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    }

    assert declared == set(BASE)
    assert built == set(BASE)


def test_every_module_of_the_client_loads_on_a_base_install_without_server_and_sim() -> None:
    reached = rooms_reached_on_base_install("demur_client.*", rooms=("client", "proto"))

    assert set(reached) <= {"demur_client", "demur_proto"}


def test_the_command_starts_on_a_base_install() -> None:
    reached = rooms_reached_on_base_install("demur_sim.cli", rooms=ROOMS)

    assert "demur_sim" in reached


@pytest.mark.parametrize("name", ["demur_server", "packaging"])
def test_a_module_that_a_base_install_lacks_would_be_noticed(name: str) -> None:
    with pytest.raises(AssertionError, match=f"No module named '{name}'"):
        rooms_reached_on_base_install("demur_client.*", name, rooms=("client", "proto"))


@pytest.fixture(scope="module")
def device_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with nothing but the wheel of a device and what that requires."""
    folder = tmp_path_factory.mktemp("alone")
    build = [sys.executable, str(ROOT / ".ci" / "device_wheel.py"), str(folder / "dist")]
    subprocess.run(build, capture_output=True, check=True)
    (wheel,) = (folder / "dist").iterdir()
    python = folder / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "--no-cache-dir"]
    subprocess.run([*pip, "install", "--no-index", "--no-deps", str(wheel)], check=True)
    required = folder / "required"
    required.mkdir()
    for name in requirements(BASE):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}:
            if top != "__pycache__" and not (required / top).exists():
                (required / top).symlink_to(Path(str(distribution.locate_file(top))))
    (site,) = (folder / "venv" / "lib").glob("python3*/site-packages")
    (site / "required.pth").write_text(f"{required}\n")
    return folder / "venv" / "bin"


def alone(device: Path, *arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run the command of that environment, which knows of no other."""
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(device / "demur"), *arguments],
        cwd=cwd,
        env=outside,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_wheel_of_a_device_is_small_and_runs_one(device_alone: Path, tmp_path: Path) -> None:
    (site,) = (device_alone.parent / "lib").glob("python3*/site-packages")
    files = [path for path in site.glob("demur_*/**/*") if path.is_file()]
    assert sum(path.stat().st_size for path in files if path.suffix != ".pyc") < 2_000_000
    assert not {f"demur_{room}" for room in ("server", "sim")} & set(os.listdir(site))

    made = alone(device_alone, "device", "init", "--folder", "mine", cwd=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    shown = alone(device_alone, "device", "status", "--folder", "mine", "--json", cwd=tmp_path)
    assert json.loads(shown.stdout)["studies"] == []
    unit = alone(device_alone, "device", "unit", "--folder", "mine", cwd=tmp_path)
    assert f"ExecStart={device_alone / 'demur'} device run" in unit.stdout
    refused = alone(device_alone, "serve", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "invalid choice: 'serve'" in refused.stderr


def test_the_floors_are_the_versions_that_generated_the_bindings() -> None:
    bindings = list((wanted_home("proto") / "demur_proto" / "v1").glob("*_pb2*.py"))
    text = "".join(path.read_text(encoding="utf-8") for path in bindings)
    generated = {
        "grpcio": set(re.findall(r"^GRPC_GENERATED_VERSION = '(.+)'$", text, re.MULTILINE)),
        "protobuf": set(re.findall(r"^# Protobuf Python Version: (.+)$", text, re.MULTILINE)),
    }
    floors = {
        requirement.name: {part.version for part in requirement.specifier if part.operator == ">="}
        for requirement in map(Requirement, PROJECT["project"]["dependencies"])
    }

    assert generated == {name: floors[name] for name in generated}
