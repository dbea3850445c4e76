"""An analyst's questions that cannot be put: one clear line, no round is opened, the next one is."""

import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from demur_proto.errors import DemurError
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import Feature, HaltCount, Histogram, Linear, RunningCount, Weights
from demur_proto.running.segments import Segment
from demur_proto.study import Study, design_study
from demur_proto.wire.definition import Defined
from demur_server.analyst import Analyst
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import Ports

X, Y = Feature(name="x"), Feature(name="y")
SEGMENT = Segment(horizon=2, cohort=4)
KRR: dict[str, Any] = {"mechanism": Randomiser.KRR}


@pytest.fixture
async def analyst(ports: Ports) -> AsyncIterator[Analyst]:
    study = design_study(
        name="bad", epsilon=1.0, delta=1e-6, answers=3, minimum_cohort=2, maximum_dimension=3
    )
    async with Analyst.create(f"127.0.0.1:{ports.analyst}", study, answer_after_ms=0) as made:
        yield made


WRONG: Any = "wrong"
Put = Callable[[Any], Any]  # asks an analyst what its types would not allow
BAD: list[tuple[str, Put, str]] = [
    *(
        (f"clip {clip}", lambda a, clip=clip: a.open(Linear([X], clip=clip)), said)
        for clip, said in [
            (0.0, "^clip must be a finite number > 0, got 0.0$"),
            (math.nan, "^clip must be"),
            (1e300, r"\(clip 1e\+300\), got -14$"),
            (1e-300, r"\(clip 1e-300\), got -14$"),
        ]
    ),
    (
        "fewer coordinates",
        lambda a: a.open(Linear([X, Y], dimension=1)),
        "^dimension must be at least one",
    ),
    ("too many", lambda a: a.open(Linear([X], dimension=4)), "^dimension must be <= 3, the study"),
    (
        "NaN weight",
        lambda a: a.open(Linear([X], weights=Weights.of([[math.nan]]))),
        "^weights must be finite numbers",
    ),
    (
        "one weight",
        lambda a: a.open(Linear([X, Y], weights=Weights.of([[1.0]]))),
        "^dimension must be at least one for",
    ),
    (
        "rows",
        lambda a: a.open(Linear([X], weights=Weights.of([[1.0]]), dimension=2)),
        "^dimension must be 1 weighted",
    ),
    ("no feature", lambda a: a.open(Linear([])), "^features must be at least one feature"),
    (
        "bound",
        lambda a: a.open(RunningCount(X, SEGMENT, bound=0)),
        "^bound must be an integer >= 1",
    ),
    (
        "segment",
        lambda a: a.open(RunningCount(X, WRONG)),
        "^segment must be a Segment, got 'wrong'",
    ),
    ("state", lambda a: a.open(RunningCount(WRONG, SEGMENT)), r"^feature must be Feature\(name"),
    (
        "position",
        lambda a: a.open(RunningCount(X, SEGMENT.after(1))),
        "^position must be at most 1 in",
    ),
    (
        "doubled",
        lambda a: a.open(RunningCount(X, SEGMENT.after(1).doubled())),
        "^first_round must be a r",
    ),
    (
        "histogram",
        lambda a: a.open(Histogram(X, categories=3, epsilon=1.0, **KRR)),
        "^query must be linear",
    ),
    ("itself", lambda a: a.open(HaltCount(a.study.hash, SEGMENT)), "^purpose must be halts"),
    (
        "waiting",
        lambda a: a.ask(Linear([X]), timeout_s=math.nan),
        "^timeout_s must be a finite number > 0",
    ),
]


async def test_a_question_that_cannot_be_put_is_told_why_and_nothing_is_lost(
    analyst: Analyst, collector: Collector
) -> None:
    for name, put, said in BAD:
        with pytest.raises(DemurError, match=said) as caught:
            await put(analyst)
        assert len(str(caught.value).splitlines()) == 1, name
        assert collector.rounds_opened(analyst.study.hash) == 0, name

    assert (await analyst.open(Linear([X]))).value.number == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"clip": 0.0}, "^clip must be"),
        ({"clip": 1e300}, r"\(clip 1e\+300\), got -14$"),
        ({"epsilon": 0.0}, "^epsilon must be"),
        ({"epsilon": 1e9}, "^delta must be > 1, which the sampler may need at epsilon 1e"),
        ({"delta": 1.0}, "^delta must be between 0 and 1"),
        ({"answers": 0}, "^answers must be"),
        ({"horizon": -1}, "^horizon must be"),
    ],
    ids=str,
)
def test_a_study_that_cannot_be_is_told_why(wrong: dict[str, Any], said: str) -> None:
    told = {"epsilon": 1.0, "delta": 1e-6, "answers": 3, "minimum_cohort": 2, **wrong}

    with pytest.raises(DemurError, match=said) as caught:
        design_study(name="bad", **told)

    assert len(str(caught.value).splitlines()) == 1


async def test_a_study_says_how_many_rounds_it_has_at_most(ports: Ports) -> None:
    study = design_study(
        name="short", epsilon=1e-9, delta=1e-6, answers=3, minimum_cohort=2, horizon=1
    )
    async with Analyst.create(f"127.0.0.1:{ports.analyst}", study, answer_after_ms=0) as analyst:
        defined: Defined[Study] = analyst.study
        await analyst.open(Linear([X]))
        with pytest.raises(DemurError, match=r"^number must be <= the horizon 1, got 2"):
            await analyst.open(Linear([X]))

    assert defined.value.base_sigma > 1e5
