"""Gradient rounds for many people at once, against one person at a time and against real processes."""

import math
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from fractions import Fraction
from functools import cache
from typing import Any

import anyio
import numpy as np
import pytest

from demur_proto.arrays import Values, Vector
from demur_proto.errors import ParameterError, StateError, UnsupportedError
from demur_proto.models.architectures import Softmax
from demur_proto.models.definition import ModelDefinition, Module, define_model
from demur_proto.models.features import Pixels
from demur_proto.models.gradients import person_gradient
from demur_proto.queries import Feature, Gradient, Linear
from demur_proto.release import Release
from demur_proto.round import Round, round_of
from demur_proto.study import Policy, Study, design_study
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_server.collector.estimates import mean_gradient
from demur_sim.engine.cohort import Cohort
from demur_sim.engine.sampling import FastSampler, Noise, Purpose, stream
from demur_sim.engine.session import Aftermath, Session
from demur_sim.engine.simulation import open_session
from demur_sim.people import presence as portions_module
from demur_sim.people.labelled import LabelledPeople, PersonExamples
from demur_sim.people.populations import ArrayPopulation
from demur_sim.people.presence import BLOCK, PORTION_WORDS, portions
from demur_sim.scenario import Refusal, Scenario

DEADLINE_S = 60.0
INPUTS, CLASSES = 3, 2
DIMENSION = (INPUTS + 1) * CLASSES


@cache
def people(devices: int) -> LabelledPeople:
    """Nobody to three examples each; every seventh has a pixel that is no number."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(0, 4, size=devices)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    data = rng.normal(size=(int(offsets[-1]), INPUTS))
    data[::7, 0] = np.nan
    labels = rng.integers(0, CLASSES, size=len(data))
    return LabelledPeople(data=data, labels=labels, people=offsets)


def a_model(step: int = 0) -> ModelDefinition:
    theta = np.linspace(-1.0, 1.0, DIMENSION) * step
    return ModelDefinition(architecture=Softmax(inputs=INPUTS, classes=CLASSES), theta=theta)


def a_study(policy: Policy = Policy.SKIP, *, answers: int = 2, cohort: int = 30) -> Defined[Study]:
    return define_study(
        design_study(
            name="gradients",
            epsilon=1.0,
            delta=1e-6,
            answers=answers,
            minimum_cohort=cohort,
            grid_exponent=-15,
            maximum_dimension=1 << 16,
            policy=policy,
        )
    )


def asking(study: Defined[Study], number: int, *, clip: float = 1.0) -> Defined[Round]:
    model_hash = define_model(a_model(number)).hash
    return define_round(
        round_of(
            study, Gradient(model_hash=model_hash, dimension=DIMENSION, clip=clip), number=number
        )
    )


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> int:
    """Portions of seven people, as a model of 150,000 parameters has them."""
    monkeypatch.setattr(portions_module, "PORTION_WORDS", 7 * DIMENSION)
    return 7


# ---- an oracle: one person at a time, in integers that cannot overflow --------------------------


def rounded(value: Values, coins: Values, *, radius: int, exponent: int) -> list[int]:
    """A value clipped and rounded as docs/protocol.md says, step 2."""
    steps = value * 2.0**-exponent
    norm = math.sqrt(float(np.cumsum((value / np.abs(value).max()) ** 2)[-1])) if value.any() else 0
    length = norm * np.abs(value).max() * 2.0**-exponent if value.any() else 0.0
    reach = math.sqrt(radius) * (1 - 2.0**-12)
    if length > reach:
        steps = steps * (reach / length)
    low = np.floor(steps)
    words = [int(each) for each in low + (coins < steps - low)]
    if sum(each * each for each in words) > radius:
        words = [int(each) for each in np.trunc(steps)]
    return words


def replayed(
    study: Defined[Study], rounds: int, devices: int, *, seed: int, clip: float, portion: int
) -> tuple[list[list[int]], list[int], list[bool]]:
    """Sums by round, what each person spent, and who was refused."""
    of, total = people(devices), study.value.budget_units
    spent, refused = [0] * devices, [False] * devices
    sums = []
    for number in range(1, rounds + 1):
        asked = asking(study, number, clip=clip).value
        mechanism: Any = asked.query.mechanism_in(study.value)
        sampler = FastSampler(stream(seed, Purpose.NOISE, number, 0))
        whole = [0] * DIMENSION
        for start in range(0, devices, portion):
            some = range(start, min(start + portion, devices))
            coins = sampler.uniform(reports=len(some), dimension=DIMENSION)
            noise = sampler.gaussian(mechanism.noise_steps, reports=len(some), dimension=DIMENSION)
            for row, person in enumerate(some):
                value = person_gradient(a_model(number), *PersonExamples(of, person).examples())[0]
                words = [0] * DIMENSION
                if np.isfinite(value).all() and value.any():
                    full = rounded(value, coins[row], radius=mechanism.largest, exponent=-15)
                    words = full
                    if study.value.policy is Policy.CLIP:
                        left = 0 if refused[person] else (total - spent[person]) // asked.weight
                        within = min(mechanism.largest, left)
                        if within < mechanism.largest:
                            words = rounded(value, coins[row], radius=within, exponent=-15)
                        refused[person] |= words != full
                charge = asked.weight * sum(each * each for each in words)
                fits = charge <= total - spent[person]
                if study.value.policy is Policy.RETIRE:
                    fits = fits and (charge == 0 or not refused[person])
                refused[person] |= not fits
                spent[person] += charge * fits
                for at, each in enumerate(words):
                    whole[at] += each * fits + int(noise[row, at])
        sums.append(whole)
    return sums, spent, refused


@pytest.mark.parametrize("policy", list(Policy))
def test_a_cohort_does_what_its_people_would_do_one_by_one(
    policy: Policy, pool: ThreadPoolExecutor, narrow: int
) -> None:
    study = a_study(policy)
    cohort = Cohort(study, people(30), seed=9, refusal=Refusal.COVER)

    sums = [
        cohort.sum(asking(study, n).value, pool, threads=1, model=a_model(n)).sums.tolist()
        for n in range(1, 6)
    ]

    expected, spent, refused = replayed(study, 5, 30, seed=9, clip=1.0, portion=narrow)
    assert sums == expected
    assert cohort.spent().tolist() == spent
    assert cohort.refused().tolist() == refused
    assert all(0 <= each <= study.value.budget_units for each in spent)
    assert 5 < sum(refused) < 30


def test_reports_add_up_to_the_sum_and_portions_cover_everyone_once(
    pool: ThreadPoolExecutor, narrow: int
) -> None:
    study = a_study(Policy.CLIP)
    one, other = (Cohort(study, people(30), seed=3, refusal=Refusal.COVER) for _ in range(2))

    for number in (1, 2, 3):
        asked, model = asking(study, number).value, a_model(number)
        answers = [*one.answers(asked, model)]
        total = other.sum(asked, pool, threads=1, model=model)

        assert [each.people for each in answers] == portions(asked.query, 30)
        assert [each.people.start for each in answers] == [0, 7, 14, 21, 28]
        assert np.concatenate([each.words for each in answers]).sum(axis=0).tolist() == (
            total.sums.tolist()
        )
        assert sum(len(each.words) for each in answers) == total.reports == 30
        np.testing.assert_array_equal(sum(each.contributed for each in answers), total.contributed)


def test_threads_change_nothing_over_several_blocks(pool: ThreadPoolExecutor) -> None:
    devices = 2 * BLOCK + 100
    study = a_study(Policy.CLIP, cohort=devices)

    def run(threads: int) -> list[list[int]]:
        cohort = Cohort(study, people(devices), seed=2, refusal=Refusal.COVER)
        return [
            cohort.sum(
                asking(study, n).value, pool, threads=threads, model=a_model(n)
            ).sums.tolist()
            for n in (1, 2, 3)
        ]

    assert run(1) == run(2) == run(3)


@pytest.mark.parametrize("seed", [0, 1])
def test_with_a_budget_of_k_full_answers_clipping_and_not_filtering_are_the_same_for_k_rounds(
    seed: int, pool: ThreadPoolExecutor
) -> None:
    rounds = 4

    def run(policy: Policy) -> tuple[list[list[int]], Cohort]:
        study = a_study(policy, answers=rounds)
        cohort = Cohort(study, people(300), seed=seed, refusal=Refusal.COVER)
        sums = [
            cohort.sum(asking(study, n).value, pool, threads=1, model=a_model(n)).sums.tolist()
            for n in range(1, rounds + 1)
        ]
        return sums, cohort

    filtered, clipping = run(Policy.CLIP)
    private, skipping = run(Policy.SKIP)

    assert filtered == private
    assert not clipping.refused().any()
    np.testing.assert_array_equal(clipping.spent(), skipping.spent())
    # The clip is the whole of one answer: nobody's k answers may come to more than the budget.
    most = max(map(int, clipping.spent()))
    assert 0.99 < Fraction(most, clipping.study.value.budget_units) <= 1


def test_a_wide_round_is_never_in_memory_as_a_whole() -> None:
    wide = define_round(
        round_of(a_study(), Gradient(model_hash=bytes(32), dimension=26_010), number=1)
    ).value.query
    cut = portions(wide, BLOCK)

    assert max(each.stop - each.start for each in cut) * 26_010 <= PORTION_WORDS
    assert [each.start for each in cut[1:]] == [each.stop for each in cut[:-1]]
    assert (cut[0].start, cut[-1].stop) == (0, BLOCK)
    assert portions(asking(a_study(), 1).value.query, 100) == [slice(0, 100)]


# ---- noise of a sum in one draw -----------------------------------------------------------------


def test_summed_noise_is_that_of_all_shares_together(pool: ThreadPoolExecutor) -> None:
    devices = 2000
    study = a_study(cohort=devices)
    spreads: dict[Noise, list[Vector]] = {noise: [] for noise in Noise}
    truths = []

    for noise in Noise:
        cohort = Cohort(study, people(devices), seed=4, refusal=Refusal.COVER)
        for number in range(1, 41):
            total = cohort.sum(
                asking(study, number).value, pool, threads=1, model=a_model(number), noise=noise
            )
            spreads[noise].append(total.sums - total.contributed)
            truths.append(total.contributed)
            assert total.reports == devices

    mechanism: Any = (asking(study, 1).value.query).mechanism_in(study.value)
    # n (σ_i/γ)² + n/12 of shares; rounding that is unbiased moves the contributions, not the noise.
    expected = devices * (mechanism.noise_steps**2 + 1 / 12)
    for drawn in spreads.values():
        noise_drawn = np.concatenate(drawn)
        ratio = noise_drawn.var() / expected
        assert abs(ratio - 1) <= 5 * math.sqrt(2 / noise_drawn.size)
        assert abs(noise_drawn.mean()) <= 5 * math.sqrt(expected / noise_drawn.size)
    # Coins are drawn by block in both, and noise of shares after them: the first portion is alike.
    np.testing.assert_array_equal(truths[0], truths[40])


# ---- sessions ----------------------------------------------------------------------------------

LEARNING = Scenario(name="learning", policy=Policy.CLIP, budget=2, on_grid=False, grid_exponent=-15)


@asynccontextmanager
async def session(devices: int, **options: Any) -> AsyncIterator[Session]:
    with anyio.fail_after(DEADLINE_S):
        async with open_session(LEARNING, population=people(devices), **options) as made:
            yield made


async def trained(devices: int, **options: Any) -> tuple[list[Release], Aftermath, Study]:
    """Three steps, each from where the last one led."""
    theta = np.zeros(DIMENSION)
    releases = []
    async with session(devices, seed=6, **options) as asked:
        for _ in range(3):
            release = await asked.ask(
                Gradient.about(
                    ModelDefinition(architecture=a_model().architecture, theta=theta), clip=0.5
                )
            )
            theta = theta - 2.0 * mean_gradient(release, cohort=devices).gradient
            releases.append(release)
        return releases, await asked.finish(), asked.study.value


async def test_processes_learn_what_the_cohort_learns_bit_for_bit() -> None:
    devices = BLOCK + 50

    alone, truth, study = await trained(devices, workers=1)
    for fidelity, workers in (("cohort", 2), ("processes", 1), ("processes", 2)):
        releases, aftermath, _ = await trained(devices, fidelity=fidelity, workers=workers)

        assert releases == alone
        np.testing.assert_array_equal(aftermath.spent, truth.spent)
        np.testing.assert_array_equal(aftermath.refused, truth.refused)
        np.testing.assert_array_equal(aftermath.contributed, truth.contributed)
        assert aftermath.noise is Noise.SHARES
    assert truth.spent.min() >= 0
    assert truth.spent.max() <= study.budget_units
    assert [release.reports for release in alone] == [devices] * 3


async def test_summed_noise_is_named_and_only_for_cohorts_and_gaussian_rounds() -> None:
    _, aftermath, _ = await trained(30, noise="summed")
    assert aftermath.noise is Noise.SUMMED

    for options, complaint in (
        ({"noise": "summed", "fidelity": "processes"}, "noise must be shares: processes send real"),
        ({"noise": "none"}, "noise must be shares or summed"),
    ):
        with pytest.raises(ParameterError, match=complaint):
            async with session(30, **options):
                pass


async def test_questions_that_these_people_cannot_answer_are_refused_and_others_may_follow() -> (
    None
):
    wide = ModelDefinition(architecture=Softmax(inputs=4, classes=2), theta=np.zeros(10))
    images = ModelDefinition(
        architecture=Softmax(inputs=4, classes=2),
        features=Pixels(height=2, width=2),
        theta=np.zeros(10),
    )
    module = Module(path="nowhere.at_all:Net", inputs=3, classes=2, parameters=8)
    unknown = ModelDefinition(architecture=module, theta=np.zeros(8))
    async with session(30) as asked:
        for model in (wide, images, None, "softmax"):
            with pytest.raises(ParameterError):
                await asked.ask(Gradient.about(model))  # type: ignore[arg-type]
        with pytest.raises(UnsupportedError, match="nowhere"):
            await asked.ask(Gradient.about(unknown))
        with pytest.raises(ParameterError, match="clip"):
            await asked.ask(Gradient.about(a_model(), clip=-1.0))
        with pytest.raises(ParameterError, match="feature must be asked of other people"):
            await asked.ask(Linear([Feature(name="x")]))
        release = await asked.ask(Gradient.about(a_model()))
        await asked.finish()
        with pytest.raises(StateError):
            await asked.ask(Gradient.about(a_model()))

    assert release.number == 1
    assert len(release.estimate) == DIMENSION


async def test_people_without_examples_have_no_gradients() -> None:
    plain = ArrayPopulation(np.zeros((30, 1)))
    with anyio.fail_after(DEADLINE_S):
        async with open_session(LEARNING, population=plain) as asked:
            with pytest.raises(ParameterError, match="people who own labelled examples"):
                await asked.ask(Gradient.about(a_model()))


# ---- people ------------------------------------------------------------------------------------


def test_dealing_and_parting_keep_everybodys_examples_together() -> None:
    of = people(30)
    dealt = of.shuffled(np.random.default_rng(1))

    def owned(all_of: LabelledPeople) -> list[tuple[bytes, bytes]]:
        return sorted(
            (one.data.tobytes(), one.labels.tobytes())
            for i in range(all_of.devices)
            for one in [all_of.part(slice(i, i + 1))]
        )

    assert owned(dealt) == owned(of)
    assert dealt.people.tolist() != of.people.tolist()
    part = dealt.part(slice(10, 20))
    assert part.devices == 10
    np.testing.assert_array_equal(
        part.examples(None, slice(3, 5)).inputs, dealt.examples(None, slice(13, 15)).inputs
    )
    assert repr(of) == "LabelledPeople(devices=30)"


@pytest.mark.parametrize(
    "changes",
    [
        {"data": np.zeros(3)},
        {"data": np.array([["a"], ["b"]])},
        {"labels": np.zeros(1, dtype=np.int64)},
        {"labels": np.zeros(2)},
        {"people": np.array([0, 1])},
        {"people": np.array([0, 3, 2])},
    ],
)
def test_people_whose_arrays_do_not_fit_together_are_refused(changes: dict[str, Any]) -> None:
    fields = {
        "data": np.zeros((2, 3)),
        "labels": np.zeros(2, dtype=np.int64),
        "people": np.array([0, 1, 2]),
        **changes,
    }
    with pytest.raises(ParameterError, match=r"data|labels|people"):
        LabelledPeople(**fields)
