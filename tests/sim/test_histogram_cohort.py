"""A cohort in histogram rounds: its devices one by one, and cover that moves no count."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import demur_sim.engine.cohort
from demur_client.budget.filters import Filter
from demur_client.device import Device
from demur_proto.accounting.histograms import design_histogram_study, epsilon_for_answers
from demur_proto.arrays import Flags, Values, Words
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import Feature, Histogram
from demur_proto.queries.registry import mechanism_for
from demur_proto.round import Round, round_of
from demur_proto.study import Measure, MechanismFamily, Policy, Study, View
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_proto.wire.words import decode_words
from demur_sim.engine.cohort import BlockAnswer, Cohort
from demur_sim.engine.observer import Advantage
from demur_sim.engine.sampling import FastSampler, Purpose, stream
from demur_sim.people.populations import PersonSource
from demur_sim.people.presence import BLOCK, block_count
from demur_sim.scenario import Refusal

PLAIN = 50.0  #: an ε at which k-ary randomised response errs less than once in 10^20 reports


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """People given as an array [n, periods] that may hold what is no category."""

    values: np.ndarray[tuple[int, int], np.dtype[np.float64]]

    @property
    def devices(self) -> int:
        return len(self.values)

    @property
    def periods(self) -> int:
        return self.values.shape[1]

    @property
    def features(self) -> tuple[str, ...]:
        return ("value",)

    def evaluate(self, feature: Feature, devices: slice) -> Values:
        column = self.values[devices, int(feature.parameters["period"]) - 1]
        return column[:, None].copy()

    def part(self, devices: slice) -> "Table":
        return Table(values=self.values[devices])

    def shuffled(self, rng: np.random.Generator) -> "Table":
        return Table(values=rng.permutation(self.values))


def ask(
    study: Defined[Study],
    number: int,
    *,
    mechanism: Randomiser,
    epsilon: float,
    categories: int,
) -> Defined[Round]:
    return define_round(
        round_of(
            study,
            Histogram(
                Feature(name="value", parameters={"period": number}),
                categories=categories,
                mechanism=mechanism,
                epsilon=epsilon,
            ),
            number=number,
        )
    )


def answer(cohort: Cohort, asked: Defined[Round]) -> BlockAnswer:
    (only,) = cohort.answers(asked.value)
    return only


# ---- one device at a time ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A population, a study, and what its rounds ask."""

    study: Defined[Study]
    people: Table
    rounds: tuple[Defined[Round], ...]
    seed: int

    def cohort(self, refusal: Refusal = Refusal.COVER) -> Cohort:
        return Cohort(self.study, self.people, seed=self.seed, refusal=refusal)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to five people and eight rounds whose reports can be read: nobody is protected."""
    devices, periods = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    categories = draw(st.integers(2, 9))
    study = define_study(
        Study(
            name="plain",
            view=View.LOCAL,
            measure=Measure.ZCDP,
            policy=draw(st.sampled_from([Policy.SKIP, Policy.RETIRE])),
            budget=draw(st.integers(1, 3)) * 51.0,
            epsilon=400.0,
            delta=1e-6,
            mechanism_family=MechanismFamily.PURE,
            minimum_cohort=devices,
            maximum_dimension=categories,
        )
    )
    category = st.integers(0, categories - 1).map(float)
    unusual = st.sampled_from([np.nan, np.inf, -np.inf, -1.0, 0.5, float(categories), 1e300])
    flat = draw(
        st.lists(category | unusual, min_size=devices * periods, max_size=devices * periods)
    )
    return Case(
        study=study,
        people=Table(values=np.array(flat).reshape(devices, periods)),
        rounds=tuple(
            ask(
                study,
                number,
                mechanism=Randomiser.KRR,
                epsilon=draw(st.sampled_from([PLAIN, 48.0])),  # another charge, as plain
                categories=categories,
            )
            for number in range(1, periods + 1)
        ),
        seed=draw(st.integers(0, 1 << 32)),
    )


@settings(max_examples=25, derandomize=True)
@given(cases())
def test_a_cohort_decides_and_says_what_its_devices_would(case: Case) -> None:
    cohort, silent = case.cohort(), case.cohort(Refusal.SILENT)
    (block,), (gaps) = cohort.blocks, silent.blocks[0]
    n = case.people.devices
    secrets = stream(case.seed, Purpose.SECRETS, 0).bytes(32 * n)
    devices = [
        Device(
            case.study,
            PersonSource(case.people, i),
            FastSampler(np.random.default_rng(i)),
            secret=secrets[32 * i : 32 * i + 32],
        )
        for i in range(n)
    ]

    for asked in case.rounds:
        whole, some = answer(cohort, asked), answer(silent, asked)
        ids = block.report_ids().of(asked.hash)
        said = []
        for i, device in enumerate(devices):
            report = device.report(asked, device.evaluate(asked))
            sent, _ = decode_words(report.words, asked.value.word_type, reports=1, dimension=1)
            assert report.report_id == ids[16 * i : 16 * i + 16]
            said.append(sent[0].tolist())
        assert whole.words.tolist() == said
        assert whole.sent.all()
        assert some.words.tolist() == [
            row for row, sent in zip(said, some.sent, strict=True) if sent
        ]
        assert isinstance(asked.value.query, Histogram)
        counts = np.bincount([row[0] for row in said], minlength=asked.value.query.categories + 1)
        assert whole.contributed.tolist() == some.contributed.tolist() == counts[1:].tolist()
        for each in (block, gaps):
            assert each.remaining.tolist() == [
                mine.ledger.remaining_units(mine.study.hash) for mine in devices
            ]
            assert each.refused.tolist() == [
                mine.ledger.ever_refused(mine.study.hash) for mine in devices
            ]


# ---- many blocks -------------------------------------------------------------------------------

LARGE = 2 * BLOCK + 617  # three blocks, the last one small
CATEGORIES, PERIODS = 21, 4


def everyone(devices: int, *, categories: int, periods: int, seed: int = 7) -> Table:
    """People of whom three in four have a category in a period, low ones more often."""
    rng = np.random.default_rng(seed)
    values = np.floor(categories * rng.random((devices, periods)) ** 2)
    return Table(values=np.where(rng.random((devices, periods)) < 0.75, values, np.nan))


def private_study(devices: int, categories: int = CATEGORIES) -> Defined[Study]:
    return define_study(
        design_histogram_study(
            name="private",
            epsilon=2.0,
            delta=1e-6,
            minimum_cohort=devices,
            categories=categories,
        )
    )


def questions(study: Defined[Study], mechanism: Randomiser) -> list[Defined[Round]]:
    """Rounds of which each person can afford two with a category."""
    epsilon = epsilon_for_answers(
        study.value, mechanism=mechanism, categories=CATEGORIES, answers=2
    )
    return [
        ask(study, number, mechanism=mechanism, epsilon=epsilon, categories=CATEGORIES)
        for number in range(1, PERIODS + 1)
    ]


@pytest.mark.parametrize("refusal", Refusal)
@pytest.mark.parametrize("mechanism", Randomiser)
def test_a_sum_is_the_tally_of_the_reports_however_it_is_dealt_out(
    mechanism: Randomiser, refusal: Refusal
) -> None:
    people = everyone(LARGE, categories=CATEGORIES, periods=PERIODS)
    study = private_study(LARGE)
    rounds = questions(study, mechanism)

    def cohorts(*cuts: int) -> list[Cohort]:
        stops = [*cuts[1:], block_count(LARGE)]
        return [
            Cohort(
                study,
                people.part(slice(first * BLOCK, stop * BLOCK)),
                seed=3,
                refusal=refusal,
                first_block=first,
            )
            for first, stop in zip(cuts, stops, strict=True)
        ]

    def sums(of: Sequence[Cohort], *, threads: int) -> list[tuple[int, list[int], list[int]]]:
        with ThreadPoolExecutor(threads) as pool:
            parts = [
                [each.sum(asked.value, pool, threads=threads) for each in of] for asked in rounds
            ]
        return [
            (
                sum(part.reports for part in row),
                np.sum([part.sums for part in row], axis=0).tolist(),
                np.sum([part.contributed for part in row], axis=0).tolist(),
            )
            for row in parts
        ]

    reference = []
    (whole,) = cohorts(0)
    for asked in rounds:
        randomiser = mechanism_for(study.value, asked.value)
        answers = [*whole.answers(asked.value)]
        for each in answers:
            assert each.words.shape == (each.sent.sum(), asked.value.query.report_length)
            assert randomiser.valid(each.words).all()
        words = np.concatenate([each.words for each in answers])
        given_ = np.sum([each.contributed for each in answers], axis=0)
        reference.append((len(words), randomiser.tally(words).tolist(), given_.tolist()))

    assert sums(cohorts(0), threads=1) == reference
    assert sums(cohorts(0), threads=3) == reference
    assert sums(cohorts(0, 1, 2), threads=2) == reference
    expected = [LARGE] * PERIODS
    assert ([reports for reports, _, _ in reference] == expected) is (refusal is Refusal.COVER)


def test_two_answers_fit_and_who_needed_more_was_refused() -> None:
    people = everyone(500, categories=CATEGORIES, periods=PERIODS)
    study = private_study(500)
    cohort = Cohort(study, people, seed=3, refusal=Refusal.COVER)

    given_ = [answer(cohort, asked).contributed for asked in questions(study, Randomiser.OUE)]

    had = ~np.isnan(people.values)
    affordable = had & (np.cumsum(had, axis=1) <= 2)
    assert cohort.refused().tolist() == (had.sum(axis=1) > 2).tolist()
    for period, counts in enumerate(given_):
        who = affordable[:, period]
        wanted = np.bincount(people.values[who, period].astype(int), minlength=CATEGORIES)
        assert counts.tolist() == wanted.tolist()
    mine = Filter.of(study.value)
    weight = questions(study, Randomiser.OUE)[0].value.weight
    assert [mine.try_spend(1, weight=weight) for _ in range(3)] == [True, True, False]


# ---- cover -------------------------------------------------------------------------------------


def deviations(mechanism: Randomiser, *, devices: int = 12_000, categories: int = 8) -> float:
    """How far counts of exhausted people are from zero, in standard deviations of their squares.

    Everyone has a category in every round and can afford none, so every report is cover and every
    count is of nobody. Each round's sum over categories of (estimate/error)² has mean k; the spread
    of its mean over the rounds is measured from the rounds themselves.
    """
    rounds = 24
    study = define_study(
        design_histogram_study(
            name="gone", epsilon=0.01, delta=1e-6, minimum_cohort=1, categories=categories
        )
    )
    people = Table(values=np.full((devices, rounds), 3.0))
    cohort = Cohort(study, people, seed=5, refusal=Refusal.COVER)
    squares = []
    with ThreadPoolExecutor(1) as pool:
        for number in range(1, rounds + 1):
            asked = ask(study, number, mechanism=mechanism, epsilon=2.0, categories=categories)
            assert asked.value.weight > study.value.budget_units
            total = cohort.sum(asked.value, pool, threads=1)
            result = mechanism_for(study.value, asked.value).estimate(
                total.sums, reports=total.reports
            )
            z = np.array(result.estimate) / np.array(result.standard_error)
            squares.append(float(z @ z))
    assert cohort.refused().all()
    spread = np.std(squares, ddof=1) / math.sqrt(rounds)
    return abs(float(np.mean(squares)) - categories) / float(spread)


@pytest.mark.parametrize("mechanism", Randomiser)
def test_cover_reports_move_no_count(mechanism: Randomiser) -> None:
    assert deviations(mechanism) <= 5


def uniform_inside(words: Words, given_: Flags) -> Words:
    """A bug: whoever is refused says some category, any of eight."""
    invented = np.random.default_rng(1).integers(1, 9, size=words.shape)
    return np.where(given_[:, None], words, invented)


@pytest.mark.parametrize("mechanism", Randomiser)
def test_cover_that_is_drawn_inside_the_domain_would_be_found(
    mechanism: Randomiser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demur_sim.engine.cohort, "covered", uniform_inside)

    assert deviations(mechanism) > 20  # every count is too large by n/k


# ---- what payloads tell --------------------------------------------------------------------------


def log_likelihoods(
    asked: Defined[Round], words: Words, categories: Values
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """ln of how much likelier each report is for this category than for nothing [n]."""
    assert isinstance(asked.value.query, Histogram)
    randomiser = asked.value.query.randomiser
    epsilon, k = asked.value.query.epsilon, asked.value.query.categories
    symbols = categories[:, 0].astype(np.int64) + 1
    if asked.value.query.mechanism is Randomiser.KRR:
        assert randomiser.report_length == 1
        said = words[:, 0]
        same: np.ndarray[tuple[int], np.dtype[np.float64]] = epsilon * (
            (said == symbols).astype(float) - (said == 0)
        )
        return same
    assert words.shape[1] == k  # OUE: only the category's own bit tells
    own = words[np.arange(len(words)), symbols - 1]
    q = 1 / (math.exp(epsilon) + 1)
    return np.where(own == 1, math.log(0.5 / q), math.log(0.5 / (1 - q)))


@pytest.mark.parametrize("mechanism", [Randomiser.KRR, Randomiser.OUE])
def test_an_attacker_who_reads_every_payload_gets_no_more_than_the_guarantee(
    mechanism: Randomiser,
) -> None:
    # Half of the people have category 2 in every round and run out after four; the others never have
    # any. The attacker knows category, mechanism and budget, and ranks by the likelihood ratio of
    # all reports that may carry data: no test is better.
    devices, rounds, answers, categories = 6_000, 12, 4, 8
    study = define_study(
        design_histogram_study(
            name="read", epsilon=1.0, delta=1e-6, minimum_cohort=1, categories=categories
        )
    )
    epsilon = epsilon_for_answers(
        study.value, mechanism=mechanism, categories=categories, answers=answers
    )
    values = np.full((devices, rounds), np.nan)
    values[::2] = 2.0
    cohort = Cohort(study, Table(values=values), seed=11, refusal=Refusal.COVER)
    scores = np.zeros((devices, rounds))
    for number in range(1, rounds + 1):
        asked = ask(study, number, mechanism=mechanism, epsilon=epsilon, categories=categories)
        words = np.concatenate([each.words for each in cohort.answers(asked.value)])
        scores[:, number - 1] = log_likelihoods(asked, words, np.full((devices, 1), 2.0))

    early, late = scores[:, :answers].sum(axis=1), scores[:, answers:].sum(axis=1)
    attack = Advantage.from_scores(early[::2], early[1::2])
    after = Advantage.from_scores(late[::2], late[1::2])

    assert cohort.refused().tolist() == ([True, False] * (devices // 2))
    # (ε, δ) bounds every ROC curve, and so the area below: e^ε/(e^ε + 1) + δ.
    allowed = math.e / (math.e + 1) + 1e-6
    assert attack.auc <= allowed + 3 * attack.sampling_error
    assert attack.auc > 0.5 + 5 * attack.sampling_error  # it is an attack
    # Cover is the law of somebody who never had anything.
    assert abs(after.deviations) <= 3
