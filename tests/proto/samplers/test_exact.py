"""The sampler of a device: no seed, no kept bits, and the certified law."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.proto.samplers.replay import recorded

import demur_proto.samplers
from demur_proto.errors import ParameterError
from demur_proto.samplers.base import Sampler
from demur_proto.samplers.exact import KEPT, ExactSampler
from demur_proto.samplers.gaussian import RoundedGaussianSampler

TWICE_IN_A_FORK = """
import os
from demur_proto.samplers.exact import ExactSampler

mine = ExactSampler()
mine.gaussian(1e9, reports=1, dimension=3)  # so that there is something to copy
if not (child := os.fork()):
    print("child", *mine.words(8), *mine.gaussian(1e12, reports=1, dimension=4).ravel(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("parent", *mine.words(8), *mine.gaussian(1e12, reports=1, dimension=4).ravel())
"""


@pytest.mark.parametrize("seed", [1, None, 0, np.random.default_rng(1), b"seed", ()])
def test_a_seed_is_refused_whatever_it_is_called(seed: object) -> None:
    with pytest.raises(ParameterError, match=r"^seed must be left out: .*, got one$"):
        ExactSampler(seed)
    with pytest.raises(ParameterError, match=r"^seed must be left out"):
        ExactSampler(seed=seed)
    with pytest.raises(ParameterError, match=r"^rng must be left out"):
        ExactSampler(rng=seed)


def test_nothing_among_the_samplers_knows_a_seeded_generator() -> None:
    (folder,) = demur_proto.samplers.__path__
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in Path(folder).glob("*.py")]
    names = {
        name
        for tree in trees
        for node in ast.walk(tree)
        for name in (getattr(node, "attr", None), getattr(node, "module", None))
        if name is not None
    }

    assert len(trees) >= 5
    assert "demur_proto.samplers.base" in names
    forbidden = {name for name in names if "random" in name or "Generator" in name}
    assert forbidden == {"urandom"}  # the operating system's bits


def test_it_is_a_sampler_with_a_name() -> None:
    mine: Sampler = ExactSampler()

    noise = mine.gaussian(16.0, reports=3, dimension=5)
    coins = mine.uniform(reports=3, dimension=5)

    assert mine.name == "exact"
    assert (noise.dtype, noise.shape) == (np.dtype(np.int64), (3, 5))
    assert (coins.dtype, coins.shape) == (np.dtype(np.float64), (3, 5))
    assert (mine.words(7).dtype, mine.words(7).shape) == (np.dtype(np.uint64), (7,))
    assert mine.gaussian(16.0, reports=0, dimension=5).shape == (0, 5)


def test_noise_is_the_certified_law_of_what_the_system_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system, alone = recorded("system", words=100), recorded("system", words=100)
    monkeypatch.setattr(os, "urandom", lambda size: system.words(size // 8).tobytes())

    noise = ExactSampler().gaussian(7600.0, reports=10, dimension=5)

    wanted = RoundedGaussianSampler(7600.0).draw(50, alone)
    assert noise.tolist() == wanted.reshape(10, 5).tolist()
    assert system.left == alone.left == 0


def test_coins_are_the_leading_53_bits_of_words(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [0, 1 << 11, 1 << 63, (1 << 64) - 1]
    monkeypatch.setattr(os, "urandom", lambda _: np.array(words, dtype="<u8").tobytes())

    coins = ExactSampler().uniform(reports=2, dimension=2)

    assert coins.tolist() == [[0.0, 2.0**-53], [0.5, 1 - 2.0**-53]]


def test_two_samplers_and_two_draws_never_agree() -> None:
    first, second = ExactSampler(), ExactSampler()

    drawn = [each.words(2).tolist() for each in (first, second, first, second)]

    assert len({tuple(words) for words in drawn}) == 4  # but for 2⁻¹²⁵


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_never_repeats_bits() -> None:
    # In a fresh interpreter: one that has threads, as gRPC's, should not be forked.
    done = subprocess.run(
        [sys.executable, "-c", TWICE_IN_A_FORK], capture_output=True, text=True, check=True
    )

    (who, *child), (whose, *parent) = (line.split() for line in done.stdout.splitlines())
    assert (who, whose, len(child), len(parent)) == ("child", "parent", 12, 12)
    assert not set(child) & set(parent)


def test_tables_are_kept_for_as_many_widths_as_it_says() -> None:
    mine = ExactSampler()

    for steps in (1.0, 2.0, 1.0, *np.linspace(3.0, 4.0, 2 * KEPT).tolist()):
        mine.gaussian(steps, reports=1, dimension=1)

    assert mine._gaussian.cache_info().currsize == KEPT
    assert mine._gaussian.cache_info().hits == 1


def test_what_was_kept_lets_no_wrong_argument_pass() -> None:
    mine = ExactSampler()
    mine.gaussian(1.0, reports=1, dimension=1)

    for steps in (True, 0.0, -1.0, float("nan"), float("inf"), 2.0**59, None, "1"):
        with pytest.raises(ParameterError, match=r"^steps must be"):
            mine.gaussian(steps, reports=1, dimension=1)  # type: ignore[arg-type]
    for reports, dimension in ((-1, 1), (1, -1), (True, 1), (1, 0.5), (-1, -1)):
        with pytest.raises(ParameterError, match=r"^(reports|dimension) must be an integer >= 0"):
            mine.gaussian(1.0, reports=reports, dimension=dimension)  # type: ignore[arg-type]
        with pytest.raises(ParameterError, match=r"^(reports|dimension) must be an integer >= 0"):
            mine.uniform(reports=reports, dimension=dimension)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"^count must be an integer >= 0"):
        mine.words(-1)
