"""One person's device: what it says, what it never says, and what a cohort of it says."""

import dataclasses
import logging
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_client.budget.decide import charge_units, decide
from demur_client.device import Device, covered
from demur_proto.arrays import Bits, Flags, Integers, Values, Words
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries import Feature, Linear
from demur_proto.queries.registry import mechanism_for
from demur_proto.round import Round, round_of
from demur_proto.study import Policy, Study, View, design_study
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import Defined, define_round, define_study, report_id
from demur_proto.wire.words import decode_words
from demur_sim.engine.sampling import FastSampler

SECRET = bytes(range(32))
ANSWERS = 3


def gaussian_for(study: Study, asked: Round) -> GaussianLinear:
    mechanism = mechanism_for(study, asked)
    assert isinstance(mechanism, GaussianLinear)
    return mechanism


def study(policy: Policy = Policy.SKIP, view: View = View.LOCAL) -> Defined[Study]:
    """Three answers at a clip of 1 fit."""
    return define_study(
        design_study(
            name="x",
            epsilon=1.0,
            delta=1e-6,
            answers=ANSWERS,
            minimum_cohort=10,
            view=view,
            policy=policy,
            grid_exponent=-14,
            horizon=100,
            maximum_dimension=4,
        )
    )


STUDY = study()


def ask(
    number: int, *, dimension: int = 1, on_grid: bool = True, of: Defined[Study] = STUDY
) -> Defined[Round]:
    return define_round(
        round_of(
            of,
            Linear([Feature(name="f")], dimension=dimension, clip=1.0, on_grid=on_grid),
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
        result: Values = np.atleast_2d(value)
        return result


class Noiseless:
    """A sampler that shows what the noise would hide; its coins come in a fixed order."""

    name = "noiseless"

    def __init__(self, coins: list[Values] | None = None) -> None:
        self._coins = coins or []

    def words(self, count: int) -> Bits:
        raise AssertionError("a linear round asks for no bits")

    def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
        return np.zeros((reports, dimension), dtype=np.int64)

    def uniform(self, *, reports: int, dimension: int) -> Values:
        return self._coins.pop(0) if self._coins else np.full((reports, dimension), 0.5)


def answer(device: Device, asked: Defined[Round]) -> report_pb2.Report:
    return device.report(asked, device.evaluate(asked))


def contents(report: report_pb2.Report, asked: Defined[Round]) -> list[int]:
    length = asked.value.query.report_length
    row, _ = decode_words(report.words, asked.value.word_type, reports=1, dimension=length)
    return [int(word) for word in row[0]]


def noisy(seed: int = 1) -> FastSampler:
    return FastSampler(np.random.default_rng(seed))


def test_a_report_is_the_value_on_the_grid_plus_noise() -> None:
    asked = ask(1, dimension=2)
    mechanism = gaussian_for(STUDY.value, asked.value)

    bare = answer(Device(STUDY, Owner([0.5, -0.25]), Noiseless()), asked)
    report = answer(Device(STUDY, Owner([0.5, -0.25]), noisy()), asked)

    assert contents(bare, asked) == [8192, -4096]
    noise = mechanism.noise(noisy(), reports=1)[0].tolist()
    assert contents(report, asked) == [8192 + noise[0], -4096 + noise[1]]
    assert report.round_hash == asked.hash


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy.SKIP, [1.0, 1.0, 0.0, 0.75, 0.0, 0.0, 0.5]),
        (Policy.RETIRE, [1.0, 1.0, 0.0, 0.75, 0.0, 0.0, 0.0]),
    ],
)
def test_what_no_longer_fits_is_covered_as_the_policy_says(
    policy: Policy, expected: list[float]
) -> None:
    # Of a budget of 3: 1 + 1 + 0 + .5625, then 1 and .5625 are too much, and .25 fits again.
    of = study(policy)
    device = Device(of, Owner(1.0, 1.0, 0.0, 0.75, 1.0, 0.75, 0.5), Noiseless())

    rounds = [ask(number, of=of) for number in range(1, 8)]
    said = [contents(answer(device, asked), asked)[0] / 2**14 for asked in rounds]

    assert said == expected


def test_the_same_round_is_answered_with_the_same_bytes_and_charged_once() -> None:
    device = Device(STUDY, Owner(1.0), noisy(), secret=SECRET)
    plain = Device(STUDY, Owner(1.0), Noiseless(), secret=SECRET)
    first = ask(1)

    again = {answer(device, first).SerializeToString() for _ in range(5)}
    for _ in range(5):
        answer(plain, first)
    rest = [contents(answer(plain, ask(n)), ask(n)) for n in (2, 3, 4)]

    assert len(again) == 1
    assert rest == [[1 << 14], [1 << 14], [0]]  # three answers fit, the first of them counted once


def test_a_resent_report_ignores_what_the_data_have_become() -> None:
    device = Device(STUDY, Owner(1.0, 0.0, ValueError()), Noiseless())
    asked = ask(1)

    reports = [answer(device, asked) for _ in range(3)]

    assert reports[0] == reports[1] == reports[2]
    assert device.report(asked, None) == reports[0]


def test_a_caller_cannot_change_the_sealed_report() -> None:
    device = Device(STUDY, Owner(1.0), noisy())
    asked = ask(1)

    report = answer(device, asked)
    sent = report.SerializeToString()
    report.words = b"other"

    assert answer(device, asked).SerializeToString() == sent


def test_threads_that_answer_one_round_get_the_same_bytes_for_one_charge() -> None:
    device = Device(STUDY, Owner(1.0), noisy(), secret=SECRET)
    asked = ask(1, on_grid=False)
    value = device.evaluate(asked)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            reports = {
                report.SerializeToString()
                for report in pool.map(lambda _: device.report(asked, value), range(64))
            }
    finally:
        sys.setswitchinterval(interval)

    assert len(reports) == 1


def test_an_exhausted_device_sends_fresh_noise_in_a_report_of_the_same_size() -> None:
    device = Device(STUDY, Owner(1.0), noisy(), secret=SECRET)

    rounds = [ask(number) for number in range(1, 31)]
    reports = [answer(device, asked) for asked in rounds]

    assert len({report.ByteSize() for report in reports}) == 1
    assert len({report.words for report in reports}) == 30
    # Beyond the third the reports hold noise alone: the same that nobody's device would send.
    sampler = noisy()
    mechanism = gaussian_for(STUDY.value, rounds[0].value)
    noise = [int(mechanism.noise(sampler, reports=1)[0, 0]) for _ in rounds]
    said = [contents(report, asked)[0] for report, asked in zip(reports, rounds, strict=True)]
    assert said == [z + (1 << 14) for z in noise[:ANSWERS]] + noise[ANSWERS:]


FAILURES = [
    ValueError("the data are 42"),
    SystemExit(3),
    math.nan,
    math.inf,
    -math.inf,
    [0.5, 0.5, 0.5],
    [],
    None,
    "text",
    1.5,  # outside what an on-grid round promises
    0.3,
]


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_a_failure_of_the_data_is_a_free_cover_report_of_the_same_size(failure: Any) -> None:
    device = Device(STUDY, Owner(failure, 1.0), Noiseless(), secret=SECRET)

    reports = [answer(device, ask(number)) for number in range(1, 6)]

    said = [contents(reports[n - 1], ask(n))[0] for n in range(1, 6)]
    assert said == [0, 1 << 14, 1 << 14, 1 << 14, 0]  # the failure cost nothing
    assert len({report.ByteSize() for report in reports}) == 1


@pytest.mark.parametrize("failure", FAILURES[:9], ids=repr)
def test_off_the_grid_failures_are_free_as_well(failure: Any) -> None:
    device = Device(STUDY, Owner(failure), Noiseless())
    asked = ask(1, on_grid=False)

    assert contents(answer(device, asked), asked) == [0]


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 2), (2,)])
def test_a_value_of_another_shape_handed_in_is_covered(shape: tuple[int, ...]) -> None:
    device = Device(STUDY, Owner(0.0), Noiseless())
    asked = ask(1, dimension=2)
    wrong: Any = np.ones(shape)

    report = device.report(asked, wrong)

    assert contents(report, asked) == [0, 0]


def test_a_late_evaluation_is_a_cover_report_of_the_same_size() -> None:
    device = Device(STUDY, Owner(1.0), noisy(), secret=SECRET)

    assert device.report(ask(1), None).ByteSize() == answer(device, ask(2)).ByteSize()


@pytest.mark.parametrize("value", [0.0, 0.25, 0.3, 1.0, 7.0, math.nan, None, ValueError()])
def test_whatever_a_device_holds_it_draws_as_much_randomness(value: Any) -> None:
    # Otherwise later noise would be correlated with earlier values.
    rng = np.random.default_rng(9)
    device = Device(STUDY, Owner(value), FastSampler(rng))

    answer(device, ask(1, dimension=2, on_grid=False))

    reference = np.random.default_rng(9)
    FastSampler(reference).uniform(reports=1, dimension=2)
    gaussian_for(STUDY.value, ask(1, dimension=2).value).noise(FastSampler(reference), reports=1)
    assert rng.random() == reference.random()


# ---- refusals for public reasons -------------------------------------------------------------


class Watched:
    """Data that remember whether they were read."""

    read = False

    def evaluate(self, feature: Feature) -> Values:
        self.read = True
        return np.ones((1, 1))


def refuse(device: Device, asked: Defined[Round]) -> None:
    """Both ways in refuse."""
    with pytest.raises(ParameterError):
        device.evaluate(asked)
    with pytest.raises(ParameterError):
        device.report(asked, np.ones((1, asked.value.query.value_length)))


def test_a_round_of_another_study_is_refused_before_any_data_is_read() -> None:
    other = study(Policy.RETIRE)

    data = Watched()

    refuse(Device(STUDY, data, noisy()), ask(1, of=other))

    assert not data.read


@pytest.mark.parametrize(
    "change", [{"weight": 1}, {"dimension": 5}, {"number": 101}, {"sigma": 1.0}], ids=repr
)
def test_a_round_that_breaks_the_contract_is_refused_before_any_data_is_read(
    change: dict[str, Any],
) -> None:
    query = ask(1).value.query
    assert isinstance(query, Linear)
    inside = {name: change.pop(name) for name in ("dimension", "sigma") if name in change}
    asked = define_round(
        dataclasses.replace(ask(1).value, query=dataclasses.replace(query, **inside), **change)
    )

    data = Watched()

    refuse(Device(STUDY, data, noisy()), asked)

    assert not data.read


def test_a_second_round_of_the_same_number_is_refused() -> None:
    # Otherwise a collector could ask more often than the horizon allows.
    device = Device(STUDY, Owner(0.0), noisy())
    first, second = ask(1), ask(1, on_grid=False)
    sent = answer(device, first)

    refuse(device, second)

    assert answer(device, first) == sent
    answer(device, ask(2))


@pytest.mark.parametrize("secret", [b"", bytes(16), bytes(31), bytes(33)], ids=len)
def test_a_secret_of_another_length_is_refused_without_being_repeated(secret: bytes) -> None:
    with pytest.raises(ParameterError, match="32 bytes") as caught:
        Device(STUDY, Owner(0.0), noisy(), secret=secret)

    assert caught.value.value != secret


# ---- identities and secrets ------------------------------------------------------------------


def test_report_ids_follow_from_secret_and_round_and_are_unique() -> None:
    secrets = [bytes([n]) * 32 for n in range(20)]
    devices = [Device(STUDY, Owner(0.0), noisy(), secret=secret) for secret in secrets]
    rounds = [ask(number) for number in range(1, 11)]

    ids = [[answer(device, asked).report_id for asked in rounds] for device in devices]

    assert ids == [[report_id(secret, asked.hash) for asked in rounds] for secret in secrets]
    assert len({one for row in ids for one in row}) == 200


def test_without_a_secret_every_device_has_its_own() -> None:
    devices = [Device(STUDY, Owner(0.0), noisy()) for _ in range(20)]

    assert len({answer(device, ask(1)).report_id for device in devices}) == 20


def test_no_text_of_a_device_shows_what_it_holds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    device = Device(STUDY, Owner(1.0), noisy(), secret=SECRET)
    fresh = repr(device)

    for number in range(1, 7):
        answer(device, ask(number))

    assert repr(device) == str(device) == fresh == "Device(study='x', secret)"
    assert SECRET.hex() not in fresh
    assert not caplog.records


# ---- a device and a cohort -------------------------------------------------------------------


@settings(max_examples=60)
@given(
    policy=st.sampled_from([Policy.SKIP, Policy.RETIRE]),  # clip: test_clip.py, test_cohort.py
    view=st.sampled_from(View),
    values=st.lists(
        st.lists(
            st.one_of(
                st.floats(-1.5, 1.5),
                st.sampled_from([0.0, 1.0, -1.0, 0.5, math.nan, math.inf, 1e300, 5e-324]),
            ),
            min_size=3,
            max_size=3,
        ),
        min_size=1,
        max_size=8,
    ),
    on_grid=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_device_says_the_same_words_as_in_a_cohort(
    policy: Policy, view: View, values: list[list[float]], on_grid: bool, seed: int
) -> None:
    of = study(policy, view)
    people, count = 3, len(values)
    rounds = [ask(number, of=of, on_grid=on_grid) for number in range(1, count + 1)]
    coins = np.random.default_rng(seed).random((count, people, 1))
    remaining: Integers = np.full(people, of.value.budget_units, dtype=np.int64)
    refused: Flags = np.zeros(people, dtype=np.bool_)

    together = []
    for asked, row, tossed in zip(rounds, values, coins, strict=True):
        mechanism = gaussian_for(of.value, asked.value)
        words, squares = mechanism.encode(np.array(row)[:, None], Noiseless([tossed]))
        charge = charge_units(
            squares, weight=asked.value.weight, budget_units=of.value.budget_units
        )
        given_, remaining, refused = decide(
            charge, remaining=remaining, refused=refused, retire=policy is Policy.RETIRE
        )
        together.append(covered(words, np.asarray(given_))[:, 0].tolist())

    for person in range(people):
        own = Noiseless([coins[n, person : person + 1] for n in range(count)])
        device = Device(of, Owner(*(row[person] for row in values)), own)
        alone = [contents(answer(device, asked), asked)[0] for asked in rounds]
        assert alone == [row[person] for row in together]


@pytest.mark.parametrize("kind", ["int8", "float16", "float32", "object", "bool"])
def test_a_value_of_another_number_type_is_the_same_value_or_cover(kind: str) -> None:
    asked = ask(1)
    device = Device(STUDY, Owner(1.0), noisy(), secret=SECRET)
    other = Device(STUDY, Owner(1.0), noisy(), secret=SECRET)

    report = device.report(asked, np.array([[1]], dtype=kind))

    assert report == other.report(asked, np.array([[1.0]]))
    for strange in (np.array([["no"]], dtype=object), np.ma.array([[1.0]], mask=True)):
        cover = Device(STUDY, Owner(1.0), noisy(), secret=SECRET).report(asked, strange)
        assert cover == Device(STUDY, Owner(1.0), noisy(), secret=SECRET).report(asked, None)
