"""Build the wheel of a device alone: demur_proto and demur_client, and a command that runs them.

    .ci/device_wheel.py build/dist-device

Its metadata are those of the whole project, but for what a device does not carry.
"""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = ("version", "requires-python", "keywords", "classifiers", "dependencies")
PACKAGES = ("demur_proto", "demur_client")


def pyproject() -> str:
    """What builds it. Strings and lists of them look the same in JSON and in TOML."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    fields = {
        "name": "demur-device",
        "description": "A device of demur: one person's budget for local differential privacy",
        "license": project["license"].split(" AND ")[0],  # no data of others come along
        "license-files": ["LICENSE"],
        **{name: project[name] for name in KEPT},
    }
    return "\n".join(
        [
            "[project]",
            *(f"{name} = {json.dumps(value)}" for name, value in fields.items()),
            "[project.scripts]",
            'demur = "demur_client.cli:main"',
            "[build-system]",
            'requires = ["hatchling>=1.27"]',
            'build-backend = "hatchling.build"',
            "[tool.hatch.build.targets.wheel]",
            f"packages = {json.dumps(PACKAGES)}",
        ]
    )


def main() -> int:
    """Build it into the folder named on the command line, beside which it is put together."""
    (out,) = map(Path, sys.argv[1:])
    source = out.resolve().with_name(f"{out.name}-source")
    for folder in (out, source):
        shutil.rmtree(folder, ignore_errors=True)
    source.mkdir(parents=True)
    for package in PACKAGES:
        home = ROOT / package.removeprefix("demur_") / package
        shutil.copytree(home, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "LICENSE", source)
    (source / "pyproject.toml").write_text(pyproject(), encoding="utf-8")
    build = ["-m", "build", "--quiet", "--wheel", "--no-isolation", "--outdir", str(out)]
    return subprocess.run([sys.executable, *build, str(source)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
