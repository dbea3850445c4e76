"""Check that a wheel holds every file of its packages that belongs there, and no other.

    .ci/check_wheel.py build/dist/demur-0.1.0-py3-none-any.whl
    .ci/check_wheel.py build/dist-device/demur_device-0.1.0-py3-none-any.whl

A new kind of data file has to be added to `BELONGS` first: whatever a wheel carries without
anybody having said so reaches every device.
"""

import sys
import zipfile
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: By the wheel's name, the packages that it holds.
PACKAGES = {
    "demur": (
        *("demur", "demur_proto", "demur_client", "demur_server", "demur_sim"),
        "demur_conformance",
    ),
    "demur_device": ("demur_proto", "demur_client"),
}
#: The folder in which a package is, where it is not named after it.
HOMES = {"demur": "sim", "demur_conformance": "sim"}
#: What it may take unpacked, bytes.
LARGEST = {"demur": 3_500_000, "demur_device": 2_000_000}
BELONGS = ("*.py", "demur_proto/v1/*_pb2*.pyi")
#: Whatever matches belongs there too, and something must match.
NEEDED = (
    "demur/py.typed",
    "demur_proto/py.typed",
    "demur_client/py.typed",
    "demur_server/py.typed",
    "demur_sim/py.typed",
    "demur_conformance/py.typed",
    "demur_proto/v1/*.proto",
    "demur_proto/v1/*_pb2.pyi",
    "demur_client/data/*.service",
    "demur_server/store/migrations/versions/v*.py",
    "demur_sim/datasets/cdnow.csv.gz",
    "demur_sim/datasets/digits-*.idx.gz",
    "demur_sim/scenarios/*.toml",
)
NEVER = ("*/tests/*", "*/test_*.py", "*/conftest.py")
#: Of demur, and of the data that come along under others.
LICENSES = {
    "demur": ("LICENSE", "sim/demur_sim/datasets/LICENSES.md"),
    "demur_device": ("LICENSE",),
}
METADATA = ("METADATA", "RECORD", "WHEEL", "entry_points.txt")
#: What the metadata have to say; the digits are an adaptation of data under the second licence.
LICENSE = {"demur": "Apache-2.0 AND CC-BY-SA-3.0", "demur_device": "Apache-2.0"}


def fits(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a path inside the wheel matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def faults(wheel: Path) -> list[str]:
    """Everything that is wrong with the wheel, one line each."""
    distribution, version = wheel.name.split("-")[:2]
    info = f"{distribution}-{version}.dist-info"
    packages, licenses = PACKAGES[distribution], LICENSES[distribution]
    says = [
        f"License-Expression: {LICENSE[distribution]}",
        *(f"License-File: {name}" for name in licenses),
    ]
    needed = [name for name in NEEDED if name.split("/")[0] in packages]
    expected = {f"{info}/{name}" for name in METADATA}
    expected |= {f"{info}/licenses/{name}" for name in licenses}
    for package in packages:
        home = ROOT / HOMES.get(package, package.removeprefix("demur_"))
        for path in (home / package).rglob("*"):
            name = path.relative_to(home).as_posix()
            if path.is_file() and fits(name, BELONGS + NEEDED):
                expected.add(name)
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        unpacked = sum(each.file_size for each in archive.infolist())
        held = {name: archive.read(name) for name in names if name.startswith(f"{info}/")}
    said = held.get(f"{info}/METADATA", b"").decode().splitlines()
    other = [
        name
        for name in licenses
        if held.get(f"{info}/licenses/{name}") != (ROOT / name).read_bytes()
    ]
    return [
        *(f"lacks {name}" for name in sorted(expected - names)),
        *(f"holds {name}, which BELONGS does not name" for name in sorted(names - expected)),
        *(f"holds the test {name}" for name in sorted(names) if fits(name, NEVER)),
        *(f"lacks anything like {n}" for n in needed if not any(fits(x, (n,)) for x in names)),
        *(f"has another {name}" for name in other),
        *(f"does not say {line!r}" for line in says if line not in said),
        *([f"takes {unpacked:,} bytes unpacked"] if unpacked > LARGEST[distribution] else []),
    ]


def main() -> int:
    """Print the faults of the wheel named on the command line; 1 if there are any."""
    (wheel,) = map(Path, sys.argv[1:])
    found = faults(wheel)
    for fault in found:
        print(f"{wheel.name} {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
