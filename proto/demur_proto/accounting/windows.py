"""Budget windows: a public schedule of studies, each with a fresh budget, and what they promise together."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from demur_proto.accounting import conversions
from demur_proto.accounting.conversions import pair_epsilon_delta
from demur_proto.accounting.numerics import ceil_float, check_delta, text_up
from demur_proto.accounting.pure import MOST_ANSWERS, composition_epsilon
from demur_proto.accounting.together import added_budget
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.guarantee import NEIGHBOUR, NOISE, VIEWS, in_words
from demur_proto.study import Measure, Study, View

MOST_ROUNDS = (1 << 32) - 1
UNIT = "one device = one person, with everything it reports in these windows"
TRUST = (
    " The collector, its store and its backups are trusted: the promise of each window says how little "
    "protects one report on its own, and over how many devices the noise is split."
)
LAST_ALONE = 8  #: numbers of windows up to this are all told


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rounds that are paid from one budget.

    Raises:
        ParameterError: a field is outside its range.
    """

    first: int  #: number of its first round, from 1
    last: int  #: of its last round; at least `first`

    def __post_init__(self) -> None:
        check_integer("first", self.first, 1, MOST_ROUNDS)
        check_integer("last", self.last, self.first, MOST_ROUNDS)

    @property
    def rounds(self) -> int:
        """How many."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """A schedule, fixed and public before the first round: each round is in one window.

    Raises:
        ParameterError: the windows overlap, leave rounds out, or do not end with the horizon.

    >>> [window.last for window in Windows.every(91, horizon=365).windows]
    [91, 182, 273, 364, 365]
    """

    windows: tuple[Window, ...]  #: in order
    horizon: int  #: the last round

    def __post_init__(self) -> None:
        check_integer("horizon", self.horizon, 1, MOST_ROUNDS)
        if not self.windows or not all(isinstance(each, Window) for each in self.windows):
            raise ParameterError("windows", self.windows, "one Window or more")
        due = 1
        for number, window in enumerate(self.windows, start=1):
            name = f"windows: the first round of window {number}"
            if window.first < due:
                expected = f"{due}, so that it does not overlap with the window before it"
                raise ParameterError(name, window.first, expected)
            if window.first > due:
                raise ParameterError(name, window.first, f"{due}, so that no round is left out")
            if window.last > self.horizon:
                expected = f"at most {self.horizon}, the horizon"
                raise ParameterError(
                    f"windows: the last round of window {number}", window.last, expected
                )
            due = window.last + 1
        if due <= self.horizon:
            last = self.windows[-1].last
            raise ParameterError("windows: the last round", last, f"{self.horizon}, the horizon")

    @classmethod
    def every(cls, window: int, *, horizon: int) -> "Windows":
        """Windows of so many rounds each; the last may have fewer.

        Args:
            window: how many; 1 to `horizon`.
            horizon: the last round.

        Raises:
            ParameterError: an argument is outside its range.
        """
        check_integer("horizon", horizon, 1, MOST_ROUNDS)
        check_integer("window", window, 1, horizon)
        return cls(
            windows=tuple(
                Window(first=first, last=min(first + window - 1, horizon))
                for first in range(1, horizon + 1, window)
            ),
            horizon=horizon,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OverWindows:
    """What holds for somebody who takes part in some windows, over all their rounds together."""

    windows: int  #: in how many, at most
    measure: Measure
    budget: float  #: μ, ρ or ε in nats, or a number of answers
    epsilon: float  #: nats
    delta: float
    view: View
    noise: str  #: which
    answer_epsilon: float = 0.0  #: in measure answers, the most that one of them costs; nats

    @property
    def in_measure(self) -> str:
        """The budget with its measure."""
        return in_words(self.measure, self.budget, each=self.answer_epsilon)[0]

    @property
    def pair(self) -> tuple[float, float]:
        """(ε, δ) between two arbitrary people."""
        if self.measure is Measure.PURE:  # the chain through the reference needs no δ
            return pair_epsilon_delta(self.budget, 0.0)
        return pair_epsilon_delta(self.epsilon, self.delta)

    @property
    def statement(self) -> str:
        """The promise in words."""
        epsilon, delta = self.pair
        pair = in_words(self.measure, self.budget, each=self.answer_epsilon)[1]
        added = "the squares" if self.measure is Measure.GDP else "all"
        trust = "" if self.view is View.LOCAL else TRUST
        many = "1 window" if self.windows == 1 else f"{self.windows} windows"
        return (
            f"({text_up(self.epsilon)}, {text_up(self.delta)})-differential privacy, from "
            f"{self.in_measure}, over all rounds of {many}, each with a budget of its own, of which "
            f"{added} add up. Unit: {UNIT}. Neighbour: {NEIGHBOUR}. View: "
            f"{VIEWS[self.view]}. Between two arbitrary people: ({text_up(epsilon)}, "
            f"{text_up(delta, digits=3)}){pair}. Noise: {self.noise}.{trust}"
        )


def over_windows(windows: Sequence[Sequence[Study]], *, stay: int, delta: float) -> OverWindows:
    """The guarantee over any `stay` windows: those with the largest budgets, whichever they are.

        √(Σ μ²) (gdp),  Σ ρ (zcdp), converted to (ε, δ) exactly, as for a single study
        Σ ε (pure), as it is
        Σ n (answers), composed exactly at the largest ε₀ of all; of more than 2^20, Σ ρ in zcdp

    Each study has a filter of its own, so budgets add up under full adaptivity: questions in a later
    window may depend on all releases before.

    Args:
        windows: the studies that each window's rounds are asked in; all of one view, measure and
            mechanism family.
        stay: in how many windows a person takes part at most; 1 to the number of windows.
        delta: δ of all together.

    Raises:
        ParameterError: an argument is outside its range, the studies do not go together, or the
            samplers of so many windows may need half of δ or more.

    Source: `together.added_budget`.
    """
    everything = [study for studies in windows for study in studies]
    if not all(windows) or not everything:
        raise ParameterError("windows", len(windows), "at least one, each with its studies")
    first = everything[0]
    kinds = {(study.measure, study.view, study.mechanism_family) for study in everything}
    if len(kinds) > 1:
        raise ParameterError("windows", sorted(map(str, kinds)), "of one measure, view and family")
    check_integer("stay", stay, 1, len(windows))
    check_delta("delta", delta)
    measure = first.measure
    largest = sorted(windows, key=lambda studies: _cost(studies, measure), reverse=True)[:stay]
    chosen = [study for studies in largest for study in studies]
    budget = added_budget([study.budget for study in chosen], measure=measure)
    each = max(study.answer_epsilon for study in everything)
    if measure is Measure.ANSWERS and budget > MOST_ANSWERS:
        rho = sum((study.rho for study in chosen), Fraction())
        measure, budget, each = Measure.ZCDP, ceil_float(rho), 0.0
    converted = partial(_epsilon, budget, measure, each=each)
    most = converted(delta=delta / 2)
    needs = [sum(study.sampler_delta_at(most) for study in studies) for studies in windows]
    samplers = sum(sorted(needs, reverse=True)[:stay])
    left = delta - samplers
    if not left > delta / 2:
        expected = (
            f"above {2 * samplers:g}, for what samplers may need over {stay} windows at their epsilon "
            f"of {most:.3g}; let each window promise less, or have fewer"
        )
        raise ParameterError("delta", delta, expected)
    return OverWindows(
        windows=stay,
        measure=measure,
        budget=budget,
        epsilon=converted(delta=_below(left)),
        delta=delta,
        view=first.view,
        noise=NOISE[first.mechanism_family],
        answer_epsilon=each,
    )


def told_stays(windows: int) -> list[int]:
    """For how many windows a promise is told: 1 to 8, then powers of two, and all.

    >>> told_stays(20)
    [1, 2, 3, 4, 5, 6, 7, 8, 16, 20]
    """
    check_integer("windows", windows, 1, MOST_ROUNDS)
    doubled = {1 << power for power in range(windows.bit_length())}
    stays = {*range(1, LAST_ALONE + 1), *doubled, windows}
    return sorted(stay for stay in stays if stay <= windows)


def _cost(studies: Sequence[Study], measure: Measure) -> Fraction:
    power = 2 if measure is Measure.GDP else 1
    return sum((Fraction(study.budget) ** power for study in studies), Fraction())


def _epsilon(budget: float, measure: Measure, *, each: float, delta: float) -> float:
    match measure:
        case Measure.GDP:
            return conversions.gdp_epsilon(budget, delta=delta)
        case Measure.ZCDP:
            return conversions.zcdp_epsilon(budget, delta=delta)
        case Measure.PURE:
            return budget
        case Measure.ANSWERS:
            return composition_epsilon(int(budget), each=each, delta=delta)


def _below(delta: float) -> float:
    """A little less, for what rounding may have done to it."""
    return delta * (1 - 2.0**-50)
