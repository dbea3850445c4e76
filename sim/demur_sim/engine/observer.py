"""What a watcher sees: can somebody who never reads a payload tell two sets of devices apart?

The watcher sits on the wire. Of every device and round it knows whether a message went out, how
long it was, when it left and which disposition came back; no payload words and no ids. It holds
labelled examples of both sets, learns what it can from half of them and is judged on the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demur_proto.errors import ParameterError, UnsupportedError

FEWEST_DEVICES = 10  #: per set: half of them must fill one leaf of the classifier

_SPLIT = 0x73706C69  #: names our random stream among those of one seed
_SEGMENTS = 8
_QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)
_DTYPES = {"sent": "bool", "size_bytes": "int32", "status": "int8", "time_s": "float64"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Messages:
    """Everything about n devices' messages in t rounds, except what they say."""

    sent: npt.NDArray[np.bool_]  #: [n, t], t ≥ 1: a message went out
    size_bytes: npt.NDArray[np.int32]  #: [n, t]; 0 where nothing was sent
    status: npt.NDArray[np.int8]  #: [n, t] number of the disposition that came back; 0 for none
    time_s: npt.NDArray[np.float64]  #: [n, t] since the round arrived; NaN where nothing was sent

    def __post_init__(self) -> None:
        shape = np.shape(self.sent)
        if len(shape) != 2 or not shape[1]:
            raise ParameterError("sent", shape, "an array [n devices, t rounds] with t >= 1")
        for name, dtype in _DTYPES.items():
            array = getattr(self, name)
            kind = str(getattr(array, "dtype", type(array).__name__))
            if (kind, np.shape(array)) != (dtype, shape):
                raise ParameterError(name, f"{kind} {np.shape(array)}", f"{dtype} {shape}")
            valid = np.isfinite(array) if name == "time_s" else array >= 0
            empty = np.isnan(array) if name == "time_s" else array == 0
            wrong = array[~np.where(self.sent, valid, empty)]
            if wrong.size:
                expected = "finite, NaN" if name == "time_s" else ">= 0, 0"
                raise ParameterError(name, wrong[0].item(), f"{expected} where nothing was sent")

    def __len__(self) -> int:
        return len(self.sent)

    @property
    def rounds(self) -> int:
        """How many rounds were watched."""
        return int(self.sent.shape[1])

    def of(self, devices: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Messages:
        """The messages of these devices only: indices [k], or a mask [n]."""
        try:
            return Messages(**{name: getattr(self, name)[devices] for name in _DTYPES})
        except IndexError:
            expected = f"indices below {len(self)} or a mask of {len(self)}"
            raise ParameterError("devices", devices, expected) from None

    @classmethod
    def concatenate(cls, parts: Sequence[Messages], *, axis: int = 0) -> Messages:
        """One table of several: axis 0 appends devices, axis 1 rounds of the same devices."""
        return cls(**{k: np.concatenate([getattr(p, k) for p in parts], axis) for k in _DTYPES})


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantage:
    """How well the watcher told two sets apart, on devices it had not learned from."""

    auc: float  #: P(a device of the first set looks more like it than one of the second), ties ½
    devices: tuple[int, int]  #: held-out devices (m, n) of the first and of the second set
    sampling_error: float  #: of `auc` around the true one, DeLong's; 0 if all apart or all alike

    @classmethod
    def from_scores(cls, one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> Advantage:
        """Of scores [m] of the first set against scores [n] of the second.

        A score's placement is the share of the other set on its lower (second set: upper) side,
        ties ½. `auc` is the mean placement of either set; `sampling_error`² is the sum of
        Var(placements)/count over both.

        Raises:
            ParameterError: fewer than two scores on a side.

        Source: DeLong, DeLong and Clarke-Pearson 1988, Biometrics 44(3), 837-845.

        >>> Advantage.from_scores(np.array([1.0, 3.0]), np.array([0.0, 2.0]))
        Advantage(auc=0.75, devices=(2, 2), sampling_error=0.3535533905932738)
        """
        m, n = len(one), len(other)
        if min(m, n) < 2:
            raise ParameterError("scores", (m, n), "at least two on either side")
        rank = _midranks(np.concatenate([one, other]))
        above = (rank[:m] - _midranks(one)) / n
        below = 1 - (rank[m:] - _midranks(other)) / m
        error = math.sqrt(above.var(ddof=1) / m + below.var(ddof=1) / n)
        return cls(auc=float(above.mean()), devices=(m, n), sampling_error=error)

    @property
    def standard_error(self) -> float:
        """Standard error of `auc` when the two sets follow one law, so that its mean is ½.

            √((m + n + 1) / (12 m n))

        Exact without ties, too large with them: `|auc - 0.5| <= 3 * standard_error` asks
        whether anything shows. Against a bound other than ½ use `sampling_error`.

        Source: Mann and Whitney 1947, Annals of Mathematical Statistics 18(1), 50-60.

        >>> Advantage(auc=0.75, devices=(1, 2), sampling_error=0.0).standard_error ** 2
        0.16666666666666666
        """
        m, n = self.devices
        return math.sqrt((m + n + 1) / (12 * m * n))

    @property
    def deviations(self) -> float:
        """Distance of `auc` from ½ in standard errors; negative below ½, which is mere chance."""
        return (self.auc - 0.5) / self.standard_error


def distinguish(one: Messages, other: Messages, *, seed: int) -> Advantage:
    """Learn to tell two sets of devices apart by their messages, and say how well that works.

    A random half of each set trains the classifier; the other half, never seen before, is scored
    and ranked. One split, not several averaged ones: given the scores, held-out devices of one
    law are exchangeable, so the mean ½ and the standard error are theorems at any sample size.

    The classifier is gradient boosting of small trees over histograms. It needs no scaling, finds
    differences in spread or shape as well as in level, and tries every feature in every split:
    one that separates the sets perfectly is never missed, as a forest, drawing some, may do.

    Args:
        one: the first set, at least 10 devices.
        other: the second set, at least 10 other devices, watched for as many rounds.
        seed: of the split; ≥ 0.

    Returns:
        The area under the ROC curve on the held-out devices, and its errors. They hold if devices
        are independent: an incident that hits one set only is found, and counts as a difference.

    Raises:
        ParameterError: too few devices, different numbers of rounds, or a negative seed.
        UnsupportedError: scikit-learn is not installed.

    >>> def sending(size: int) -> Messages:
    ...     sent = np.ones((10, 3), dtype=np.bool_)
    ...     return Messages(
    ...         sent=sent,
    ...         size_bytes=np.full_like(sent, size, dtype=np.int32),
    ...         status=sent.astype(np.int8),
    ...         time_s=sent.astype(np.float64),
    ...     )
    >>> distinguish(sending(100), sending(101), seed=1)
    Advantage(auc=1.0, devices=(5, 5), sampling_error=0.0)
    >>> distinguish(sending(100), sending(100), seed=1).auc
    0.5
    """
    for name, messages in (("one", one), ("other", other)):
        if len(messages) < FEWEST_DEVICES:
            raise ParameterError(name, f"{len(messages)} devices", f">= {FEWEST_DEVICES} devices")
    if one.rounds != other.rounds:
        raise ParameterError("other", f"{other.rounds} rounds", f"{one.rounds} rounds, as in one")
    if seed < 0:
        raise ParameterError("seed", seed, ">= 0")
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError as error:
        raise UnsupportedError("distinguish needs scikit-learn: install demur[sim]") from error

    # Not the bare seed: the messages may come from it, and the split must not depend on them.
    rng = np.random.default_rng([seed, _SPLIT])
    # One table for both sets: sums over arrays of different memory layout differ in the last
    # bit, and a classifier would find that.
    features = _features(Messages.concatenate([one, other]))
    label = np.repeat([True, False], [len(one), len(other)])
    train = np.zeros(len(label), dtype=np.bool_)
    train[rng.permutation(len(one))[: len(one) // 2]] = True
    train[len(one) + rng.permutation(len(other))[: len(other) // 2]] = True
    features = features[:, ~np.isnan(features[train]).all(axis=0)]
    classifier = HistGradientBoostingClassifier(
        max_iter=50,
        max_leaf_nodes=6,
        min_samples_leaf=FEWEST_DEVICES // 2,
        class_weight="balanced",
        early_stopping=False,
        random_state=0,  # only bins features, and only of more than 200,000 devices
    )
    with threadpool_limits(1):  # on a busy machine, threads lose tenfold what they gain
        classifier.fit(features[train], label[train])
        score = classifier.decision_function(features[~train])
    return Advantage.from_scores(score[label[~train]], score[~label[~train]])


def _midranks(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Ranks from 1; equal values share the mean of theirs."""
    _, which, count = np.unique(x, return_inverse=True, return_counts=True)
    ranks: npt.NDArray[np.float64] = (np.cumsum(count) - (count - 1) / 2)[which]
    return ranks


def _features(seen: Messages) -> npt.NDArray[np.float64]:
    """What there is to learn from [n, k]; NaN where a device sent nothing to learn it from.

    Means over all rounds and over segments of them, and the steps between segments: by these a
    device that changes stands out against its own past, even if devices differ by more.
    """
    t = seen.rounds
    silent = ~seen.sent
    # By itself: one silent round among hundreds is easily binned away.
    ever: npt.NDArray[np.bool_] = np.logical_or.reduce(silent, axis=1)
    first = np.where(ever, silent.argmax(axis=1), t)
    last = np.where(ever, t - 1 - silent[:, ::-1].argmax(axis=1), -1)
    columns = [ever[:, None], first[:, None], last[:, None]]
    columns += [_spread(values, seen.sent) for values in (seen.size_bytes, seen.time_s)]

    always = np.ones_like(seen.sent)
    tracks = [(seen.sent, always), (seen.size_bytes, seen.sent), (seen.time_s, seen.sent)]
    tracks += [(seen.sent & (seen.status == s), always) for s in np.unique(seen.status)]
    for values, where in tracks:
        means = _means(values, where, segments=min(_SEGMENTS, t))
        columns += [_means(values, where), means, np.diff(means)]
    return np.concatenate(columns, axis=1)


def _spread(values: npt.NDArray[np.number], sent: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Standard deviation and quantiles of what was sent [n, 6], by nearest rank."""
    count = sent.sum(axis=1, keepdims=True)
    square = np.where(sent, values - _means(values, sent), 0.0) ** 2
    deviation = np.sqrt(_means(square, sent))
    ordered = np.sort(np.where(sent, values, np.nan), axis=1)  # NaN comes last
    rank = np.rint(np.maximum(count - 1, 0) * np.array(_QUANTILES)).astype(np.intp)
    return np.concatenate([deviation, np.take_along_axis(ordered, rank, axis=1)], axis=1)


def _means(
    values: npt.NDArray[np.generic], where: npt.NDArray[np.bool_], *, segments: int = 1
) -> npt.NDArray[np.float64]:
    """Means [n, segments] of the values [n, t] picked by `where`; NaN where none is."""
    starts = np.arange(segments) * values.shape[1] // segments
    total = np.add.reduceat(np.where(where, values, 0.0), starts, axis=1)
    count = np.add.reduceat(where, starts, axis=1, dtype=np.intp)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
