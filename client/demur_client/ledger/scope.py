"""The filters that an answer has to pass: its study's, and the caps over all studies together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from demur_client.budget.charges import HIDDEN
from demur_client.budget.filters import Filter, spend_all
from demur_client.budget.running_counts import UNTOLD, RunningState, Told, projected
from demur_proto.accounting.calibration import GRAIN, UNITS_LIMIT
from demur_proto.accounting.numerics import ceil_float
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError, StateError
from demur_proto.study import Measure, MechanismFamily, Policy, Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What of a study a cap looks at: the most that it may lose, and in which measure."""

    measure: Measure
    budget: float  #: μ, or ρ in nats; > 0
    gaussian: bool  #: all of its noise is Gaussian
    budget_units: int  #: T; 1 to 2^62 - 1

    def __post_init__(self) -> None:
        _check_measure(self.measure)
        check_positive("budget", self.budget)
        check_integer("budget_units", self.budget_units, 1, UNITS_LIMIT - 1)

    @classmethod
    def of(cls, study: Study) -> "Declared":
        """What a study declares; one in neither gdp nor zcdp declares what that is in zcdp.

        A share of such a budget costs at most the same share of ρ: see `Study.rho`.
        """
        plain = study.measure in (Measure.GDP, Measure.ZCDP)
        return cls(
            measure=study.measure if plain else Measure.ZCDP,
            budget=study.budget if plain else ceil_float(study.rho),
            gaussian=study.mechanism_family is MechanismFamily.GAUSSIAN,
            budget_units=study.budget_units,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LifetimeCap:
    """The most that a person may lose over all studies together.

        zcdp: Σ ρ_s + Σ μ_s²/2 ≤ ρ,   gdp: Σ μ_s² + Σ 2ρ_s ≤ μ²,   over what was spent in study s

    A cap in gdp measures Gaussian noise only; a study with any other cannot be under it.

    Source: Bun & Steinke 2016, arXiv:1605.02065, Lemma 1.7 and Proposition 1.6 (a Gaussian answer
    that is μ-GDP is μ²/2-zCDP, and the other way round); under full adaptivity as the filters.

    >>> cap = LifetimeCap(measure=Measure.ZCDP, budget=1.5)
    >>> study = Declared(measure=Measure.ZCDP, budget=1.0, gaussian=True, budget_units=1000)
    >>> cap.units(study, 300) == GRAIN // 5, cap.room(study, taken=GRAIN // 2)
    (True, 750)
    """

    measure: Measure
    budget: float  #: μ, or ρ in nats; finite, > 0

    def __post_init__(self) -> None:
        _check_measure(self.measure)
        check_positive("budget", self.budget)

    def measures(self, study: Declared) -> bool:
        """Whether what the study loses can be said in this measure. Public."""
        return self.measure is Measure.ZCDP or study.gaussian

    def units(self, study: Declared, spent: int) -> int:
        """What this many units of a study's budget take of the cap, which has GRAIN. Secret.

        Rounded up; more than GRAIN where the cap cannot measure the study, or it does not fit.

        Raises:
            ParameterError: `spent` is no integer >= 0.
        """
        if type(spent) is not int or spent < 0:  # without the value, a secret
            raise ParameterError("spent", HIDDEN, "an integer >= 0")
        if spent and not self.measures(study):
            return GRAIN + 1
        part, whole = self._share(study)
        return -(-GRAIN * spent * part // whole)

    def room(self, study: Declared, *, taken: int) -> int:
        """How many units of the study's budget fit beside what others have taken. Secret.

        Rounded down.

        Raises:
            ParameterError: `taken` is no integer >= 0.
        """
        if type(taken) is not int or taken < 0:  # without the value, a secret
            raise ParameterError("taken", HIDDEN, "an integer >= 0")
        if taken >= GRAIN or not self.measures(study):
            return 0
        part, whole = self._share(study)
        return (GRAIN - taken) * whole // (GRAIN * part)

    def _share(self, study: Declared) -> tuple[int, int]:
        """What part of the cap one unit of the study's budget is: a fraction, above and below."""
        mine, below_mine = _as_zcdp(self.measure, self.budget)
        theirs, below_theirs = _as_zcdp(study.measure, study.budget)
        return theirs * below_mine, below_theirs * study.budget_units * mine


def _check_measure(measure: Measure) -> None:
    """Refuse what is neither gdp nor zcdp; `Declared.of` says what other studies are in zcdp."""
    if not isinstance(measure, Measure) or measure not in (Measure.GDP, Measure.ZCDP):
        raise ParameterError("measure", measure, "a Measure: gdp or zcdp")


def _as_zcdp(measure: Measure, budget: float) -> tuple[int, int]:
    """A budget in zCDP, exactly: a fraction, above and below. Every answer needs it: no `Fraction`."""
    above, below = budget.as_integer_ratio()
    return (above**2, 2 * below**2) if measure is Measure.GDP else (above, below)


@final
class Purse:
    """What one answer may be paid from: all of the filters, or none of them.

    What a running count holds for words to come is taken from all of them when a change is taken up.
    Words are paid from that, so whatever other studies spend meanwhile, none is ever refused.

    Args:
        study: the filter of the answer's study.
        caps: of the study's units, what fits under each lifetime cap.
        running: where a running count stands; untold for other answers.
        stopped: an earlier process began this answer and never sealed it. Then it holds no value,
            and costs nothing but what a running count holds for its word already.
    """

    def __init__(
        self,
        study: Filter,
        caps: Sequence[Filter] = (),
        *,
        running: RunningState = UNTOLD,
        stopped: bool = False,
    ) -> None:
        self._study = study
        self._caps = tuple(caps)
        self._before = study.remaining_units
        self.stopped = stopped
        self.running = running  #: secret, but for its last round
        self.wanted = 0  #: what the answer would take of what was left, units; secret
        self.given: bool | None = None  #: whether it could be paid; None before; secret
        self.shrunk = False  #: secret
        self.whole = True  #: False: the owner's value is not in it, whatever was paid; secret
        self.told: Told | None = None  #: what a position of a running count came to; secret

    @classmethod
    def of(
        cls,
        study: Declared,
        policy: Policy,
        *,
        spent: int,
        refused: bool,
        caps: Iterable[tuple[LifetimeCap, int]] = (),
        running: RunningState = UNTOLD,
        stopped: bool = False,
    ) -> "Purse":
        """The purse for the next answer in a study.

        Args:
            study: what it declares.
            policy: of its filter.
            spent: units of its budget that were spent, or are held for words to come; 0 to T.
            refused: whether it has ever refused, or shrunk, an answer.
            caps: each with how many of its GRAIN units the *other* studies have taken. Where a cap
                is less than was taken before, nothing new fits, and what was held stays held.
            running: where a running count stands.
            stopped: as for the purse.
        """
        total = study.budget_units

        def filter_of(remaining: int, policy: Policy, refused: bool = False) -> Filter:
            return Filter.resumed(
                budget_units=total, policy=policy, remaining_units=remaining, refused=refused
            )

        rooms = [cap.room(study, taken=taken) - spent for cap, taken in caps]
        return cls(
            filter_of(total - spent, policy, refused),
            [filter_of(min(max(room, 0), total - spent), Policy.SKIP) for room in rooms],
            running=running,
            stopped=stopped,
        )

    def __repr__(self) -> str:
        return "Purse(secret)"

    def radius(self, *, weight: int, largest: int) -> int:
        """As `Filter.radius`, within all of the filters. Secret."""
        filters = (self._study, *self._caps)
        return min(each.radius(weight=weight, largest=largest) for each in filters)

    def try_spend(self, squared_norm: int, *, weight: int, shrunk: bool = False) -> bool:
        """As `Filter.try_spend`, from all of the filters or none. At most once.

        Raises:
            ParameterError: an argument is outside its range.
            StateError: it has been asked before.
        """
        self._check_fresh()
        charge = self._study.charge_of(squared_norm, weight=weight)
        if self.stopped:  # no filter is asked: none is to remember a refusal
            self.given, self.wanted = charge == 0, charge
            return self.given
        if self._caps:
            steps = [(each, charge) for each in (self._study, *self._caps)]
            self.given = spend_all(*steps, shrunk=shrunk)
        else:
            self.given = self._study.try_spend(squared_norm, weight=weight, shrunk=shrunk)
        self.wanted, self.shrunk = charge, shrunk
        return self.given

    def commit(
        self, change: int, *, planned: int, cross: int, alone: int, weight: int
    ) -> tuple[bool, int]:
        """As `Filter.commit`, in all of the filters or none. At most once.

        Raises:
            ParameterError: an argument is outside its range.
            StateError: it has been asked before.
        """
        self._check_fresh()
        taken, held = self._study.commit(
            change, planned=planned, cross=cross, alone=alone, weight=weight, beside=self._caps
        )
        energy = projected(change, planned=planned, cross=cross, alone=alone)
        charge = self._study.charge_of(energy, weight=weight)
        self.given, self.wanted = taken, max(0, charge - weight * planned)
        return taken, held

    def _check_fresh(self) -> None:
        if self.given is not None:
            raise StateError("an answer is paid for once")

    @property
    def charge(self) -> int:
        """What the answer has cost, units of the study's budget. Secret.

        Of a running count that is its word, and those that were held for positions never asked.
        """
        return self._before - self._study.remaining_units - self.newly_held

    @property
    def newly_held(self) -> int:
        """What is held for words to come beyond what was before, units; below 0: given back. Secret."""
        return 0 if self.told is None else self.told.state.held - self.running.held

    @property
    def covered(self) -> bool:
        """Whether less is in the answer than its owner's value. Secret. See `Device.ever_covered`."""
        return self.stopped or self.shrunk or not (self.given and self.whole)

    @property
    def refused(self) -> bool:
        """Whether the study's filter has now ever refused or shrunk an answer. Secret."""
        return self._study.ever_refused
