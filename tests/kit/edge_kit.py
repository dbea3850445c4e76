"""Whether an evaluation shows: what a collector sees of a device, with such data and without.

**What is compared.** Devices run as shipped, each watched in `edge_observer`. Of every round it sees when
the report came, how long sending took, how fast the device reacted to the acknowledgement, when the
next report came, how many bytes there were. For each kind of data and each of these, the AUC is the
chance that a round with such data shows a larger figure than one of the reference; one half is nothing.
Devices differ, so each is compared with itself, and the AUC is the mean over devices.

**Why chance is known.** The kind of data is drawn at random for each round, and is the only thing that
differs. Where it has no effect, any other draw was as likely, whatever else the machine did meanwhile:
for m rounds with the data and n without on each of k devices the AUC has mean one half and standard
error √((m + n + 1)/(12 m n k)) (Mann and Whitney 1947), that is .0236 for 300 of each in all, and .0105 for
1,500. The bars are .07 and .035: 2.96 and 3.32 standard errors, beyond which chance alone goes with
probability .0031 and .0009.

**Many comparisons.** One run makes up to about 100, so one of them would go beyond its bar in 27 % of all runs
at 300 sends, for no reason. A comparison that does is therefore made again, once, with as many new rounds in an
order of their own, and fails only if it goes beyond the bar again, and on the same side. By chance
that happens with probability .0031 · .0031/2 = 4.8e-6, and in one of 2,000 runs with 100 comparisons. What
is really there is found with the square of the probability that one batch is beyond the bar, Φ((|AUC − ½| −
bar)/error): at 300 sends .999 for an AUC of .65 and .81 for one of .60; at 1,500 sends 1 − 1e-9 for .60 and
.85 for .55.

Sizes, statuses and presence need no statistics: they must be the same in every round.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt

from demur_sim.engine.observer import Advantage
from edge_observer import COLUMNS, Place, Watch

Table = npt.NDArray[np.int64]  #: [rounds, COLUMNS], of one device
OBSERVER = Path(__file__).with_name("edge_observer.py")
LONGEST_S = 7200.0
BARS = {300: 0.07, 1500: 0.035}  #: of |AUC − ½|, by the sends of a kind


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How well one figure tells rounds with some data from those of the reference."""

    word: str  #: the data
    figure: str
    auc: float  #: mean over devices of P(larger with the data) + ½ P(alike)
    error: float  #: standard error of `auc` around the true one, DeLong's
    sends: int  #: rounds with the data, on all devices
    reference: float  #: median of the figure without the data, ns
    apart: float  #: how much larger its median is with the data, ns

    @property
    def off(self) -> float:
        """How far from nothing."""
        return self.auc - 0.5


def compare(tables: Sequence[Table], watch: Watch) -> list[Comparison]:
    """Every kind of data but the reference against it, by every figure that varies."""
    figures = [_figures(table, watch) for table in tables]
    found = []
    for number, word in enumerate(watch.words[1:], start=1):
        for figure in figures[0]:
            parts, errors, medians, sends = [], [], [], 0
            for table, each in zip(tables, figures, strict=True):
                seen = table[:, COLUMNS.index("send")] > 0
                with_it = each[figure][(table[:, 0] == number) & seen]
                without = each[figure][(table[:, 0] == 0) & seen]
                seen_apart = Advantage.from_scores(
                    with_it[~np.isnan(with_it)], without[~np.isnan(without)]
                )
                parts.append(seen_apart.auc)
                errors.append(seen_apart.sampling_error)
                medians.append((np.nanmedian(with_it), np.nanmedian(without)))
                sends += len(with_it)
            with_median, without_median = np.mean(medians, axis=0)
            found.append(
                Comparison(
                    word=word,
                    figure=figure,
                    auc=float(np.mean(parts)),
                    error=math.sqrt(sum(error**2 for error in errors)) / len(errors),
                    sends=sends,
                    reference=float(without_median),
                    apart=float(with_median - without_median),
                )
            )
    return found


def _figures(table: Table, watch: Watch) -> dict[str, npt.NDArray[np.float64]]:
    """What is compared, by name; NaN where there is none."""
    columns = {name: table[:, at].astype(float) for at, name in enumerate(COLUMNS)}
    send = columns["send"]
    usual = np.median(send[(table[:, 0] == 0) & (send > 0)])
    figures = {
        "send": send,
        "spread": np.abs(send - usual),
        "reaction": columns["reaction"],
        "next": np.append(np.where(send[1:] > 0, send[1:], np.nan), np.nan),
    }
    if watch.asks != "numbers":  # the model came later than the round
        figures["given"] = columns["given"]
    if watch.asks == "hidden":  # many messages
        figures["last"] = columns["last"]
    return figures


def unlike(tables: Sequence[Table], watch: Watch) -> list[str]:
    """What is not the same in every round of every device, though it must be: in words."""
    whole = np.concatenate(tables)
    complaints = []
    for number, word in enumerate(watch.words):
        rows = whole[whole[:, 0] == number]
        missing = int((rows[:, COLUMNS.index("send")] == 0).sum())
        if missing:
            complaints.append(f"{word}: {missing} of {len(rows)} rounds got no report")
    for name in ("size", "others"):
        seen = {
            word: sorted(set(whole[whole[:, 0] == number][:, COLUMNS.index(name)].tolist()))
            for number, word in enumerate(watch.words)
        }
        if any(each != seen[watch.words[0]] or len(each) != 1 for each in seen.values()):
            complaints.append(f"{name} differs: {seen}")
    return complaints


def watch_devices(watches: Sequence[Watch]) -> list[Table]:
    """Watch so many devices at the same time.

    Raises:
        AssertionError: an observer ended with an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / f"{number}.npy" for number in range(len(watches))]
        processes = [
            subprocess.Popen(
                [sys.executable, str(OBSERVER), watch.command, str(out)], stderr=subprocess.PIPE
            )
            for watch, out in zip(watches, outs, strict=True)
        ]
        try:
            for process in processes:
                _, told = process.communicate(timeout=LONGEST_S)
                assert process.returncode == 0, told.decode(errors="replace")
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        return [np.load(out) for out in outs]


def shared_out(watch: Watch, devices: int, places: Sequence[Place] = ()) -> list[Watch]:
    """The same with the sends dealt to so many devices, which begin one after the other.

    Args:
        watch: `sends` rounds with each kind of data, on all devices together.
        devices: how many there are.
        places: where they run, in turn; by default all where the watch says.
    """
    watches = []
    for number in range(devices):
        cpus, observer_cpu = places[number % len(places)] if places else watch.place
        watches.append(
            replace(
                watch,
                sends=watch.sends // devices,
                seed=watch.seed * 1000 + number,
                delay_s=number * watch.slot_ms / 1000 / devices,
                cpus=cpus,
                observer_cpu=observer_cpu,
            )
        )
    return watches


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A comparison, and the one that was made again where it was beyond its bar."""

    first: Comparison
    again: Comparison | None
    bar: float

    @property
    def shows(self) -> bool:
        """Beyond the bar in both batches, on the same side."""
        if self.again is None:
            return False
        return (
            min(self.first.off * math.copysign(1, self.again.off), abs(self.again.off)) > self.bar
        )

    def __str__(self) -> str:
        again = "" if self.again is None else f", again {self.again.auc:.3f}"
        return (
            f"{self.first.word:10} {self.first.figure:9} {self.first.auc:.3f} ± {self.first.error:.3f}"
            f"{again} ({self.first.apart / 1e3:+.0f} of {self.first.reference / 1e3:.0f} µs)"
            f"{'  SHOWS' if self.shows else ''}"
        )


def judge(
    watch: Watch, *, devices: int, places: Sequence[Place] = ()
) -> tuple[list[Finding], list[str]]:
    """All comparisons of one watch, and what was not the same in every round.

    Args:
        watch: `sends` rounds with each kind of data, on all devices together.
        devices: watched at the same time.
        places: as in `shared_out`.
    """
    bar = BARS[watch.sends]
    tables = watch_devices(shared_out(watch, devices, places))
    first = compare(tables, watch)
    complaints = unlike(tables, watch)
    doubted = {each.word for each in first if abs(each.off) > bar}
    again: dict[tuple[str, str], Comparison] = {}
    if doubted:
        words = (watch.words[0], *(word for word in watch.words[1:] if word in doubted))
        second = replace(watch, words=words, seed=watch.seed + 1)
        tables = watch_devices(shared_out(second, devices, places))
        again = {(each.word, each.figure): each for each in compare(tables, second)}
        complaints += unlike(tables, second)
    findings = [
        Finding(
            first=each,
            again=again.get((each.word, each.figure)) if abs(each.off) > bar else None,
            bar=bar,
        )
        for each in first
    ]
    return findings, complaints


def written(findings: Sequence[Finding], **beside: object) -> str:
    """As JSON."""
    rows = [
        {
            **asdict(finding.first),
            "again": None if finding.again is None else finding.again.auc,
            "bar": finding.bar,
            "shows": finding.shows,
        }
        for finding in findings
    ]
    return json.dumps({**beside, "comparisons": rows}, indent=2)


def processors() -> Iterator[tuple[tuple[int, ...], int]]:
    """Where the device runs, and where the observer does: on one processor, and on two if there are."""
    here = sorted(os.sched_getaffinity(0))
    yield tuple(here[:1]), here[-1]
    if len(here) > 1:
        yield tuple(here[:2]), here[-1]
