"""The filters of other papers, with a state: for comparison, not for studies."""

import threading
from collections.abc import Callable
from fractions import Fraction
from typing import NoReturn, final

from demur_client.charges import HIDDEN, Amount
from demur_proto.baselines import PureLosses, basic_fits, rogers_fits, whitehouse_fits
from demur_proto.errors import ParameterError
from demur_proto.study import Policy

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
        """Σ ε_t ≤ ε: `demur_proto.baselines.basic_fits`."""
        return cls(lambda losses: basic_fits(losses, epsilon=epsilon), policy=policy)

    @classmethod
    def rogers(
        cls, *, epsilon: float, delta: float, policy: Policy = Policy.SKIP
    ) -> "BaselineFilter":
        """Rogers et al. 2016: `demur_proto.baselines.rogers_fits`."""
        return cls(lambda losses: rogers_fits(losses, epsilon=epsilon, delta=delta), policy=policy)

    @classmethod
    def whitehouse(
        cls, *, epsilon: float, delta: float, policy: Policy = Policy.SKIP
    ) -> "BaselineFilter":
        """Whitehouse et al. 2023: `demur_proto.baselines.whitehouse_fits`."""
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
