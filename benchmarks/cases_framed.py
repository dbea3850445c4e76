"""Frames of scalar reports, acknowledged once they are durable; and reopening the store after that."""

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cases_floors import bare_postgres, bare_sqlite
from collector_process import ask, collector, new_database
from demur_server.store.durable import DurableStore
from demur_server.store.link import Database
from demur_server.store.postgres import PostgresDatabase
from demur_server.store.sqlite import SqliteDatabase
from figures import Figure
from premade import Frames, accepted_frames
from traffic import Sent, send

SUBMIT_FRAMES = "/demur_proto.v1.Collector/SubmitFrames"
FRAME_REPORTS = 4096
STREAMS = 2  #: of the gateway; each waits for a receipt before it sends its next frame
PACED_SHARE = 0.4  #: of the frames, sent at the bar's pace instead of as fast as they are taken
LATENCY_BAR_MS = 250.0
REOPEN_BAR_S = 2.0
BARS = {"SQLite": 100_000.0, "PostgreSQL": 30_000.0}  #: reports a second

Kind = Literal["SQLite", "PostgreSQL"]
KINDS: tuple[Kind, ...] = ("SQLite", "PostgreSQL")


@dataclass(slots=True, kw_only=True)
class Runs:
    """What several runs showed."""

    kind: Kind
    rates: list[float] = field(default_factory=list)
    flat_out: Sent = field(default_factory=Sent)  # latencies of all runs
    paced: Sent = field(default_factory=Sent)  # likewise
    floors: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)
    client_us: list[float] = field(default_factory=list)
    reopen_s: list[float] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    peak_mib: list[float] = field(default_factory=list)
    ids: int = 0

    def figures(self) -> list[Figure]:
        """As rows of the table."""
        middle, kind, bar = statistics.median, self.kind, BARS[self.kind]
        latency_bar = LATENCY_BAR_MS if kind == "SQLite" else None
        return [
            Figure(
                name=f"{kind}: scalar reports in frames, durable",
                value=middle(self.rates),
                unit="reports/s; floor: bare commits",
                better="higher",
                bar=bar,
                floor=middle(self.floors),
            ),
            Figure(
                name=f"{kind}: latency of a frame at that rate, p99",
                value=self.flat_out.latency_ms(0.99),
                unit="ms",
                better="lower",
                bar=latency_bar,
            ),
            Figure(
                name=f"{kind}: the same, median",
                value=self.flat_out.latency_ms(0.5),
                unit="ms",
                better="lower",
            ),
            Figure(
                name=f"{kind}: latency at {bar:,.0f} reports/s, p99",
                value=self.paced.latency_ms(0.99),
                unit="ms from when a frame was due",
                better="lower",
                bar=latency_bar,
            ),
            Figure(
                name=f"{kind}: processor time of a report, collector",
                value=middle(self.server_us),
                unit="us",
                better="lower",
            ),
            Figure(
                name=f"{kind}: processor time of a report, sender",
                value=middle(self.client_us),
                unit="us",
                better="lower",
            ),
            Figure(
                name=f"{kind}: reopening a store with {self.ids:,} ids",
                value=middle(self.reopen_s),
                unit="s",
                better="lower",
                bar=REOPEN_BAR_S,
            ),
            Figure(
                name=f"{kind}: from `demur serve` to ready, same store",
                value=middle(self.start_s),
                unit="s",
                better="lower",
            ),
            Figure(
                name=f"{kind}: largest size of the collector",
                value=max(self.peak_mib),
                unit="MiB",
                better="lower",
            ),
        ]


async def measure(kind: Kind, frames: Frames, folder: Path, server: str, *, runs: int) -> Runs:
    """Fill a store with frames, kill the collector, and open the store again; several times.

    Args:
        kind: which database.
        frames: what to send.
        folder: where data folders are made.
        server: address of the PostgreSQL.
        runs: how often.
    """
    made = Runs(kind=kind, ids=frames.reports)
    for number in range(runs):
        name = f"{kind.lower()}{number}"
        postgres = new_database(server, name) if kind == "PostgreSQL" else None
        home = folder / name
        await _fill(made, frames, home, postgres)
        made.reopen_s.append(await _reopen(frames, home, postgres))
        with collector(home, postgres=postgres) as served:
            made.start_s.append(served.start_s)
        made.floors.append(FRAME_REPORTS * await _bare_commits(kind, folder, server))
    return made


async def _fill(made: Runs, frames: Frames, home: Path, postgres: str | None) -> None:
    paced_from = round(len(frames.messages) * (1 - PACED_SHARE))
    with collector(home, postgres=postgres) as served:
        await ask(served, frames.asked.study, frames.asked.rounds)
        streams = frames.streams(STREAMS, served.gateway, slice(paced_from))
        before_s = served.seconds()
        flat_out = await send(served.devices, SUBMIT_FRAMES, streams)
        server_s = served.seconds() - before_s
        streams = frames.streams(STREAMS, served.gateway, slice(paced_from, None))
        per_s = BARS[made.kind] / FRAME_REPORTS
        paced = await send(served.devices, SUBMIT_FRAMES, streams, per_s=per_s)
        made.peak_mib.append(served.peak_mib())
        served.kill()
    reports = accepted_frames(flat_out.answers)
    accepted = reports + accepted_frames(paced.answers)
    assert accepted == frames.reports, f"{accepted} of {frames.reports} reports accepted"
    made.rates.append(reports / flat_out.seconds)
    made.flat_out.latencies_s += flat_out.latencies_s
    made.paced.latencies_s += paced.latencies_s
    made.server_us.append(server_s / reports * 1e6)
    made.client_us.append(flat_out.client_s / reports * 1e6)


async def _reopen(frames: Frames, home: Path, postgres: str | None) -> float:
    """Seconds to open the store that a killed process left; it must have counted everything."""
    started = time.perf_counter()
    database: Database = (
        SqliteDatabase(home / "store.sqlite") if postgres is None else PostgresDatabase(postgres)
    )
    store = await DurableStore.open(database)
    seconds = time.perf_counter() - started
    totals = await store.totals(frames.asked.rounds[0].hash)
    await store.close()
    assert totals.reports == frames.reports
    assert totals.sums.tolist() == frames.sums, "a report was lost, or counted twice"
    return seconds


async def _bare_commits(kind: Kind, folder: Path, server: str) -> float:
    if kind == "SQLite":
        return await bare_sqlite(folder, reports=FRAME_REPORTS, commits=150)
    return await bare_postgres(new_database(server, "bare"), reports=FRAME_REPORTS, commits=100)
