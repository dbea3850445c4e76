"""Evaluations that crash, hang, take all there is or leave processes behind: the device answers all the same."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import cache
from typing import Any

import numpy as np
import pytest

import evaluating
from demur_client.evaluator.base import Slot
from demur_client.evaluator.board import NOT_DONE, Board, taken
from demur_client.evaluator.limits import EvaluationLimits
from demur_client.evaluator.spare import SpareEvaluator
from demur_client.evaluator.supervised import SupervisedEvaluator
from demur_client.sources.base import FunctionSource
from demur_proto.arrays import Values
from demur_proto.errors import ParameterError, StateError

pytestmark = pytest.mark.alone  # evaluations have the lowest priority

LINUX = sys.platform == "linux"
# The order that finds no zygote is lost or reaches the next one: either is right.
EITHER = {"quick_without_a_zygote"}
ON_ANY_SYSTEM = ["quick", "burns", "is_killed", "prints", "quick"]
# Without a privilege, whoever runs the tests, as `demur device unit` has it.
AS_DEPLOYED = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
if not LINUX or os.geteuid() != 0 or shutil.which("setpriv") is None:
    AS_DEPLOYED = []
LATEST_S = 0.5  # after the slot, on a busy machine


@cache
def evaluated(kind: str, *behaviours: str) -> dict[str, Any]:
    """What `evaluating.py` says, in a folder in which evaluations may write."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*AS_DEPLOYED, sys.executable, evaluating.__file__, kind, *behaviours],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


SUPERVISED = ("supervised", *evaluating.NAMES, "quick")


@pytest.mark.skipif(not LINUX, reason="it forks as Linux does")
@pytest.mark.parametrize("number", range(len(evaluating.NAMES) + 1))
def test_whatever_an_evaluation_does_the_round_is_answered_in_its_slot(number: int) -> None:
    found = evaluated(*SUPERVISED)["found"][number]

    if found["behaviour"] not in EITHER:
        assert found["answered"] == (found["behaviour"] in evaluating.ANSWERED), found
    assert found["bytes"] == evaluated(*SUPERVISED)["found"][0]["bytes"]
    assert 0 <= found["late_s"] <= LATEST_S
    assert bool(found["note"]) != found["answered"]


@pytest.mark.skipif(not LINUX, reason="it forks as Linux does")
def test_nothing_that_an_evaluation_started_outlives_its_round_nor_the_evaluator_its_device() -> (
    None
):
    said = evaluated(*SUPERVISED)

    assert (said["kept"], said["left"]) == (
        4,
        0,
    )  # keeper, zygote, and two for the next round; then nobody


@pytest.mark.skipif(not LINUX, reason="it forks as Linux does")
def test_an_evaluation_whose_visit_has_ended_is_given_up_however_long_its_slot() -> None:
    [found] = evaluated("supervised", "abandoned")["found"]

    assert found["processes"] == 4


@pytest.mark.skipif(not LINUX, reason="it forks as Linux does")
def test_several_evaluators_of_one_process_are_closed_in_any_order() -> None:
    code = (
        "from demur_client.evaluator.supervised import SupervisedEvaluator as Made\n"
        "from demur_client.sources.base import FunctionSource\n"
        "one, other = Made(FunctionSource({})), Made(FunctionSource({}))\n"
        "one.close(); other.close()"
    )

    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0


def test_where_nothing_can_be_forked_a_process_that_was_started_before_does_the_same() -> None:
    said = evaluated("spare", *ON_ANY_SYSTEM)

    assert [found["answered"] for found in said["found"]] == [
        each in evaluating.ANSWERED for each in ON_ANY_SYSTEM
    ]
    assert max(found["late_s"] for found in said["found"]) <= LATEST_S


@pytest.mark.skipif(not LINUX, reason="it forks as Linux does")
def test_an_evaluator_is_refused_once_there_are_threads() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()

    try:
        with pytest.raises(StateError, match="before anything starts threads"):
            SupervisedEvaluator(FunctionSource({}))
    finally:
        done.set()
        thread.join()


def test_a_source_that_cannot_be_given_to_another_process_is_refused_with_the_reason() -> None:
    with pytest.raises(ParameterError, match="one that can be pickled"):
        SpareEvaluator(FunctionSource({"f": lambda asked: 1.0}))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"memory_mib": 63}, "evaluation_memory_mib"),
        ({"processor_s": 0}, "evaluation_processor_s"),
        ({"wall_s": 0.0}, "evaluation_wall_s"),
        ({"wall_s": float("nan")}, "evaluation_wall_s"),
    ],
)
def test_limits_outside_their_range_are_refused_by_the_owners_key(
    changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(ParameterError, match=key):
        EvaluationLimits(**changes)


@pytest.mark.parametrize("length_ms", [1, 40, 50, 100, 200, 1000, 3_600_000])
def test_an_evaluation_ends_before_the_report_is_made_and_40_ms_before_it_leaves(
    length_ms: int,
) -> None:
    slot = Slot(received_s=10.0, length_s=length_ms / 1000)

    assert 10.0 <= slot.ended_s <= slot.ready_s < slot.left_s
    assert slot.ended_s <= max(10.0, slot.left_s - 0.04)


def test_a_board_gives_whatever_is_on_it_in_the_same_shape() -> None:
    value: Values = np.array([[1.0, -2.5, 1e300]])
    results: list[tuple[Values | None, str]] = [
        (value, ""),
        (None, "no such column é"),
        (None, "x" * 10_000),
    ]
    found = []
    for written in [None, *results]:
        board, handle = Board.made(length=3)
        os.close(handle)
        if written:
            board.put(*written)
        read, note = taken(board.content(), length=3)
        found.append((None if read is None else read.tolist(), note))

    assert found == [
        (None, NOT_DONE),
        (value.tolist(), ""),
        (None, "no such column é"),
        (None, "x" * 4092),
    ]
    assert taken(b"\x01", length=3)[1] == ""  # cut short by somebody: no error
