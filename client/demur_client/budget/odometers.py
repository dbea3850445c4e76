"""How much was spent so far, for the person's own eyes.

A filter keeps to a budget that was fixed beforehand. An odometer has none: it adds up what answers
lost and says a level that bounds the sum. All three here are exact. The levels are data-dependent,
and as secret as a filter's remaining budget.
"""

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from fractions import Fraction
from typing import NoReturn, final

from demur_client.budget.charges import HIDDEN, Amount
from demur_proto.accounting.targets import PureLosses, basic_fits, rogers_fits, whitehouse_fits
from demur_proto.errors import ParameterError
from demur_proto.study import Policy


class Odometer(ABC):
    """Adds up the losses of answers, in one measure or at one Rényi order."""

    __slots__ = ("_answers", "_lock", "_sum")

    def __init__(self) -> None:
        self._sum = Fraction(0)
        self._answers = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(secret)"

    def add(self, loss: Amount) -> Fraction:
        """Count an answer that was given, and say the level after it.

        Args:
            loss: in the odometer's measure; finite, >= 0. A float is the rational it holds.

        Raises:
            ParameterError: it is not; nothing changed. No level bounds an infinite loss.
        """
        number = isinstance(loss, int | float | Fraction) and not isinstance(loss, bool)
        if not (number and 0 <= loss < math.inf):  # without the value, a secret
            raise ParameterError("loss", HIDDEN, "a finite number >= 0")
        exact = Fraction(loss)
        with self._lock:
            self._count(exact)
            return self._reached()

    @property
    def level(self) -> Fraction:
        """What all answers so far lost at most. Secret."""
        with self._lock:
            return self._reached()

    def _count(self, loss: Fraction) -> None:
        """Take note of a loss. The lock is held."""
        self._sum += loss
        self._answers += 1

    @abstractmethod
    def _reached(self) -> Fraction:
        """The level. The lock is held."""


@final
class NestedOdometer(Odometer):
    """The smallest of the budgets Δ, 2Δ, 3Δ… that still holds the sum: the one to use.

        O = Δ · max(1, ⌈Σ ρ_t / Δ⌉)

    Each budget is that of a filter, fixed beforehand, so that whichever is smallest in the end
    bounds what was lost. It is never looser than `RestartOdometer`.

    Args:
        step: Δ, in the measure; finite, > 0.

    Raises:
        ParameterError: it is not.

    Source: Feldman & Zrnic 2021, arXiv:2008.11193, Theorem "rdp-at-stopping-times" for each budget.

    >>> mine = NestedOdometer(step=1)
    >>> [str(mine.add(loss)) for loss in (0.5, 0.5, 0.25)]
    ['1', '1', '2']
    """

    __slots__ = ("_step",)

    def __init__(self, *, step: Amount) -> None:
        super().__init__()
        self._step = _checked_step(step)

    def _reached(self) -> Fraction:
        return self._step * max(1, math.ceil(self._sum / self._step))


@final
class ExactSumOdometer(Odometer):
    """The running sum itself.

        O = Σ ρ_t

    It bounds what was lost only for somebody who fixed the level at which to stop beforehand: a
    level that is chosen after looking at it is not a filter's budget.

    Source: Feldman & Zrnic 2021, arXiv:2008.11193, Theorem "rdp-at-stopping-times".

    >>> mine = ExactSumOdometer()
    >>> [str(mine.add(loss)) for loss in (0.5, 0.5, 0.25)]
    ['1/2', '1', '5/4']
    """

    __slots__ = ()

    def _reached(self) -> Fraction:
        return self._sum


@final
class RestartOdometer(Odometer):
    """The odometer of the paper: one filter with budget Δ after the other.

        O_0 = Δ; when the filter would refuse an answer, O grows by Δ, and a new filter starts
        that includes this answer

    It holds while every loss is at most Δ: `holds` says whether that was so.

    Args:
        step: Δ, in the measure; finite, > 0.

    Raises:
        ParameterError: it is not.

    Source: Feldman & Zrnic 2021, arXiv:2008.11193, Algorithm "renyi-odometer". The paper sets O_1
    where its theorem uses O_0.

    >>> mine = RestartOdometer(step=1)
    >>> [str(mine.add(loss)) for loss in (0.6, 0.6, 0.3, 0.2)]
    ['1', '2', '2', '3']
    >>> mine.restarts, mine.holds
    ((1, 3), True)
    """

    __slots__ = ("_current", "_holds", "_restarts", "_step")

    def __init__(self, *, step: Amount) -> None:
        super().__init__()
        self._step = _checked_step(step)
        self._current = Fraction(0)  # of the newest filter
        self._restarts: list[int] = []
        self._holds = True

    @property
    def restarts(self) -> tuple[int, ...]:
        """After how many answers each filter stopped. Secret."""
        with self._lock:
            return tuple(self._restarts)

    @property
    def holds(self) -> bool:
        """Whether every loss was at most Δ, so that the level bounds their sum. Secret."""
        with self._lock:
            return self._holds

    def _count(self, loss: Fraction) -> None:
        self._holds = self._holds and loss <= self._step
        if self._current + loss > self._step:
            self._restarts.append(self._answers)
            self._current = Fraction(0)
        self._current += loss
        super()._count(loss)

    def _reached(self) -> Fraction:
        return self._step * (1 + len(self._restarts))


def _checked_step(step: Amount) -> Fraction:
    number = isinstance(step, int | float | Fraction) and not isinstance(step, bool)
    if not (number and 0 < step < math.inf):
        raise ParameterError("step", step, "a finite number > 0")
    return Fraction(step)


# The filters of other papers, with a state: for comparison, not for studies.

LARGEST_ROUND = 700  #: ε_t above this are refused; e^ε_t must be a float


@final
class BaselineFilter:
    """Keeps rounds of pure differential privacy within (ε, δ), as another paper does.

    Made by `basic`, `rogers` or `whitehouse`. Check and charge are one step, safe under threads.

    >>> mine = BaselineFilter.basic(epsilon=1.0)
    >>> [mine.try_spend(epsilon) for epsilon in (0.6, 0.6, 0.3)]
    [True, False, True]
    """

    __slots__ = ("_fits", "_lock", "_losses", "_refused", "_retire")

    def __init__(self, fits: Callable[[PureLosses], bool], *, policy: Policy = Policy.SKIP) -> None:
        if not isinstance(policy, Policy) or policy is Policy.CLIP:
            raise ParameterError("policy", policy, "Policy.SKIP or Policy.RETIRE")
        fits(PureLosses())  # complains of a target outside its range
        self._fits = fits
        self._retire = policy is Policy.RETIRE
        self._losses = PureLosses()
        self._refused = False
        self._lock = threading.Lock()

    @classmethod
    def basic(cls, *, epsilon: float | Fraction, policy: Policy = Policy.SKIP) -> "BaselineFilter":
        """Σ ε_t ≤ ε: `demur_proto.accounting.targets.basic_fits`."""
        return cls(lambda losses: basic_fits(losses, epsilon=epsilon), policy=policy)

    @classmethod
    def rogers(
        cls, *, epsilon: float, delta: float, policy: Policy = Policy.SKIP
    ) -> "BaselineFilter":
        """Rogers et al. 2016: `demur_proto.accounting.targets.rogers_fits`."""
        return cls(lambda losses: rogers_fits(losses, epsilon=epsilon, delta=delta), policy=policy)

    @classmethod
    def whitehouse(
        cls, *, epsilon: float, delta: float, policy: Policy = Policy.SKIP
    ) -> "BaselineFilter":
        """Whitehouse et al. 2023: `demur_proto.accounting.targets.whitehouse_fits`."""
        return cls(
            lambda losses: whitehouse_fits(losses, epsilon=epsilon, delta=delta), policy=policy
        )

    def __repr__(self) -> str:
        return "BaselineFilter(secret)"

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: a copy would be a second budget."""
        raise TypeError("a filter cannot be copied")

    def try_spend(self, epsilon: Amount) -> bool:
        """Spend a round that is ε-DP for this person if it fits, and say whether it did.

        Args:
            epsilon: ε_t, nats; >= 0, or infinite.

        Returns:
            Secret: whether the answer may be given.

        Raises:
            ParameterError: it is NaN or negative; nothing changed.
        """
        number = isinstance(epsilon, int | float | Fraction) and not isinstance(epsilon, bool)
        if not (number and epsilon >= 0):  # without the value, a secret
            raise ParameterError("epsilon", HIDDEN, "a number >= 0, infinity included")
        if epsilon == 0:
            return True
        with self._lock:
            given = not (self._retire and self._refused) and epsilon <= LARGEST_ROUND
            if given:
                losses = self._losses.plus(
                    Fraction(epsilon) if isinstance(epsilon, int) else epsilon
                )
                given = self._fits(losses)
            if given:
                self._losses = losses
            else:
                self._refused = True
        return given

    @property
    def ever_refused(self) -> bool:
        """Whether an answer was ever refused. Secret."""
        return self._refused
