"""No seed reaches a device: what runs there cannot be made to draw the same noise again."""

import ast
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import demur_client
import demur_proto
from demur_client.device import Device
from demur_proto.errors import ParameterError
from demur_proto.samplers.exact import ExactSampler

DEVICE = [
    path
    for package in (demur_proto, demur_client)
    for folder in package.__path__
    for path in sorted(Path(folder).rglob("*.py"))
    if "_pb2" not in path.name
]
FORBIDDEN = {
    *("seed", "rng", "random_state", "generator", "Generator", "default_rng", "RandomState"),
    *("random", "numpy.random"),  # whose randomness starts from a seed
}


def names_in(tree: ast.AST) -> Iterator[str]:
    """Parameters, keywords, attributes and imports: everything by which a seed could come in."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name) | ast.keyword(arg=str(name)) | ast.Attribute(attr=name):
                yield name
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)


def source_of(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"))


ALLOWED = {
    "local_hashing.py": {"seed"},  # the public number of a hash function; it makes nothing random
    "exact.py": {"seed"},  # taken in order to be refused
    # What a training starts from: public, and drawn by whoever trains.
    **{f"models/{name}.py": {"rng", "Generator", "random"} for name in ("base", "architectures")},
    # Public drawings, the same on every device, that a feature map is fitted to.
    "models/whitened_gradients.py": {"seed", "random"},
}
"""Where such a name stands for something else, by the file's name, or with its folder."""


@pytest.mark.parametrize("path", DEVICE, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nothing_that_runs_on_a_device_takes_a_seed_or_a_generator(path: Path) -> None:
    found = set(names_in(source_of(path)))

    folder = f"{path.parent.name}/{path.name}"
    assert not found & FORBIDDEN - ALLOWED.get(path.name, set()) - ALLOWED.get(folder, set())


def test_the_search_knows_a_seed_when_it_sees_one() -> None:
    for text in (
        "def f(seed): ...",
        "def f(*, rng): ...",
        "import random",
        "from numpy.random import default_rng",
        "x = np.random.default_rng(1)",
        "f(seed=1)",
    ):
        assert set(names_in(ast.parse(text))) & FORBIDDEN, text
    assert len(DEVICE) > 60


def test_a_devices_own_sampler_refuses_a_seed_and_is_the_default() -> None:
    with pytest.raises(ParameterError):
        ExactSampler(1)
    with pytest.raises(ParameterError):
        ExactSampler(seed=1)

    assert inspect.signature(Device).parameters["sampler"].default is None


def test_seeded_samplers_live_where_devices_cannot_import_them() -> None:
    spec = importlib.util.find_spec("demur_sim.engine.sampling")

    assert spec is not None
    for path in DEVICE:
        imported = {name.partition(".")[0] for name in names_in(source_of(path))}
        assert "demur_sim" not in imported
