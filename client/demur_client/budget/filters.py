"""The individual privacy filter: one person's budget, spent exactly."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NoReturn, final

from demur_client.budget.charges import HIDDEN, Budget, RenyiBudget
from demur_client.budget.decide import affordable_radius, charge_units, decide, decide_every
from demur_client.budget.running_counts import check_change, commit
from demur_proto.accounting.calibration import UNITS_LIMIT
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.study import Policy, Study


class _Kept(ABC):
    """What both kinds of filter share: a lock, a policy, and that nothing leaves."""

    __slots__ = ("_budget_units", "_lock", "_policy", "_refused", "_remaining", "_retire")

    _remaining: Any

    def __init__(self, budget_units: int, policy: Policy) -> None:
        check_integer("budget_units", budget_units, 0, UNITS_LIMIT - 1)
        if not isinstance(policy, Policy):
            raise ParameterError("policy", policy, "a Policy")
        self._budget_units = budget_units
        self._policy = policy
        self._retire = policy is not Policy.SKIP
        self._refused = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(secret)"

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: a copy would be a second budget."""
        raise TypeError("a filter cannot be copied")

    @property
    def ever_refused(self) -> bool:
        """Whether an answer was ever refused or shrunk. Secret: it depends on a person's data."""
        return self._refused

    @abstractmethod
    def _checked(self, charge: Any) -> Any:
        """The charge in the form that `_decided` takes.

        Raises:
            ParameterError: it is not a charge.
        """

    @abstractmethod
    def _decided(self, charge: Any) -> tuple[bool, Any, bool]:
        """What a checked charge would lead to: given, remaining and refused. The lock is held."""


@final
class Filter(_Kept):
    """Keeps everything one person answers within an integer budget.

    Check and charge are one step, safe under threads, and happen before anything is released.

    Args:
        budget_units: T, the integer budget; 0 to 2^62 − 1.
        policy: what follows after an answer that does not fit.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Feldman & Zrnic 2021, arXiv:2008.11193, Algorithm 2 (filteredcomp); full adaptivity
    for the measure gdp: arXiv:2210.17520, Theorem 3.

    >>> mine = Filter(budget_units=10, policy=Policy.SKIP)
    >>> [mine.try_charge(charge) for charge in (6, 6, 4, 0)]
    [True, False, True, True]
    """

    __slots__ = ()

    _remaining: int

    def __init__(self, *, budget_units: int, policy: Policy) -> None:
        super().__init__(budget_units, policy)
        self._remaining = budget_units

    @classmethod
    def of(cls, study: Study) -> "Filter":
        """A fresh filter with the study's budget and policy."""
        return cls(budget_units=study.budget_units, policy=study.policy)

    @classmethod
    def within(cls, budget: Budget, *, policy: Policy = Policy.SKIP) -> "Filter":
        """A fresh filter for a budget of `demur_client.budget.charges`, other than a `RenyiBudget`.

        >>> from demur_client.budget.charges import ZcdpBudget
        >>> budget = ZcdpBudget(rho=1.0)
        >>> mine = Filter.within(budget)
        >>> [mine.try_charge(budget.charge(rho)) for rho in (0.6, 0.6, 0.3)]
        [True, False, True]
        """
        if isinstance(budget, RenyiBudget):
            raise ParameterError("budget", budget, "a budget with one counter; see RenyiFilter")
        return cls(budget_units=budget.budget_units, policy=policy)

    @classmethod
    def resumed(
        cls, *, budget_units: int, policy: Policy, remaining_units: int, refused: bool
    ) -> "Filter":
        """A filter that goes on where the one before it was left, for whoever keeps its state.

        Args:
            budget_units: as for a fresh one.
            policy: as for a fresh one.
            remaining_units: what was left; 0 to `budget_units`.
            refused: whether it had ever refused an answer.

        Raises:
            ParameterError: an argument is outside its range.

        >>> half = {"budget_units": 10, "policy": Policy.RETIRE, "remaining_units": 5}
        >>> [Filter.resumed(**half, refused=before).try_charge(5) for before in (False, True)]
        [True, False]
        """
        mine = cls(budget_units=budget_units, policy=policy)
        whole = type(remaining_units) is int and 0 <= remaining_units <= budget_units
        if not whole:  # without the value, a secret
            raise ParameterError("remaining_units", HIDDEN, "an integer, 0 to the budget")
        mine._remaining, mine._refused = remaining_units, bool(refused)
        return mine

    def try_charge(self, charge: int) -> bool:
        """Spend a charge if it fits, and say whether it did.

        Args:
            charge: budget units; >= 0, of any size.

        Returns:
            Secret: whether the answer may be given.

        Raises:
            ParameterError: it is not an integer >= 0; nothing changed.
        """
        checked = self._checked(charge)
        with self._lock:
            given, self._remaining, self._refused = self._decided(checked)
        return given

    def try_spend(self, squared_norm: int, *, weight: int, shrunk: bool = False) -> bool:
        """Charge an answer of this squared norm if it fits, and say whether it did.

        Args:
            squared_norm: Σz² in grid steps², or 1 for a category; >= 0. As `encode` gives it.
            weight: the round's integer weight; >= 1.
            shrunk: the answer was shrunk to `radius`: under policy `clip`, the last one.

        Returns:
            Secret: whether the answer may be given.

        Raises:
            ParameterError: an argument is outside its range; nothing changed.
        """
        charge = self.charge_of(squared_norm, weight=weight)
        if shrunk and self._policy is not Policy.CLIP:
            raise ParameterError("shrunk", shrunk, "False under a policy other than clip")
        with self._lock:
            given, self._remaining, refused = self._decided(charge)
            self._refused = refused or shrunk
        return given

    def charge_of(self, squared_norm: int, *, weight: int) -> int:
        """What an answer of this squared norm costs, budget units. Secret.

        Args:
            squared_norm: as in `try_spend`.
            weight: as in `try_spend`.

        Raises:
            ParameterError: an argument is outside its range.
        """
        if type(squared_norm) is not int or squared_norm < 0:  # without the value, a secret
            raise ParameterError("squared_norm", HIDDEN, "an integer >= 0")
        check_integer("weight", weight, 1, self._budget_units + 1)
        return charge_units(squared_norm, weight=weight, budget_units=self._budget_units)

    def radius(self, *, weight: int, largest: int) -> int:
        """The largest squared norm that the next answer may have, for policy `clip`. Secret.

        Args:
            weight: the round's integer weight; >= 1.
            largest: the round's R, grid steps²; >= 0.

        Raises:
            ParameterError: an argument is outside its range.
        """
        check_integer("weight", weight, 1, self._budget_units + 1)
        check_integer("largest", largest, 0)
        with self._lock:
            return affordable_radius(
                self._remaining,
                weight=weight,
                largest=largest,
                refused=self._refused and self._retire,
            )

    def commit(
        self,
        change: int,
        *,
        planned: int,
        cross: int,
        alone: int,
        weight: int,
        beside: Sequence["Filter"] = (),
    ) -> tuple[bool, int]:
        """Take up a change of a running count if all that will be sent of it fits, and hold that much.

        Args:
            change: δ, units of the state; 0 for none.
            planned: energy of the words still to come without it, grid steps², for which this filter
                has held w·planned since it was last told so.
            cross: as in `commitment.projected`.
            alone: likewise.
            weight: the round's integer weight w; >= 1.
            beside: others of this budget, which have held as much: all take it up, or none.

        Returns:
            Secret: whether it was taken up, and the energy that is held now, grid steps².

        Raises:
            ParameterError: an argument is outside its range; nothing changed.
        """
        check_change(change, planned=planned, cross=cross, alone=alone)
        filters = (self, *beside)
        if len({id(each) for each in filters}) < len(filters):
            raise ParameterError("beside", f"{len(beside)} of them", "other filters, none twice")
        check_integer("weight", weight, 1, min(each._budget_units for each in filters) + 1)
        with ExitStack() as locked:
            for each in sorted(filters, key=id):  # one order for everybody, as in `spend_all`
                locked.enter_context(each._lock)
            if any(weight * planned > each._budget_units - each._remaining for each in filters):
                raise ParameterError("planned", HIDDEN, "at most what every filter holds")
            decided = partial(
                commit, change, planned=planned, cross=cross, alone=alone, weight=weight
            )
            outcomes = [
                decided(
                    budget_units=each._budget_units,
                    remaining=each._remaining,
                    refused=each._refused,
                    retire=each._retire,
                )
                for each in filters
            ]
            taken = all(fits for fits, _, _, _ in outcomes)
            for each, (fits, _, remaining, refused) in zip(filters, outcomes, strict=True):
                if taken or not fits:
                    each._remaining, each._refused = remaining, refused
        return taken, outcomes[0][1] if taken else planned

    @property
    def remaining_units(self) -> int:
        """What is left, in budget units. Secret: it depends on this person's data."""
        return self._remaining

    def _checked(self, charge: Any) -> int:
        if type(charge) is not int or charge < 0:  # without the value, a secret
            raise ParameterError("charge", HIDDEN, "an integer >= 0")
        return charge

    def _decided(self, charge: int) -> tuple[bool, int, bool]:
        return decide(charge, remaining=self._remaining, refused=self._refused, retire=self._retire)


@final
class RenyiFilter(_Kept):
    """A filter with a counter for each Rényi order; an answer must fit them all.

    Args:
        budget_units: T, where each counter starts; 0 to 2^62 − 1.
        counters: how many orders there are; >= 1.
        policy: `skip` or `retire`.

    Raises:
        ParameterError: an argument is outside its range.

    Source: as `decide_every`.

    >>> mine = RenyiFilter(budget_units=10, counters=2, policy=Policy.SKIP)
    >>> [mine.try_charge(charges) for charges in [(6, 2), (6, 2), (4, 8)]]
    [True, False, True]
    """

    __slots__ = ()

    _remaining: tuple[int, ...]

    def __init__(self, *, budget_units: int, counters: int, policy: Policy) -> None:
        super().__init__(budget_units, policy)
        check_integer("counters", counters, 1, 1 << 20)
        if policy is Policy.CLIP:
            raise ParameterError("policy", policy, "skip or retire for a filter of Rényi orders")
        self._remaining = (budget_units,) * counters

    @classmethod
    def within(cls, budget: RenyiBudget, *, policy: Policy = Policy.SKIP) -> "RenyiFilter":
        """A fresh filter for a budget in the measure `renyi`.

        >>> budget = RenyiBudget(bounds={2: 1, 4: 2})
        >>> mine = RenyiFilter.within(budget)
        >>> [mine.try_charge(budget.charge_zcdp(0.25)) for _ in range(3)]
        [True, True, False]
        """
        return cls(budget_units=budget.budget_units, counters=len(budget.bounds), policy=policy)

    def try_charge(self, charges: Sequence[int]) -> bool:
        """Spend a charge at every order if all of them fit, and say whether they did.

        Args:
            charges: one for each order, budget units; >= 0, of any size.

        Returns:
            Secret: whether the answer may be given.

        Raises:
            ParameterError: they are not that many integers >= 0; nothing changed.
        """
        checked = self._checked(charges)
        with self._lock:
            given, self._remaining, self._refused = self._decided(checked)
        return given

    @property
    def remaining_units(self) -> tuple[int, ...]:
        """What is left at each order, in budget units. Secret."""
        return self._remaining

    def _checked(self, charge: Any) -> tuple[int, ...]:
        whole = isinstance(charge, Sequence) and len(charge) == len(self._remaining)
        if not (whole and all(type(each) is int and each >= 0 for each in charge)):
            raise ParameterError("charges", HIDDEN, f"{len(self._remaining)} integers >= 0")
        return tuple(charge)

    def _decided(self, charge: tuple[int, ...]) -> tuple[bool, tuple[int, ...], bool]:
        given, remaining, refused = decide_every(
            charge, remaining=list(self._remaining), refused=self._refused, retire=self._retire
        )
        return given, tuple(remaining), refused


def spend_all(
    *steps: tuple[Filter, int] | tuple[RenyiFilter, Sequence[int]], shrunk: bool = False
) -> bool:
    """Spend from several filters in one step, such as a study's and a lifetime cap: all or none.

    Only where every filter lets its charge through does any of them spend. Otherwise those that
    refused have refused an answer, and the others know nothing of it. Safe under threads,
    whatever the order in which other threads name the same filters.

    Args:
        steps: filters, each once, with what each is charged: budget units, as in its `try_charge`.
        shrunk: as in `Filter.try_spend`, for those of the filters that have policy `clip`.

    Returns:
        Secret: whether the answer may be given.

    Raises:
        ParameterError: there is no filter, one is there twice, a charge is none, or `shrunk` has
            no filter to be for; nothing changed.

    >>> study = Filter(budget_units=10, policy=Policy.SKIP)
    >>> cap = Filter(budget_units=100, policy=Policy.SKIP)
    >>> spend_all((study, 6), (cap, 90)), spend_all((study, 6), (cap, 5))
    (True, False)
    >>> study.remaining_units, cap.remaining_units
    (4, 10)
    """
    filters: list[_Kept] = [each for each, _ in steps]
    if not filters or len({id(each) for each in filters}) < len(filters):
        count = f"{len(filters)} of them"
        raise ParameterError("steps", count, "at least one filter, and none of them twice")
    shrinking = [each for each in filters if each._policy is Policy.CLIP]
    if shrunk and not shrinking:
        raise ParameterError("shrunk", shrunk, "False without a filter of policy clip")
    charges = [each._checked(charge) for each, (_, charge) in zip(filters, steps, strict=True)]
    with ExitStack() as held:
        for each in sorted(filters, key=id):  # one order for everybody, or two threads wait forever
            held.enter_context(each._lock)
        outcomes = [each._decided(charge) for each, charge in zip(filters, charges, strict=True)]
        given = all(fits for fits, _, _ in outcomes)
        for each, (fits, remaining, refused) in zip(filters, outcomes, strict=True):
            if given or not fits:
                each._remaining, each._refused = remaining, refused
        if given and shrunk:
            for each in shrinking:
                each._refused = True
    return given
