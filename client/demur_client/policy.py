"""What a device's owner agrees to: looked at before any data, and by public facts only.

A study or round outside the policy is refused visibly. The reason depends on the policy and on what
is public about studies, never on data or on what is left of a budget: every device with this policy,
which agreed to the same studies, refuses for the same reason.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from fractions import Fraction

from demur_client.evaluator.limits import EvaluationLimits
from demur_client.ledger.scope import LifetimeCap
from demur_proto.accounting import conversions
from demur_proto.accounting.numerics import ceil_float, text_up
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError, PolicyError
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import (
    GaussianQuery,
    Histogram,
)
from demur_proto.queries.base import GAUSSIAN
from demur_proto.queries.registry import KINDS
from demur_proto.round import DEFAULT_SLOT_MS, Round
from demur_proto.study import Measure, Study, View
from demur_proto.wire.definition import Defined

MECHANISMS = (GAUSSIAN, *Randomiser)
VIEWS = tuple(View)
DAY = timedelta(days=1)
LARGEST_EPSILON = 1e15  #: for which budgets can be compared


@dataclass(frozen=True, slots=True)
class QuietHours:
    """A part of the day, by the device's own clock, in which it visits nobody."""

    start: time
    end: time  #: the first minute that is not quiet; before `start` where it runs past midnight

    @classmethod
    def read(cls, text: str) -> "QuietHours":
        """From `HH:MM-HH:MM`.

        Raises:
            ParameterError: it is something else, or lasts for no time at all.

        >>> QuietHours.read("22:00-07:30").end.minute
        30
        """
        try:
            start, end = (datetime.strptime(part, "%H:%M").time() for part in text.split("-"))
        except (ValueError, AttributeError):
            start = end = time()
        if start == end:
            raise ParameterError("quiet_hours", text, "texts such as 22:00-07:00")
        return cls(start, end)

    def left(self, now: datetime) -> timedelta:
        """How much longer it is quiet; nothing where it is not.

        >>> QuietHours.read("22:00-07:00").left(datetime(2024, 1, 1, 6, 30)).seconds
        1800
        """
        clock = now.time()
        inside = (
            self.start <= clock < self.end
            if self.start < self.end
            else clock >= self.start or clock < self.end
        )
        if not inside:
            return timedelta()
        end = datetime.combine(now.date(), self.end, tzinfo=now.tzinfo)
        return (end if end > now else end + DAY) - now


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerPolicy:
    """What its owner lets a device take part in.

    Raises:
        ParameterError: a field is outside its range.
    """

    opt_out: bool = False  #: take part in nothing
    views: tuple[View, ...] = (View.LOCAL,)  #: whoever trusts the collector adds aggregate
    mechanisms: tuple[str, ...] = MECHANISMS  #: gaussian, and the randomisers of histograms
    questions: tuple[str, ...] = tuple(KINDS)  #: kinds of round that are answered
    largest_epsilon: float = 4.0  #: of one study, nats, zero-out
    largest_delta: float = 1e-5  #: of one study, and of all together
    lifetime_epsilon: float = 8.0  #: of all studies together, nats, at `largest_delta`
    """Visibly, of those that the device takes part in, by what they declare (`check_study`); and of
    those that were forgotten as well, in the ledger, where a refusal does not show (`lifetime_cap`)."""
    smallest_sigma: float = 0.0  #: noise of a Gaussian round in its view, as a multiple of its clip
    largest_round_epsilon: float = 8.0  #: of the mechanism of one histogram, nats
    smallest_cohort: int = 1  #: a study must promise to release no fewer reports
    studies: tuple[bytes, ...] = ()  #: hashes of the only studies; none named for any
    certificates: tuple[bytes, ...] = ()  #: SHA-256 of those that may vouch for the collector
    quiet_hours: tuple[QuietHours, ...] = ()
    shortest_slot_ms: int = DEFAULT_SLOT_MS
    """A round with a shorter slot is refused, and one without. 0, for made-up data, refuses none."""
    evaluation_memory_mib: int = 256  #: for one evaluation of the owner's data; 64 to 2^20
    evaluation_processor_s: int = 30  #: likewise, seconds of processor time; 1 to 2^20
    evaluation_wall_s: float = 60.0  #: likewise, seconds; four fifths of the slot end it sooner
    fill_processor: bool = True
    """Keep the processor busy, at the lowest priority, for the last second before a report leaves and until it is
    acknowledged, so that times do not tell how busy an evaluation was. Off, it saves a battery, and tells that."""

    def __post_init__(self) -> None:
        for name, known in (
            ("views", VIEWS),
            ("mechanisms", MECHANISMS),
            ("questions", tuple(KINDS)),
        ):
            if not getattr(self, name):
                raise ParameterError(name, [], f"at least one of {', '.join(known)}")
            for each in getattr(self, name):
                if each not in known:
                    raise ParameterError(name, each, f"some of {', '.join(known)}")
        object.__setattr__(self, "views", tuple(map(View, self.views)))
        for name in ("largest_epsilon", "lifetime_epsilon", "largest_round_epsilon"):
            check_positive(name, getattr(self, name))
        if self.lifetime_epsilon > LARGEST_EPSILON:
            raise ParameterError(
                "lifetime_epsilon", self.lifetime_epsilon, f"at most {LARGEST_EPSILON:g}"
            )
        if not isinstance(self.largest_delta, float) or not 1e-300 <= self.largest_delta < 1:
            raise ParameterError("largest_delta", self.largest_delta, "at least 1e-300, below 1")
        number = type(self.smallest_sigma) in (int, float)
        if not (number and 0 <= self.smallest_sigma <= sys.float_info.max):
            raise ParameterError("smallest_sigma", self.smallest_sigma, "a finite number >= 0")
        check_integer("smallest_cohort", self.smallest_cohort, 1, (1 << 31) - 1)
        check_integer("shortest_slot_ms", self.shortest_slot_ms, 0, 86_400_000)
        if not isinstance(self.fill_processor, bool):
            raise ParameterError("fill_processor", self.fill_processor, "true or false")
        self.evaluation_limits  # noqa: B018  or refuse it, by its own name
        for name in ("studies", "certificates"):
            for each in getattr(self, name):
                if not isinstance(each, bytes) or len(each) != 32:
                    raise ParameterError(name, each, "SHA-256 hashes")

    def check_study(self, study: Defined[Study], *, agreed: Sequence[Study] = ()) -> None:
        """Refuse a study that the owner does not take part in.

        Args:
            study: what a collector proposes.
            agreed: all other studies that the device takes part in. It knows no declared ε of those
                that were forgotten: they count in `lifetime_cap` only.

        Raises:
            PolicyError: it is refused, and why.
        """
        value = study.value
        if self.opt_out:
            raise self._refusal(value, "the owner opted out", "opt_out")
        if self.studies and study.hash not in self.studies:
            raise self._refusal(value, "its hash is not among those allowed", "studies")
        if value.view not in self.views:
            raise self._refusal(value, f"its view is {value.view}", "views")
        family = value.mechanism_family
        possible = (*([GAUSSIAN] if family.has_linear else []),) + (
            tuple(Randomiser) if family.has_histograms else ()
        )
        if not set(possible) & set(self.mechanisms):
            raise self._refusal(value, f"its mechanisms are {family}", "mechanisms")
        for name in ("epsilon", "delta"):
            stated, largest = getattr(value, name), getattr(self, f"largest_{name}")
            if stated > largest:
                reason = f"its {name} {stated:g} is above {largest:g}"
                raise self._refusal(value, reason, f"largest_{name}")
        if value.minimum_cohort < self.smallest_cohort:
            reason = f"its minimum cohort {value.minimum_cohort} is below {self.smallest_cohort}"
            raise self._refusal(value, reason, "smallest_cohort")
        together = epsilon_together([*agreed, value], delta=self.largest_delta)
        if together > self.lifetime_epsilon:
            reason = (
                f"with the {len(agreed)} studies agreed to before, epsilon would be "
                f"{text_up(together)} at delta {self.largest_delta:g}, above {self.lifetime_epsilon:g}"
            )
            raise self._refusal(value, reason, "lifetime_epsilon")

    def check_round(self, asked: Defined[Round]) -> None:
        """Refuse a round that the owner does not answer.

        Raises:
            PolicyError: it is refused, and why.
        """
        query, slot_ms = asked.value.query, asked.value.answer_after_ms
        where = f"round {asked.value.number}"
        kind = query.wire_name
        if kind not in self.questions:
            raise PolicyError(f"{where} is refused: it is of the kind {kind} (questions)")
        if isinstance(query, GaussianQuery):
            noise = Fraction(query.noise.sigma) / Fraction(query.clip)
            if noise < Fraction(self.smallest_sigma):
                reason = (
                    f"its noise is {float(noise):g} times its clip, below {self.smallest_sigma:g}"
                )
                raise PolicyError(f"{where} is refused: {reason} (smallest_sigma)")
        elif isinstance(query, Histogram) and query.epsilon > self.largest_round_epsilon:
            reason = f"its epsilon {query.epsilon:g} is above {self.largest_round_epsilon:g}"
            raise PolicyError(f"{where} is refused: {reason} (largest_round_epsilon)")
        mechanism = query.mechanism_name
        if mechanism not in self.mechanisms:
            raise PolicyError(f"{where} is refused: its mechanism is {mechanism} (mechanisms)")
        if slot_ms < self.shortest_slot_ms:
            its_slot = f"its slot of {slot_ms} ms is" if slot_ms else "it has no slot, and so is"
            reason = f"{its_slot} below {self.shortest_slot_ms} ms"
            raise PolicyError(f"{where} is refused: {reason} (shortest_slot_ms)")

    @property
    def evaluation_limits(self) -> EvaluationLimits:
        """The most that one evaluation of the owner's data may take."""
        return EvaluationLimits(
            memory_mib=self.evaluation_memory_mib,
            processor_s=self.evaluation_processor_s,
            wall_s=self.evaluation_wall_s,
        )

    @property
    def lifetime_cap(self) -> LifetimeCap:
        """`lifetime_epsilon` as what a ledger holds all studies to, by what was spent of them.

        Of a study that was forgotten, everything counts as spent that it had declared.
        """
        rho = conversions.zcdp_rho(self.lifetime_epsilon, delta=self.largest_delta)
        return LifetimeCap(measure=Measure.ZCDP, budget=rho)

    def quiet_for(self, now: datetime) -> timedelta:
        """How much longer nobody may be visited; nothing where it is time to visit.

        >>> hours = (QuietHours.read("22:00-00:00"), QuietHours.read("00:00-06:00"))
        >>> OwnerPolicy(quiet_hours=hours).quiet_for(datetime(2024, 1, 1, 23)).seconds // 3600
        7
        """
        at = now
        for _ in range(len(self.quiet_hours) + 1):  # one may begin where another ends
            left = max((hours.left(at) for hours in self.quiet_hours), default=timedelta())
            if not left:
                break
            at += left
        return at - now

    def _refusal(self, study: Study, reason: str, key: str) -> PolicyError:
        return PolicyError(
            f"study {study.name!r} is refused by this device's policy: {reason} ({key})"
        )


def epsilon_together(studies: Sequence[Study], *, delta: float) -> float:
    """ε, zero-out, of all that a device declared in these studies together; nats, rounded up.

    Budgets add as ρ, in whatever measure: see `Study.rho`. What the exact sampler may add to δ
    (`Study.sampler_delta`) comes on top.

    Args:
        studies: any number; none promise 0.
        delta: δ of all together, in [1e-300, 1).

    Source: Bun & Steinke 2016, arXiv:1605.02065, Lemma 1.7 and Proposition 1.6.

    >>> epsilon_together([], delta=1e-6)
    0.0
    """
    if not studies:
        return 0.0
    total = sum((study.rho for study in studies), Fraction())
    return conversions.zcdp_epsilon(ceil_float(total), delta=delta)
