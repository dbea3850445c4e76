"""What a durable collector costs, beside the disk, the database and gRPC by themselves.

Client and server share this machine, which the bars take to have two cores. The collector is a
process of its own, `demur serve` as it is deployed: credentials, keys, and a database on the disk of
`--folder`. All reports, ids, words, proofs and messages are made before a clock starts. Nothing
counts unless it was ACCEPTED, and after each framed run the collector is killed, the store opened
again, and its totals compared with what was sent.

**Frames.** A gateway sends scalar reports, 4,096 a frame and each with its proof, over two streams;
each stream waits for a frame's receipt before it sends the next. A receipt comes after the commit.
Two runs on one store: as fast as frames are taken (reports a second), and at the pace of the bar. A
latency is that of a whole frame: from when it is handed to gRPC to its receipt; at a given pace from
when it was due, so what waits its turn counts all of its waiting. Percentiles are over the frames of
all runs. The floor is bare commits: the store's own statements with rows of the same size on the same
connection settings, one after the other, and no work around them.

**Unary.** One report a message, each stream a device of its own that waits for its receipt before it
answers the next round. The floor is a bare gRPC server of the same kind that echoes the same messages
on as many streams. Also whole visits, from opening a stream to its end, for one report.

**Vectors** of 26,010 words of 32 bits, in frames of ten from a gateway, and one a message from devices
that have their streams open. The floor receives the same bytes on as many streams and does nothing.

**Shares of bare gRPC** are medians over bursts of a second or less, each beside a burst of the floor:
other work on the machine slows both. **Reopening** is from opening the store of a killed process to the end of
recovery, with the operating system's cache as the run has left it.

What an fsync costs here decides what "durable" costs, so the table begins with it, and a verdict on
it ends it: figures from memory, or from a disk that confirms what it has not written, mean little.
"""

import argparse
import os
from pathlib import Path

import anyio

import cases_floors
import cases_framed
import cases_streams
from collector_process import bounded, postgres_server, work_folder
from figures import OUT, Figure, publish
from premade import make_frames, question

WORDS = 26_010
PARTS = ("framed", "unary", "vectors")


async def measure(options: argparse.Namespace, folder: Path, server: str) -> list[Figure]:
    """All figures that are asked for."""
    quick = options.quick
    runs, bursts = (1, 2) if quick else (3, 11)
    disk = cases_floors.measure_disk(folder, writes=200 if quick else 1000)
    figures = [cases_floors.fsync_figure(disk)]
    async with bounded():
        if "framed" in options.only:
            frames = make_frames(question(), reports=1 << (17 if quick else 20))
            for kind in cases_framed.KINDS:
                made = await cases_framed.measure(kind, frames, folder, server, runs=runs)
                figures += made.figures()
            del frames
        if "unary" in options.only:
            asked = question(rounds=20 * bursts)
            figures += await cases_streams.measure_single(asked, folder, devices=256, bursts=bursts)
        if "vectors" in options.only:
            asked = question(dimension=WORDS)
            vectors = make_frames(asked, reports=320 * bursts)
            figures += await cases_streams.measure_vectors(
                vectors, asked, folder, devices=250 * bursts, bursts=bursts
            )
    if not options.json:
        print(disk.verdict)
    return figures


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="what a durable collector costs")
    parser.add_argument(
        "--quick", action="store_true", help="one small run of each: no figure counts"
    )
    parser.add_argument("--json", action="store_true", help="print what is written, not the table")
    parser.add_argument("--folder", type=Path, default=OUT, help="on the disk to be measured")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="some parts of it")
    options = parser.parse_args()
    with work_folder(options.folder) as folder, postgres_server(folder) as server:
        figures = anyio.run(measure, options, folder, server)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    if options.json:
        publish("collector", figures, table=False)
        print((OUT / "collector.json").read_text(encoding="utf-8"), end="")
    else:
        publish("collector", figures)
        print(f"load of this machine at the end, this benchmark included: {load:.1f}")


if __name__ == "__main__":
    main()
