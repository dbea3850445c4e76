import dataclasses
import inspect
import itertools
import math
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from demur_proto.errors import ParameterError, UnsupportedError
from demur_sim.engine.observer import FEWEST_DEVICES, Advantage, Messages, distinguish

ROUNDS = 24
NOISE_S = 2e-4  # standard deviation of a send time
COVERED = 3  # any status but 1 does


def honest(rng: np.random.Generator, devices: int, rounds: int = ROUNDS) -> Messages:
    """Devices of one law: 3 % of messages fail to go out, 2 % come back with another status."""
    sent = rng.random((devices, rounds)) < 0.97
    other = rng.random((devices, rounds)) < 0.02
    return Messages(
        sent=sent,
        size_bytes=np.where(sent, 412, 0).astype(np.int32),
        status=np.where(sent, np.where(other, 2, 1), 0).astype(np.int8),
        time_s=np.where(sent, rng.normal(0.05, NOISE_S, size=sent.shape), np.nan),
    )


def lossless(rng: np.random.Generator, devices: int, rounds: int = ROUNDS) -> Messages:
    sent = np.ones((devices, rounds), dtype=np.bool_)
    return Messages(
        sent=sent,
        size_bytes=np.full(sent.shape, 412, dtype=np.int32),
        status=sent.astype(np.int8),
        time_s=rng.normal(0.05, NOISE_S, size=sent.shape),
    )


def after(moments: NDArray[np.int64], rounds: int = ROUNDS) -> NDArray[np.bool_]:
    """Mask [n, rounds] of the rounds from each device's moment on."""
    return np.arange(rounds) >= moments[:, None]


def silenced(messages: Messages, where: NDArray[np.bool_]) -> Messages:
    return Messages(
        sent=messages.sent & ~where,
        size_bytes=np.where(where, 0, messages.size_bytes).astype(np.int32),
        status=np.where(where, 0, messages.status).astype(np.int8),
        time_s=np.where(where, np.nan, messages.time_s),
    )


def test_devices_of_one_law_cannot_be_told_apart_and_the_standard_error_is_honest() -> None:
    seeds = 40

    z = np.empty(seeds)
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        z[seed] = distinguish(honest(rng, 60), honest(rng, 60), seed=seed).deviations

    # z has mean 0 and variance 1, and is close to normal: 3 sigma of its sample moments.
    assert abs(z.mean()) <= 3 / math.sqrt(seeds)
    assert abs(z.std(ddof=1) - 1) <= 3 / math.sqrt(2 * (seeds - 1))
    assert np.abs(z).max() <= 3.5  # 40 draws exceed it with probability 0.02


@pytest.mark.parametrize("devices", [(10, 10), (31, 160), (300, 40)])
def test_sets_of_any_two_sizes_stay_within_three_standard_errors(
    rng: np.random.Generator, devices: tuple[int, int]
) -> None:
    one, other = (honest(rng, n) for n in devices)

    seen = distinguish(one, other, seed=1)

    assert seen.devices == tuple(n - n // 2 for n in devices)
    assert abs(seen.auc - 0.5) <= 3 * seen.standard_error


def test_falling_silent_after_exhaustion_is_seen_without_error(rng: np.random.Generator) -> None:
    exhausted = after(rng.integers(1, ROUNDS, size=100))  # the last ones miss one round only

    seen = distinguish(silenced(lossless(rng, 100), exhausted), lossless(rng, 100), seed=1)

    assert seen.auc == 1.0
    assert seen.sampling_error == 0.0
    assert seen.deviations == 0.5 / math.sqrt(101 / (12 * 50 * 50))


def test_falling_silent_in_one_of_the_last_of_many_rounds_is_seen_without_error(
    rng: np.random.Generator,
) -> None:
    rounds = 546  # more than a histogram has bins
    moments = rounds - rng.integers(1, 200, size=150)
    moments[:20] = rounds - 1

    active = lossless(rng, 2_000, rounds)
    exhausted = lossless(rng, 150, rounds)
    seen = distinguish(silenced(exhausted, after(moments, rounds)), active, seed=1)

    assert seen.auc == 1.0


def test_one_more_byte_in_one_message_is_seen_without_error(rng: np.random.Generator) -> None:
    one, other = lossless(rng, 100), lossless(rng, 100)
    one.size_bytes[np.arange(100), rng.integers(ROUNDS, size=100)] += 1

    assert distinguish(one, other, seed=1).auc == 1.0


def test_another_status_of_one_message_is_seen_without_error(rng: np.random.Generator) -> None:
    one, other = lossless(rng, 100), lossless(rng, 100)
    one.status[np.arange(100), rng.integers(ROUNDS, size=100)] = COVERED

    assert distinguish(one, other, seed=1).auc == 1.0


def test_cover_that_leaves_a_fifth_of_a_millisecond_late_is_seen(rng: np.random.Generator) -> None:
    one, other = lossless(rng, 200), lossless(rng, 200)
    late = after(rng.integers(ROUNDS // 4, 3 * ROUNDS // 4 + 1, size=200))
    one.time_s[late] += NOISE_S

    # Everybody is late in the last six rounds. Their mean alone is √6 of its standard deviations
    # away, an AUC of Φ(√6/√2) = 0.958 with a standard error below √(0.958·0.042/100) = 0.020.
    assert distinguish(one, other, seed=1).auc >= 0.958 - 3 * 0.020


def test_late_cover_is_seen_even_if_devices_differ_far_more_among_themselves(
    rng: np.random.Generator,
) -> None:
    one, other = lossless(rng, 200), lossless(rng, 200)
    for messages in (one, other):
        messages.time_s[:] += rng.normal(0.0, 250 * NOISE_S, size=(200, 1))
    one.time_s[after(rng.integers(ROUNDS // 4, ROUNDS, size=200))] += 2 * NOISE_S

    assert distinguish(one, other, seed=1).auc > 0.6


def test_a_difference_in_spread_alone_is_seen(rng: np.random.Generator) -> None:
    one, other = lossless(rng, 200), lossless(rng, 200)
    one.time_s[:] += rng.choice([-NOISE_S, NOISE_S], size=(200, 1))  # the mean stays

    # The device mean, known to σ/√24, is off by σ: 4.9 of its standard deviations, either way.
    assert distinguish(one, other, seed=1).auc > 0.9


def test_the_moment_of_a_change_alone_is_seen(rng: np.random.Generator) -> None:
    def silent_for_six_rounds(moments: NDArray[np.int64]) -> Messages:
        window = after(moments) & ~after(moments + 6)
        return silenced(lossless(rng, len(moments)), window)

    early = silent_for_six_rounds(rng.integers(0, 9, size=100))
    late = silent_for_six_rounds(rng.integers(9, 19, size=100))

    assert np.array_equal(early.sent.sum(axis=1), late.sent.sum(axis=1))
    assert distinguish(early, late, seed=1).auc == 1.0


@pytest.mark.parametrize("rounds", [1, 3, 9])
@pytest.mark.parametrize("silent", [False, True])
def test_sets_that_are_all_alike_give_one_half_exactly(rounds: int, silent: bool) -> None:
    sent = np.full((12, rounds), not silent)
    alike = Messages(
        sent=sent,
        size_bytes=np.where(sent, 412, 0).astype(np.int32),
        status=sent.astype(np.int8),
        time_s=np.where(sent, 0.1, np.nan),
    )

    seen = distinguish(alike, alike, seed=1)

    assert seen.auc == 0.5
    assert seen.deviations == 0.0
    assert seen.standard_error == math.sqrt(13 / (12 * 6 * 6))


def test_devices_that_never_speak_in_some_rounds_can_be_compared(rng: np.random.Generator) -> None:
    late = np.tile(after(np.array([ROUNDS // 2])), (60, 1))  # nobody: whole segments are empty
    mute = np.arange(60)[:, None] < np.ones(ROUNDS)  # and one device of each set never speaks

    one, other = (silenced(honest(rng, 60), late | mute) for _ in range(2))
    seen = distinguish(one, other, seed=1)

    assert abs(seen.auc - 0.5) <= 3 * seen.standard_error


def test_memory_layout_is_not_mistaken_for_behaviour(rng: np.random.Generator) -> None:
    one = lossless(rng, 20)
    one.time_s[:] = rng.normal(size=ROUNDS)  # sums that depend on their order in the last bit
    other = dataclasses.replace(one, time_s=np.asfortranarray(one.time_s))

    assert distinguish(one, other, seed=1).auc == 0.5


def test_the_order_of_devices_tells_nothing(rng: np.random.Generator) -> None:
    one, other = honest(rng, 100), honest(rng, 100)
    by_time = [np.argsort(np.nanmean(messages.time_s, axis=1)) for messages in (one, other)]

    seen = distinguish(one.of(by_time[0]), other.of(by_time[1][::-1]), seed=1)

    assert abs(seen.auc - 0.5) <= 3 * seen.standard_error


def test_a_leak_is_found_in_any_order_of_devices(rng: np.random.Generator) -> None:
    one, other = lossless(rng, 60), lossless(rng, 60)
    one.size_bytes[:] += 1

    for _ in range(3):
        mixed = one.of(rng.permutation(60)), other.of(rng.permutation(60))
        assert distinguish(*mixed, seed=1).auc == 1.0


def test_a_seed_fixes_the_answer(rng: np.random.Generator) -> None:
    one, other = honest(rng, 40), honest(rng, 40)

    first, again, another = (distinguish(one, other, seed=seed) for seed in (1, 1, 2))

    assert first == again
    assert first != another


def test_auc_agrees_with_scikit_learn_ties_included(rng: np.random.Generator) -> None:
    scores = rng.integers(6, size=50).astype(np.float64)
    label = np.arange(50) < 20

    seen = Advantage.from_scores(scores[label], scores[~label])

    assert seen.auc == pytest.approx(roc_auc_score(label, scores), rel=1e-12)
    assert seen.devices == (20, 30)


def test_an_auc_of_a_single_score_is_refused() -> None:
    with pytest.raises(ParameterError, match="scores"):
        Advantage.from_scores(np.array([1.0]), np.array([0.0, 2.0]))


def test_standard_error_is_that_of_every_way_to_label_the_ranks() -> None:
    ranks = np.arange(9.0)

    aucs = []
    for chosen in itertools.combinations(range(9), 4):
        label = np.isin(np.arange(9), chosen)
        aucs.append(Advantage.from_scores(ranks[label], ranks[~label]).auc)

    null = Advantage(auc=0.5, devices=(4, 5), sampling_error=0.0)
    assert np.mean(aucs) == pytest.approx(0.5)
    assert np.std(aucs) == pytest.approx(null.standard_error)


def test_sampling_error_is_the_spread_of_the_auc_around_its_true_value() -> None:
    rng, draws = np.random.default_rng(7), 2000

    seen = [
        Advantage.from_scores(rng.normal(1.0, size=40), rng.normal(size=60)) for _ in range(draws)
    ]

    auc = np.array([one.auc for one in seen])
    error = math.sqrt(np.mean([one.sampling_error**2 for one in seen]))
    truth = 0.5 * (1 + math.erf(0.5))  # Φ(1/√2)
    assert abs(auc.mean() - truth) <= 3 * error / math.sqrt(draws)
    assert auc.std() == pytest.approx(error, rel=3 / math.sqrt(2 * draws))


def test_a_watcher_is_given_neither_payloads_nor_ids(rng: np.random.Generator) -> None:
    known = {name: getattr(lossless(rng, 2), name) for name in Messages.__slots__}

    assert [f.name for f in dataclasses.fields(Messages)] == [
        "sent",
        "size_bytes",
        "status",
        "time_s",
    ]
    assert list(inspect.signature(distinguish).parameters) == ["one", "other", "seed"]
    for more in ("payload", "words", "device_ids"):
        with pytest.raises(TypeError, match=more):
            Messages(**known, **{more: known["sent"]})


def test_messages_are_picked_by_index_or_mask_and_joined_either_way(
    rng: np.random.Generator,
) -> None:
    messages = honest(rng, 5, rounds=4)

    picked = messages.of(np.array([3, 1]))
    masked = messages.of(np.arange(5) > 2)
    more = Messages.concatenate([picked, masked])
    longer = Messages.concatenate([picked, masked], axis=1)

    assert (len(picked), len(masked), len(more), len(longer)) == (2, 2, 4, 2)
    assert (more.rounds, longer.rounds) == (4, 8)
    np.testing.assert_array_equal(more.time_s, messages.time_s[[3, 1, 3, 4]])
    np.testing.assert_array_equal(longer.status[1], messages.status[[1, 4]].ravel())


@pytest.mark.parametrize(
    "devices", [np.array([5]), np.ones(4, dtype=np.bool_), np.zeros((1, 1, 1), dtype=np.intp)]
)
def test_devices_that_do_not_exist_are_refused(
    rng: np.random.Generator, devices: NDArray[np.intp]
) -> None:
    with pytest.raises(ParameterError):
        honest(rng, 5).of(devices)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("sent", np.ones(3, dtype=np.bool_)),
        ("sent", np.ones((3, 0), dtype=np.bool_)),
        ("sent", np.ones((3, 2), dtype=np.int8)),
        ("size_bytes", np.ones((3, 2), dtype=np.int64)),
        ("size_bytes", np.ones((2, 3), dtype=np.int32)),
        ("size_bytes", np.full((3, 2), -1, dtype=np.int32)),
        ("status", np.ones((3, 2), dtype=object)),
        ("status", np.full((3, 2), -1, dtype=np.int8)),
        ("time_s", np.ones((3, 2), dtype=np.float32)),
        ("time_s", [[1.0, 1.0]] * 3),
        ("time_s", np.full((3, 2), np.nan)),
        ("time_s", np.full((3, 2), np.inf)),
    ],
)
def test_tables_of_another_shape_type_or_range_are_refused(name: str, array: Any) -> None:
    good = lossless(np.random.default_rng(1), 3, rounds=2)

    with pytest.raises(ParameterError, match=name):
        dataclasses.replace(good, **{name: array})


@pytest.mark.parametrize("name", ["size_bytes", "status", "time_s"])
def test_a_message_that_was_not_sent_has_no_properties(name: str) -> None:
    silent = silenced(lossless(np.random.default_rng(1), 3), np.ones((3, ROUNDS), dtype=np.bool_))
    loud = lossless(np.random.default_rng(1), 3)

    with pytest.raises(ParameterError, match=f"{name} must be .* where nothing was sent"):
        dataclasses.replace(silent, **{name: getattr(loud, name)})


def test_sets_that_cannot_be_compared_are_refused(rng: np.random.Generator) -> None:
    enough = honest(rng, FEWEST_DEVICES)

    with pytest.raises(ParameterError, match="one must be >= 10 devices, got '9 devices'"):
        distinguish(honest(rng, 9), enough, seed=1)
    with pytest.raises(ParameterError, match="other must be >= 10 devices, got '0 devices'"):
        distinguish(enough, enough.of(np.zeros(10, dtype=np.bool_)), seed=1)
    with pytest.raises(ParameterError, match="other must be 24 rounds, as in one, got '7 rounds'"):
        distinguish(enough, honest(rng, 10, rounds=7), seed=1)
    with pytest.raises(ParameterError, match="seed"):
        distinguish(enough, enough, seed=-1)


def test_without_scikit_learn_the_error_says_what_to_install(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)

    with pytest.raises(UnsupportedError, match=r"install demur\[sim\]"):
        distinguish(honest(rng, 10), honest(rng, 10), seed=1)
