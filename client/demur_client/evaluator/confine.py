"""What Linux does to an evaluation: limits, the lowest priority, and an end with its parent."""

import ctypes
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path

from demur_client.evaluator.limits import EvaluationLimits

MOST_WRITTEN = 1 << 20  #: bytes of one file: an evaluation reads, and leaves nothing behind

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # of prctl(2)
_LIBC = ctypes.CDLL(None, use_errno=True)


def confine(limits: EvaluationLimits, *, base_bytes: int) -> None:
    """Confine this process, for good, before it looks at any data.

    Args:
        limits: of the evaluation.
        base_bytes: address space that the process has anyway.
    """
    os.setpgid(
        0, 0
    )  # not setsid: a session of its own would have a share of the processor of its own
    with suppress(OSError):  # if memory runs out all the same, the system ends this process first
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    for kind, most in (
        (resource.RLIMIT_AS, base_bytes + limits.memory_bytes),
        (resource.RLIMIT_CPU, limits.processor_s),
        (resource.RLIMIT_FSIZE, MOST_WRITTEN),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (least, least))


def silence() -> None:
    """Let what is printed, or read from the standard input, come to nothing."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    if nowhere > 2:
        os.close(nowhere)


def follow_parent(parent: int, number: signal.Signals) -> None:
    """Get a signal once the parent is gone, even if it is gone already.

    Args:
        parent: its process id, asked for before the fork.
        number: the signal.
    """
    _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, int(number), 0, 0, 0)
    if os.getppid() != parent:
        signal.raise_signal(number)


def adopt_descendants() -> None:
    """Become the parent of whatever is left below this process without one."""
    _LIBC.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def address_space() -> int:
    """Bytes of address space that this process has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


def children() -> list[int]:
    """The processes of which this one is the parent, dead ones that it has not waited for too."""
    me = os.getpid()
    return [int(each) for each in Path(f"/proc/{me}/task/{me}/children").read_text().split()]


def kill(process: int) -> None:
    """End a child at once: of the lowest priority, or kept to a busy processor, it could take long to notice."""
    with suppress(OSError):  # without the right to, it stays as it is
        os.sched_setscheduler(process, os.SCHED_OTHER, os.sched_param(0))
    with suppress(OSError):
        os.sched_setaffinity(process, range(os.cpu_count() or 1))
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
