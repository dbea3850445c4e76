"""What the designs estimate, how wrong that is, and what they refuse."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from demur_proto.arrays import Flags, Vector
from demur_proto.errors import DataError, ParameterError
from demur_proto.mechanisms.unary import Flip
from demur_sim.comparison.design import Baseline, RepeatedResponse
from demur_sim.comparison.flips import (
    Flips,
    annulus_flips,
    best_changes,
    threshold_flips,
    truncation_errors,
)
from demur_sim.comparison.levels import ComposedResponse, KeptChange
from demur_sim.comparison.memoised import BitFlip, Memo, MemoisedResponse, MemoisedUnary

HORIZON, PEOPLE, RUNS = 6, 40, 200
UNARY = MemoisedUnary(horizon=HORIZON, forever=3.0, once=2.0, first=Flip.OPTIMISED)


def people(changes: int, *, count: int = PEOPLE) -> np.ndarray:
    """States [T, n], each of which changes so many times at the most."""
    rng = np.random.default_rng(11)
    changed = rng.random((HORIZON, count)) < 0.4
    changed &= np.cumsum(changed, axis=0) <= changes
    return (np.cumsum(changed, axis=0) % 2).astype(bool)


def chain_variance(p: float, q: float) -> Callable[[Vector], Vector]:
    """One bit of each person, Bernoulli(p) for yes and Bernoulli(q) for no."""
    return lambda f: (f * p * (1 - p) + (1 - f) * q * (1 - q)) / (p - q) ** 2


def tree_variance(lean: float) -> Callable[[Vector], Vector]:
    """±3/lean for those on one of m(t) of 3 levels; its mean is the state."""
    pieces = np.array([1, 1, 2, 1, 2, 2])  # 1, 2, 2 + 1, 4, 4 + 1, 4 + 2
    return lambda f: pieces * 3 / lean**2 - f


REPEATED = RepeatedResponse(horizon=HORIZON, epsilon=4.0, delta=1e-3)
RESPONSE = MemoisedResponse(horizon=HORIZON, forever=3.0, once=2.0)
BITS = BitFlip(horizon=HORIZON, epsilon=3.0)
BIT = math.exp(1.5) / (math.exp(1.5) + 1)
DESIGNS: dict[str, tuple[Baseline, Callable[[Vector], Vector]]] = {
    "repeated": (REPEATED, lambda f: (1 / REPEATED.lean**2 - 1) / 4 + 0 * f),
    "kept": (
        KeptChange(horizon=HORIZON, changes=2, epsilon=2.0),
        tree_variance(-math.expm1(-2) / 2),
    ),
    "threshold": (
        ComposedResponse(horizon=HORIZON, flips=Flips(weights=(3, 3, 1))),
        tree_variance(0.2),  # (3 + 0 − 1)/10
    ),
    "L-OSUE": (UNARY, chain_variance(0.5, 1 / (math.e**2 + 1))),
    "L-GRR": (RESPONSE, chain_variance(math.e**2 / (math.e**2 + 1), 1 / (math.e**2 + 1))),
    "dBitFlipPM": (BITS, chain_variance(BIT, 1 - BIT)),
}


@pytest.mark.parametrize("name", DESIGNS)
def test_estimates_are_unbiased_and_as_wrong_as_theory_says(name: str) -> None:
    design, variance_of = DESIGNS[name]
    states = people(2)
    truth = states.mean(axis=1)
    rng = np.random.default_rng(7)

    runs = [design.estimates(states, rng=rng) for _ in range(RUNS)]

    off = np.array([run.fraction for run in runs]) - truth
    variance = variance_of(truth) / PEOPLE
    np.testing.assert_array_less(abs(off.mean(axis=0)), 4 * np.sqrt(variance / RUNS))
    # Squares of nearly Gaussian errors have the relative variance 2.
    np.testing.assert_allclose((off**2).mean(axis=0), variance, rtol=4 * math.sqrt(2 / RUNS))
    said = np.array([run.standard_error for run in runs]) ** 2
    np.testing.assert_allclose(said.mean(axis=0), variance, rtol=0.05)


@pytest.mark.parametrize("name", ["kept", "threshold"])
def test_who_changes_too_often_is_followed_to_the_last_change_that_fits(name: str) -> None:
    design, variance_of = DESIGNS[name]
    states = people(HORIZON)
    changes = np.cumsum(np.diff(states.astype(int), axis=0, prepend=0) != 0, axis=0)
    followed = (np.minimum(changes, 2) % 2).mean(axis=1)
    many = 400

    estimates = design.estimates(np.tile(states, many), rng=np.random.default_rng(8))

    error = np.sqrt(variance_of(followed) / (many * PEOPLE))
    np.testing.assert_array_less(abs(estimates.fraction - followed), 4 * error)
    off = followed - states.mean(axis=1)
    assert abs(off).max() > 0.1  # or these people change too rarely for this test
    expected = math.sqrt(float((off**2).mean()))
    assert truncation_errors(states, horizon=HORIZON, most=2)[1] == pytest.approx(expected)


def test_the_error_by_noise_is_the_root_mean_square_of_the_standard_errors() -> None:
    still: Flags = np.zeros(4000, dtype=bool)
    rng = np.random.default_rng(9)
    for name in ("repeated", "kept", "threshold"):
        design, _ = DESIGNS[name]
        assert isinstance(design, RepeatedResponse | KeptChange | ComposedResponse)

        errors = design.estimates([still] * HORIZON, rng=rng).standard_error

        rms = math.sqrt(float((errors**2).mean()) * len(still))
        assert rms == pytest.approx(design.deviation, rel=0.01)


def test_the_best_number_of_changes_weighs_noise_against_truncation() -> None:
    states = people(HORIZON, count=5000)
    truncation = truncation_errors(states, horizon=HORIZON, most=4)
    designs = [KeptChange(horizon=HORIZON, changes=k, epsilon=1.0) for k in (1, 2, 3, 4)]

    few, error = best_changes(designs, truncation, people=100)
    many, less = best_changes(designs, truncation, people=10_000_000)

    assert (few.changes, many.changes) == (1, 4)
    assert error == pytest.approx(math.hypot(truncation[0], designs[0].deviation / 10))
    assert less < error


@pytest.mark.parametrize(
    "design", [UNARY, RESPONSE, BITS], ids=lambda design: type(design).__name__
)
def test_what_is_remembered_outlives_a_restart(
    design: MemoisedUnary | MemoisedResponse | BitFlip, tmp_path: Path
) -> None:
    states = people(HORIZON)
    memo = design.memo(PEOPLE, rng=np.random.default_rng(1))
    memo.save(tmp_path / "memo.npy")

    later = Memo.load(tmp_path / "memo.npy")

    whole, resumed = (
        design.estimates(states, rng=np.random.default_rng(2), memo=each) for each in (memo, later)
    )
    np.testing.assert_array_equal(whole.fraction, resumed.fraction)
    assert not later.kept.flags.writeable
    assert [path.name for path in tmp_path.iterdir()] == ["memo.npy"]


def test_all_reports_of_a_value_before_and_after_a_restart_are_about_one_answer(
    tmp_path: Path,
) -> None:
    design, rounds = UNARY, 400
    yes = np.ones(PEOPLE, dtype=np.int64)
    memo = design.memo(PEOPLE, rng=np.random.default_rng(4))
    memo.save(tmp_path / "memo")
    rng = np.random.default_rng(5)

    before = np.mean([design.reports(yes, memo, rng=rng)[:, 0] for _ in range(rounds)], axis=0)
    later = Memo.load(tmp_path / "memo")
    after = np.mean([design.reports(yes, later, rng=rng)[:, 0] for _ in range(rounds)], axis=0)

    # Fresh noise averages out to p₂ or q₂: what is remembered shows, and is the same.
    kept = memo.kept[:, 1, 0]
    expected = np.where(kept, float(design.fresh.own), float(design.fresh.other))
    error = math.sqrt(float(design.fresh.own * design.fresh.other) / rounds)
    assert 0 < kept.sum() < PEOPLE
    np.testing.assert_allclose(before, expected, atol=4.5 * error)
    np.testing.assert_allclose(after, expected, atol=4.5 * error)


@pytest.mark.parametrize(
    "design",
    [
        MemoisedUnary(horizon=1, categories=3, forever=4.0, once=3.0, first=Flip.SYMMETRIC),
        MemoisedResponse(horizon=1, categories=3, forever=4.0, once=3.0),
        BitFlip(horizon=1, categories=3, bits=2, epsilon=4.0),
    ],
    ids=lambda design: type(design).__name__,
)
def test_fractions_of_several_categories_come_out_right_too(
    design: MemoisedUnary | MemoisedResponse | BitFlip,
) -> None:
    count = 40_000
    rng = np.random.default_rng(6)
    symbols = rng.choice(4, size=count, p=[0.4, 0.3, 0.2, 0.1])
    truth = np.bincount(symbols)[1:] / count

    memo = design.memo(count, rng=rng)
    estimate, error = design.frequencies(design.reports(symbols, memo, rng=rng))

    assert (error < 0.02).all()
    np.testing.assert_array_less(abs(estimate - truth), 4 * error)


def test_bits_of_some_categories_are_as_wrong_as_theory_says() -> None:
    count, runs = 300, 150
    design = BitFlip(horizon=1, categories=4, bits=1, epsilon=3.0)
    symbols = np.repeat([0, 1, 2, 3], [150, 90, 45, 15])
    rng = np.random.default_rng(12)

    seen = np.array(
        [
            design.frequencies(design.reports(symbols, design.memo(count, rng=rng), rng=rng))[0]
            for _ in range(runs)
        ]
    )

    f = np.array([0.3, 0.15, 0.05, 0.0])
    spread = 4 * (BIT * (1 - BIT) / (2 * BIT - 1) ** 2 + f) - f
    np.testing.assert_array_less(abs(seen.mean(axis=0) - f), 4 * np.sqrt(spread / count / runs))
    np.testing.assert_allclose(seen.var(axis=0), spread / count, rtol=4 * math.sqrt(2 / runs))


def test_statements_name_unit_neighbour_view_and_what_is_not_protected() -> None:
    for design, _ in DESIGNS.values():
        words = design.guarantee.statement
        for part in ("Unit: one device = one person", "Neighbour: zero-out", "View: local"):
            assert part in words
        assert "Between two arbitrary people" in words
        assert "protects nobody" in words
    assert BITS.guarantee.statement.startswith("no differential privacy at all over 6 rounds")
    assert "When a state changes is protected by the first figure only" in UNARY.guarantee.statement
    assert REPEATED.guarantee.statement.startswith("(4, 0.001)-differential privacy over 6 rounds")


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize(
    ("states", "found"),
    [
        ([], "0 rounds"),
        (people(2)[:4], "4 rounds"),
        (np.zeros((HORIZON, 0), dtype=bool), r"\(0,\)"),
        (np.zeros((HORIZON, 2, 2), dtype=bool), r"\(2, 2\)"),
        (np.zeros((HORIZON, 2)), "float64"),
        ([np.zeros(3, dtype=bool), np.zeros(2, dtype=bool)], r"\(2,\) in round 2"),
    ],
    ids=["none", "short", "nobody", "matrix", "floats", "fewer-people"],
)
def test_states_that_are_none_are_refused_in_one_line(
    name: str, states: list[Flags], found: str
) -> None:
    with pytest.raises(ParameterError, match=f"^states must be .*{found}") as caught:
        DESIGNS[name][0].estimates(states, rng=np.random.default_rng(1))

    assert "\n" not in str(caught.value)


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: RepeatedResponse(horizon=0, epsilon=1.0, delta=1e-6), "horizon must"),
    (lambda: RepeatedResponse(horizon=8, epsilon=math.nan, delta=1e-6), "epsilon must"),
    (lambda: RepeatedResponse(horizon=8, epsilon=1.0, delta=1.0), "delta must"),
    (lambda: KeptChange(horizon=8, changes=0, epsilon=1.0), "changes must"),
    (lambda: KeptChange(horizon=8, changes=1, epsilon=0.0), "epsilon must"),
    (lambda: threshold_flips(changes=33, epsilon=1.0), "changes must"),
    (lambda: threshold_flips(changes=32, epsilon=1e-9), "epsilon must be larger"),
    (lambda: annulus_flips(changes=2, epsilon=math.inf), "epsilon must"),
    (lambda: Flips(weights=(1,)), "weights must"),
    (lambda: Flips(weights=(1, 0)), "weights must"),
    (lambda: Flips(weights=(1 << 62, 1 << 62)), "weights must"),
    (lambda: ComposedResponse(horizon=8, flips=Flips(weights=(1, 1))), "flips must"),
    (lambda: UNARY.memo(0, rng=np.random.default_rng(1)), "people must"),
    (
        lambda: MemoisedUnary(horizon=8, forever=1.0, once=1.0, first=Flip.SYMMETRIC),
        "once must be below",
    ),
    (lambda: MemoisedResponse(horizon=8, forever=math.nan, once=1.0), "forever must"),
    (lambda: MemoisedResponse(horizon=8, categories=0, forever=2.0, once=1.0), "categories must"),
    (lambda: BitFlip(horizon=8, categories=2, bits=3, epsilon=1.0), "bits must"),
    (lambda: Memo(kept=np.zeros(3, dtype=np.uint8)), "kept must"),
    (lambda: truncation_errors([], horizon=8, most=2), "states must"),
    (lambda: best_changes([], np.zeros(2), people=5), "designs must"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=range(len(REFUSED)))
def test_designs_that_cannot_be_are_refused_in_one_line(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(ParameterError, match=f"^{message}") as caught:
        call()

    assert "\n" not in str(caught.value)


def test_a_memo_of_other_devices_or_a_broken_file_is_refused_by_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    others = RESPONSE.memo(PEOPLE + 1, rng=rng)
    (tmp_path / "short").write_bytes(b"\x93NUMPY")
    (tmp_path / "text").write_text("memo", encoding="utf-8")

    for memo in (others, UNARY.memo(PEOPLE, rng=rng)):
        with pytest.raises(ParameterError, match=r"^memo must be numbers below 2 of shape"):
            RESPONSE.estimates(people(2), rng=rng, memo=memo)
    for name in ("absent", "short", "text"):
        with pytest.raises(DataError, match=f"{name}: expected a memo"):
            Memo.load(tmp_path / name)


def test_no_memo_shows_what_it_holds() -> None:
    memo = UNARY.memo(3, rng=np.random.default_rng(1))

    assert repr(memo) == "Memo()"
