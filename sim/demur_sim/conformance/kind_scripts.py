"""Scripts about the kinds of rounds that a device need not offer; it may say so, by keeping away.

A device that takes no part in a study of histograms, or passes over a running count and answers the
linear round behind it, does not offer them. One that begins must go on as it should.
"""

import numpy as np

from demur_proto.asking import next_gradient, next_histogram, next_prefix
from demur_proto.continual.factors import factors_of
from demur_proto.definition import Defined, define_round, define_study
from demur_proto.gradients import dimension_of, person_gradient
from demur_proto.models.definition import ModelDefinition, define_model
from demur_proto.models.softmax import Softmax
from demur_proto.round import Feature, Randomiser, Round
from demur_proto.segments import Factorisation, Segment
from demur_proto.study import Measure, MechanismFamily, Policy, Study, View
from demur_sim.conformance.bench import Bench
from demur_sim.conformance.decoding import agrees
from demur_sim.conformance.device_process import Data, Examples
from demur_sim.conformance.questions import (
    SIGMA,
    SLOT_MS,
    Asked,
    ask,
    of_squared_norm,
    revealing_study,
)

HISTOGRAMS, RUNNING, GRADIENTS = "histograms", "running-counts", "gradients"
CATEGORIES = 4
PLAIN = 50.0  #: ε at which k-ary randomised response errs once in 10^21 reports
LARGEST_BUDGET = 200.0  #: that the owner of the device with histograms accepts
ANSWERS = 3  #: plain answers that its budget holds, and half of one more

EXPONENT = -14  #: of the grid of running counts
SHOWN = 16.0  #: standard deviations of a state of 1 in its first word, hence 8 in the second
STEEP = 12.0  #: standard deviations of a gradient at its clip: two of them fit
GRADIENT_SLOT_MS = 1000  #: a gradient takes longer to evaluate than a number
HELD = 60  #: σ²; would fit beside the first word, and not beside the second, which is held


def histogram_study() -> Defined[Study]:
    """A study of histograms alone, whose answers hide nothing."""
    return define_study(
        Study(
            name="conformance, histograms",
            view=View.LOCAL,
            measure=Measure.ZCDP,
            policy=Policy.SKIP,
            budget=(ANSWERS + 0.5) * PLAIN,
            epsilon=8 * PLAIN,
            delta=1e-6,
            mechanism_family=MechanismFamily.PURE,
            minimum_cohort=1,
            horizon=8,
            maximum_dimension=64,
        )
    )


HISTOGRAM_DUE = (("second", 3), ("none", 0), ("first", 1), ("absent", 0), ("last", 4), ("first", 0))
"""What is asked in each round, and the symbol due: after three answers the budget is gone."""


def histogram_data() -> Data:
    """Categories by feature; −1 is none, and one feature is not there at all."""
    return {"first": (0.0,), "second": (2.0,), "last": (3.0,), "none": (-1.0,)}


async def run_histograms(bench: Bench, study: Defined[Study]) -> None:
    """Categories, none, data that are not there, and cover."""
    await bench.begin(HISTOGRAMS)
    for number, (name, due) in enumerate(HISTOGRAM_DUE, start=1):
        query = next_histogram(
            study,
            Feature(name=name),
            number=number,
            categories=CATEGORIES,
            mechanism=Randomiser.KRR,
            epsilon=PLAIN,
            answer_after_ms=SLOT_MS,
        )
        asked = Asked(defined=define_round(query), value=(due,))
        answer = await bench.accepted(asked, rule=HISTOGRAMS)
        symbol = int(answer.words[0])
        text = f"round {number}: symbol {symbol}, {due} is due"
        bench.verdicts.check(HISTOGRAMS, symbol == due, text)


def running_study() -> Defined[Study]:
    """The study that running counts share with linear rounds."""
    return revealing_study(Policy.SKIP)


def running_data() -> Data:
    """Somebody who is in the state, and stays."""
    dear = tuple(map(float, of_squared_norm(_dear())))
    return {"state": (1.0,), "nobody": (0.0,), "plain": (0.0,), "dear": dear}


async def run_running_counts(bench: Bench, study: Defined[Study]) -> None:
    """A running count of two positions, and between them an answer that no longer fits."""
    probe = _position(study, Segment(horizon=1, cohort=1), number=1, name="nobody")
    plain = ask(study, 2, (0,), features=("plain",))
    await bench.offered(probe, rule=RUNNING, before=plain)
    segment = Segment(horizon=2, cohort=1, factorisation=Factorisation.SQUARE_ROOT).begun(3)
    first = _position(study, segment, number=3, name="state")
    dear = ask(study, 4, of_squared_norm(_dear()), features=("dear",))
    second = _position(study, segment.after(), number=5, name="state")
    for asked, due in ((first, first.squared_norm), (dear, 0), (second, second.squared_norm)):
        answer = await bench.accepted(asked, rule=RUNNING)
        bench.verdicts.check(RUNNING, *agrees(asked, answer.words, squared_norm=due))


MODEL = define_model(ModelDefinition(architecture=Softmax(inputs=7, classes=2), theta=np.zeros(16)))
EXAMPLES: Examples = (
    [[8.0, -3.0, 5.0, 0.0, 1.0, -7.0, 2.0], [1.0, 9.0, 0.0, 4.0, -6.0, 2.0, 3.0]],
    [1, 0],
)
"""Inputs and labels. Their gradient is far longer than the clip."""


async def run_gradients(bench: Bench, study: Defined[Study]) -> None:
    """Two gradients that are clipped, and a third that no longer fits."""
    asked = [_gradient(study, number) for number in (1, 3, 4)]
    plain = ask(study, 2, (0,), features=("plain",))
    await bench.offered(asked[0], rule=GRADIENTS, before=plain)
    for each, due in zip(asked[1:], (asked[1].squared_norm, 0), strict=True):
        answer = await bench.accepted(each, rule=GRADIENTS)
        bench.verdicts.check(GRADIENTS, *agrees(each, answer.words, squared_norm=due))


def _gradient(study: Defined[Study], number: int) -> Asked:
    """A gradient round, with the words that are due: clipped to 1, in grid steps."""
    query = next_gradient(
        study,
        MODEL.hash,
        number=number,
        dimension=dimension_of(MODEL),
        sigma=1 / STEEP,
        grid_exponent=EXPONENT,
        answer_after_ms=GRADIENT_SLOT_MS,
    )
    gradient = person_gradient(MODEL.value, *EXAMPLES)[0]
    due = np.rint(gradient / np.linalg.norm(gradient) * 2.0**-EXPONENT).astype(int)
    return Asked(defined=define_round(query), value=tuple(due.tolist()))


def _dear() -> int:
    """The squared norm of an answer that what is held leaves no room for, grid steps²."""
    return HELD * int(SIGMA) ** 2


def _position(study: Defined[Study], segment: Segment, *, number: int, name: str) -> Asked:
    """A round of a running count, with the word that is due of a state that was 1 from the first."""
    asked: Round = next_prefix(
        study,
        Feature(name=name),
        segment,
        number=number,
        sigma=1 / SHOWN,
        grid_exponent=EXPONENT,
        answer_after_ms=SLOT_MS,
    )
    factors = factors_of(segment.factorisation, horizon=segment.horizon, exponent=EXPONENT)
    word = int(factors.row(segment.position)[0]) if name == "state" else 0
    return Asked(defined=define_round(asked), value=(word,))
