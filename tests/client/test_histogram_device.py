"""A device in histogram rounds: what it says, what it pays, and what never shows."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from demur_client.device import Device
from demur_client.explain import explain_text
from demur_proto.arrays import Values
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import Feature, Histogram, Linear
from demur_proto.queries.registry import mechanism_for
from demur_proto.round import Round, round_of
from demur_proto.samplers.exact import ExactSampler
from demur_proto.study import Measure, MechanismFamily, Policy, Study, View, design_study
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_proto.wire.words import decode_words
from demur_sim.engine.sampling import FastSampler

SECRET = bytes(range(32))
CATEGORIES = 5
PLAIN = 50.0  #: an ε at which k-ary randomised response errs less than once in 10^20 reports


def study(policy: Policy = Policy.SKIP) -> Defined[Study]:
    """Three plain answers fit. It protects nobody, so that what a device says can be seen."""
    return define_study(
        Study(
            name="plain",
            view=View.LOCAL,
            measure=Measure.ZCDP,
            policy=policy,
            budget=3.5 * 50.0,
            epsilon=400.0,
            delta=1e-6,
            mechanism_family=MechanismFamily.PURE,
            minimum_cohort=1,
            horizon=100,
            maximum_dimension=64,
        )
    )


STUDY = study()


def ask(
    number: int,
    *,
    mechanism: Randomiser = Randomiser.KRR,
    epsilon: float = PLAIN,
    of: Defined[Study] = STUDY,
    categories: int = CATEGORIES,
) -> Defined[Round]:
    return define_round(
        round_of(
            of,
            Histogram(
                Feature(name="f"), categories=categories, mechanism=mechanism, epsilon=epsilon
            ),
            number=number,
        )
    )


class Owner:
    """Someone's data: round after round, what the feature gives."""

    def __init__(self, *values: Any) -> None:
        self._values = list(values)

    def evaluate(self, feature: Feature) -> Values:
        value = self._values.pop(0) if len(self._values) > 1 else self._values[0]
        if isinstance(value, BaseException):
            raise value
        result: Values = value
        return result


def answer(device: Device, asked: Defined[Round]) -> report_pb2.Report:
    return device.report(asked, device.evaluate(asked))


def contents(report: report_pb2.Report, asked: Defined[Round]) -> list[int]:
    length = asked.value.query.report_length
    [row], [sound] = decode_words(report.words, asked.value.word_type, reports=1, dimension=length)
    assert sound
    return [int(word) for word in row]


def symbols(device: Device, rounds: int) -> list[int]:
    """What the device says in plain rounds: 0 for nothing, or a category plus 1."""
    return [
        contents(answer(device, ask(number, of=device.study)), ask(number, of=device.study))[0]
        for number in range(1, rounds + 1)
    ]


def noisy(seed: int = 1) -> FastSampler:
    return FastSampler(np.random.default_rng(seed))


@pytest.mark.parametrize("policy", [Policy.SKIP, Policy.RETIRE])
def test_a_device_says_its_category_until_its_budget_is_gone_and_then_nothing(
    policy: Policy,
) -> None:
    device = Device(study(policy), Owner(4.0, 0.0, math.nan, 2.0, 1.0, 3.0), noisy())

    assert symbols(device, 7) == [5, 1, 0, 3, 0, 0, 0]  # three answers fit, and nothing is free


FAILURES = [
    math.nan,
    math.inf,
    -math.inf,
    0.5,
    -1.0,
    -0.5,
    float(CATEGORIES),
    1e300,
    2.0**31,
    2.0**63,
    [1.0, 2.0],
    [],
    [[]],
    None,
    "text",
    1j,
    object(),
    ValueError("2"),
    KeyError(),
    SystemExit(3),
    MemoryError(),
]


@pytest.mark.parametrize("failure", FAILURES)
def test_what_is_no_category_is_a_free_cover_report_of_the_same_size(failure: Any) -> None:
    device = Device(STUDY, Owner(failure, 2.0), noisy(), secret=SECRET)

    reports = [answer(device, ask(number)) for number in range(1, 6)]

    said = [contents(report, ask(n))[0] for n, report in enumerate(reports, start=1)]
    assert said == [0, 3, 3, 3, 0]  # the failure cost nothing
    assert len({report.ByteSize() for report in reports}) == 1


@pytest.mark.parametrize("value", [3, 3.0, [3.0], [[3.0]], np.float32(3), np.int8(3), np.array(3)])
def test_any_shape_of_one_number_is_a_category(value: Any) -> None:
    assert symbols(Device(STUDY, Owner(value), noisy()), 1) == [4]


@pytest.mark.parametrize("shape", [(2, 1), (1, 2), (1,), (1, 5), (0, 1)])
def test_a_value_of_another_shape_handed_in_is_covered(shape: tuple[int, ...]) -> None:
    device = Device(STUDY, Owner(0.0), noisy())
    wrong: Any = np.ones(shape)

    assert contents(device.report(ask(1), wrong), ask(1)) == [0]


@pytest.mark.parametrize("mechanism", Randomiser)
def test_a_late_evaluation_and_an_exhausted_budget_give_valid_reports_of_the_same_size(
    mechanism: Randomiser,
) -> None:
    device = Device(STUDY, Owner(2.0), noisy(), secret=SECRET)

    reports = [
        (asked, answer(device, asked) if number % 2 else device.report(asked, None))
        for number in range(1, 13)
        for asked in [ask(number, mechanism=mechanism, epsilon=20.0)]
    ]

    assert len({report.ByteSize() for _, report in reports}) == 1
    for asked, report in reports:
        rows = np.array([contents(report, asked)])
        assert mechanism_for(STUDY.value, asked.value).valid(rows).all()


@pytest.mark.parametrize("mechanism", Randomiser)
def test_a_report_is_drawn_once_and_sent_again_byte_for_byte(mechanism: Randomiser) -> None:
    device = Device(STUDY, Owner(2.0, 4.0), noisy())
    asked = ask(1, mechanism=mechanism, epsilon=0.5)

    first = answer(device, asked)

    assert all(answer(device, asked) == first for _ in range(5))


def test_without_a_sampler_a_device_draws_from_the_operating_system() -> None:
    asked = ask(1, mechanism=Randomiser.OUE, epsilon=0.01)

    texts = {bytes(answer(Device(STUDY, Owner(2.0)), asked).words) for _ in range(200)}

    assert isinstance(Device(STUDY, Owner(2.0))._sampler, ExactSampler)
    assert len(texts) > 16  # of 32 possible codes, each with probability 1/32 or so


class Watched:
    """Data that remember whether they were read."""

    read = False

    def evaluate(self, feature: Feature) -> Values:
        self.read = True
        return np.ones((1, 1))


@pytest.mark.parametrize(
    "change",
    [
        {"weight": 1},
        {"weight": STUDY.value.budget_units},
        {"number": 101},
        {"study_hash": bytes(32)},
        {"categories": 65},
        {"epsilon": 1e-12},
        {"epsilon": 51.0},
        {"epsilon": 2.0},  # less than was weighed
        {"mechanism": Randomiser.OLH},  # of no size
        {"size": 2},
    ],
    ids=repr,
)
def test_a_round_that_breaks_the_contract_is_refused_before_any_data_is_read(
    change: dict[str, Any],
) -> None:
    right = ask(1).value
    inside = {name: change[name] for name in change if not hasattr(right, name)}
    outside = {name: change[name] for name in change if hasattr(right, name)}
    assert isinstance(right.query, Histogram)
    query = dataclasses.replace(right.query, **inside)
    # A definition that no honest analyst could write: as if it came off the wire.
    asked = dataclasses.replace(ask(1), value=dataclasses.replace(right, query=query, **outside))
    data = Watched()
    device = Device(STUDY, data, noisy())

    with pytest.raises(ParameterError):
        device.evaluate(asked)
    with pytest.raises(ParameterError):
        device.report(asked, np.ones((1, 1)))

    assert not data.read
    assert answer(device, ask(1)).words  # and its budget is whole


def test_a_second_round_of_the_same_number_is_refused() -> None:
    device = Device(STUDY, Owner(1.0), noisy())
    answer(device, ask(1))

    with pytest.raises(ParameterError, match="the round that had this number before"):
        device.report(ask(1, mechanism=Randomiser.OUE), np.ones((1, 1)))


def test_one_budget_pays_for_both_kinds_of_rounds_of_a_mixed_study() -> None:
    mixed = define_study(
        design_study(
            name="both",
            epsilon=10.0,
            delta=1e-6,
            answers=2,
            minimum_cohort=1,
            measure=Measure.ZCDP,
            view=View.LOCAL,
            mechanism_family=MechanismFamily.MIXED,
            maximum_dimension=64,
            grid_exponent=-7,
        )
    )
    linear = define_round(round_of(mixed, Linear([Feature(name="f")], on_grid=True), number=1))
    device = Device(mixed, Owner(1.0), noisy())

    answer(device, linear)  # half of the budget
    left = [device.ledger.remaining_units(device.study.hash)]
    rounds = [ask(number, epsilon=0.6, of=mixed) for number in range(2, 30)]
    for asked in rounds:
        answer(device, asked)
        left.append(device.ledger.remaining_units(device.study.hash))

    assert left[0] == mixed.value.budget_units // 2
    weight = rounds[0].value.weight
    fit = left[0] // weight
    assert 1 < fit < len(rounds)
    assert left == [left[0] - weight * min(n, fit) for n in range(len(rounds) + 1)]


def test_a_device_shows_neither_its_category_nor_its_budget(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(0)
    device = Device(STUDY, Owner(4.0), noisy(), secret=SECRET)

    answer(device, ask(1))

    assert repr(device) == "Device(study='plain', secret)"
    assert repr(device.ledger) == "MemoryLedger(secret)"
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("categories", "value", "said"),
    [
        (4, 0.0, ""),
        (4, 3.0, ""),
        (4, -1.0, ""),
        (4, math.nan, ""),
        (4, 9.0, ": 9 is no category of 4: told as none"),
        (4, 0.5, ": 0.5 is no category of 4: told as none"),
        (4, -math.inf, ": -inf is no category of 4: told as none"),
        (1, 1.0, ""),
        (1, 0.0, ""),
        (1, -1.0, ""),
        (1, math.nan, ""),
        (1, 2.0, ": 2 is neither 1 (yes) nor 0 (no): told as no"),
        (1, 0.5, ": 0.5 is neither 1 (yes) nor 0 (no): told as no"),
    ],
)
def test_the_owner_reads_of_a_number_that_names_no_category_and_the_answer_stays_an_answer(
    categories: int, value: float, said: str
) -> None:
    asked = ask(1, categories=categories)
    device = Device(STUDY, Owner(np.array([[value]])))
    notes: list[str] = []

    device.report(asked, device.evaluate(asked, noted=notes.append), note="".join(notes))

    assert not device.ever_covered
    assert f"    answered{said}; cost " in explain_text(device.ledger, STUDY)
