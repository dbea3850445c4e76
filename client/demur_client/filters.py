"""The individual privacy filter: one person's budget, spent exactly."""

import threading
from typing import NoReturn, final

from demur_client.budget import charge_units, decide
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.study import Policy, Study


@final
class Filter:
    """Keeps everything one person answers in a study within its integer budget.

    Check and charge are one step, safe under threads, and happen before anything is released.

    Source: Feldman & Zrnic 2021, arXiv:2008.11193, Algorithm 2 (filteredcomp); full adaptivity
    for the measure gdp: arXiv:2210.17520, Theorem 3.

    >>> mine = Filter(budget_units=10, policy=Policy.SKIP)
    >>> [mine.try_spend(z, weight=2) for z in (3, 3, 2)]
    [True, False, True]
    """

    __slots__ = ("_budget_units", "_lock", "_refused", "_remaining", "_retire")

    def __init__(self, *, budget_units: int, policy: Policy) -> None:
        check_integer("budget_units", budget_units, 0, (1 << 62) - 1)
        if not isinstance(policy, Policy):
            raise ParameterError("policy", policy, "a Policy")
        self._budget_units = budget_units
        self._retire = policy is Policy.RETIRE
        self._remaining = budget_units
        self._refused = False
        self._lock = threading.Lock()

    @classmethod
    def of(cls, study: Study) -> "Filter":
        """A fresh filter with the study's budget and policy."""
        return cls(budget_units=study.budget_units, policy=study.policy)

    def __repr__(self) -> str:
        return "Filter(secret)"

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: a copy would be a second budget."""
        raise TypeError("a filter cannot be copied")

    def try_spend(self, squared_norm: int, *, weight: int) -> bool:
        """Charge an answer of this squared norm if it fits, and say whether it did.

        Args:
            squared_norm: Σz² in grid steps²; >= 0.
            weight: the round's integer weight; >= 1.

        Returns:
            Secret: whether the answer may be given.

        Raises:
            ParameterError: an argument is outside its range; nothing changed.
        """
        if type(squared_norm) is not int or squared_norm < 0:  # without the value, a secret
            raise ParameterError("squared_norm", "something else", "an integer >= 0")
        check_integer("weight", weight, 1, self._budget_units + 1)
        charge = charge_units(squared_norm, weight=weight, budget_units=self._budget_units)
        with self._lock:
            given, self._remaining, refused = decide(
                charge, remaining=self._remaining, refused=self._refused, retire=self._retire
            )
            self._refused = bool(refused)
        return bool(given)

    @property
    def remaining_units(self) -> int:
        """What is left, in budget units. Secret: it depends on this person's data."""
        return self._remaining

    @property
    def ever_refused(self) -> bool:
        """Whether an answer was ever refused. Secret, like the rest."""
        return self._refused
