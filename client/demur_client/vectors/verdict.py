"""What checking a family of vectors found, and the tally that becomes it."""

import math
from dataclasses import dataclass

UNDERFLOW = 1e-320  #: numbers up to this are too small to have a relative error


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How this implementation did on one family."""

    cases: int  #: how many cases were checked
    worst: float | None = None  #: worst relative error; None where only exact answers are compared
    failures: tuple[str, ...] = ()  #: one line each: which case, what was expected, what came
    unknown: tuple[str, ...] = ()
    """One line each: a case that this implementation does not know, so that it was not checked, and why."""

    @property
    def holds(self) -> bool:
        """Whether every case was reproduced. A family without cases proves nothing."""
        return self.cases > 0 and not (self.failures or self.unknown)


class Tally:
    """Collects comparisons case by case.

    >>> tally = Tally()
    >>> tally.case("first")
    >>> tally.above("epsilon", 1.0000000000001, 1.0, within=1e-12)
    >>> tally.below("budget", 2.0000000000001, 2.0, within=1e-12)
    >>> tally.same("decision", "HALT", "HALT")
    >>> verdict = tally.verdict()
    >>> verdict.cases, verdict.holds, verdict.failures
    (1, False, ('first: budget 2.0000000000001 is above 2.0',))
    """

    def __init__(self) -> None:
        self._cases = 0
        self._name = ""
        self._worst: float | None = None
        self._failures: list[str] = []
        self._unknown: list[str] = []

    def case(self, name: str) -> None:
        """Begin a case; what follows is about it."""
        self._cases += 1
        self._name = name

    def above(self, what: str, value: float, reference: float, *, within: float) -> None:
        """Expect a value that is not below the reference, and above it by `within` at most.

        A reference of 0 stands for whatever is below the least float as well.
        """
        if reference == 0 and 0 <= value <= UNDERFLOW:
            return
        if self._compared(what, value, reference, within) and value < reference:
            self.fail(f"{what} {value!r} is below {reference!r}")

    def below(self, what: str, value: float, reference: float, *, within: float) -> None:
        """Expect a value that is not above the reference, and below it by `within` at most."""
        if self._compared(what, value, reference, within) and value > reference:
            self.fail(f"{what} {value!r} is above {reference!r}")

    def near(self, what: str, value: float, reference: float, *, within: float) -> None:
        """Expect a value within a relative distance of the reference, on either side."""
        self._compared(what, value, reference, within)

    def same(self, what: str, value: object, reference: object) -> None:
        """Expect exactly this."""
        if value != reference:
            self.fail(f"{what} is {value!r}, expected {reference!r}")

    def fail(self, message: str) -> None:
        """Record that this case does not hold."""
        self._failures.append(f"{self._name}: {message}")

    def unknown(self, message: str) -> None:
        """Record that this case cannot be checked; the message names it."""
        self._cases -= 1
        self._unknown.append(message)

    def verdict(self) -> Verdict:
        """What was found so far."""
        return Verdict(
            cases=self._cases,
            worst=self._worst,
            failures=tuple(self._failures),
            unknown=tuple(self._unknown),
        )

    def _compared(self, what: str, value: float, reference: float, within: float) -> bool:
        """Note how far apart they are, and whether that is near enough to ask for the side."""
        error = relative_error(value, reference)
        self._worst = error if self._worst is None else max(self._worst, error)
        if error <= within:
            return True
        self.fail(f"{what} {value!r} differs from {reference!r} by {error:.2g}, not {within:.2g}")
        return False


def relative_error(value: float, reference: float) -> float:
    """|value − reference| / |reference|; infinite where only one of them is finite, or NaN.

    >>> relative_error(2.5, 2.0), relative_error(0.0, 0.0), relative_error(1.0, 0.0)
    (0.25, 0.0, inf)
    """
    if value == reference:
        return 0.0
    if not (math.isfinite(value) and math.isfinite(reference)) or reference == 0:
        return math.inf
    return abs(value - reference) / abs(reference)
