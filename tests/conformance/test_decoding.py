"""What the tool that tries out devices reads in their reports, and what it expects there."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_conformance.budget_scripts import Plan, clip_plan, retire_plan, skip_plan
from demur_conformance.questions import (
    agrees,
    ask,
    noise_is_right,
    noises_differ,
    of_squared_norm,
    revealing_study,
    shown_norm,
    words_of,
)
from demur_conformance.verdicts import DEVICE_RULES, Verdict, Verdicts
from demur_proto.study import Policy
from demur_proto.wire.words import WordType

STUDY = revealing_study(Policy.SKIP)
ASKED = ask(STUDY, 1, (40_000, -30_000, *(0,) * 14))


@given(st.integers(0, 1 << 36))
def test_sixteen_squares_add_up_to_any_norm(total: int) -> None:
    assert sum(each**2 for each in of_squared_norm(total)) == total


@pytest.mark.parametrize(
    ("plan", "given_ones"),
    [
        # .6 of the budget; one unit beyond the rest; just the rest; then nothing fits.
        (skip_plan(), [1, 0, 1, 0, 0]),
        # Three fifths, the second and fourth without data; one unit too much, and what would have fit.
        (retire_plan(), [1, 0, 1, 0, 1, 0, 0]),
        (clip_plan(), [1, 1, 0]),
    ],
)
def test_what_is_due_is_what_the_policy_says(plan: Plan, given_ones: list[int]) -> None:
    assert [int(due.squared_norm > 0) for due in plan.due] == given_ones


@pytest.mark.parametrize("plan", [skip_plan(), retire_plan(), clip_plan()])
def test_what_is_due_never_costs_more_than_the_budget(plan: Plan) -> None:
    spent = sum(due.squared_norm * due.asked.defined.value.weight for due in plan.due)

    assert spent <= plan.study.value.budget_units


def test_policy_skip_is_tried_at_the_very_last_unit() -> None:
    first, second, third, *_ = (due.asked for due in skip_plan().due)
    left = STUDY.value.budget_units - first.squared_norm * first.defined.value.weight

    for asked, more in ((second, 1), (third, 0)):
        assert asked.squared_norm == left // asked.defined.value.weight + more


def test_what_is_shrunk_is_what_is_left() -> None:
    plan = clip_plan()
    first, second, _ = plan.due

    left = plan.study.value.budget_units // plan.study.value.base_weight - first.squared_norm
    assert second.squared_norm == left < second.asked.squared_norm


def test_an_answer_shows_by_its_norm_and_cover_by_none(rng: np.random.Generator) -> None:
    noise = np.rint(rng.normal(scale=4096.0, size=16)).astype(np.int64)
    value = np.array(ASKED.value)

    assert abs(shown_norm(ASKED, noise + value) - 50_000 / 4096) < 5.5
    assert abs(shown_norm(ASKED, noise)) < 5.5
    assert agrees(ASKED, noise + value, squared_norm=50_000**2)[0]
    assert not agrees(ASKED, noise, squared_norm=50_000**2)[0]
    assert not agrees(ASKED, noise + value, squared_norm=0)[0]


def test_words_of_another_size_are_none() -> None:
    asked = ASKED.defined.value

    assert asked.word_type is WordType.INT32
    assert words_of(asked, bytes(64)) is not None
    assert words_of(asked, bytes(60)) is None


def test_noise_is_right_only_with_its_mean_and_spread(rng: np.random.Generator) -> None:
    words = np.rint(rng.normal(scale=100.0, size=4096)).astype(np.int64)

    assert noise_is_right(words, steps=100.0)[0]
    assert not noise_is_right(words, steps=90.0)[0]
    assert not noise_is_right(words, steps=110.0)[0]
    assert not noise_is_right(words + 20, steps=100.0)[0]


def test_noises_differ_unless_they_are_the_same_opposite_or_go_together(
    rng: np.random.Generator,
) -> None:
    one, other = rng.normal(size=4096), rng.normal(size=4096)

    assert noises_differ([one, other])[0]
    assert noises_differ([one[:16], other[:16]])[0]
    assert not noises_differ([one, other, one])[0]
    assert not noises_differ([one[:16], -one[:16]])[0]
    assert not noises_differ([one, 0.9 * one + 0.4 * other])[0]


def test_one_observation_against_a_rule_decides() -> None:
    book = Verdicts(DEVICE_RULES, ["slots", "clipping"])

    book.check("slots", True, "in time")
    book.check("slots", False, "late")
    book.check("slots", True, "in time")

    found = {f.rule.id: f.verdict for f in book.findings()}
    assert found == {"slots": Verdict.FAIL, "clipping": Verdict.NOT_TESTED}
    assert not book.is_lost
    assert not book.all_pass()


def test_an_observation_of_no_rule_is_a_bug() -> None:
    with pytest.raises(KeyError):
        Verdicts(DEVICE_RULES).check("honesty", True, "")
