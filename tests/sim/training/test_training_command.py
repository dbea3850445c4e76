"""`demur train`: what it prints, what it writes, and what it says of what is wrong."""

import csv
import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demur_proto.models.definition import read_model
from demur_sim.cli import main
from demur_sim.datasets.digits import load_digits
from demur_sim.datasets.labelled import idx_bytes

TINY = [
    *("--set", "data.people=100", "--set", "budget=3", "--set", "steps=4"),
    *("--set", "features.cell=7", "--set", "features.bins=4"),
]
QUICK = ["train", "digits", *TINY, "--workers", "1"]


def fails(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """The one line that a command says before it gives up."""
    assert main(arguments) == code
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("demur: error: ")
    return line.removeprefix("demur: error: ")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "out"
    counts = ["--set", "counts.every=2", "--set", "counts.errors=0.2"]
    assert main([*QUICK, *counts, "--quiet", "--out", str(folder)]) == 0
    return folder


def test_everything_that_is_kept(trained: Path) -> None:
    assert sorted(file.name for file in trained.iterdir()) == [
        *("checkpoint.npz", "curve.csv", "model.bin", "plot.png", "studies.json", "summary.json")
    ]
    assert (trained / "plot.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_summary_holds_the_whole_promise_and_no_less_than_that_of_simulate(
    trained: Path,
) -> None:
    summary = json.loads((trained / "summary.json").read_text())

    assert {
        *("scenario", "kind", "seed", "fidelity", "workers", "devices", "rounds", "reports"),
        *("guarantee", "sigma", "budget", "simulator_truth", "wall_s", "peak_rss_mb"),
        *("accuracy", "steps", "theta_sha256", "arithmetic", "ended", "final_step"),
    } <= summary.keys()
    assert (summary["kind"], summary["arithmetic"]) == ("training", "grid")
    assert (summary["devices"], summary["steps"], summary["reports"]) == (100, 4, 400)
    guarantee = summary["guarantee"]
    assert (guarantee["unit"], guarantee["neighbour"]) == ("device", "zero-out")
    assert (guarantee["epsilon"], guarantee["delta"]) == (1.0, 1e-5)
    assert guarantee["between_two_people"]["epsilon"] == 2.0
    assert guarantee["studies"].keys() == {"gradients", "errors"}
    squares = [each["in_measure"] ** 2 for each in guarantee["studies"].values()]
    assert guarantee["in_measure"] == pytest.approx(sum(squares) ** 0.5, rel=1e-12)
    assert "not part of the promise" in guarantee["tuning"]
    assert guarantee["tuning"] in guarantee["statement"]
    assert "protects nobody" in guarantee["statement"]
    assert summary["simulator_truth"]["largest_share_spent"] <= 1
    assert summary["simulator_truth"]["devices_over_budget"] == 0


def test_the_model_is_a_file_that_devices_and_analysts_read(trained: Path) -> None:
    summary = json.loads((trained / "summary.json").read_text())

    model = read_model((trained / "model.bin").read_bytes())

    assert model.hash.hex() == summary["model_sha256"]
    theta = model.value.theta
    assert hashlib.sha256(theta.astype("<f8").tobytes()).hexdigest() == summary["theta_sha256"]
    test = load_digits().test
    assert model.value.features is not None
    inputs = model.value.features.of(test.examples)  # type: ignore[arg-type]  # images
    architecture: Any = model.value.architecture
    right = architecture.predict(theta, inputs) == test.labels
    assert right.mean() == pytest.approx(summary["accuracy"], abs=1e-12)


def test_the_curve_has_a_line_for_each_step(trained: Path) -> None:
    summary = json.loads((trained / "summary.json").read_text())
    with (trained / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))

    assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
    assert [float(row["accuracy"]) for row in rows] == summary["curve"]["accuracy"]
    assert [bool(row["errors"]) for row in rows] == [False, True, False, True]
    assert rows[0]["simulator_truth_active"] == "100"


def test_a_person_reads_the_promise_with_unit_neighbour_and_view(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUICK, "--out", str(tmp_path)]) == 0

    said = capsys.readouterr()
    assert said.err == ""
    assert "(1, 1e-05), unit one device, neighbour zero-out, view aggregate" in said.out
    assert "tuning: what was tried in order to choose the settings" in said.out
    assert "% of 2,000 examples to test on" in said.out
    assert all(len(line) <= 110 for line in said.out.splitlines() if str(tmp_path) not in line)


def test_json_is_the_summary_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUICK, "--json", "--out", str(tmp_path)]) == 0

    said = capsys.readouterr()
    assert said.err == ""
    assert json.loads(said.out) == json.loads((tmp_path / "summary.json").read_text())


def test_the_shipped_scenarios_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["digits", "mnist"]

    assert main(["simulate", "--list", "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert names == ["cdnow", "cdnow-amounts", "cdnow-weekly", "states", "telemetry"]


def test_a_killed_training_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    long = [*QUICK, "--set", "steps=80", "--json", "--out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "demur_sim.cli", *long, str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        deadline = time.monotonic() + 60
        while not (folder / "checkpoint.npz").exists():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (folder / "summary.json").exists()
    with np.load(folder / "checkpoint.npz") as kept:
        assert json.loads(kept["about"].tobytes())["number"] < 80

    assert main([*long, str(folder), "--resume"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    assert main([*long, str(tmp_path / "other")]) == 0
    whole = json.loads(capsys.readouterr().out)

    for changing in ("wall_s", "peak_rss_mb"):
        del resumed[changing], whole[changing]
    assert resumed == whole


# ---- what is wrong ---------------------------------------------------------------------------


def test_a_scenario_of_the_other_kind_is_named_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert fails(capsys, "simulate", "digits") == (
        "kind in digits must be linear, histogram or prefix; demur train runs this one, got 'training'"
    )
    assert fails(capsys, "train", "cdnow") == (
        "kind in cdnow must be training; demur simulate runs the others, got 'linear'"
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("clip=nan", "clip in --set must be a finite number > 0, got nan"),
        ("epsilon=0", "epsilon in --set must be a finite number > 0, got 0"),
        ("algorithm=sgd", "must be private-gd or filtered-gd, got 'sgd'"),
        ("algorithm=private-gd", "steps in --set must be at most the budget, 3, in private-gd"),
        ("model.architecture=tree", "must be softmax or hidden_layer or module, got 'tree'"),
        (
            "model.architecture=module",
            "model.module in digits must be package.module:name, got None",
        ),
        ("model.module=torch_kit:small_chain", "or given with model.architecture = module"),
        ("model.hidden=3", "left out, or given with model.architecture = hidden_layer, got 3"),
        ("features.map=edges", "oriented_gradients or whitened_gradients, got 'edges'"),
        ("features.cells=2", "must be one of bins, block, cap, cell, map"),
        ("features.cell=3", "features.height must be a multiple of cell, 3, got 14"),
        ("optimiser.rate=-1", "optimiser.rate in --set must be a finite number > 0"),
        ("optimiser.momentum=1.0", "at least 0 and below 1, got 1.0"),
        ("optimizer.rate=1", "(did you mean optimiser.rate?)"),
        ("counts.every=2", "counts.every in --set must be given together with counts.errors"),
        ("counts.every=9", "counts.every"),
        ("counts.patience=2", "counts.errors"),
        ("data.source=mine.txt", "must be digits, mnist, the path of a .npz or .csv file, or"),
        ("data.labels=mine", "data.labels in --set must be left out for digits, got 'mine'"),
        ("data.test_labels=mine", "data.test_labels in --set must be left out for digits"),
        ("data.people=7501", "data.people must be at most 7500, all there are, got 7501"),
        ("data.alpha=-1", "data.alpha in --set must be 0, or from 1e-06 to 1e+06, got -1"),
        ("data.alpha=1e7", "data.alpha in --set must be 0, or from 1e-06 to 1e+06"),
        ("data.alpha=nan", "data.alpha in --set must be 0, or from 1e-06 to 1e+06"),
        ("data.held_out=7500", "data.held_out must be fewer than the examples, 7500"),
        ("data.sha256=12", "64 hexadecimal digits"),
        ("data=3", "must be a table"),
        ("dishonest=100", "dishonest"),
        ("view=everything", "must be local or aggregate"),
    ],
)
def test_a_bad_setting_is_one_line(
    setting: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert message in fails(capsys, *QUICK, "--set", setting, "--out", str(tmp_path))


def save_npz(path: Path, **changes: Any) -> Path:
    rng = np.random.default_rng(1)
    arrays: dict[str, Any] = {
        "x_train": rng.random((20, 3)),
        "y_train": np.arange(20) % 3,
        "x_test": rng.random((6, 3)),
        "y_test": np.arange(6) % 3,
    }
    np.savez(path, **{**arrays, **changes})
    return path


def own(path: Path, *more: str) -> list[str]:
    """A scenario of somebody's own data, and the command that trains it."""
    toml = path.with_name("own.toml")
    toml.write_text(
        'name = "own"\nkind = "training"\nepsilon = 4.0\nbudget = 2\nsteps = 3\n'
        f'[data]\nsource = "{path.name}"\n'
    )
    out = ["--out", str(path.with_name("out")), "--workers", "1", "--json"]
    return ["train", str(toml), *out, *more]


def test_data_of_ones_own_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save_npz(tmp_path / "mine.npz")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()

    assert main(own(path, "--set", f"data.sha256={sha256}")) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["devices"], summary["parameters"], summary["tested"]) == (20, 12, 6)


@pytest.mark.parametrize(("alpha", "per_person"), [("0", "3"), ("0.5", "3"), ("0.5", "1")])
def test_people_with_several_examples_train(
    alpha: str, per_person: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save_npz(tmp_path / "mine.npz")
    dealing = ["--set", f"data.alpha={alpha}", "--set", f"data.per_person={per_person}"]
    counts = ["--set", "counts.every=1", "--set", "counts.errors=0.5"]

    assert main(own(path, *dealing, *counts)) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["devices"] == -(-20 // int(per_person))


def test_a_csv_trains_with_a_hidden_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.csv"
    rows = [f"{x},{(x * 7) % 5},{x % 2}" for x in range(12)]
    path.write_text("\n".join(["a,b,kind", *rows]) + "\n")
    hidden = ["--set", "model.architecture=hidden_layer", "--set", "model.hidden=3"]

    assert main(own(path, "--set", "data.held_out=4", "--set", "data.label=kind", *hidden)) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["devices"], summary["parameters"]) == (8, 3 * 3 + 4 * 2)


def save_idx(folder: Path, *, suffix: str = "") -> Path:
    """Twenty images to learn from, and six to test on; the first is the path of the images."""
    rng = np.random.default_rng(1)
    for part, number in (("some", 20), ("test", 6)):
        images = idx_bytes(rng.integers(0, 256, (number, 4, 4)).astype(np.uint8))
        labels = idx_bytes((np.arange(number) % 3).astype(np.uint8))
        for what, content in (("images", images), ("labels", labels)):
            written = gzip.compress(content) if suffix else content
            (folder / f"{part}-{what}{suffix}").write_bytes(written)
    return folder / f"some-images{suffix}"


def of_idx(suffix: str, *names: str) -> list[str]:
    """What names the other files of a pair, in a file or on the command line."""
    files = {"labels": "some-labels", "test": "test-images", "test_labels": "test-labels"}
    return [f'{name} = "{files[name]}{suffix}"' for name in names]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_any_pair_of_idx_files_trains(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save_idx(tmp_path, suffix=suffix)
    command = own(path, "--set", "features.map=pixels")
    toml = Path(command[1])
    lines = of_idx(suffix, "labels", "test", "test_labels")
    toml.write_text(toml.read_text() + "\n".join(lines) + "\n")

    assert main(command) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["devices"], summary["parameters"], summary["tested"]) == (20, 51, 6)


@pytest.mark.parametrize(
    ("names", "more", "message"),
    [
        ((), [], "or that of an IDX file with its labels in data.labels, got '"),
        (("labels",), [], "data.test in own.toml must be given for an IDX file"),
        (("labels", "test"), [], "data.test_labels in own.toml must be given together with data"),
        (("labels", "test_labels"), ["data.held_out=3"], "left out for "),
        (("labels",), ["data.held_out=3", "data.label=kind"], "data.label in --set must be left"),
        (("labels",), ["data.held_out=3", "data.folder=x"], "data.folder in --set must be left"),
    ],
)
def test_idx_files_that_are_named_by_half_are_one_line(
    names: tuple[str, ...],
    more: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sets = [each for one in more for each in ("--set", one)]
    command = own(save_idx(tmp_path), *sets)
    toml = Path(command[1])
    toml.write_text(toml.read_text() + "\n".join(of_idx("", *names)) + "\n")

    said = fails(capsys, *command).replace(f"{tmp_path}/", "")

    assert message in said


def test_a_gzipped_csv_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.csv.gz"
    rows = [f"{x},{(x * 7) % 5},{x % 2}" for x in range(12)]
    path.write_bytes(gzip.compress("\n".join(rows).encode()))

    assert main(own(path, "--set", "data.held_out=4")) == 0
    assert json.loads(capsys.readouterr().out)["devices"] == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.full((20, 3), np.nan)}, "x_train: expected finite numbers, found others"),
        ({"y_train": np.arange(20) - 1}, "y_train[0]: expected a label, an integer from 0 to 4095"),
        ({"y_test": np.full(6, 3)}, "labels of test must be from 0 to 2, got 3"),
        ({"x_test": np.zeros((6, 4))}, "test must be examples of shape [3] as in train"),
        ({"x_train": np.zeros((20, 3, 3)), "x_test": np.zeros((6, 3, 3))}, "for images"),
        ({"x_test": np.zeros((0, 3)), "y_test": np.zeros(0, int)}, "test: expected an example"),
    ],
)
def test_bad_data_are_one_line(
    changes: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save_npz(tmp_path / "mine.npz", **changes)

    assert message in fails(capsys, *own(path), code=2 if "for images" in message else 1)


def test_data_with_another_hash_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save_npz(tmp_path / "mine.npz")

    said = fails(capsys, *own(path, "--set", f"data.sha256={'0' * 64}"), code=1)

    assert f"expected SHA-256 {'0' * 64}, found " in said


def test_mnist_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DEMUR_DATA", raising=False)

    said = fails(capsys, "train", "mnist", "--out", str(tmp_path), code=1)

    assert "MNIST is not here: put " in said
    assert "DEMUR_DATA" in said


def test_mnist_with_another_hash_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / f"{name}-ubyte.gz").write_bytes(gzip.compress(b"\x00\x00\x08\x01" + bytes(8)))

    said = fails(
        capsys, "train", "mnist", "--set", f"data.folder={tmp_path}", "--out", str(tmp_path), code=1
    )

    assert "SHA-256" in said


def test_there_is_nothing_to_go_on_from(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = fails(capsys, *QUICK, "--resume", "--out", str(tmp_path), code=1)

    assert said.endswith("checkpoint.npz is not there: leave out --resume to begin")


def test_other_settings_or_other_bytes_do_not_go_on(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkpoint.npz").write_bytes((trained / "checkpoint.npz").read_bytes())
    resume = [*QUICK, "--resume", "--out", str(tmp_path)]

    said = fails(capsys, *resume, code=1)
    assert "counts.errors was 0.2, is 0.0; counts.every was 2, is 0" in said

    (tmp_path / "checkpoint.npz").write_bytes(b"something else")
    assert "expected a whole checkpoint, found other bytes" in fails(capsys, *resume, code=1)


def test_a_model_too_large_for_a_round_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    large = ["--set", "model.architecture=hidden_layer", "--set", "model.hidden=60000"]

    assert "parameters" in fails(capsys, *QUICK, *large, "--out", str(tmp_path))
