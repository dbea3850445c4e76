"""Policy clip for many people at once: who is shrunk, who falls silent, what is left."""

import numpy as np
import pytest

from demur_proto.queries import Feature, Linear
from demur_proto.round import Round, round_of
from demur_proto.study import Policy, Study, design_study
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_sim.engine.cohort import Cohort
from demur_sim.people.populations import ArrayPopulation
from demur_sim.scenario import Refusal

# Of a budget of 2, in full answers: the first person never has anything; the second spends it in
# two answers; the third has .75 left of it when it next asks for 1; the fourth always asks for ¼.
VALUES = np.array(
    [
        [0.0, 0.0, 0.0, 0.0, 0.0],
        [1.0, 1.0, 1.0, 0.0, 1.0],
        [1.0, 0.5, 1.0, 0.5, 0.0],
        [0.5, 0.5, 0.5, 0.5, 0.5],
    ]
)


@pytest.fixture
def study() -> Defined[Study]:
    return define_study(
        design_study(
            name="clip",
            epsilon=1.0,
            delta=1e-6,
            answers=2,
            policy=Policy.CLIP,
            minimum_cohort=4,
            grid_exponent=-14,
        )
    )


def ask(study: Defined[Study], period: int) -> Defined[Round]:
    feature = Feature(name="value", parameters={"period": period})
    return define_round(round_of(study, Linear([feature], on_grid=True), number=period))


def sent(study: Defined[Study], refusal: Refusal) -> tuple[list[list[bool]], Cohort]:
    """Who sent anything, round by round, and the cohort after that."""
    cohort = Cohort(study, ArrayPopulation(VALUES), seed=1, refusal=refusal)
    flags = []
    for period in range(1, 6):
        (only,) = cohort.answers(ask(study, period).value)
        flags.append(only.sent.tolist())
    return flags, cohort


def test_people_fall_silent_only_where_nothing_of_their_answer_fits(study: Defined[Study]) -> None:
    covering, _ = sent(study, Refusal.COVER)
    silent, _ = sent(study, Refusal.SILENT)

    assert covering == [[True] * 4] * 5
    assert silent == [
        [True, True, True, True],
        [True, True, True, True],
        [True, False, True, True],  # the third person is shrunk, the second has nothing left
        [True, True, False, True],  # who was shrunk has retired; a zero is always sent
        [True, False, True, True],
    ]


def test_whoever_is_shrunk_counts_as_refused_and_has_spent_almost_everything(
    study: Defined[Study],
) -> None:
    _, cohort = sent(study, Refusal.COVER)
    full = study.value.base_weight << 28

    assert cohort.refused().tolist() == [False, True, True, False]
    left = [int(units) for units in cohort.blocks[0].remaining]
    assert left[:2] == [2 * full, 0]
    assert 0 <= left[2] < 0.75 * full * 2**-10  # the norm is short of what fits by 2^-12
    assert left[3] == 3 * full // 4
