from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.errors import ParameterError
from demur_sim.datasets.labelled import Deal, deal_equally, deal_skewed


@given(
    examples=st.integers(0, 200),
    per_person=st.integers(1, 30),
    alpha=st.none() | st.sampled_from([1e-6, 0.1, 1.0, 1e6]),
    seed=st.integers(0, 2**32),
)
def test_every_example_is_dealt_to_exactly_one_person(
    examples: int, per_person: int, alpha: float | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, examples)

    if alpha is None:
        deal = deal_equally(examples, per_person=per_person, rng=rng)
    else:
        deal = deal_skewed(labels, per_person=per_person, alpha=alpha, rng=rng)

    assert sorted(deal.order.tolist()) == list(range(examples))
    sizes = np.diff(deal.people).tolist()
    assert sizes[:-1] == [per_person] * (len(sizes) - 1)
    assert not sizes or 1 <= sizes[-1] <= per_person
    found = deal.examples(np.arange(examples, dtype=np.float64)[:, None], labels)
    assert found.labels.tolist() == labels[found.inputs[:, 0].astype(int)].tolist()


def test_alpha_says_how_often_two_examples_of_a_person_have_one_label() -> None:
    labels = np.arange(10_000) % 10

    def alike(alpha: float) -> float:
        deal = deal_skewed(labels, per_person=50, alpha=alpha, rng=np.random.default_rng(3))
        counts = [np.bincount(each) for each in labels[deal.order].reshape(200, 50)]
        return float(np.mean([(each * (each - 1)).sum() / (50 * 49) for each in counts]))

    # E Σ q² = (1 − 1/10)/(α + 1) + 1/10. One person's Σ q² is off by less than 0.3, so the mean of
    # 200 by less than 0.1 (5 sigma); what the last people find left over is some more.
    for alpha in (1e-6, 0.3, 1.0, 10.0, 1e6):
        assert alike(alpha) == pytest.approx(0.9 / (alpha + 1) + 0.1, abs=0.1)
    assert alike(1e6) == pytest.approx(0.1, abs=0.01)


def test_the_same_seed_deals_the_same() -> None:
    one, other = (
        deal_skewed(np.arange(99) % 3, per_person=7, alpha=0.5, rng=np.random.default_rng(5))
        for _ in range(2)
    )

    assert one.order.tolist() == other.order.tolist()


def test_fewer_examples_than_were_dealt_are_refused() -> None:
    deal = Deal(order=np.array([0, 3]), people=np.array([0, 2]))

    with pytest.raises(ParameterError, match="inputs must be at least 4, with one label each"):
        deal.examples(np.zeros((3, 1)), np.zeros(3, dtype=np.int64))


def test_labels_that_are_none_are_refused(rng: np.random.Generator) -> None:
    wrong: list[Any] = [np.array([0, -1]), np.zeros((2, 2), dtype=np.int64), np.zeros(2)]
    for labels in wrong:
        with pytest.raises(ParameterError, match="labels must be int64 >= 0"):
            deal_skewed(labels, per_person=1, alpha=1.0, rng=rng)
