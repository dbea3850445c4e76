"""Post-processing of releases: estimates made more plausible, and labelled as what they are then."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from demur_proto.arrays import Vector, fixed_floats
from demur_proto.checks import check_positive
from demur_proto.errors import ParameterError, StateError
from demur_proto.release import Estimand, Release

FAR = 1e300  #: ratios of variances beyond are as good as infinite


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Processed:
    """Estimates, and all that was done to them.

    It costs no privacy: only what is released is used. But an estimate that was moved is unbiased no
    more, so each step is named, and `label` says so wherever the numbers go. The interval stays with
    the numbers only as long as it holds what it did, and is empty after a step that loses it.

    >>> counts = Processed(values=np.array([4.0, -1.0]), errors=np.array([2.0, 2.0]),
    ...                    low=np.array([0.1, -4.9]), high=np.array([7.9, 2.9]), confidence=0.95)
    >>> kept = counts.between(0.0, 6.0)
    >>> kept.values.tolist(), kept.low.tolist(), kept.high.tolist(), kept.label
    ([4.0, 0.0], [0.1, 0.0], [6.0, 2.9], 'post-processed (from 0 to 6): biased, its interval holds')
    """

    values: Vector = field(repr=False)  #: [k], data units
    errors: Vector = field(repr=False)
    """[k], standard errors of the estimates as they were released; > 0."""
    low: Vector = field(repr=False)  #: [k], or empty: lower ends of the intervals for S_active
    high: Vector = field(repr=False)  #: likewise, upper ends
    confidence: float  #: probability that one holds; NaN without
    estimand: Estimand = Estimand.S_ACTIVE  #: what the estimates were unbiased for
    steps: tuple[str, ...] = ()  #: what was done, in order

    def __post_init__(self) -> None:
        for name in ("values", "errors", "low", "high"):
            object.__setattr__(self, name, fixed_floats(getattr(self, name)))
            if not np.isfinite(getattr(self, name)).all():
                raise ParameterError(name, "numbers that are not", "finite")
        sizes = {self.errors.size, self.low.size, self.high.size} - {0}
        if sizes != {self.values.size} or not (self.errors > 0).all():
            raise ParameterError("errors", self.errors.size, f"{self.values.size} numbers > 0")

    @classmethod
    def of(cls, release: Release) -> "Processed":
        """The estimates of one release [k], as they are: of categories, or coordinates.

        Raises:
            StateError: it was withheld.
        """
        return cls._of([release], list(range(release.estimate.size)))

    @classmethod
    def of_series(cls, releases: Sequence[Release], *, coordinate: int = 0) -> "Processed":
        """One estimate of each release [k], as they are: a running count, or a sum round by round.

        Raises:
            StateError: one was withheld, or there are none.
            ParameterError: they have no such coordinate.
        """
        for release in releases:
            if release.estimate.size and not 0 <= coordinate < release.estimate.size:
                expected = f"from 0 to {release.estimate.size - 1}"
                raise ParameterError("coordinate", coordinate, expected)
        return cls._of(releases, [coordinate])

    @classmethod
    def _of(cls, releases: Sequence[Release], where: Sequence[int]) -> "Processed":
        for release in releases:
            if not release.estimate.size:
                raise StateError(f"round {release.number} was withheld; leave it out")
        if not releases:
            raise StateError("there are no releases to process")
        pairs = [(release, at) for release in releases for at in where]
        whole = all(release.has_interval for release in releases)
        ends = np.array([release.interval_at(at) for release, at in pairs if whole])
        low, high = ends.reshape(-1, 2).T
        return cls(
            values=np.array([release.estimate[at] for release, at in pairs]),
            errors=np.array([release.standard_error_at(at) for release, at in pairs]),
            low=low,
            high=high,
            confidence=releases[0].confidence if whole else math.nan,
            estimand=releases[0].estimand,
        )

    @property
    def label(self) -> str:
        """What the numbers are, in words that belong beside them."""
        interval = "its interval holds" if self.low.size else "without an interval"
        if not self.steps:
            return f"as released: unbiased for {self.estimand.told}, {interval}"
        return f"post-processed ({', then '.join(self.steps)}): biased, {interval}"

    def between(self, least: float, most: float = math.inf) -> "Processed":
        """Numbers and intervals cut to where the truth must be, such as 0 to the number of people.

        Whatever lies there and was in an interval still is, so intervals hold at least as often.

        Args:
            least: no true value is below, data units; finite.
            most: no true value is above; inf where nothing is known.

        Raises:
            ParameterError: there is no number between.
        """
        for name, bound in (("least", least), ("most", most)):
            if not isinstance(bound, int | float | np.integer | np.floating) or isinstance(
                bound, bool
            ):
                raise ParameterError(name, bound, "a number")
        if not math.isfinite(least):
            raise ParameterError("least", least, "a finite number")
        if not most >= least:
            raise ParameterError("most", most, f"a number >= {least:g}")
        return replace(
            self,
            values=np.clip(self.values, least, most),
            low=np.clip(self.low, least, most),
            high=np.clip(self.high, least, most),
            steps=(*self.steps, f"from {least:g}" + ("" if most == math.inf else f" to {most:g}")),
        )

    def rising(self) -> "Processed":
        """The nearest numbers that never fall: isotonic regression, weighted by 1/error².

        Nearest in Σ ((v − x)/error)². Where the truth never falls, they are no further from it by
        that measure than the estimates were. They have no interval.

        Source: Barlow, Bartholomew, Bremner & Brunk 1972, "Statistical inference under order
        restrictions": pool adjacent violators.

        >>> Processed(values=np.array([1.0, 3.0, 2.0]), errors=np.ones(3), low=np.zeros(0),
        ...           high=np.zeros(0), confidence=math.nan).rising().values.tolist()
        [1.0, 2.5, 2.5]
        """
        pools: list[tuple[float, float, int]] = []  # mean, weight, how many
        for value, weight in zip(self.values.tolist(), self._weights.tolist(), strict=True):
            mean, total, size = value, weight, 1
            while pools and pools[-1][0] >= mean:
                before, its, count = pools.pop()
                mean = before + (mean - before) * (total / (its + total))
                total, size = total + its, size + count
            pools.append((mean, total, size))
        values = np.concatenate([np.full(size, mean) for mean, _, size in pools])
        return self._moved(values, "never falling")

    def smoothed(self, step: float) -> "Processed":
        """What is likeliest if the truth moves like a random walk: local-level smoothing.

        The x that minimises Σ ((v_t − x_t)/error_t)² + Σ ((x_{t+1} − x_t)/step)². It lags behind where
        the truth turns, by more the smaller the step. Errors are taken to be independent from round to
        round, which those of a running count are not. They have no interval.

        Args:
            step: standard deviation of the truth's change from one to the next, data units; > 0. It is
                a guess to be made without looking at anybody's data.

        Raises:
            ParameterError: the step is outside its range.

        Source: Durbin & Koopman 2012, "Time series analysis by state space methods", section 2.4: the
        smoothed state of a local level model whose first level is unknown.

        >>> Processed(values=np.array([0.0, 3.0]), errors=np.ones(2), low=np.zeros(0),
        ...           high=np.zeros(0), confidence=math.nan).smoothed(1.0).values.tolist()
        [1.0, 2.0]
        """
        check_positive("step", step)
        ratio = step / float(self.errors.min())
        variance = min(ratio * ratio, FAR)  # of a change, where the smallest error is 1
        # A filter forwards, a smoother backwards: everything is a mean, so no digits cancel, however
        # small the step is beside the errors.
        means, shares = self.values.copy(), np.zeros(self.values.size)
        known = 0.0  # weight of all that came before, for the state now
        for now, weight in enumerate(np.maximum(self._weights, 1 / FAR).tolist()):
            total = known + weight
            if now:
                means[now] = means[now - 1] + (means[now] - means[now - 1]) * (weight / total)
            shares[now] = 1 / (1 + total * variance)  # of what comes after
            known = total * shares[now]
        values = means
        for now in reversed(range(self.values.size - 1)):
            values[now] += shares[now] * (values[now + 1] - values[now])
        return self._moved(values, f"smoothed by steps of {step:g}")

    def adding_to(self, total: float) -> "Processed":
        """The nearest numbers, none below 0, that add up to a public total: for a histogram.

        Each becomes max(v − τ, 0), with the one τ that fits. Where the truth adds up to that, they are
        no further from it in Σ (v − x)² than the estimates were. But S_active adds up to fewer than all
        people once some have run out, which no public total says. They have no interval.

        Args:
            total: of all numbers, data units; > 0.

        Raises:
            ParameterError: the total is outside its range.

        Source: Duchi, Shalev-Shwartz, Singer & Chandra 2008, "Efficient projections onto the
        l1-ball"; Wang et al. 2020, arXiv:1905.08320, where it is called Norm-Sub.
        """
        check_positive("total", total)
        falling = np.sort(self.values)[::-1]
        shifts = (np.cumsum(falling) - total) / np.arange(1, falling.size + 1)
        shift = shifts[np.flatnonzero(falling > shifts)[-1:]].max(initial=shifts[0])
        return self._moved(np.maximum(self.values - shift, 0.0), f"adding up to {total:g}")

    @property
    def _weights(self) -> Vector:
        """1/error², as shares of the largest."""
        weights: Vector = (self.errors.min() / self.errors) ** 2
        return weights

    def _moved(self, values: Vector, step: str) -> "Processed":
        nothing = np.zeros(0)
        return replace(
            self,
            values=values,
            low=nothing,
            high=nothing,
            confidence=math.nan,
            steps=(*self.steps, step),
        )
