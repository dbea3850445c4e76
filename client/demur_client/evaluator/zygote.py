"""The processes that evaluate, on Linux: each of them forked, none of them ever seen by the sender.

| process | lives | does |
|---|---|---|
| keeper | as long as the device | forks the zygote, and another one should that be killed |
| zygote | as long | keeps what takes time to load, prepares models, has a supervisor ready for the next round |
| supervisor | one round | has a process ready for the evaluation, ends it at a public time with all that it left behind, keeps the processor busy until the report is acknowledged |
| evaluation | to the end of its slot at most | looks at the owner's data, at the lowest priority and within limits |

The device writes one order for each round and then looks, at a public time, at a piece of shared memory. It waits for
none of them: neither how an evaluation ends nor how long its end takes has any way to its loop.
"""

import fcntl
import gc
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

import numpy as np

from demur_client.evaluator import confine
from demur_client.evaluator.board import Board
from demur_client.evaluator.limits import EvaluationLimits
from demur_client.sources.base import DataSource, ExampleSource, evaluate_round
from demur_proto.errors import DemurError
from demur_proto.models.definition import MODEL_TAG, DefinedModel, read_model
from demur_proto.models.gradients import prepare
from demur_proto.queries import ModelQuery, Query
from demur_proto.wire.definition import read_round, read_study
from demur_proto.wire.hmacs import hash_definition

ORDER = struct.Struct("<BxxxIQIddd")
"""What is ordered; how many numbers the value has; the number of the order; how many bytes of what comes
with it are the study; when the evaluation is ended, and from when to when the processor is filled."""
EVALUATE, PREPARE = 1, 2
NUMBER = struct.Struct("<Q")  #: in front of an answer: of the order
KEPT = 2  #: models that were prepared: this round's and the last one's
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0  #: before another zygote; it doubles
BETWEEN_LOOKS_S = 0.05  #: for a visit that has ended before its report was made
UNDISTURBED_S = 0.05  #: after an order, before the next supervisor is made ready
AFTER_S = 0.01  #: for which the processor is kept busy after the acknowledgement
LONGEST_ANSWER = 1000  #: bytes of why a model cannot be prepared

_PARENT_GONE = signal.SIGUSR1  # to a supervisor, so that it can end what is below it first


def keep(
    channel: socket.socket,
    source: DataSource | ExampleSource,
    limits: EvaluationLimits,
    device: int,
) -> NoReturn:
    """Be the keeper, until the device is gone or has closed its end of the channel."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # they are for the device
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    if channel.fileno() <= 2:  # the standard streams were closed, and their numbers were free
        channel = socket.socket(fileno=fcntl.fcntl(channel.detach(), fcntl.F_DUPFD_CLOEXEC, 3))
    confine.silence()
    confine.follow_parent(device, signal.SIGKILL)
    confine.adopt_descendants()
    keeper, pause_s = os.getpid(), FIRST_PAUSE_S
    while True:
        began = time.monotonic()
        with suppress(OSError):  # no process for it now
            zygote = os.fork()
            if not zygote:
                try:
                    _be_zygote(channel, source, limits, keeper)
                finally:
                    os._exit(1)
            _, status = os.waitpid(zygote, 0)
            if not status:
                os._exit(0)
            _end_all()
        lived_s = time.monotonic() - began
        pause_s = FIRST_PAUSE_S if lived_s > LONGEST_PAUSE_S else min(2 * pause_s, LONGEST_PAUSE_S)
        time.sleep(pause_s)


def _be_zygote(
    channel: socket.socket,
    source: DataSource | ExampleSource,
    limits: EvaluationLimits,
    keeper: int,
) -> NoReturn:
    """Take orders. Nothing here depends on what evaluations do."""
    zygote = os.getpid()  # asked for before each fork: a child may begin when its parent is gone
    confine.follow_parent(keeper, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are reaped by the system
    signal.pthread_sigmask(signal.SIG_BLOCK, [_PARENT_GONE])
    confine.adopt_descendants()
    supervisors: set[int] = set()
    models: dict[bytes, DefinedModel] = {}
    square = np.ones((64, 64))
    square @ square  # the first product maps memory that no limit is to count
    del square
    _settle()
    last = (b"", 0)  # definitions of the last order, and how much of them is the study
    spare: socket.socket | None = None
    while True:
        with suppress(OSError):  # no process or memory for it now: the next round gets cover
            if spare is None:
                select.select([channel], [], [], UNDISTURBED_S)
                supervisor, spare = _spare(channel, last, models, source, limits, zygote)
                supervisors.add(supervisor)
        message, handles, _, _ = socket.recv_fds(channel, ORDER.size, 2)
        if not message:
            os._exit(0)  # the device is gone
        what, _, number, study_bytes, *_ = ORDER.unpack(message)
        supervisors = _only(supervisors)
        try:
            if what == PREPARE:
                channel.send(NUMBER.pack(number) + _prepared(models, _content(handles[0])))
            elif spare is not None:
                socket.send_fds(spare, [message], handles)
                last = _content(handles[1]), study_bytes
        except OSError:
            pass
        finally:
            for handle in handles:
                os.close(handle)
            if spare is not None:  # it has its order, or knows too few models, and ends
                spare.close()
                spare = None


def _spare(
    channel: socket.socket,
    last: tuple[bytes, int],
    models: Mapping[bytes, DefinedModel],
    source: DataSource | ExampleSource,
    limits: EvaluationLimits,
    zygote: int,
) -> tuple[int, socket.socket]:
    """A supervisor that is there before the next order, with a process to evaluate it; and where to send that.

    Raises:
        OSError: there is no process for it.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        supervisor = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if supervisor:
        theirs.close()
        return supervisor, ours
    try:
        channel.close()
        ours.close()
        confine.follow_parent(zygote, _PARENT_GONE)
        confine.adopt_descendants()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        me, base_bytes = os.getpid(), confine.address_space()
        to_evaluation, from_supervisor = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        evaluation = os.fork()
        if not evaluation:
            to_evaluation.close()
            theirs.close()
            confine.follow_parent(me, signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [_PARENT_GONE])
            confine.confine(limits, base_bytes=base_bytes)
            _evaluate_one(from_supervisor, last, models, source)
            os._exit(0)
        from_supervisor.close()
        message, handles, _, _ = socket.recv_fds(theirs, ORDER.size, 2)
        if message:
            socket.send_fds(to_evaluation, [message], handles)
            _, length, _, _, *times = ORDER.unpack(message)
            board = Board(handles[0], length=length)
            for handle in handles:
                os.close(handle)
            _supervise(evaluation, board, *times, zygote=zygote)
        confine.kill(evaluation)
    finally:
        os._exit(0)


def _only(supervisors: set[int]) -> set[int]:
    """The supervisors that are still there, once whatever else is left of any is ended.

    An evaluation that kills its own supervisor leaves what it started to the zygote.
    """
    with suppress(OSError):
        left = set(confine.children())
        for process in left - supervisors:
            confine.kill(process)
        return supervisors & left
    return supervisors


def _settle() -> None:
    """Leave what there is by now out of every collection, so that forks share its memory."""
    gc.collect()
    gc.freeze()


def _prepared(models: dict[bytes, DefinedModel], definition: bytes) -> bytes:
    """Prepare a model, and say why it cannot be; nothing where it can."""
    known = models.pop(hash_definition(MODEL_TAG, definition), None)
    try:
        model = known or read_model(definition)
        if known is None:
            prepare(model.value)
        models[model.hash] = model
        while len(models) > KEPT:
            del models[next(iter(models))]
        if known is None:
            _settle()
    except (DemurError, MemoryError) as error:
        return str(error).encode()[:LONGEST_ANSWER] or b"it takes more memory than there is"
    return b""


def _content(handle: int) -> bytes:
    return os.pread(handle, os.fstat(handle).st_size, 0)


def _query(content: bytes, study_bytes: int) -> Query:
    """What a round asks, of the definitions of its study and of itself."""
    study = read_study(content[:study_bytes])
    return read_round(content[study_bytes:], study=study).value.query


def _evaluate_one(
    orders: socket.socket,
    last: tuple[bytes, int],
    models: Mapping[bytes, DefinedModel],
    source: DataSource | ExampleSource,
) -> None:
    """Wait for a round, look at the data and write the value: in a process of its own, and within its limits.

    Args:
        orders: where the round comes from; nothing comes where there is none.
        last: definitions of an earlier round, which touch the memory that those of the next one will.
        models: those that were prepared.
        source: the data.
    """
    if last[0]:
        _query(*last)
    message, handles, _, _ = socket.recv_fds(orders, ORDER.size, 2)
    if not message:
        return
    _, length, _, study_bytes, *_ = ORDER.unpack(message)
    board = Board(handles[0], length=length)
    query = _query(_content(handles[1]), study_bytes)
    for each in (orders.detach(), *handles):
        os.close(each)
    model = models[query.model_hash] if isinstance(query, ModelQuery) else None
    notes: list[str] = []
    value = evaluate_round(query, model, source, noted=notes.append)
    board.put(value, "".join(notes))


def _supervise(
    evaluation: int,
    board: Board,
    ended: float,
    fill_from: float,
    fill_to: float,
    *,
    zygote: int,
) -> NoReturn:
    """See one evaluation through. Whatever goes wrong here, the sender does not notice."""
    fillers: list[int] = []
    try:
        if fill_from < ended:
            fillers = _fill(board, fill_from, fill_to, zygote)
        _sleep_until(ended, board, zygote)
        confine.kill(evaluation)
    finally:
        _end_all(besides=fillers)
    if fill_from >= ended:
        fillers = _fill(board, fill_from, fill_to, zygote)
    _reap(fillers, zygote)
    os._exit(0)


def _sleep_until(when: float, board: Board, parent: int) -> None:
    """Sleep to a time of `time.monotonic`, or until nobody waits for the evaluation any more."""
    while (left := when - time.monotonic()) > 0 and _awaited(board, parent):
        signal.sigtimedwait([_PARENT_GONE], min(left, BETWEEN_LOOKS_S))


def _awaited(board: Board, parent: int) -> bool:
    """Whether the device is there, and its visit has not ended."""
    return os.getppid() == parent and not board.acknowledged


def _end_all(*, besides: Sequence[int] = ()) -> None:
    """End and reap all that is below this process: what its parent leaves behind becomes its own."""
    while left := [each for each in confine.children() if each not in besides]:
        for process in left:
            confine.kill(process)
        for process in left:
            with suppress(ChildProcessError):
                os.waitpid(process, 0)


def _fill(board: Board, start: float, stop: float, zygote: int) -> list[int]:
    """Keep every processor busy with nothing, at the lowest priority, until the report is acknowledged.

    A processor that has just been busy answers sooner than one that has slept.
    """
    if not stop > start:
        return []
    _sleep_until(start, board, zygote)
    fillers: list[int] = []
    supervisor = os.getpid()
    for processor in os.sched_getaffinity(0) if _awaited(board, zygote) else ():
        try:
            filler = os.fork()
        except OSError:  # an evaluation may have taken all the processes there may be
            break
        if not filler:
            try:
                confine.follow_parent(supervisor, signal.SIGKILL)
                os.sched_setaffinity(0, {processor})
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
                while time.monotonic() < stop and not board.acknowledged:
                    pass
                after = time.monotonic() + AFTER_S
                while time.monotonic() < min(after, stop):
                    pass
            finally:
                os._exit(0)
        fillers.append(filler)
    return fillers


def _reap(fillers: list[int], zygote: int) -> None:
    """Wait for the fillers to end, and end them where the device is gone: idle ones might take long."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while fillers:
        if os.getppid() != zygote:
            for filler in fillers:
                confine.kill(filler)
        fillers = [each for each in fillers if not os.waitpid(each, os.WNOHANG)[0]]
        if fillers:
            signal.sigwait([signal.SIGCHLD, _PARENT_GONE])
