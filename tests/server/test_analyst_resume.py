"""An analyst who comes back to a study."""

from dataclasses import replace

import pytest

from demur_proto.errors import NotFoundError
from demur_proto.queries import Feature, Linear
from demur_proto.study import Study
from demur_proto.wire.definition import Defined
from demur_server.analyst import Analyst
from demur_server.analyst_calls import list_studies
from demur_server.grpc.serving import Ports

X = Feature(name="x")


async def test_a_study_is_resumed_with_the_next_number(ports: Ports, study: Defined[Study]) -> None:
    target = f"127.0.0.1:{ports.analyst}"
    async with Analyst.create(target, study.value, answer_after_ms=0) as first:
        await first.open(Linear([X], on_grid=True))
        await first.open(Linear([X], on_grid=True))

    numbers = []
    for wanted in (None, "test", study.hash.hex(), study.hash.hex()[:8].upper()):
        async with Analyst.resume(target, wanted) as analyst:
            assert analyst.study == study
            numbers.append((await analyst.open(Linear([X], on_grid=True))).value.number)
    async with Analyst.create(target, study.value, answer_after_ms=0) as again:
        numbers.append((await again.open(Linear([X], on_grid=True))).value.number)

    assert numbers == [3, 4, 5, 6, 7]
    assert await list_studies(target) == [(study, 7)]


async def test_a_study_that_is_not_the_only_one_has_to_be_named(
    ports: Ports, study: Defined[Study]
) -> None:
    target = f"127.0.0.1:{ports.analyst}"
    for other in (replace(study.value, horizon=9), replace(study.value, name="other")):
        async with Analyst.create(target, other, answer_after_ms=0):
            pass

    async with Analyst.resume(target, "other") as analyst:
        assert analyst.study.value.name == "other"
    for wanted, said in (
        (None, r"^there are 3 studies; name one by its hash: [0-9a-f]{16} \(test\)"),
        ("test", r"^there are 2 studies 'test'; name one by its hash: "),
        ("tes", r"^there is no study 'tes'; the collector has 'test', 'test', 'other'"),
        (study.hash.hex()[:7], "^there is no study"),
    ):
        with pytest.raises(NotFoundError, match=said):
            async with Analyst.resume(target, wanted):
                pass
