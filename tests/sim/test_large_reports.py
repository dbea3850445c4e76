"""A simulation whose reports are larger than a frame."""

from typing import Any

import anyio
import numpy as np

from demur_proto.queries import Feature, Linear
from demur_proto.study import design_study
from demur_proto.wire.definition import define_study
from demur_sim.engine.cohort_session import cohort_session
from demur_sim.engine.processes import process_session
from demur_sim.engine.session import Questions
from demur_sim.people.populations import ArrayPopulation
from demur_sim.scenario import Refusal

DIMENSION = (1 << 18) + 5  # just over 1 MiB
PEOPLE = 3
QUESTION = Feature(name="value", parameters={"period": 1})


async def test_large_reports_reach_the_collector_from_processes_as_in_arrays() -> None:
    values = np.zeros((PEOPLE, 1, DIMENSION))
    values[:, 0, 0], values[1, 0, -1] = 0.5, 0.25
    study = define_study(
        design_study(
            name="large",
            epsilon=1.0,
            delta=1e-6,
            answers=1,
            minimum_cohort=PEOPLE,
            grid_exponent=-9,
            maximum_dimension=DIMENSION,
        )
    )
    people = ArrayPopulation(values=values)
    questions = Questions(population=people, grid_exponent=-9)
    options: dict[str, Any] = {"seed": 3, "refusal": Refusal.COVER}

    with anyio.fail_after(60.0):
        async with cohort_session(study, questions, threads=1, **options) as arrays:
            expected = await arrays.ask(Linear([QUESTION], dimension=DIMENSION, on_grid=True))
        async with process_session(study, questions, workers=1, record=True, **options) as real:
            release = await real.ask(Linear([QUESTION], dimension=DIMENSION, on_grid=True))
            messages = (await real.finish()).messages

    assert release == expected
    assert release.reports == PEOPLE
    assert messages is not None
    assert (messages.size_bytes == 16 + 4 * DIMENSION).all()
