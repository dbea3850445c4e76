import contextlib
import gzip
import hashlib
import io
import os
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demur_proto.errors import DataError, ParameterError
from demur_proto.models.features import OrientedGradients, Pixels
from demur_sim.datasets.digits import FILES, FOLDER, load_digits, load_mnist, smaller
from demur_sim.datasets.labelled import (
    Labelled,
    LabelledData,
    idx_bytes,
    read_idx,
    read_labelled_csv,
    read_labelled_idx,
    read_labelled_npz,
)

NUMBERS = "1,2.5,0\n-3,.5e1,2\n"

# ---- CSV -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "label"),
    [
        (NUMBERS, None),
        ("a,b,kind\n" + NUMBERS, None),
        ("a,b,kind\n" + NUMBERS, "kind"),
        ("kind,a,b\n0,1,2.5\n2.0,-3,5\n", "kind"),
        ("a,kind,b\n1,0,2.5\n-3,2,5\n\n", "kind"),
        (gzip.compress(NUMBERS.encode(), mtime=0), None),
        (NUMBERS.encode("utf-8-sig"), None),
        (NUMBERS.replace("\n", "\r\n"), None),
    ],
)
def test_all_forms_of_one_csv_say_the_same(
    tmp_path: Path, content: str | bytes, label: str | None
) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())

    found = read_labelled_csv(file, label=label)

    assert found.inputs().tolist() == [[1.0, 2.5], [-3.0, 5.0]]
    assert found.labels.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("content", "label", "line", "expected"),
    [
        ("", None, 1, "expected a line, found an empty file"),
        ("a,b\n", None, 2, "expected an example after the header, found none"),
        ("5\n", None, 1, "expected an input and a label at least"),
        (NUMBERS, "kind", 1, "expected a header with one column 'kind', found numbers"),
        ("a,b\n1,2\n", "kind", 1, "expected one column 'kind', found the columns 'a', 'b'"),
        ("kind,kind\n1,2\n", "kind", 1, "expected one column 'kind', found the columns"),
        (NUMBERS + "1,2,x\n", None, 3, "expected a label, an integer from 0 to 4095, got 'x'"),
        (NUMBERS + "1,2,-1\n", None, 3, "expected a label, an integer from 0 to 4095, got '-1'"),
        (NUMBERS + "1,2,4096\n", None, 3, "expected a label, an integer from 0 to 4095, got"),
        (NUMBERS + "1,2,1.5\n", None, 3, "expected a label, an integer from 0 to 4095, got '1.5'"),
        (NUMBERS + "1,nan,1\n", None, 3, "expected a finite number, got 'nan'"),
        (NUMBERS + "1,1e999,1\n", None, 3, "expected a finite number, got '1e999'"),
        (NUMBERS + "1,,1\n", None, 3, "expected a finite number, got ''"),
        (NUMBERS + "1,1\n", None, 3, "expected 3 fields as in the first line, got 2"),
        (NUMBERS + '1,"1\n', None, 3, "expected well-formed CSV: "),
    ],
)
def test_a_malformed_csv_is_one_line_with_its_number(
    tmp_path: Path, content: str, label: str | None, line: int, expected: str
) -> None:
    file = tmp_path / "x.csv"
    file.write_text(content)

    with pytest.raises(DataError) as caught:
        read_labelled_csv(file, label=label)

    assert str(caught.value).startswith(f"{file}:{line}: {expected}")
    assert "\n" not in str(caught.value)


@given(content=st.binary(max_size=100) | st.text(alphabet='01,.\n"\re-a').map(str.encode))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_content_whatever_gives_another_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "any"
    file.write_bytes(content)

    for read in (read_labelled_csv, read_labelled_npz, read_idx):
        with contextlib.suppress(DataError):
            read(file)


# ---- NPZ -------------------------------------------------------------------------------------


def npz(path: Path, **arrays: Any) -> Path:
    good = {
        "x_train": np.zeros((3, 2, 2), dtype=np.uint8),
        "y_train": np.array([0, 4, 1], dtype=np.uint8),
        "x_test": np.ones((1, 2, 2), dtype=np.uint8),
        "y_test": np.array([3], dtype=np.int32),
    }
    kept = {key: value for key, value in {**good, **arrays}.items() if value is not None}
    np.savez(path, **kept)
    return path


def test_an_archive_is_read_under_the_usual_names_or_others(tmp_path: Path) -> None:
    usual = read_labelled_npz(npz(tmp_path / "mine.npz"))
    swapped = read_labelled_npz(
        tmp_path / "mine.npz",
        train_inputs="x_test",
        train_labels="y_test",
        test_inputs="x_test",
        test_labels="y_test",
    )

    assert (usual.name, usual.classes) == ("mine", 5)
    assert usual.train.labels.tolist() == [0, 4, 1]
    assert usual.test.labels.dtype == np.int64
    assert swapped.train.examples.all()


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"x_train": None}, "expected an array 'x_train', found 'y_train', 'x_test', 'y_test'"),
        ({"y_train": np.array([0, 1])}, "y_train: labels must be int64 of shape [3]"),
        ({"y_train": np.array([0.0, 1, 2])}, "y_train: expected integers of shape [m], got float"),
        ({"y_train": np.array([0, -1, 2])}, "y_train[1]: expected a label, an integer from 0 to"),
        ({"y_test": np.array([2**64 - 1], dtype=np.uint64)}, "y_test[0]: expected a label"),
        ({"y_test": np.array([9])}, "labels of test must be from 0 to 4, got 9"),
        ({"x_test": np.ones((1, 3, 3))}, "test must be examples of shape [2, 2] as in train"),
        ({"x_train": np.full((3, 2, 2), np.nan)}, "x_train: expected finite numbers, found"),
        ({"x_train": np.array([{}] * 3)}, "x_train: expected an array of numbers, found other"),
        ({"x_train": np.array(["a"] * 3)}, "x_train: examples must be numbers of shape"),
    ],
)
def test_a_malformed_archive_is_one_line(
    tmp_path: Path, arrays: dict[str, Any], expected: str
) -> None:
    file = npz(tmp_path / "x.npz", **arrays)

    with pytest.raises(DataError) as caught:
        read_labelled_npz(file)

    assert str(caught.value).startswith(f"{file}: {expected}")
    assert "\n" not in str(caught.value)


def test_what_is_no_archive_is_one_line(tmp_path: Path) -> None:
    whole = npz(tmp_path / "x.npz").read_bytes()
    single = io.BytesIO()
    np.save(single, np.zeros(3))
    for content in (b"", b"hello", whole[:200], whole[:-30], single.getvalue()):
        (tmp_path / "y.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"expected a (whole )?NumPy archive, found"):
            read_labelled_npz(tmp_path / "y.npz")
    with pytest.raises(DataError, match="cannot be read: No such file or directory"):
        read_labelled_npz(tmp_path / "gone.npz")


# ---- IDX -------------------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [False, True])
def test_an_idx_file_is_read_as_it_was_written(tmp_path: Path, zipped: bool) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    content = idx_bytes(array)
    file = tmp_path / "x"
    file.write_bytes(gzip.compress(content) if zipped else content)

    found = read_idx(file, sha256=hashlib.sha256(content).hexdigest())

    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    ("code", "kind"), [(9, "i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")]
)
def test_idx_files_of_other_numbers_are_read_too(tmp_path: Path, code: int, kind: str) -> None:
    numbers = np.array([-3, 0, 100], dtype=kind)
    (tmp_path / "x").write_bytes(bytes([0, 0, code, 1, 0, 0, 0, 3]) + numbers.tobytes())

    found = read_idx(tmp_path / "x")

    assert found.tolist() == [-3, 0, 100]
    assert found.dtype.isnative


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "expected an IDX file, found other bytes"),
        (b"\0\0\x08\1\0", "expected an IDX file, found other bytes"),
        (b"\0\0\x07\1\0\0\0\0", "expected an IDX file, found other bytes"),
        (b"\0\0\x08\0", "expected an IDX file, found other bytes"),
        (b"\0\0\x08\1\0\0\0\2x", "expected 2 numbers of 1 bytes after the first 8 bytes, found 1"),
        (b"\0\0\x08\1\0\0\0\0x", "expected 0 numbers of 1 bytes after the first 8 bytes, found 1"),
        (b"\0\0\x0e\2" + b"\xff" * 8, "expected 18446744065119617025 numbers of 8 bytes"),
        (b"\0\0\x08\xff" + b"\0" * 1020, "expected the shape of an array, found 255 dimensions"),
        (b"\0\0\x08\3\0\0\0\0" + b"\xff" * 8, "expected the shape of an array, found 3 dim"),
        (gzip.compress(b"x" * 99, mtime=0)[:-9], "expected a whole gzip file, found damage"),
    ],
)
def test_a_malformed_idx_file_is_one_line(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "x").write_bytes(content)

    with pytest.raises(DataError) as caught:
        read_idx(tmp_path / "x")

    assert str(caught.value).startswith(f"{tmp_path}/x: {expected}")


def idx_file(path: Path, array: Any, *, zipped: bool = False) -> Path:
    content = idx_bytes(np.asarray(array, dtype=np.uint8))
    path.write_bytes(gzip.compress(content) if zipped else content)
    return path


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("shape", [(3, 4), (3, 2, 2)])
def test_a_pair_of_idx_files_of_any_names_is_labelled(
    tmp_path: Path, shape: tuple[int, ...], zipped: bool
) -> None:
    array = np.arange(12).reshape(shape)
    examples = idx_file(tmp_path / "pictures", array, zipped=zipped)
    labels = idx_file(tmp_path / "answers.anything", [2, 0, 1], zipped=not zipped)

    found = read_labelled_idx(examples, labels)

    np.testing.assert_array_equal(found.examples, array)
    assert found.labels.tolist() == [2, 0, 1]


WIDE = b"\0\0\x0b\x01\0\0\0\x01" + (4096).to_bytes(2, "big")  # one 16-bit integer
BELOW = b"\0\0\x09\x01\0\0\0\x01\xff"  # one signed byte
FLOAT = b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0"  # one single-precision number


@pytest.mark.parametrize(
    ("examples", "labels", "complaint"),
    [
        (idx_bytes(np.zeros(1, np.uint8)), WIDE, r"x: expected examples of shape \[m, inputs\] or"),
        (idx_bytes(np.zeros((1, 2), np.uint8)), WIDE, "y: expected labels, .* got 4096"),
        (idx_bytes(np.zeros((1, 2), np.uint8)), BELOW, "y: expected labels, .* got -1"),
        (idx_bytes(np.zeros((1, 2), np.uint8)), FLOAT, r"y: expected labels, .* got float32 of"),
        (idx_bytes(np.zeros((2, 2), np.uint8)), BELOW, "y: expected 2 labels, .* got 1"),
        (b"x", BELOW, "x: expected an IDX file, found other bytes"),
        (idx_bytes(np.zeros((1, 2), np.uint8)), b"", "y: expected an IDX file, found other bytes"),
    ],
)
def test_a_pair_that_does_not_fit_together_is_one_line(
    tmp_path: Path, examples: bytes, labels: bytes, complaint: str
) -> None:
    (tmp_path / "x").write_bytes(examples)
    (tmp_path / "y").write_bytes(labels)

    with pytest.raises(DataError, match=complaint) as caught:
        read_labelled_idx(tmp_path / "x", tmp_path / "y")

    assert len(str(caught.value).splitlines()) == 1


# ---- MNIST and digits ------------------------------------------------------------------------


def test_without_a_folder_mnist_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)

    with pytest.raises(DataError) as caught:
        load_mnist()

    assert "\n" not in str(caught.value)
    for part in (*FILES, FOLDER, "https://ossci-datasets.s3.amazonaws.com/mnist/"):
        assert part in str(caught.value)


def test_a_folder_without_the_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))

    with pytest.raises(DataError, match=f"^{tmp_path}: train-images-idx3-ubyte.gz is not there; "):
        load_mnist()


def test_files_of_mnists_names_with_other_contents_are_refused(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes(idx_bytes(np.zeros((1, 28, 28), dtype=np.uint8)))

    with pytest.raises(DataError, match="expected a file of SHA-256 ba891046e6505d7a"):
        load_mnist(tmp_path)


@pytest.mark.skipif(not os.environ.get(FOLDER), reason=f"{FOLDER} names no folder with MNIST")
def test_the_digits_are_mnists() -> None:
    mnist, digits = load_mnist(), load_digits()

    assert (mnist.train.number, mnist.test.number, mnist.classes) == (60_000, 10_000, 10)
    for every, large, small in ((8, mnist.train, digits.train), (5, mnist.test, digits.test)):
        assert small.labels.tolist() == large.labels[::every].tolist()
        levels = smaller(large.examples[::every])
        np.testing.assert_array_equal(small.examples, np.multiply(levels, 17))


def test_digits_are_small_and_what_they_say() -> None:
    digits = load_digits()
    files = [
        file
        for file in resources.files("demur_sim.datasets").iterdir()
        if file.name.startswith("digits-")
    ]

    assert digits.train.examples.shape == (7500, 14, 14)
    assert digits.test.examples.shape == (2000, 14, 14)
    assert np.unique(digits.train.examples).tolist() == list(range(0, 256, 17))
    assert np.bincount(digits.train.labels, minlength=10).min() > 600
    assert len(files) == 4
    assert sum(len(file.read_bytes()) for file in files) <= 400_000


def test_digits_can_be_told_apart_without_any_privacy() -> None:
    """A nearest class mean of pixels: 80 % is what it gives on MNIST as well."""
    digits = load_digits()
    pixels = Pixels(height=14, width=14)
    train, test = digits.train.inputs(pixels), digits.test.inputs(pixels)
    means = np.stack([train[digits.train.labels == label].mean(axis=0) for label in range(10)])

    apart = ((test[:, None] - means) ** 2).sum(axis=2)

    assert (apart.argmin(axis=1) == digits.test.labels).mean() > 0.75


# ---- values ----------------------------------------------------------------------------------


def test_inputs_are_features_of_images_or_flat_numbers_as_they_are() -> None:
    images = Labelled.of(np.zeros((2, 8, 8), dtype=np.uint8), np.array([0, 1]))
    flat = Labelled.of(np.ones((2, 3), dtype=np.float32), np.array([0, 1]))

    assert images.inputs(OrientedGradients(height=8, width=8)).shape == (2, 36)
    assert flat.inputs() is flat.examples
    with pytest.raises(ParameterError, match="features must be a feature map, for images"):
        images.inputs()
    with pytest.raises(ParameterError, match="images must be numbers of shape"):
        flat.inputs(Pixels(height=1, width=3))


def test_a_split_loses_and_repeats_nobody(rng: np.random.Generator) -> None:
    whole = Labelled.of(np.arange(20).reshape(10, 2), np.arange(10))

    kept, held = whole.split(3, rng)

    assert (kept.number, held.number) == (7, 3)
    assert sorted([*kept.labels, *held.labels]) == list(range(10))
    assert (held.examples[:, 0] == 2 * held.labels).all()
    with pytest.raises(ParameterError, match="held_out must be an integer >= 0 and <= 10"):
        whole.split(11, rng)


@pytest.mark.parametrize(
    ("wrong", "about"),
    [
        ({"classes": 4}, "labels of train must be from 0 to 3, got 4"),
        ({"classes": 1}, "classes must be an integer >= 2"),
        ({"classes": 5.0}, "classes must be an integer >= 2"),
    ],
)
def test_a_label_out_of_range_is_one_line(wrong: dict[str, Any], about: str) -> None:
    some = Labelled.of(np.zeros((2, 3)), np.array([0, 4]))

    with pytest.raises(ParameterError, match=about):
        LabelledData(**{"name": "x", "train": some, "test": some, "classes": 5, **wrong})


def test_nobodys_data_is_in_a_repr() -> None:
    some = Labelled.of(np.full((1, 2), 77.0), np.array([3]))

    assert repr(LabelledData.of("x", some, some)) == (
        "LabelledData(name='x', train=Labelled(), test=Labelled(), classes=4)"
    )
