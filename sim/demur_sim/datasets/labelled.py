"""Labelled data: what a classifier learns from, and what it is tested on."""

import csv
import gzip
import hashlib
import math
import re
import struct
import zlib
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from demur_proto.arrays import DAMAGE, Integers
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import DataError, ParameterError
from demur_proto.models.base import MOST_CLASSES, Examples, Inputs, check_people
from demur_proto.models.features import FeatureMap
from demur_sim.datasets.events import SHOWN, Lines, shown

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labelled:
    """Some examples with their labels.

    Raises:
        ParameterError: the arrays do not fit together.

    >>> Labelled(examples=np.zeros((3, 28, 28)), labels=np.array([5, 0, 4])).number
    3
    """

    examples: Array = field(repr=False)  #: flat inputs [m, inputs], or images [m, height, width]
    labels: Integers = field(repr=False)  #: [m], 0 or above

    def __post_init__(self) -> None:
        if self.examples.ndim not in (2, 3) or self.examples.dtype.kind not in "uif":
            shown = (str(self.examples.dtype), self.examples.shape)
            raise ParameterError("examples", shown, "numbers of shape [m, inputs] or [m, h, w]")
        if self.labels.shape != (len(self.examples),) or self.labels.dtype != np.int64:
            shown = (str(self.labels.dtype), self.labels.shape)
            raise ParameterError("labels", shown, f"int64 of shape [{len(self.examples)}]")
        low = int(self.labels.min(initial=0))
        if low < 0:
            raise ParameterError("labels", low, "0 or above")

    @classmethod
    def of(cls, examples: Array, labels: Array) -> "Labelled":
        """With labels of any type of integers.

        Raises:
            ParameterError: the labels are no integers, or the arrays do not fit together.

        >>> Labelled.of(np.zeros((1, 2)), np.array([3], dtype=np.uint8)).labels
        array([3])
        """
        if labels.dtype.kind not in "ui" or labels.ndim != 1:
            raise ParameterError("labels", (str(labels.dtype), labels.shape), "integers [m]")
        flat: Integers = labels.reshape(-1).astype(np.int64)
        return cls(examples=examples, labels=flat)

    @property
    def number(self) -> int:
        """How many examples there are, m."""
        return len(self.examples)

    def inputs(self, features: FeatureMap | None = None) -> Inputs:
        """What a model sees of them [m, inputs]: features of images, or flat inputs as they are.

        Raises:
            ParameterError: images without a feature map, or a map for others.

        >>> flat = Labelled(examples=np.array([[1, 2]]), labels=np.array([0]))
        >>> flat.inputs()
        array([[1., 2.]])
        """
        if features is not None:
            return features.of(self.examples)  # type: ignore[arg-type]  # the map looks itself
        if self.examples.ndim != 2:
            raise ParameterError("features", features, "a feature map, for images")
        kept = np.float32 if self.examples.dtype == np.float32 else np.float64
        inputs: Inputs = self.examples.astype(kept, copy=False)  # type: ignore[assignment]
        return inputs

    def split(self, held_out: int, rng: np.random.Generator) -> tuple["Labelled", "Labelled"]:
        """All but so many of them, and those, drawn at random; each part in the order they came.

        Raises:
            ParameterError: there are fewer.

        >>> all_of_it = Labelled(examples=np.eye(3), labels=np.array([0, 1, 2]))
        >>> [part.number for part in all_of_it.split(1, np.random.default_rng(1))]
        [2, 1]
        """
        check_integer("held_out", held_out, 0, self.number)
        out = np.zeros(self.number, dtype=bool)
        out[rng.permutation(self.number)[:held_out]] = True
        kept, held = (
            Labelled(examples=self.examples[which], labels=self.labels[which])
            for which in (~out, out)
        )
        return kept, held


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelledData:
    """Examples to learn from and examples to test on. No label of either is outside the classes.

    Raises:
        ParameterError: the two do not fit together, or a label is out of range.
    """

    name: str
    train: Labelled
    test: Labelled
    classes: int  #: labels, 0 to classes − 1; 2 to 2^12

    def __post_init__(self) -> None:
        check_integer("classes", self.classes, 2, MOST_CLASSES)
        if self.train.examples.shape[1:] != self.test.examples.shape[1:]:
            shape = list(self.train.examples.shape[1:])
            raise ParameterError(
                "test", list(self.test.examples.shape[1:]), f"examples of shape {shape} as in train"
            )
        for name, part in (("train", self.train), ("test", self.test)):
            high = int(part.labels.max(initial=0))
            if high >= self.classes:
                expected = f"from 0 to {self.classes - 1}"
                raise ParameterError(f"labels of {name}", high, expected)

    @classmethod
    def of(cls, name: str, train: Labelled, test: Labelled) -> "LabelledData":
        """With as many classes as the labels to learn from need.

        >>> some = Labelled(examples=np.zeros((2, 3)), labels=np.array([0, 4]))
        >>> LabelledData.of("mine", some, some).classes
        5
        """
        classes = int(train.labels.max(initial=1)) + 1
        return cls(name=name, train=train, test=test, classes=classes)


# Who owns which examples: one each, some each, or each with favourite labels.

MOST_EXAMPLES = 1 << 31
LEAST_ALPHA, LARGEST_ALPHA = 1e-6, 1e6  #: beyond, people have one label, or are all alike


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Deal:
    """Examples dealt to people, each at most once.

    Raises:
        ParameterError: the arrays do not fit together.

    >>> Deal(order=np.array([2, 0, 1]), people=np.array([0, 1, 3])).examples(
    ...     np.eye(3), np.array([7, 8, 9])).labels
    array([9, 7, 8])
    """

    order: Integers = field(repr=False)  #: numbers of examples, person after person
    people: Integers = field(repr=False)  #: person i has order[people[i]:people[i + 1]]; [n + 1]

    def __post_init__(self) -> None:
        check_people(self.people, len(self.order))

    def examples(self, inputs: Inputs, labels: Integers) -> Examples:
        """The people with these examples; a copy in the order of people.

        Args:
            inputs: [m, inputs], of all examples.
            labels: [m].

        Raises:
            ParameterError: there are fewer than were dealt.
        """
        if len(inputs) <= self.order.max(initial=-1) or len(labels) != len(inputs):
            expected = f"at least {self.order.max(initial=-1) + 1}, with one label each"
            raise ParameterError("inputs", (len(inputs), len(labels)), expected)
        return Examples(inputs=inputs[self.order], labels=labels[self.order], people=self.people)


def deal_equally(examples: int, *, per_person: int, rng: np.random.Generator) -> Deal:
    """Deal so many examples to each person at random; the last one gets what is left over.

    Args:
        examples: how many there are, m; 0 to 2^31.
        per_person: how many each gets, k; >= 1. With 1 every example is a person.
        rng: public; who gets what.

    Raises:
        ParameterError: an argument is outside its range.

    >>> deal_equally(7, per_person=3, rng=np.random.default_rng(1)).people
    array([0, 3, 6, 7])
    """
    check_integer("examples", examples, 0, MOST_EXAMPLES)
    check_integer("per_person", per_person, 1, MOST_EXAMPLES)
    return Deal(order=rng.permutation(examples), people=_offsets(examples, per_person))


def deal_skewed(
    labels: Integers, *, per_person: int, alpha: float, rng: np.random.Generator
) -> Deal:
    """Deal so many examples to each person, who has favourite labels.

    A person's labels are drawn with probabilities from a Dirichlet distribution with the parameter αp, p
    the shares of labels among all examples, and without putting back: a label that has run out leaves
    its place to the others. So all examples are dealt, and the last people get what others left.
    α → 0 gives people of one label, α → ∞ people like everyone.

    Args:
        labels: of all examples [m]; ≥ 0.
        per_person: how many each gets, k; >= 1. The last person may get fewer.
        alpha: α; 10^-6 to 10^6.
        rng: public; who gets what.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Hsu, Qi & Brown 2019, arXiv:1909.06335, section 3.1.

    >>> deal = deal_skewed(
    ...     np.array([0, 1] * 8), per_person=8, alpha=1e-6, rng=np.random.default_rng(1))
    >>> deal.order % 2  # one person has all of one label, the other all of the other
    array([1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0])
    """
    check_integer("per_person", per_person, 1, MOST_EXAMPLES)
    check_positive("alpha", alpha)
    if not LEAST_ALPHA <= alpha <= LARGEST_ALPHA:
        raise ParameterError("alpha", alpha, f"from {LEAST_ALPHA:g} to {LARGEST_ALPHA:g}")
    if labels.ndim != 1 or labels.dtype != np.int64 or labels.min(initial=0) < 0:
        raise ParameterError("labels", (str(labels.dtype), labels.shape), "int64 >= 0 of shape [m]")
    people = _offsets(len(labels), per_person)
    # Of each label its examples in random order, and how many of them are taken.
    shuffled = rng.permutation(len(labels))
    kinds, counts = np.unique(labels, return_counts=True)
    piles = [shuffled[labels[shuffled] == kind] for kind in kinds]
    taken = np.zeros(len(kinds), dtype=np.int64)
    parts = []
    for size in np.diff(people).tolist():
        wants = rng.dirichlet(alpha * counts / len(labels))
        while size:
            left = counts - taken
            shares = np.where(left > 0, wants, 0.0)
            if not shares.sum() > 0:  # none of the favourites is left
                shares = left.astype(np.float64)
            drawn = np.minimum(rng.multinomial(size, shares / shares.sum()), left)
            for kind in np.flatnonzero(drawn).tolist():
                parts.append(piles[kind][taken[kind] : taken[kind] + drawn[kind]])
            taken += drawn
            size -= int(drawn.sum())
    order = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    return Deal(order=order, people=people)


def _offsets(examples: int, per_person: int) -> Integers:
    people = -(-examples // per_person)
    return np.minimum(np.arange(people + 1) * per_person, examples)


# IDX files, the form in which MNIST and its relatives are published.

LARGEST_FILE = 1 << 30  #: bytes, unzipped

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | Path, *, sha256: str | None = None) -> Array:
    """Read the array of one IDX file, plain or gzipped.

    The file has two zero bytes, one for the type of its numbers, one for how many dimensions there are,
    each dimension as a 32-bit integer, and the numbers; all of it big-endian.

    Args:
        path: the file; its first bytes, not its name, say whether it is gzipped.
        sha256: hash of the unzipped file in hexadecimal digits, which is checked; None for any.

    Raises:
        DataError: the file cannot be read, is not as described, or has another hash. One line that
            names the file and what was expected.

    Source: LeCun, Cortes & Burges, The MNIST database of handwritten digits, yann.lecun.com/exdb/mnist.
    """
    content = _unzipped(path)
    if sha256 is not None and (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise DataError(f"{path}: expected a file of SHA-256 {sha256}, unzipped, got {found}")
    dimensions = content[3] if len(content) >= 4 else 0
    start = 4 + 4 * dimensions
    if content[:2] != b"\0\0" or not dimensions or content[2] not in _TYPES or len(content) < start:
        raise DataError(f"{path}: expected an IDX file, found other bytes")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    kind = np.dtype(_TYPES[content[2]])
    if len(content) - start != math.prod(shape) * kind.itemsize:
        raise DataError(
            f"{path}: expected {math.prod(shape)} numbers of {kind.itemsize} bytes after the first "
            f"{start} bytes, found {len(content) - start} bytes"
        )
    try:
        array: Array = np.frombuffer(content, dtype=kind, offset=start).reshape(shape)
    except ValueError:
        found = f"{dimensions} dimensions of up to {max(shape)}"
        raise DataError(f"{path}: expected the shape of an array, found {found}") from None
    return array.astype(kind.newbyteorder("="), copy=False)


def idx_bytes(array: Array) -> bytes:
    """An array of bytes as an IDX file holds it.

    >>> idx_bytes(np.array([[7, 8]], dtype=np.uint8)).hex(" ")
    '00 00 08 02 00 00 00 01 00 00 00 02 07 08'
    """
    if array.dtype != np.uint8:
        raise DataError(f"expected an array of bytes, got {array.dtype}")
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def _unzipped(path: str | Path) -> bytes:
    try:
        with Path(path).open("rb") as file:
            zipped = file.peek(2)[:2] == b"\x1f\x8b"
            raw = gzip.GzipFile(fileobj=file) if zipped else file
            content = raw.read(LARGEST_FILE + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DataError(f"{path}: expected a whole gzip file, found damage") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > LARGEST_FILE:
        raise DataError(f"{path}: expected at most {LARGEST_FILE} bytes, unzipped")
    return content


# Labelled data from a CSV file with one line for each example.

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LABEL = re.compile(r"[0-9]{1,9}(\.0*)?")


def read_labelled_csv(path: str | Path, *, label: str | None = None) -> Labelled:
    """Read examples from a CSV file, plain or gzipped, in UTF-8.

    All columns but one are inputs, finite numbers in the order in which they stand. The first line is a
    header if a cell of it is no number.

    Args:
        path: the file; its first bytes, not its name, say whether it is gzipped.
        label: column with the label, an integer from 0 to 4095; None for the last one.

    Raises:
        DataError: the file cannot be read, or is not as described. One line that names file, line
            and what was expected.
    """
    lines = Lines(path)
    rows = csv.reader(lines, strict=True)
    inputs: list[list[float]] = []
    labels: list[int] = []
    try:
        first = next(rows, None)
        if first is None:
            raise lines.fault("a line, found an empty file", line=1)
        if len(first) < 2:
            raise lines.fault("an input and a label at least", line=1)
        header = first if any(_number(cell) is None for cell in first) else None
        columns = len(first)
        at = _label_column(lines, header, label, columns=columns)
        for row in rows if header else chain([first], rows):
            if not row:
                continue  # an empty line holds no example
            if len(row) != columns:
                raise lines.fault(f"{columns} fields as in the first line, got {len(row)}")
            cell = row.pop(at)
            if not (_LABEL.fullmatch(cell) and float(cell) < MOST_CLASSES):
                raise lines.fault(
                    f"a label, an integer from 0 to {MOST_CLASSES - 1}, got {shown(cell)}"
                )
            labels.append(int(float(cell)))
            inputs.append([_finite(lines, cell) for cell in row])
    except csv.Error as error:
        raise lines.fault(f"well-formed CSV: {error}") from None
    if not labels:
        raise lines.fault("an example after the header, found none", line=lines.number + 1)
    return Labelled(examples=np.array(inputs), labels=np.array(labels))


def _label_column(
    lines: Lines, header: list[str] | None, label: str | None, *, columns: int
) -> int:
    if label is None:
        return columns - 1
    if header is None:
        raise lines.fault(f"a header with one column {label!r}, found numbers", line=1)
    if header.count(label) != 1:
        found = ", ".join(shown(each) for each in header[:SHOWN])
        raise lines.fault(f"one column {label!r}, found the columns {found}", line=1)
    return header.index(label)


def _number(cell: str) -> float | None:
    if not _NUMBER.fullmatch(cell):
        return None
    number = float(cell)
    return number if math.isfinite(number) else None


def _finite(lines: Lines, cell: str) -> float:
    number = _number(cell)
    if number is None:
        raise lines.fault(f"a finite number, got {shown(cell)}")
    return number


# Labelled data from a pair of IDX files: one with the examples, one with their labels.


def read_labelled_idx(examples: str | Path, labels: str | Path) -> Labelled:
    """Read examples from two IDX files, plain or gzipped, of any names.

    Args:
        examples: the file of flat inputs [m, inputs] or of images [m, height, width].
        labels: the file of their labels [m], integers from 0 to 4095.

    Raises:
        DataError: a file cannot be read, or is not as described. One line that names it and says what
            was expected.
    """
    inputs, answers = read_idx(examples), read_idx(labels)
    if inputs.ndim not in (2, 3):
        expected = "examples of shape [m, inputs] or [m, height, width]"
        raise DataError(f"{examples}: expected {expected}, got the shape {list(inputs.shape)}")
    if answers.ndim != 1 or answers.dtype.kind not in "ui":
        found = f"{answers.dtype} of shape {list(answers.shape)}"
        raise DataError(f"{labels}: expected labels, integers of shape [m], got {found}")
    if len(answers) != len(inputs):
        expected = f"{len(inputs)} labels, one for each example of {examples}"
        raise DataError(f"{labels}: expected {expected}, got {len(answers)}")
    for label in (answers.min(initial=0), answers.max(initial=0)):
        if not 0 <= int(label) < MOST_CLASSES:
            expected = f"labels, integers from 0 to {MOST_CLASSES - 1}"
            raise DataError(f"{labels}: expected {expected}, got {label}")
    try:
        return Labelled.of(inputs, answers)
    except ParameterError as error:
        raise DataError(f"{examples}: {error}") from None


# Labelled data from a NumPy archive.


def read_labelled_npz(
    path: str | Path,
    *,
    train_inputs: str = "x_train",
    train_labels: str = "y_train",
    test_inputs: str = "x_test",
    test_labels: str = "y_test",
) -> LabelledData:
    """Read examples from an NPZ file with four arrays. Nothing in it is ever run.

    Args:
        path: the file.
        train_inputs: its array of flat inputs [m, inputs] or images [m, height, width].
        train_labels: its array of their labels, integers from 0 to 4095.
        test_inputs: likewise, to test on.
        test_labels: likewise.

    Raises:
        DataError: the file cannot be read, or is not as described. One line that names file, array
            and what was expected.
    """
    keys = (train_inputs, train_labels, test_inputs, test_labels)
    try:
        with Path(path).open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"{path}: expected a NumPy archive, found a single array")
            found = ", ".join(map(repr, archive.files)) or "none"
            for key in keys:
                if key not in archive.files:
                    raise DataError(f"{path}: expected an array {key!r}, found {found}")
            arrays = [_array(path, archive, key) for key in keys]
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except DAMAGE as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: expected a whole NumPy archive, found other bytes") from None
    parts = []
    for at in (0, 2):
        (examples, labels), key = arrays[at : at + 2], keys[at + 1]
        if labels.dtype.kind not in "ui" or labels.ndim != 1:
            shown = f"{labels.dtype} of shape {list(labels.shape)}"
            raise DataError(f"{path}: {key}: expected integers of shape [m], got {shown}")
        numbers = labels.astype(np.int64)  # what is beyond becomes negative
        wrong = np.flatnonzero((numbers < 0) | (numbers >= MOST_CLASSES))
        if len(wrong):
            raise DataError(
                f"{path}: {key}[{wrong[0]}]: expected a label, an integer from 0 to "
                f"{MOST_CLASSES - 1}, got {labels[wrong[0]]}"
            )
        try:
            parts.append(Labelled.of(examples, labels))
        except ParameterError as error:
            where = keys[at] if error.name == "examples" else key
            raise DataError(f"{path}: {where}: {error}") from None
    try:
        return LabelledData.of(Path(path).stem, *parts)
    except ParameterError as error:
        raise DataError(f"{path}: {error}") from None


def _array(path: str | Path, archive: "np.lib.npyio.NpzFile", key: str) -> Array:
    try:
        array: Array = archive[key]
    except ValueError:
        raise DataError(f"{path}: {key}: expected an array of numbers, found other bytes") from None
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError(f"{path}: {key}: expected finite numbers, found others")
    return array
