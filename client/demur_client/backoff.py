"""How long to wait before trying again: longer each time, and never all devices at once."""

import secrets
from dataclasses import dataclass, field

from demur_proto.checks import check_positive
from demur_proto.errors import ParameterError


@dataclass(slots=True, kw_only=True)
class Backoff:
    """Full jitter: a wait is uniform between 0 and a bound that doubles with each failure.

        bound of failure n = min(longest, first · 2ⁿ), n = 0, 1, …

    The waits are public, so they are never drawn from where noise comes from.

    Raises:
        ParameterError: a bound is not a finite number above 0, or they are the wrong way round.

    Source: Brooker 2015, "Exponential Backoff And Jitter", AWS Architecture Blog.

    >>> backoff = Backoff(first_s=1.0, longest_s=5.0)
    >>> [backoff.next_bound_s() for _ in range(4)]
    [1.0, 2.0, 4.0, 5.0]
    """

    first_s: float  #: bound of the first wait, seconds; > 0
    longest_s: float  #: bound of all waits, seconds; >= first_s
    failures: int = field(default=0, init=False)  #: one after the other, so far

    def __post_init__(self) -> None:
        check_positive("first_s", self.first_s)
        check_positive("longest_s", self.longest_s)
        if self.longest_s < self.first_s:
            raise ParameterError("longest_s", self.longest_s, f">= first_s {self.first_s}")

    def next_bound_s(self) -> float:
        """The bound of the next wait, seconds; each call counts as a failure."""
        doublings = min(self.failures, 1000)
        self.failures += 1
        return min(self.longest_s, self.first_s * 2.0**doublings)

    def next_s(self) -> float:
        """The next wait, seconds; each call counts as a failure."""
        return self.next_bound_s() * secrets.randbelow(1 << 32) / (1 << 32)

    def reset(self) -> None:
        """Start over, once something has worked."""
        self.failures = 0
