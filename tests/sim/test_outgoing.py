"""Reports on their way out of a worker: portions that share frames."""

import numpy as np
import pytest

from demur_proto.models.architectures import Softmax
from demur_proto.models.definition import ModelDefinition, define_model
from demur_proto.queries import Gradient
from demur_proto.round import round_of
from demur_proto.study import Policy, design_study
from demur_proto.wire.definition import define_round, define_study
from demur_sim.engine import worker as outgoing_module
from demur_sim.engine.cohort import Cohort
from demur_sim.engine.worker import Outgoing, outgoing
from demur_sim.people import presence as portions_module
from demur_sim.people.labelled import LabelledPeople
from demur_sim.scenario import Refusal

LINEAR = Softmax(inputs=3, classes=2)
REPORT_BYTES = 16 + 4 * LINEAR.parameters


def reports(devices: int) -> list[Outgoing]:
    rng = np.random.default_rng(5)
    people = LabelledPeople.one_each(rng.normal(size=(devices, 3)), rng.integers(0, 2, devices))
    study = define_study(
        design_study(
            name="outgoing",
            epsilon=1.0,
            delta=1e-6,
            answers=2,
            minimum_cohort=devices,
            grid_exponent=-15,
            maximum_dimension=LINEAR.parameters,
            policy=Policy.CLIP,
        )
    )
    model = ModelDefinition(architecture=LINEAR, theta=np.linspace(-1.0, 1.0, LINEAR.parameters))
    asked = define_round(
        round_of(
            study,
            Gradient(model_hash=define_model(model).hash, dimension=LINEAR.parameters),
            number=1,
        )
    )
    cohort = Cohort(study, people, seed=1, refusal=Refusal.COVER)
    ids = {block.number: block.report_ids() for block in cohort.blocks}
    return list(outgoing(cohort, ids, asked, model))


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions of seven people, as wide models have them."""
    monkeypatch.setattr(portions_module, "PORTION_WORDS", 7 * LINEAR.parameters)


@pytest.mark.parametrize(
    ("frame_reports", "expected"), [(6, [7, 7, 7, 7, 2]), (20, [14, 16]), (30, [30])]
)
def test_portions_share_a_frame_as_long_as_they_fit(
    frame_reports: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = reports(30)[0]
    monkeypatch.setattr(outgoing_module, "MAXIMUM_FRAME_BYTES", frame_reports * REPORT_BYTES)

    apart = reports(30)

    assert [len(each.people) for each in apart] == expected
    assert np.concatenate([each.people for each in apart]).tolist() == list(range(30))
    assert b"".join(each.report_ids for each in apart) == together.report_ids
    words = [piece for each in apart for piece in each.words]
    assert b"".join(words) == b"".join(together.words)
    assert np.array_equal(sum(each.contributed for each in apart), together.contributed)
    assert together.size_bytes == sum(each.size_bytes for each in apart) == 30 * REPORT_BYTES


def test_no_frame_is_made_for_more_reports_than_it_may_hold() -> None:
    assert [len(each.people) for each in reports(4096 + 10)] == [4096, 10]
