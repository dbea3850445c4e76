"""Cover moves no count; a planted cover that is some category, uniformly, does, and is found."""

import numpy as np
import pytest

from demur_proto.arrays import Flags, Words
from demur_proto.study import Measure, View
from demur_sim import cohort
from demur_sim.histogram_results import HistogramResult
from demur_sim.populations import ArrayPopulation
from demur_sim.run import simulate
from demur_sim.scenario import Kind, Scenario

DEVICES, CATEGORIES = 4000, 4


def check_that_cover_counts_for_nothing(mechanism: str) -> None:
    """Everybody can pay for one day, so on the second there is only cover."""
    scenario = Scenario(
        name="cover",
        feature="value",
        kind=Kind.HISTOGRAM,
        categories=CATEGORIES,
        mechanism=mechanism,
        epsilon=4.0,
        measure=Measure.ZCDP,
        view=View.LOCAL,
        budget=1,
    )

    result = simulate(scenario, population=ArrayPopulation(np.zeros((DEVICES, 2))), workers=1)

    assert isinstance(result, HistogramResult)
    assert result.exhausted_fraction == 1
    for counts, expected in zip(result.estimates, ([DEVICES, 0, 0, 0], [0] * 4), strict=True):
        # 4.5 standard errors, eight times: once in twenty thousand.
        assert (np.abs(counts - expected) <= 4.5 * result.theory.max()).all()


def cover_in_the_domain(words: Words, given: Flags) -> Words:
    """Symbols count from 1: instead of none, the categories in turn."""
    instead: Words = 1 + np.arange(len(words), dtype=words.dtype)[:, None] % CATEGORIES
    return np.where(given[:, None], words, instead)


@pytest.mark.parametrize("mechanism", ["krr", "oue", "hadamard"])
def test_cover_counts_for_nothing(mechanism: str) -> None:
    check_that_cover_counts_for_nothing(mechanism)


@pytest.mark.parametrize("mechanism", ["krr", "oue", "hadamard"])
def test_cover_that_counts_as_one_kth_of_a_person_is_found(
    monkeypatch: pytest.MonkeyPatch, mechanism: str
) -> None:
    monkeypatch.setattr(cohort, "covered", cover_in_the_domain)

    with pytest.raises(AssertionError):
        check_that_cover_counts_for_nothing(mechanism)
