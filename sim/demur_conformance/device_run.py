"""Tries out a device: every script that a wanted rule needs, each with a device of its own."""

import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from demur_conformance import budget_scripts, other_scripts
from demur_conformance.device_process import Data, Examples, Operator, Process, Runner, prepare
from demur_conformance.harness import Bench, Declined, Enough, Unanswered
from demur_conformance.questions import BUDGET_MU, COORDINATES, feature_of, revealing_study
from demur_conformance.scripted_collector import Stand, standing
from demur_conformance.verdicts import Verdicts
from demur_proto.models.definition import DefinedModel
from demur_proto.study import Policy, Study
from demur_proto.wire.definition import Defined


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How a device is tried out."""

    command: tuple[str, ...] = ()  #: starts it; empty where a person does
    host: str = "127.0.0.1"  #: where the scripted collector listens
    port: int = 0  #: 0 for any that is free
    patience_s: float = 20.0  #: how long to wait for a report
    jobs: int = 2  #: how many devices at once


Script = Callable[["_Room", Verdicts], Awaitable[None]]


async def try_device(trial: Trial, verdicts: Verdicts) -> None:
    """Run the scripts; what they see goes into the verdicts.

    Raises:
        ParameterError: the command cannot be run.
        StateError: the port cannot be had.
    """
    wanted = [script for rules, script in SCRIPTS if verdicts.wants(*rules)]
    if not wanted and verdicts.wants(*EVERYWHERE):
        wanted = [SCRIPTS[0][1]]
    one_by_one = trial.port or not trial.command
    turn = anyio.CapacityLimiter(1 if one_by_one else trial.jobs)
    with tempfile.TemporaryDirectory(prefix="demur-conformance-") as folder:
        room = _Room(trial, Path(folder))

        async def run(script: Script) -> None:
            async with turn:
                await script(room, verdicts)

        async with anyio.create_task_group() as tasks:
            for script in wanted:
                tasks.start_soon(run, script)


class _Room:
    """Where devices are tried out."""

    def __init__(self, trial: Trial, folder: Path) -> None:
        self._trial = trial
        self._folder = folder
        self._devices = 0

    @asynccontextmanager
    async def bench(
        self,
        verdicts: Verdicts,
        study: Defined[Study],
        data: Data | None,
        *,
        largest_budget: float = BUDGET_MU,
        given: bytes = b"",
        examples: Examples | None = None,
        models: Sequence[DefinedModel] = (),
    ) -> AsyncIterator[Bench]:
        """A new device and its collector; what a script finds unanswered becomes a verdict."""
        self._devices += 1
        folder = self._folder / str(self._devices)
        stand = Stand(study=study, given=given, models={each.hash: each for each in models})
        async with standing(stand, self._trial.host, self._trial.port) as port:
            told = prepare(
                folder,
                target=f"{self._trial.host}:{port}",
                token=secrets.token_bytes(32),
                study_hash=study.hash,
                data=data,
                largest_budget=largest_budget,
                examples=examples,
            )
            runner: Runner = (
                Process(self._trial.command, told, folder / "log")
                if self._trial.command
                else Operator(told)
            )
            bench = Bench(verdicts, stand, runner, patience_s=self._trial.patience_s)
            try:
                yield bench
            except Enough:
                pass
            except Declined as how:
                verdicts.decline(how.rule, f"{how}{_said(folder / 'log')}")
            except Unanswered as missing:
                verdicts.check(missing.rule, False, f"{missing}{_said(folder / 'log')}")
            finally:
                with anyio.CancelScope(shield=True):
                    bench.lose()
                    await runner.kill()
        for rule in ("credential", "fields"):
            fault = stand.faults.get(rule)
            if stand.calls:
                verdicts.check(rule, fault is None, fault or "so it is in all calls")


def _said(log: Path) -> str:
    """The last words of what the device printed."""
    words = last_words(log.read_text(errors="replace")) if log.exists() else ""
    return f"; its last words: {words}" if words else ""


def last_words(printed: str) -> str:
    r"""The last line that says something, without the stack and the version that Node.js puts after it.

    >>> last_words("Error: no budget\n    at read (device.js:9:3) {\n  code: 'E'\n}\n\nNode.js v20.1\n")
    'Error: no budget'
    """
    lines = [line for line in printed.split("\n") if line.strip()]
    saying = [line for line in lines if not (line[0] in " \t}" or line.startswith("Node.js v"))]
    return (saying or lines or [""])[-1].strip()[:200]


async def _skip(room: _Room, verdicts: Verdicts) -> None:
    plan = budget_scripts.skip_plan()
    async with room.bench(verdicts, plan.study, plan.data) as bench:
        await budget_scripts.run_skip(bench, plan)


async def _retire(room: _Room, verdicts: Verdicts) -> None:
    plan = budget_scripts.retire_plan()
    first = plan.due[0].asked.value
    data = {**plan.data, "not a number": (float("nan"),) * COORDINATES, feature_of(8): first}
    async with room.bench(verdicts, plan.study, data) as bench:
        await budget_scripts.run_retire(bench, plan)


async def _clip(room: _Room, verdicts: Verdicts) -> None:
    plan = budget_scripts.clip_plan()
    async with room.bench(verdicts, plan.study, plan.data) as bench:
        await budget_scripts.run_clip(bench, plan)


async def _noise(room: _Room, verdicts: Verdicts) -> None:
    study = other_scripts.noise_study()
    async with room.bench(verdicts, study, other_scripts.noise_data()) as bench:
        await other_scripts.run_noise(bench, study)


async def _refusals(room: _Room, verdicts: Verdicts) -> None:
    study = other_scripts.refusal_study()
    async with room.bench(verdicts, study, other_scripts.refusal_data()) as bench:
        await other_scripts.run_refusals(bench, study)


async def _policy(room: _Room, verdicts: Verdicts) -> None:
    """A budget that the owner does not accept, with data and without: nothing may differ."""
    study, rule = other_scripts.refusal_study(), "owners-policy"
    seen = []
    for data in (other_scripts.refusal_data(), None):
        async with room.bench(verdicts, study, data, largest_budget=1.0) as bench:
            why = f"budget {BUDGET_MU:g}, the owner accepts 1"
            status = await other_scripts.stays_away(bench, rule=rule, why=why)
            seen.append((status, sorted(set(bench.stand.calls))))
    if len(seen) == 2:  # or one of them was never looked at, which is a verdict already
        same = seen[0] == seen[1]
        verdicts.check(rule, same, f"without data it does the same: {same}")


async def _pinned(room: _Room, verdicts: Verdicts) -> None:
    study, other = other_scripts.refusal_study(), revealing_study(Policy.RETIRE)
    data = other_scripts.refusal_data()
    async with room.bench(verdicts, study, data, given=other.definition) as bench:
        await other_scripts.stays_away(bench, rule="study-pinned", why="another study came")


async def _histograms(room: _Room, verdicts: Verdicts) -> None:
    study = other_scripts.histogram_study()
    data, largest = other_scripts.histogram_data(), other_scripts.LARGEST_BUDGET
    async with room.bench(verdicts, study, data, largest_budget=largest) as bench:
        await other_scripts.run_histograms(bench, study)


async def _running_counts(room: _Room, verdicts: Verdicts) -> None:
    study = other_scripts.running_study()
    async with room.bench(verdicts, study, other_scripts.running_data()) as bench:
        await other_scripts.run_running_counts(bench, study)


async def _gradients(room: _Room, verdicts: Verdicts) -> None:
    study, model = other_scripts.running_study(), other_scripts.MODEL
    data, examples = other_scripts.running_data(), other_scripts.EXAMPLES
    async with room.bench(verdicts, study, data, examples=examples, models=[model]) as bench:
        await other_scripts.run_gradients(bench, study)


async def _begun(room: _Room, verdicts: Verdicts) -> None:
    plan = other_scripts.begun_plan()
    async with room.bench(verdicts, plan.study, plan.data) as bench:
        await other_scripts.run_begun(bench, plan)


async def _source(room: _Room, verdicts: Verdicts, *, rule: str) -> None:
    if rule == "eats" and not other_scripts.can_relieve():
        verdicts.omit(rule, "only Linux says how much memory a device holds")
        return
    plan, data = other_scripts.source_plan(rule)
    async with room.bench(verdicts, plan.study, data) as bench:
        await other_scripts.run_source(bench, plan, rule)


EVERYWHERE = ("credential", "fields", "report-form", "resume")
"""Rules that every script looks at."""

SCRIPTS: tuple[tuple[tuple[str, ...], Script], ...] = (
    (
        (
            "enrol-once",
            "retry-same",
            "crash-same",
            "crash-points",
            "repeated-round",
            "unknown-message",
            "oversized",
            "budget-skip",
            "exhausted",
            "fresh-noise",
            "terminates",
        ),
        _skip,
    ),
    (("budget-retire", "exhausted", "failing", "slots", "settled"), _retire),
    (("one-number", "wrong-rounds", "owners-slot", "features"), _refusals),
    (("clipping", "fresh-noise", "noise-law", "chunks"), _noise),
    *(((rule,), partial(_source, rule=rule)) for rule in other_scripts.FEATURES),
    (("begun",), _begun),
    (("budget-clip",), _clip),
    (("owners-policy",), _policy),
    (("study-pinned",), _pinned),
    (("running-counts",), _running_counts),
    (("histograms",), _histograms),
    (("gradients",), _gradients),
)
"""Which rules each script looks at, longest script first."""
