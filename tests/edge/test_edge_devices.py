"""Whether an evaluation shows to a collector that watches when devices send, and how they react.

The suite watches three of the sources that would tell most, each on one processor or on two; `make long-edge`
watches all of them on both, in about two and a half hours, most of which is waiting for the slots of large reports.
Statistics: see `edge_kit`.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from edge_device import TRAPS
from edge_kit import Finding, compare, judge, processors, watch_devices, written
from edge_observer import Watch

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="the kernel stamps what it receives"),
]

SEED = 20261128
DEVICES = (
    4  #: watched at the same time; more hide more in the machine's own noise than they save time
)
WHERE = {len(cpus): (cpus, observer) for cpus, observer in processors()}
COUNTS = pytest.mark.parametrize("count", WHERE)


def a_watch(*words: str, sends: int, count: int, slot_ms: int = 100) -> Watch:
    cpus, observer = WHERE[count]
    return Watch(
        words=("nothing", *words),
        sends=sends,
        slot_ms=slot_ms,
        seed=SEED,
        cpus=cpus,
        observer_cpu=observer if count == 1 else None,
    )


def check(watch: Watch, findings: Sequence[Finding], complaints: Sequence[str]) -> None:
    """Nothing shows. What was found is printed, and written to the folder that DEMUR_EDGE_OUT names."""
    table = "\n".join(map(str, findings))
    print(f"\n{watch.asks}, {len(watch.cpus)} processor(s), {watch.sends} sends of each\n{table}")
    if out := os.environ.get("DEMUR_EDGE_OUT"):
        text = written(findings, processors=len(watch.cpus), asks=watch.asks, sends=watch.sends)
        Path(out, f"edge-{watch.asks}-{len(watch.cpus)}.json").write_text(text + "\n")
    assert not complaints
    assert not [str(each) for each in findings if each.shows]


def test_a_source_that_burns_in_the_sender_s_own_process_shows() -> None:
    """What watches the devices of the next test is able to see."""
    watch = a_watch("burn a while", "hold a while", sends=20, count=max(WHERE), slot_ms=60)
    watch = replace(watch, evaluator="thread", gap_ms=35.0)

    tables = watch_devices([watch])  # a second device would make them all late

    found = {(each.word, each.figure): each.auc for each in compare(tables, watch)}
    assert found["hold a while", "send"] > 0.9
    assert found["burn a while", "send"] > 0.9


@pytest.mark.parametrize(("count", "words"), [(1, ("burn", "die")), (2, ("multiply",))])
def test_nothing_a_source_does_shows(count: int, words: tuple[str, ...]) -> None:
    count = min(count, max(WHERE))
    watch = a_watch(*words, sends=300, count=count, slot_ms=80)

    check(watch, *judge(watch, devices=DEVICES if count == 1 else 6))


@pytest.mark.long
@COUNTS
def test_nothing_any_source_does_shows_in_many_rounds(count: int) -> None:
    watch = a_watch(*TRAPS, "sql", "limit", sends=1500, count=count)

    check(watch, *judge(watch, devices=DEVICES))


@pytest.mark.long
@COUNTS
def test_a_feature_map_with_a_new_seed_each_round_shows_no_example(count: int) -> None:
    watch = replace(a_watch("image", sends=1500, count=count), asks="maps")

    check(watch, *judge(watch, devices=DEVICES))


@pytest.mark.long
@COUNTS
def test_a_model_with_a_large_gradient_shows_no_examples(count: int) -> None:
    """400 examples of a model with 65,000 hidden units; a report is a megabyte, and takes 100 ms to make.

    More than two such devices for each processor would fall behind, and then nothing is promised. A round
    takes 3.4 s, so both processors are used: by two devices each, or by four that may use both.
    """
    watch = a_watch("many", sends=1500, count=count, slot_ms=2000)
    watch = replace(watch, asks="hidden", memory_mib=1024)
    cpus, _ = WHERE[max(WHERE)]
    alone = [((cpu,), other) for cpu, other in zip(cpus, reversed(cpus), strict=True)]

    check(watch, *judge(watch, devices=2 * len(cpus), places=alone if count == 1 else ()))
