"""Intervals for S_all hold as often as they say where ledgers are in doubt and caps bind.

A run is five people whose devices are real, with ledgers of their own. Some run out, one has a ledger
in doubt, and of one the owner lowers the lifetime cap: these two answer with cover from then on, and
take no part in the count of who does. What is held against the interval is the sum of everybody's
clipped values, before rounding and budgets. Noise is small beside one person, so that it hides nobody.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counting_kit import EXPONENT, STATE, a_study
from demur_client.device import Device
from demur_client.ledger.base import Ledger
from demur_client.ledger.file import LedgerFile
from demur_client.ledger.kept import MemoryLedger
from demur_client.ledger.records import Doubted
from demur_client.ledger.scope import LifetimeCap
from demur_client.sources.base import FunctionSource
from demur_proto.arrays import Vector
from demur_proto.errors import ParameterError
from demur_proto.everyone import EveryoneInterval, Measured, everyone_interval
from demur_proto.queries import HaltCount, Linear
from demur_proto.release import Release
from demur_proto.round import Round, round_of
from demur_proto.running.factorisations import change_norm
from demur_proto.running.segments import Factorisation, Segment
from demur_proto.study import Measure, Purpose, Study
from demur_proto.wire.definition import Defined, define_round
from demur_proto.wire.words import decode_words
from demur_server.collector.estimates import make_release
from demur_sim.engine.sampling import FastSampler
from ledger_kit import quick_folder

PEOPLE, ROUNDS = 5, 4
RUN_OUT, IN_DOUBT, CAPPED = (0, 1), 2, 3  # who; the other one has little to give
COUNTED = (2, 4)  # the rounds after which those who halted are counted
LOUD: dict[str, Any] = {"epsilon": 72.0, "delta": 0.6, "horizon": ROUNDS}  # 12-GDP
SEGMENT = Segment(horizon=len(COUNTED), cohort=PEOPLE)
NORM = change_norm(Factorisation.SQUARE_ROOT, horizon=len(COUNTED), exponent=EXPONENT)
MAIN = a_study(answers=2, name="main", **LOUD)
HALTS = a_study(answers=1, clip=NORM, name="halts", purpose=Purpose.HALTS, **LOUD)
ROOM = LifetimeCap(measure=Measure.GDP, budget=1.5 * MAIN.value.budget)  # for both
LOW = LifetimeCap(measure=Measure.GDP, budget=0.5 * MAIN.value.budget)


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=quick_folder(tmp_path)) as folder:
        yield Path(folder)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a run came to."""

    active: Release
    halted: Release
    truth: float  #: the sum of everybody's clipped values

    def interval(self, halted: Measured) -> EveryoneInterval:
        return everyone_interval(Measured.of(self.active), halted, largest=1.0, signed=False)

    @property
    def holds(self) -> bool:
        found = self.interval(Measured.of(self.halted))
        return found.low <= self.truth <= found.high

    @property
    def holds_if_missing_were_not_halted(self) -> bool:
        """As it was when devices that could not pay for the change told none."""
        halted = Measured.of(self.halted)
        told = replace(halted, estimate=halted.estimate - halted.bias, bias=0.0)
        found = self.interval(told)
        return found.low <= self.truth <= found.high


def run(folder: Path, *, seed: int) -> Found:
    rng = np.random.default_rng(seed)
    values = rng.uniform(0.0, 0.3, size=(PEOPLE, ROUNDS))
    values[[*RUN_OUT, IN_DOUBT, CAPPED]] = rng.uniform(0.9, 1.3, size=(4, ROUNDS))
    since = int(rng.integers(1, COUNTED[0] + 1))  # the trouble begins before this round
    counted = COUNTED[seed % 2]
    halted: list[Release] = []
    with ExitStack() as stack:
        ledgers: list[Ledger] = [MemoryLedger(caps=[ROOM]) for _ in range(PEOPLE)]
        path = folder / f"ledger-{seed}"
        file = stack.enter_context(LedgerFile(path, caps=[ROOM]))
        ledgers[CAPPED] = file
        for ledger in ledgers:
            ledger.agree(MAIN)
            ledger.agree(HALTS)
        for number in range(1, counted + 1):
            if number == since:
                doubted = ledgers[IN_DOUBT]
                assert isinstance(doubted, MemoryLedger)
                doubted._keep(Doubted(doubt="it was old"))
                file.close()
                ledgers[CAPPED] = stack.enter_context(LedgerFile(path, caps=[LOW]))
            asked = define_round(round_of(MAIN, Linear([STATE]), number=number))
            active = released(asked, MAIN, ledgers, values[:, number - 1], rng)
            if number in COUNTED:
                segment = SEGMENT if not halted else SEGMENT.after(1)
                about = define_round(
                    round_of(HALTS, HaltCount(MAIN.hash, segment), number=len(halted) + 1)
                )
                halted.append(released(about, HALTS, ledgers, values[:, 0], rng, earlier=halted))
                assert halted[-1].reports == PEOPLE - 2
    return Found(
        active=active,
        halted=halted[-1],
        truth=float(np.minimum(values[:, counted - 1], 1.0).sum()),
    )


def constant(value: float) -> Callable[[Mapping[str, float]], float]:
    return lambda _: value


def released(
    asked: Defined[Round],
    study: Defined[Study],
    ledgers: list[Ledger],
    values: Vector,
    rng: np.random.Generator,
    *,
    earlier: list[Release] | None = None,
) -> Release:
    """What a collector makes of everybody's reports."""
    words = []
    for ledger, value in zip(ledgers, values.tolist(), strict=True):
        source = FunctionSource({STATE.name: constant(value)})
        device = Device(study, source, FastSampler(rng), ledger=ledger)
        try:
            report = device.report(asked, device.evaluate(asked))
        except ParameterError:  # of those who are not to be believed, in public
            assert study is HALTS
            continue
        word, _ = decode_words(report.words, asked.value.word_type, reports=1, dimension=1)
        words.append(int(word[0, 0]))
    return make_release(study, asked, [sum(words)], reports=len(words), earlier=earlier or [])


def check_coverage(folder: Path, *, runs: int) -> None:
    found = [run(folder, seed=seed) for seed in range(runs)]
    held = float(np.mean([each.holds for each in found]))
    before = float(np.mean([each.holds_if_missing_were_not_halted for each in found]))
    print(f"{runs} runs: {held:.4f} of S_all; {before:.4f} if those missing counted as not halted")
    assert held >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / runs)
    assert before < 0.6  # as it was, this test would have found it


def test_intervals_for_everyone_hold_where_ledgers_are_in_doubt_and_caps_bind(quick: Path) -> None:
    check_coverage(quick, runs=25)


@pytest.mark.long
def test_everyone_is_covered_in_four_thousand_runs_with_doubt_and_caps(quick: Path) -> None:
    check_coverage(quick, runs=4000)
