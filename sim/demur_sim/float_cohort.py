"""Gradient rounds in floating point: the same filters, but sums and noise are floats.

For simulations of large models on one machine. Charges and decisions are integers as everywhere; what
they are charges of is a float, so the guarantee holds in real arithmetic, not for the bits.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from demur_client.budget import decide
from demur_proto.arrays import Flags, Integers, Vector
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError, StateError
from demur_proto.guarantee import guarantee_of
from demur_proto.models.base import Model
from demur_proto.models.definition import Features, ModelDefinition
from demur_proto.models.examples import Examples
from demur_proto.study import Policy, Study, View
from demur_sim.float_charges import FloatPrice
from demur_sim.labelled_people import LabelledPeople
from demur_sim.learners import Learners
from demur_sim.portions import BLOCK, block_count
from demur_sim.seeds import Purpose, stream

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
