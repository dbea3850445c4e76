"""A cohort decides, rounds and adds exactly like its people's devices, one by one."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_client.budget.filters import Filter
from demur_client.device import Device
from demur_proto.arrays import Bits, Integers, Values, Vector, Words
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries import Feature, Linear
from demur_proto.queries.registry import mechanism_for
from demur_proto.round import Round, round_of
from demur_proto.study import Policy, Study, View, design_study
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_proto.wire.words import decode_words
from demur_sim.engine.cohort import BlockAnswer, Cohort
from demur_sim.engine.sampling import FastSampler, Purpose, stream
from demur_sim.people.populations import ArrayPopulation, PersonSource
from demur_sim.people.presence import BLOCK, block_count
from demur_sim.scenario import Refusal


def gaussian_for(study: Study, asked: Round) -> GaussianLinear:
    mechanism = mechanism_for(study, asked)
    assert isinstance(mechanism, GaussianLinear)
    return mechanism


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """People given as an array [n, periods, d] that may hold what no population should."""

    values: np.ndarray[tuple[int, int, int], np.dtype[np.float64]]

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
        values: Values = self.values[devices, int(feature.parameters["period"]) - 1].copy()
        return values

    def part(self, devices: slice) -> "Table":
        return Table(values=self.values[devices])

    def shuffled(self, rng: np.random.Generator) -> "Table":
        return Table(values=rng.permutation(self.values))


class RowSampler:
    """What one person's device draws, if it draws what the person draws as part of a block."""

    name = "row"

    def __init__(self, *, seed: int, block: int, devices: int, row: int) -> None:
        self._key = seed, block
        self._devices = devices
        self._row = slice(row, row + 1)

    def begin(self, round_number: int) -> None:
        seed, block = self._key
        self._drawn = FastSampler(stream(seed, Purpose.NOISE, round_number, block))

    def words(self, count: int) -> Bits:
        raise AssertionError("a linear round asks for no bits")

    def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
        assert reports == 1
        return self._drawn.gaussian(steps, reports=self._devices, dimension=dimension)[self._row]

    def uniform(self, *, reports: int, dimension: int) -> Values:
        assert reports == 1
        return self._drawn.uniform(reports=self._devices, dimension=dimension)[self._row]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A population, a study, and what its rounds ask."""

    study: Defined[Study]
    people: Table
    rounds: tuple[Defined[Round], ...]
    seed: int

    @property
    def dimension(self) -> int:
        return self.rounds[0].value.query.value_length

    def cohort(self, refusal: Refusal = Refusal.COVER) -> Cohort:
        return Cohort(self.study, self.people, seed=self.seed, refusal=refusal)


def value(period: int) -> Feature:
    return Feature(name="value", parameters={"period": period})


def ask(
    study: Defined[Study], number: int, *, dimension: int, clip: float, on_grid: bool
) -> Defined[Round]:
    features = [value(number)]
    return define_round(
        round_of(
            study, Linear(features, dimension=dimension, clip=clip, on_grid=on_grid), number=number
        )
    )


@st.composite
def cases(draw: st.DrawFn, policies: Sequence[Policy] = tuple(Policy)) -> Case:
    """Up to five people and eight rounds: these policies, both views, on and off the grid."""
    devices, periods = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    dimension = draw(st.integers(1, 2))
    on_grid = draw(st.booleans())
    clip, exponent = (1.0, -7) if on_grid else (0.3, -17)
    study = define_study(
        design_study(
            name="small",
            epsilon=1.0,
            delta=1e-6,
            answers=draw(st.integers(1, 3)),
            clip=clip,
            policy=draw(st.sampled_from(policies)),
            view=draw(st.sampled_from(View)),
            grid_exponent=exponent,
            minimum_cohort=devices,
            maximum_dimension=2,
        )
    )
    # Often nothing, sometimes inside the clip, on its edge, outside, or no value at all.
    anything = st.floats(-1.5 * clip, 1.5 * clip)
    step = 2.0**exponent
    inside = st.integers(-(int(clip / step)), int(clip / step)).map(lambda words: words * step)
    halves = st.sampled_from([0.25, 0.5, -0.75]).map(lambda part: math.ldexp(part, exponent + 7))
    unusual = st.sampled_from([clip, -clip, 1e300, np.inf, np.nan])
    one = st.just(0.0) | halves | (inside if on_grid else anything) | inside | unusual
    flat = draw(
        st.lists(
            one, min_size=devices * periods * dimension, max_size=devices * periods * dimension
        )
    )
    return Case(
        study=study,
        people=Table(values=np.array(flat).reshape(devices, periods, dimension)),
        rounds=tuple(
            ask(study, number, dimension=dimension, clip=clip, on_grid=on_grid)
            for number in range(1, periods + 1)
        ),
        seed=draw(st.integers(0, 1 << 32)),
    )


def clipped(clip: float) -> Callable[[Vector], Vector]:
    """A value scaled to the clip, by hand, however long it is; zero where it is none."""

    def scaled(value: Vector) -> Vector:
        if not np.isfinite(value).all():
            return np.zeros_like(value)
        length = math.hypot(*value.tolist())
        return value * (clip / length) if length > clip else value

    return scaled


def answer(cohort: Cohort, asked: Defined[Round]) -> BlockAnswer:
    (only,) = cohort.answers(asked.value)
    return only


@settings(max_examples=60, derandomize=True)
@given(cases())
def test_a_cohort_sends_word_for_word_what_its_devices_would_send_with_the_same_noise(
    case: Case,
) -> None:
    cohort = case.cohort()
    (block,) = cohort.blocks
    n = case.people.devices
    samplers = [RowSampler(seed=case.seed, block=0, devices=n, row=i) for i in range(n)]
    secrets = stream(case.seed, Purpose.SECRETS, 0).bytes(32 * n)
    devices = [
        Device(
            case.study,
            PersonSource(case.people, i),
            samplers[i],
            secret=secrets[32 * i : 32 * i + 32],
        )
        for i in range(n)
    ]

    for asked in case.rounds:
        words = answer(cohort, asked).words
        ids = block.report_ids().of(asked.hash)
        for i, device in enumerate(devices):
            samplers[i].begin(asked.value.number)
            report = device.report(asked, device.evaluate(asked))

            sent, _ = decode_words(
                report.words, asked.value.word_type, reports=1, dimension=case.dimension
            )
            np.testing.assert_array_equal(sent[0], words[i])
            assert report.report_id == ids[16 * i : 16 * i + 16]


@settings(max_examples=60, derandomize=True)
@given(cases(policies=(Policy.SKIP, Policy.RETIRE)))
def test_decisions_and_remaining_budgets_are_those_of_one_filter_for_each_person(
    case: Case,
) -> None:
    covering, silent = case.cohort(), case.cohort(Refusal.SILENT)
    filters = [Filter.of(case.study.value) for _ in range(case.people.devices)]

    for asked in case.rounds:
        mechanism = gaussian_for(case.study.value, asked.value)
        # Coins are drawn for everybody at once, so take everybody's words from one draw.
        draws = FastSampler(stream(case.seed, Purpose.NOISE, asked.value.number, 0))
        values = case.people.values[:, asked.value.number - 1]
        words, squares = mechanism.encode(values, draws)
        spent = [
            mine.try_spend(int(square), weight=asked.value.weight)
            for mine, square in zip(filters, squares, strict=True)
        ]
        given_words = np.array(words[spent]).sum(axis=0)

        covered, gaps = answer(covering, asked), answer(silent, asked)

        assert gaps.sent.tolist() == spent
        assert covered.sent.all()
        np.testing.assert_array_equal(covered.contributed, gaps.contributed)
        if mechanism.on_grid:
            np.testing.assert_array_equal(covered.contributed, given_words)
        else:  # neither rounded nor ended inside the clip
            truth = sum(map(clipped(mechanism.clip), values[spent]), np.zeros(values.shape[1]))
            steps = truth * 2.0**-mechanism.grid_exponent
            np.testing.assert_allclose(covered.contributed, steps, rtol=1e-12, atol=2.0**-10)
        np.testing.assert_array_equal(gaps.words, covered.words[spent])
        for cohort in (covering, silent):
            (block,) = cohort.blocks
            assert block.remaining.tolist() == [mine.remaining_units for mine in filters]
            assert cohort.refused().tolist() == [mine.ever_refused for mine in filters]


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [(Policy.SKIP, [True, False, True]), (Policy.RETIRE, [True, False, False])],
)
def test_after_a_refusal_a_smaller_charge_may_fit_unless_the_policy_is_to_retire(
    policy: Policy, wanted: list[bool]
) -> None:
    study = define_study(
        design_study(
            name="policies",
            epsilon=1.0,
            delta=1e-6,
            answers=1,
            policy=policy,
            grid_exponent=-7,
            minimum_cohort=1,
        )
    )
    steps = np.array([[99.0, 99.0, 70.0]])  # of 128: their squares are .6, .6 and .3 of the budget
    cohort = Cohort(study, ArrayPopulation(steps / 128), seed=1, refusal=Refusal.SILENT)

    sent = [
        bool(each.sent[0])
        for number in (1, 2, 3)
        for each in cohort.answers(ask(study, number, dimension=1, clip=1.0, on_grid=True).value)
    ]

    assert sent == wanted


def test_off_the_grid_rounding_is_unbiased() -> None:
    people, clip = 20_000, 0.3
    study = study_for(people, clip=clip, grid_exponent=-17)
    steps = 10_000.37  # between two words
    population = ArrayPopulation(np.full((people, 1), steps * 2.0**-17))
    asked = ask(study, 1, dimension=1, clip=clip, on_grid=False)

    answers = [*Cohort(study, population, seed=1, refusal=Refusal.COVER).answers(asked.value)]

    # A coin of chance 0.37 for each person, and a share of the noise.
    noise = gaussian_for(study.value, asked.value).noise_steps ** 2 + 1 / 12
    mean = np.concatenate([each.words[:, 0] for each in answers]).mean()
    assert abs(mean - steps) <= 4 * np.sqrt((0.37 * 0.63 + noise) / people)
    # What was contributed is no rounded word.
    truth = sum(each.contributed[0] for each in answers) / people
    assert truth == pytest.approx(steps, abs=2.0**-12)


# ---- blocks ----------------------------------------------------------------------------------

LARGE = 4 * BLOCK + 617  # five blocks, the last one small
PERIODS = 3


def study_for(
    devices: int, *, answers: int = 1, clip: float = 1.0, grid_exponent: int = -9
) -> Defined[Study]:
    return define_study(
        design_study(
            name="large",
            epsilon=1.0,
            delta=1e-6,
            answers=answers,
            clip=clip,
            grid_exponent=grid_exponent,
            minimum_cohort=devices,
        )
    )


@pytest.fixture(scope="module")
def population() -> ArrayPopulation:
    rng = np.random.default_rng(7)
    return ArrayPopulation((rng.random((LARGE, PERIODS)) < 0.4).astype(float))


@pytest.fixture(scope="module")
def study() -> Defined[Study]:
    return study_for(LARGE)


def questions(study: Defined[Study]) -> list[Defined[Round]]:
    return [
        ask(study, number, dimension=1, clip=1.0, on_grid=True) for number in range(1, PERIODS + 1)
    ]


def sums(
    cohorts: Sequence[Cohort], rounds: Sequence[Defined[Round]], *, threads: int
) -> list[tuple[int, list[int], list[int]]]:
    """What several cohorts add up to, round by round: reports, sums, truth."""
    totals = []
    with ThreadPoolExecutor(threads) as pool:
        for asked in rounds:
            parts = [cohort.sum(asked.value, pool, threads=threads) for cohort in cohorts]
            totals.append(
                (
                    sum(part.reports for part in parts),
                    np.sum([part.sums for part in parts], axis=0).tolist(),
                    np.sum([part.contributed for part in parts], axis=0).tolist(),
                )
            )
    return totals


@pytest.mark.parametrize("refusal", Refusal)
def test_neither_threads_nor_grouping_change_a_sum(
    study: Defined[Study], population: ArrayPopulation, refusal: Refusal
) -> None:
    def cohorts(*cuts: int) -> list[Cohort]:
        """The people in pieces that begin at these blocks."""
        stops = [*cuts[1:], block_count(LARGE)]
        return [
            Cohort(
                study,
                population.part(slice(first * BLOCK, stop * BLOCK)),
                seed=3,
                refusal=refusal,
                first_block=first,
            )
            for first, stop in zip(cuts, stops, strict=True)
        ]

    rounds = questions(study)
    whole = sums(cohorts(0), rounds, threads=1)

    for threads in (2, 3, 4, 9):
        assert sums(cohorts(0), rounds, threads=threads) == whole
    for cuts in [(0, 1), (0, 4), (0, 1, 2, 3, 4)]:
        assert sums(cohorts(*cuts), rounds, threads=2) == whole
    if refusal is Refusal.COVER:
        assert [reports for reports, _, _ in whole] == [LARGE] * PERIODS
    else:
        assert [reports for reports, _, _ in whole] != [LARGE] * PERIODS


def test_who_was_refused_comes_back_in_the_order_of_the_devices(
    study: Defined[Study], population: ArrayPopulation
) -> None:
    cohort = Cohort(study, population, seed=3, refusal=Refusal.COVER)

    for asked in questions(study):
        for each in cohort.answers(asked.value):
            assert each.sent.all()

    # The budget is one full answer, so whoever has two ones was refused.
    wanted = population.values.sum(axis=(1, 2)) > 1
    np.testing.assert_array_equal(cohort.refused(), wanted)
    left = np.concatenate([block.remaining for block in cohort.blocks])
    full = study.value.base_weight * (1 << 18)  # of a one, in steps of 2^-9
    spent = np.minimum(population.values.sum(axis=(1, 2)), 1).astype(np.int64) * full
    np.testing.assert_array_equal(left, study.value.budget_units - spent)


def test_the_layout_of_blocks_is_part_of_what_a_seed_means(
    study: Defined[Study], population: ArrayPopulation
) -> None:
    assert BLOCK == 4096
    assert [block_count(n) for n in (1, 4096, 4097, LARGE)] == [1, 1, 2, 5]

    whole = Cohort(study, population, seed=3, refusal=Refusal.COVER)
    part = Cohort(
        study,
        population.part(slice(2 * BLOCK, LARGE)),
        seed=3,
        refusal=Refusal.COVER,
        first_block=2,
    )

    assert [(block.number, len(block.refused)) for block in whole.blocks] == [
        (0, 4096),
        (1, 4096),
        (2, 4096),
        (3, 4096),
        (4, 617),
    ]
    assert [(block.number, len(block.refused)) for block in part.blocks] == [
        (2, 4096),
        (3, 4096),
        (4, 617),
    ]
    asked = questions(study)[0]
    ids = [block.report_ids().of(asked.hash) for block in whole.blocks]
    assert ids[2:] == [block.report_ids().of(asked.hash) for block in part.blocks]
    everyone = b"".join(ids)
    assert len({everyone[at : at + 16] for at in range(0, len(everyone), 16)}) == LARGE


def noise(
    people: ArrayPopulation,
    *,
    seed: int = 5,
    block: int = 0,
    answers: int = 1,
    policy: Policy = Policy.SKIP,
    on_grid: bool = True,
) -> list[Integers]:
    """What was added to the contributions of one block, round by round [n]."""
    contract = define_study(
        design_study(
            name="noise",
            epsilon=1.0,
            delta=1e-6,
            answers=answers,
            policy=policy,
            grid_exponent=-14,
            minimum_cohort=people.devices,
        )
    )
    cohort = Cohort(contract, people, seed=seed, refusal=Refusal.COVER, first_block=block)
    (only,) = cohort.blocks
    drawn = []
    for period in range(1, people.periods + 1):
        before = only.remaining.copy()
        asked = ask(contract, period, dimension=1, clip=1.0, on_grid=on_grid)
        given_words = answer(cohort, asked)
        gave = (before - only.remaining) > 0  # only what costs something contributes anything
        words = people.evaluate(value(period), slice(None))[:, 0] * 2.0**14
        contributed = np.where(gave, words, 0).astype(np.int64)
        assert contributed.sum() == given_words.contributed[0]
        drawn.append(given_words.words[:, 0] - contributed)
    return drawn


@pytest.mark.parametrize("on_grid", [True, False])
def test_noise_follows_from_seed_round_and_block_and_from_nothing_else(on_grid: bool) -> None:
    n, periods = 300, 3
    rng = np.random.default_rng(11)
    nobody = ArrayPopulation(np.zeros((n, periods)))
    everybody = ArrayPopulation(np.ones((n, periods)))
    some = ArrayPopulation((rng.random((n, periods)) < 0.5).astype(float))

    reference = noise(nobody, on_grid=on_grid)

    for same in [
        noise(everybody, on_grid=on_grid),
        noise(some, on_grid=on_grid),
        noise(everybody, policy=Policy.RETIRE, on_grid=on_grid),
    ]:
        np.testing.assert_array_equal(same, reference)
    drawn = [*reference]
    drawn += noise(nobody, seed=6, on_grid=on_grid) + noise(nobody, block=1, on_grid=on_grid)
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            # Equal words by chance: at most 1/(σ_i √(4π)) each, and σ_i is about 4,000 steps.
            assert (one == other).mean() < 0.05


def test_a_question_of_another_width_than_it_says_is_refused(
    study: Defined[Study], population: ArrayPopulation
) -> None:
    wide = define_study(
        design_study(
            name="wide",
            epsilon=1.0,
            delta=1e-6,
            answers=1,
            grid_exponent=-9,
            minimum_cohort=LARGE,
            maximum_dimension=2,
        )
    )
    cohort = Cohort(wide, population, seed=3, refusal=Refusal.COVER)
    asked = ask(wide, 1, dimension=2, clip=1.0, on_grid=True)

    with pytest.raises(ParameterError, match=r"^dimension must be 1"):
        next(cohort.answers(asked.value))

    assert all((block.remaining == wide.value.budget_units).all() for block in cohort.blocks)
