"""Lifetime caps: what all studies together may take, spent in one step with a study's own budget."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_client.budget.filters import Filter
from demur_client.ledger.kept import MemoryLedger
from demur_client.ledger.scope import Declared, LifetimeCap, Purse
from demur_proto.accounting.calibration import GRAIN
from demur_proto.errors import ParameterError, StateError
from demur_proto.study import Measure, Policy
from ledger_kit import FULL, answer, ask, histogram_study, maker, spent_of, study_of

GDP, ZCDP = study_of(name="g"), study_of(name="z", measure=Measure.ZCDP)


def cap_of(measure: Measure, studies: float) -> LifetimeCap:
    """A cap of so many studies' worth; their budgets are alike up to a few parts in a hundred."""
    if measure is Measure.GDP:
        return LifetimeCap(measure=measure, budget=GDP.value.budget * studies**0.5)
    return LifetimeCap(measure=measure, budget=GDP.value.budget**2 / 2 * studies)


# ---- what a cap measures ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cap", "study", "part"),
    [
        # Of ρ = 2: μ = 2 is ρ = 2; of μ = 2, that is μ² = 4: ρ = 1 is μ² = 2.
        (LifetimeCap(measure=Measure.ZCDP, budget=2.0), (Measure.GDP, 2.0), Fraction(1)),
        (LifetimeCap(measure=Measure.ZCDP, budget=2.0), (Measure.ZCDP, 0.5), Fraction(1, 4)),
        (LifetimeCap(measure=Measure.GDP, budget=2.0), (Measure.ZCDP, 1.0), Fraction(1, 2)),
        (LifetimeCap(measure=Measure.GDP, budget=2.0), (Measure.GDP, 1.0), Fraction(1, 4)),
        (LifetimeCap(measure=Measure.GDP, budget=3.0), (Measure.GDP, 1.0), Fraction(1, 9)),
    ],
)
def test_a_budget_takes_its_part_of_a_cap_in_either_measure(
    cap: LifetimeCap, study: tuple[Measure, float], part: Fraction
) -> None:
    measure, budget = study
    declared = Declared(measure=measure, budget=budget, gaussian=True, budget_units=1000)

    assert cap.units(declared, 1000) == GRAIN * part  # GRAIN has 2, 3 and 5 among its divisors
    assert cap.room(declared, taken=0) == 1000 / part
    assert cap.room(declared, taken=GRAIN) == 0


@given(
    cap=st.tuples(st.sampled_from([Measure.GDP, Measure.ZCDP]), st.floats(1e-3, 1e3)),
    study=st.tuples(st.sampled_from([Measure.GDP, Measure.ZCDP]), st.floats(1e-3, 1e3)),
    total=st.integers(1, 2**62 - 1),
    taken=st.integers(0, GRAIN),
    data=st.data(),
)
def test_what_fits_beside_others_never_exceeds_a_cap(
    cap: tuple[Measure, float],
    study: tuple[Measure, float],
    total: int,
    taken: int,
    data: st.DataObject,
) -> None:
    mine = LifetimeCap(measure=cap[0], budget=cap[1])
    declared = Declared(measure=study[0], budget=study[1], gaussian=True, budget_units=total)
    room = mine.room(declared, taken=taken)
    spent = data.draw(st.integers(0, total))

    def rho(measure: Measure, budget: float) -> Fraction:
        return Fraction(budget) if measure is Measure.ZCDP else Fraction(budget) ** 2 / 2

    loss, bound = rho(*study) / total, rho(*cap)
    assert room * loss + bound * taken / GRAIN <= bound < (room + 1) * loss + bound * taken / GRAIN
    assert spent * loss <= bound * mine.units(declared, spent) / GRAIN


def test_a_cap_in_gdp_cannot_measure_noise_that_is_not_gaussian() -> None:
    of = histogram_study()
    cap = cap_of(Measure.GDP, 10)
    ledger = MemoryLedger(caps=[cap])

    with pytest.raises(ParameterError, match="Gaussian noise only"):
        ledger.agree(of)

    assert ledger.studies() == []
    assert cap.room(Declared.of(of.value), taken=0) == 0
    assert cap.units(Declared.of(of.value), 1) > GRAIN
    MemoryLedger(caps=[cap_of(Measure.ZCDP, 10)]).agree(of)


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan"), float("inf")])
def test_a_cap_is_a_positive_finite_budget(budget: float) -> None:
    with pytest.raises(ParameterError, match="budget"):
        LifetimeCap(measure=Measure.GDP, budget=budget)


# ---- spending under it -----------------------------------------------------------------------


@pytest.mark.parametrize("measure", [Measure.GDP, Measure.ZCDP])
def test_a_cap_ends_what_two_studies_may_spend_together(measure: Measure) -> None:
    ledger = MemoryLedger(caps=[cap_of(measure, 4 / 3 + 0.01)])  # four answers' worth
    for of in (GDP, ZCDP):
        ledger.agree(of)

    for number in range(1, 6):
        for of in (GDP, ZCDP):
            answer(ledger, ask(of, number))

    # In turns, until the fifth does not fit. Its study's own filter has refused nothing.
    assert [spent_of(ledger, of) for of in (GDP, ZCDP)] == [2 * FULL, 2 * FULL]
    assert not any(ledger.ever_refused(of.hash) for of in (GDP, ZCDP))
    answer(ledger, ask(GDP, 6), 1)
    assert spent_of(ledger, GDP) == 2 * FULL + 1  # what is small enough still fits


def test_a_cap_counts_what_was_spent_before_it_was_set_and_what_was_forgotten() -> None:
    ledger = MemoryLedger(caps=[cap_of(Measure.ZCDP, 1.5)])
    for of in (GDP, ZCDP):
        ledger.agree(of)

    ledger.forget(GDP.hash)  # spent, all of it: half a study's worth is left
    for number in range(1, 4):
        answer(ledger, ask(ZCDP, number))

    assert spent_of(ledger, ZCDP) == FULL


@pytest.mark.parametrize(("studies", "all_fits"), [(2 - 1e-8, False), (2 + 1e-8, True)])
@pytest.mark.parametrize("measure", [Measure.GDP, Measure.ZCDP])
def test_a_cap_on_either_side_of_all_that_is_declared_decides_about_the_last_answer(
    measure: Measure, studies: float, all_fits: bool
) -> None:
    ledger, both = MemoryLedger(caps=[cap_of(measure, studies)]), (GDP, study_of(name="other"))
    for of in both:
        ledger.agree(of)
        for number in range(1, 4):  # which is all of its budget
            answer(ledger, ask(of, number))

    given = [row.given for of in both for row in ledger.history(of.hash)]
    assert given == [True] * 5 + [all_fits]


def test_an_answer_is_shrunk_to_what_fits_under_every_filter() -> None:
    of = study_of(Policy.CLIP)
    ledger = MemoryLedger(caps=[cap_of(Measure.GDP, 1.5 / 3)])
    ledger.agree(of)

    for number in range(1, 4):
        asked = ask(of, number)
        ledger.seal(asked, maker(ledger, asked, FULL, shrinks=True))

    rows = ledger.history(of.hash)
    assert [(row.given, row.shrunk) for row in rows] == [(True, False), (True, True), (True, True)]
    assert rows[1].charge < rows[0].charge < 2.01 * rows[1].charge
    assert rows[2].charge == 0  # the first shrunk answer was the last


@settings(max_examples=50)
@given(
    norms=st.lists(st.tuples(st.booleans(), st.integers(0, 2 * FULL)), max_size=12),
    studies=st.floats(0.1, 3.0),
    measure=st.sampled_from([Measure.GDP, Measure.ZCDP]),
)
def test_a_cap_and_both_budgets_hold_whatever_is_asked(
    norms: list[tuple[bool, int]], studies: float, measure: Measure
) -> None:
    cap = cap_of(measure, studies)
    ledger = MemoryLedger(caps=[cap])
    for of in (GDP, ZCDP):
        ledger.agree(of)

    for number, (first, norm) in enumerate(norms, start=1):
        answer(ledger, ask(GDP if first else ZCDP, number), norm)

    bound = Fraction(cap.budget) if measure is Measure.ZCDP else Fraction(cap.budget) ** 2 / 2
    spent = Fraction(0)
    for of in (GDP, ZCDP):
        left = ledger.remaining_units(of.hash)
        budget = Fraction(of.value.budget)
        rho = budget if of is ZCDP else budget**2 / 2
        spent += rho * (of.value.budget_units - left) / of.value.budget_units
        assert left >= 0
    assert spent <= bound


def test_a_purse_pays_once_and_shows_nothing() -> None:
    purse = Purse(Filter.of(GDP.value))

    assert purse.try_spend(1, weight=1)
    with pytest.raises(StateError):
        purse.try_spend(0, weight=1)
    assert repr(purse) == "Purse(secret)"
