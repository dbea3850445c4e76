"""Questions that cannot be put: one clear line, nobody is asked, and the next question is."""

import math
from collections.abc import Callable
from typing import Any

import anyio
import numpy as np
import pytest

from demur_proto.errors import DemurError, ParameterError, StateError
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import Feature, HaltCount, Histogram, Linear, RunningCount, Weights
from demur_proto.running.segments import Segment
from demur_sim.engine.simulation import open_session, study_of
from demur_sim.people.populations import ArrayPopulation
from demur_sim.scenario import Scenario, load_scenario
from demur_sim.training.scenario import load_training

DEADLINE_S = 60.0
X = Feature(name="value", parameters={"period": 1})
SEGMENT = Segment(horizon=2, cohort=4)
SCENARIO = Scenario(
    name="bad", feature="value", budget=9, grid_exponent=-14, on_grid=False, minimum_cohort=1
)
KRR: dict[str, Any] = {"mechanism": Randomiser.KRR, "epsilon": 0.1}

WRONG: Any = "wrong"
Put = Callable[[Any], Any]  # asks a session what its types would not allow
BAD: list[tuple[str, Put, str]] = [
    *(
        (f"clip {clip}", lambda s, clip=clip: s.ask(Linear([X], clip=clip)), said)
        for clip, said in [
            (0.0, "^clip must be a finite number > 0, got 0.0$"),
            (-1.0, "^clip must be"),
            (math.nan, "^clip must be"),
            (1e300, r"\(clip 1e\+300\), got -14$"),
            (1e-300, r"\(clip 1e-300\), got -14$"),
        ]
    ),
    ("no feature", lambda s: s.ask(Linear([])), "^features must be at least one feature"),
    ("a name", lambda s: s.ask(Linear([WRONG])), r"^feature must be Feature\(name"),
    (
        "unknown",
        lambda s: s.ask(Linear([Feature(name="age")])),
        "^feature must be one of value, got 'age'",
    ),
    (
        "period",
        lambda s: s.ask(Linear([Feature(name="value", parameters={"period": 7})])),
        "^period must be an integer from 1 to 3",
    ),
    (
        "NaN weight",
        lambda s: s.ask(Linear([X], weights=Weights.of([[math.nan]]))),
        "^weights must be finite numbers",
    ),
    (
        "weights",
        lambda s: s.ask(Linear([X], weights=Weights.of([[1.0, 2.0]]))),
        "^weights must be rows of 1, as features",
    ),
    ("false promise", lambda s: s.ask(Linear([X], on_grid=True)), "^on_grid must be false"),
    ("histogram", lambda s: s.ask(Histogram(X, categories=3, **KRR)), "^query must be linear"),
    ("segment", lambda s: s.ask(RunningCount(X, WRONG)), "^segment must be a Segment, got 'wrong'"),
    ("bound", lambda s: s.ask(RunningCount(X, SEGMENT, bound=0)), "^bound must be an integer >= 1"),
    ("bound", lambda s: s.ask(RunningCount(X, SEGMENT, bound=1 << 20)), "^bound must be less"),
    ("state", lambda s: s.ask(RunningCount(WRONG, SEGMENT)), r"^feature must be Feature\(name"),
    (
        "position",
        lambda s: s.ask(RunningCount(X, SEGMENT.after(1))),
        "^position must be at most 1 in",
    ),
    (
        "doubled",
        lambda s: s.ask(RunningCount(X, SEGMENT.after(1).doubled())),
        "^first_round must be a r",
    ),
    ("halts", lambda s: s.ask(HaltCount(bytes(32), SEGMENT)), "^purpose must be halts in a study"),
]


def people() -> ArrayPopulation:
    return ArrayPopulation(np.array([[0.1, 0.0, 1.0], [0.2, 0.0, 1.0], [1.0, 1.0, 0.0]] * 2))


@pytest.mark.parametrize("fidelity", ["cohort", "processes"])
async def test_a_question_that_cannot_be_put_is_told_why_and_nothing_is_lost(fidelity: str) -> None:
    with anyio.fail_after(DEADLINE_S):
        async with open_session(
            SCENARIO, population=people(), horizon=2, fidelity=fidelity, workers=1
        ) as session:
            for name, put, said in BAD:
                with pytest.raises(DemurError, match=said) as caught:
                    await put(session)
                assert isinstance(caught.value, ParameterError | StateError), name
                assert len(str(caught.value).splitlines()) == 1, name
            releases = [await session.ask(Linear([X])) for _ in range(2)]
            with pytest.raises(ParameterError, match=r"^number must be <= the horizon 2, got 3"):
                await session.ask(Linear([X]))
            aftermath = await session.finish()

    assert [release.number for release in releases] == [1, 2]
    assert len(aftermath.contributed) == 2  # nobody was asked, and nobody paid, for anything else


async def test_what_is_no_category_counts_as_nothing_and_costs_nothing() -> None:
    scenario = load_scenario("telemetry", overrides=["categories=3", "data.devices=9"])
    values = np.array([[0.0], [2.0], [3.0], [-1.0], [0.5], [-0.0], [1e300]])
    scenario = Scenario(**{**fields_of(scenario), "minimum_cohort": 1})

    async with open_session(scenario, population=ArrayPopulation(values), horizon=1) as session:
        await session.ask(Histogram(X, categories=3, **KRR))
        aftermath = await session.finish()

    assert aftermath.contributed[0].tolist() == [2, 0, 1]
    assert (aftermath.spent > 0).sum() == 3


def fields_of(scenario: Scenario) -> dict[str, Any]:
    return {name: getattr(scenario, name) for name in Scenario.__slots__}


@pytest.mark.parametrize(
    ("load", "overrides", "said"),
    [
        (load_scenario, ["clip=0"], "^clip in --set must be a finite number > 0"),
        (load_scenario, ["clip=1e300"], r"such that 1 <= \(clip / 2\^exponent\)\^2 < 2\^61"),
        (load_scenario, ["epsilon=0"], "^epsilon in --set must be a finite number > 0"),
        (load_scenario, ["epsilon=nan"], "^epsilon in --set must be a finite number > 0"),
        (
            load_training,
            ["counts.errors=0.6", "counts.halts=0.6", "counts.every=2", "counts.most_halts=0.3"],
            "^counts.halts in --set must be such that something is left to train, got 0.6",
        ),
        (load_training, ["counts.halts=1.5"], "^counts.halts in --set must be at least 0 and bel"),
    ],
)
def test_a_scenario_that_cannot_be_is_told_why(
    load: Callable[..., Any], overrides: list[str], said: str
) -> None:
    name = "cdnow" if load is load_scenario else "digits"

    with pytest.raises(ParameterError, match=said) as caught:
        load(name, overrides=overrides)

    assert len(str(caught.value).splitlines()) == 1


async def test_the_smallest_promise_is_kept_with_as_much_noise_as_it_takes() -> None:
    scenario = Scenario(**{**fields_of(SCENARIO), "epsilon": 1e-9, "delta": 1e-12})
    study = study_of(scenario, devices=6)

    async with open_session(scenario, population=people()) as session:
        release = await session.ask(Linear([X]))

    assert study.base_sigma > 1e6
    assert release.standard_error[0] >= study.base_sigma
    assert "(1e-09, 1e-12)" in release.guarantee
