"""What a gradient costs whose norm is a float, in integer budget units."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from demur_client.budget.decide import decide
from demur_proto.accounting.calibration import UNITS_LIMIT
from demur_proto.arrays import Flags, Integers, Vector
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError, StateError
from demur_proto.guarantee import guarantee_of
from demur_proto.models.base import Examples, Model
from demur_proto.models.definition import Features, ModelDefinition
from demur_proto.study import Policy, Study, View
from demur_sim.engine.sampling import Purpose, stream
from demur_sim.people.labelled import LabelledPeople, Learners
from demur_sim.people.presence import BLOCK, block_count

MARGIN = 1e-12  #: relative; what a squared norm may be off by in double precision


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatPrice:
    """What answers to a round cost, by their norm, so that k = ⌊B_norm/C²⌋ full answers fit.

        F = ⌊T/k⌋ for a full answer,  ⌈(1 + 10⁻¹²)‖ḡ‖² F/C²⌉ for one's own gradient,
        and never more than min(T, ⌊F B_norm/C²⌋) in all

    A unit stands for C²/F. So what is paid is never less than what it costs, and all of it together is
    at most B_norm. Nothing inside the clip costs more than a full answer: a norm that is rounded upwards
    and no larger than C belongs to a gradient that is no longer than that. A charge above the budget T is
    T + 1. Charges grow with the norm.

    The study's own unit, γ²/W, would not do here: devices count whole squared steps of the grid, but C²
    need not be one, and k times what it would be rounded up to is more than T.

    Raises:
        ParameterError: a field is outside its range.

    >>> price = FloatPrice(clip=2.0, budget_norm=Fraction(12), budget_units=3 << 46)
    >>> price.full == 1 << 46, (price.charge(np.array([0.0, 0.5, 1.0, 9.0])) / 2**42).round(9)
    (True, array([ 0.,  1.,  4., 48.]))
    """

    clip: float  #: C, data units; > 0
    budget_norm: Fraction  #: B_norm, the squared norms that fit in all, data units²; > 0
    budget_units: int  #: T
    full: int = field(init=False)  #: what a full answer costs; at most T + 1
    limit: int = field(init=False)  #: what may be spent in all: T, or less than k units below it
    _scale: float = field(init=False)  # units of a squared data unit, F/C²

    def __post_init__(self) -> None:
        check_positive("clip", self.clip)
        check_integer("budget_units", self.budget_units, 1, UNITS_LIMIT - 1)
        if not (type(self.budget_norm) is Fraction and self.budget_norm > 0):
            raise ParameterError("budget_norm", self.budget_norm, "a Fraction > 0")
        answers = self.budget_norm / Fraction(self.clip) ** 2
        k = int(answers)
        full = self.budget_units // k if k else math.ceil(self.budget_units / answers)
        scale = full / Fraction(self.clip) ** 2
        if not 2.0**-900 <= scale <= 2.0**900:
            raise ParameterError("clip", self.clip, "nearer to 1, so that a float holds its square")
        object.__setattr__(self, "full", min(full, self.budget_units + 1))
        object.__setattr__(self, "limit", min(int(full * answers), self.budget_units))
        object.__setattr__(self, "_scale", float(scale))

    def charge(self, norms: Vector) -> Integers:
        """What gradients of these norms cost [n], budget units. Secret.

        Args:
            norms: data units, rounded upwards [n]; finite and ≥ 0.
        """
        with np.errstate(over="ignore", under="ignore"):
            units = np.ceil(norms * norms * (1 + MARGIN) * self._scale)
        units = np.maximum(units, norms > 0)  # where squares are too small for a float
        fits = units <= self.budget_units
        charges = np.where(fits, units, 0.0).astype(np.int64) + (self.budget_units + 1) * ~fits
        return np.where(norms <= self.clip, np.minimum(charges, self.full), charges)

    def affordable(self, remaining: Integers, *, refused: Flags) -> Vector:
        """The largest norm that each person can still pay for, or a little less [n].

            min(C, √(what remains of B)), and 0 after an answer was shrunk or refused

        What it costs is never more than what remains. Secret.

        Source: Feldman & Zrnic 2021, arXiv:2008.11193, Algorithm "filtered-gd".

        >>> price = FloatPrice(clip=2.0, budget_norm=Fraction(12), budget_units=3 << 46)
        >>> left = np.array([3 << 46, 1 << 42, 0, 3 << 46])
        >>> price.affordable(left, refused=np.array([False, False, False, True])).round(9)
        array([2. , 0.5, 0. , 0. ])
        """
        radii = np.sqrt(remaining / self._scale) * (1 - 2 * MARGIN)
        radii = np.minimum(radii, self.clip)
        radii[self.charge(radii) > remaining] = 0.0  # a ceiling that a few units cannot pay
        radii[remaining >= self.full] = self.clip
        radii[refused] = 0.0
        return radii


# Gradient rounds in floating point: the same filters, but sums and noise are floats.
#
# For simulations of large models on one machine. Charges and decisions are integers as everywhere; what
# they are charges of is a float, so the guarantee holds in real arithmetic, not for the bits.

MOST_THREADS = 256

FLOAT_ARITHMETIC = (
    "Arithmetic: float, a simulation in which sums and noise are floats; so this holds in real "
    "arithmetic. Noise: one float N(0, sigma^2) for each coordinate of the sum in view aggregate, and "
    "for each report in view local; it is drawn by whoever adds up, who sees gradients without noise."
)


class FloatCohort:
    """People with one filter each, who answer gradient rounds like the base round of their study.

    Under policy `clip` a gradient is clipped to what its owner can still pay, min(C, √(B − Σ‖ḡ‖²)), and
    the first that the budget shrinks is the last (filtered-gd). Under the others an answer that does
    not fit is refused. With `worst_case` everyone pays for a full answer C² in each round, whatever
    their gradient (private-gd).

    The same seed gives the same sums, bit for bit, for any number of threads.

    Source: Feldman & Zrnic 2021, arXiv:2008.11193, section 5.
    """

    def __init__(
        self,
        study: Study,
        people: LabelledPeople,
        *,
        clip: float,
        seed: int,
        worst_case: bool = False,
        threads: int = 1,
    ) -> None:
        """Set up fresh filters.

        Args:
            study: the contract; of Gaussian sums. Rounds have its base noise.
            people: who owns which examples.
            clip: ℓ₂ radius C of one person's gradient, data units; > 0.
            seed: all noise follows from it.
            worst_case: everyone pays C² in each round.
            threads: how many blocks of people at a time.

        Raises:
            ParameterError: an argument is outside its range, or fewer people than the study releases.
        """
        check_positive("clip", clip)
        check_integer("seed", seed, 0)
        check_integer("threads", threads, 1, MOST_THREADS)
        if not study.mechanism_family.has_linear:
            raise ParameterError("mechanism_family", str(study.mechanism_family), "one with sums")
        if people.devices < study.minimum_cohort:
            expected = f"at least {study.minimum_cohort}, the study's minimum cohort"
            raise ParameterError("people", people.devices, expected)
        self.study = study
        self.rounds = 0
        self.refused: Flags = np.zeros(people.devices, dtype=np.bool_)
        self.covered: Flags = np.zeros(people.devices, dtype=np.bool_)  # see `Device.ever_covered`
        self._people = people
        self._seed = seed
        self._threads = threads
        self._worst_case = worst_case
        self._price = FloatPrice(
            clip=clip, budget_norm=study.budget_norm, budget_units=study.budget_units
        )
        self.remaining: Integers = np.full(people.devices, self._price.limit, dtype=np.int64)
        self._examples: tuple[Features | None, list[Examples]] | None = None
        self._learners = Learners()

    @property
    def spent(self) -> Integers:
        """What everyone has paid so far, budget units [n]. Secret."""
        return self._price.limit - self.remaining

    @property
    def full_charge(self) -> int:
        """What everyone pays for a full answer under `worst_case`, budget units. Public."""
        return self._price.full

    def restore(
        self,
        *,
        spent: npt.NDArray[Any],
        refused: npt.NDArray[Any],
        covered: npt.NDArray[Any],
        rounds: int,
    ) -> None:
        """Go on where another cohort of the same people stopped.

        Raises:
            ParameterError: it was a cohort of other people, or of another budget.
        """
        check_integer("rounds", rounds, 0)
        if spent.shape != self.remaining.shape or spent.dtype != np.int64:
            raise ParameterError("spent", "another array", "an int64 for each person")
        if spent.min(initial=0) < 0 or spent.max(initial=0) > self._price.limit:
            raise ParameterError("spent", "another amount", "within everyone's budget")
        for name, flags in (("refused", refused), ("covered", covered)):
            if flags.shape != self.refused.shape or flags.dtype != np.bool_:
                raise ParameterError(name, "another array", "a flag for each person")
        self.remaining = np.asarray(self._price.limit - spent, dtype=np.int64)
        self.refused, self.covered = refused.copy(), covered.copy()
        self.rounds = rounds

    def noisy_sum(self, model: ModelDefinition, *, number: int) -> Vector:
        """Ask everyone for their gradient, and return the sum of what was given, with noise [d].

        Args:
            model: at its parameters.
            number: of the round; they count from 1, and none is asked twice, for its noise would be
                the same.

        Raises:
            StateError: it is not the next round.
            ParameterError: the people own no examples that fit the model.
            UnsupportedError: nothing here computes its gradients.
        """
        if number != self.rounds + 1:
            raise StateError(f"round {self.rounds + 1} is next, not round {number}")
        answering = self.model(model)
        blocks = self._blocks(model.features)
        self.rounds = number
        total = np.zeros(answering.parameters)
        with ThreadPoolExecutor(self._threads) as threads:
            jobs = [
                threads.submit(self._block_sum, answering, model.theta, at * BLOCK, examples)
                for at, examples in enumerate(blocks)
            ]
            for job in jobs:  # in order: floats add up differently in another
                total += job.result()
        reports = self._people.devices if self.study.view is View.LOCAL else 1
        rng = stream(self._seed, Purpose.SUMMED_NOISE, number)
        noise: Vector = rng.standard_normal(len(total))
        noise *= self.study.base_sigma * math.sqrt(reports)
        return total + noise

    def model(self, definition: ModelDefinition) -> Model:
        """What computes gradients of a model, modules of torch included.

        Raises:
            UnsupportedError: torch is not installed.
            ParameterError: there is no such module.
        """
        return self._learners.of(definition)

    def _blocks(self, features: Features | None) -> list[Examples]:
        """Everyone's examples through a feature map, which is worked out once."""
        if self._examples is None or self._examples[0] != features:
            devices = self._people.devices
            slices = (
                slice(at * BLOCK, min((at + 1) * BLOCK, devices))
                for at in range(block_count(devices))
            )
            self._examples = features, [self._people.examples(features, each) for each in slices]
        return self._examples[1]

    def _block_sum(self, model: Model, theta: Vector, start: int, examples: Examples) -> Vector:
        """One block's clipped gradients, paid for and added up [d]."""
        some = slice(start, start + examples.number_of_people)
        remaining, refused = self.remaining[some], self.refused[some]  # views: changed in place
        covered = self.covered[some]  # likewise
        price, policy = self._price, self.study.policy
        retire = policy is Policy.RETIRE
        if self._worst_case:
            charge: Integers = np.full(len(remaining), price.full, dtype=np.int64)
            given, _, _ = decide(charge, remaining=remaining, refused=refused, retire=retire)
            whole: Vector = np.where(given, price.clip, 0.0)
            total, norms, _ = model.clipped_sum(theta, examples, whole)
            covered |= ~given | ~np.isfinite(norms)
            return total
        radii: Vector = np.full(len(remaining), price.clip)
        if policy is Policy.CLIP:
            radii = price.affordable(remaining, refused=refused)
        total, norms, clipped = model.clipped_sum(theta, examples, radii)
        charge = price.charge(clipped)
        given, _, _ = decide(charge, remaining=remaining, refused=refused, retire=retire)
        if policy is Policy.CLIP:  # the radii saw to it that all was given
            shrunk = (norms > radii) & (radii < price.clip)
            refused |= shrunk
            given = given & ~shrunk
        covered |= ~given | ~np.isfinite(norms)
        if policy is Policy.CLIP:
            return total
        if not given.all():
            return model.clipped_sum(theta, examples, np.where(given, price.clip, 0.0))[0]
        return total


def float_statement(study: Study) -> str:
    """The study's guarantee, in words, as far as floats can keep it."""
    return in_real_arithmetic(guarantee_of(study, per_report_mu=math.inf).statement)


def in_real_arithmetic(statement: str) -> str:
    """A printed statement, with the noise of floats in place of the noise of devices.

    >>> in_real_arithmetic("Promised. Noise: exact.").partition(" Arithmetic: ")[0]
    'In real arithmetic: Promised.'
    """
    promised = statement.rpartition(" Noise: ")[0]  # the last: a study may be called like that
    return f"In real arithmetic: {promised} {FLOAT_ARITHMETIC}"
