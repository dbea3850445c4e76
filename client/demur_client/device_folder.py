"""The folder of a device: its ledger, its owner's policy, and how it reaches its collector."""

import logging
import os
import signal
from pathlib import Path
from typing import final

import anyio

from demur_client.evaluator.opening import DeployedEvaluator, open_evaluator
from demur_client.ledger.counter import FileCounter
from demur_client.ledger.file import LedgerFile
from demur_client.ledger.reading import LedgerCopy
from demur_client.policy import OwnerPolicy
from demur_client.policy_file import SourceConfig, load_counter, load_policy, template
from demur_proto.errors import StateError, StorageError, ours_in

LEDGER = "ledger.sqlite"
POLICY = "policy.toml"
logger = logging.getLogger(__name__)


@final
class DeviceFolder:
    """Where one device keeps everything.

    Args:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger_path = path / LEDGER
        self.policy_path = path / POLICY

    def make(self) -> None:
        """Make the folder, for its owner only, with a policy and a ledger.

        What is there already stays.

        Raises:
            StateError: there is a device already.
            StorageError: it cannot be made.
        """
        if os.path.exists(self.ledger_path):
            raise StateError(f"{self.path} holds a device already; name another --folder")
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.policy_path.exists():
                handle = os.open(self.policy_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with open(handle, "w", encoding="utf-8") as file:
                    file.write(template())
        except OSError as error:
            raise StorageError(
                f"nothing can be kept in {self.path}: {error.strerror}; name another --folder"
            ) from None
        policy, _ = self.policy()
        self._open(policy).close()

    def policy(self) -> tuple[OwnerPolicy, SourceConfig]:
        """What the owner's policy says, and where the data are.

        Raises:
            ParameterError: as `load_policy`.
            StateError: there is no device in this folder.
        """
        if not os.path.isdir(self.path):
            raise StateError(f"{self.path} holds no device; make one with: demur device init")
        return load_policy(self.policy_path)

    def ledger(self) -> LedgerFile:
        """The ledger, held to the policy's lifetime cap, for this process alone.

        Raises:
            StateError: there is no device in this folder, or another process has it.
            StorageError: it cannot be used.
        """
        policy, _ = self.policy()
        return self._open(policy)

    def look(self) -> LedgerCopy:
        """What the ledger holds now, whether the device runs or not.

        Raises:
            StateError: there is no device in this folder.
            NotFoundError, StorageError: there is no ledger, or it cannot be read.
        """
        policy, _ = self.policy()
        return LedgerCopy(self.ledger_path, caps=[policy.lifetime_cap])

    def counter_path(self) -> Path | None:
        """Where the counter of the ledger is; None where the policy names none.

        Raises:
            ParameterError: it cannot be there.
        """
        return load_counter(self.policy_path)

    def _open(self, policy: OwnerPolicy) -> LedgerFile:
        path = self.counter_path()
        counter = None if path is None else FileCounter(path)
        return LedgerFile(self.ledger_path, caps=[policy.lifetime_cap], counter=counter)


def run_folder(folder: DeviceFolder) -> None:
    """Run the device of a folder until the process is told to stop (SIGINT or SIGTERM).

    Raises:
        StateError: it is not enrolled, there is none, or it runs already.
        PolicyError: its owner's policy refuses every study.
        AccessError: the collector does not know it, or is not the right one.
        StorageError: its ledger cannot be used.
    """
    policy, source = folder.policy()
    with open_evaluator(source.open(), policy) as evaluator, folder.ledger() as ledger:
        anyio.run(_run, ledger, evaluator, policy)


async def _run(ledger: LedgerFile, evaluator: DeployedEvaluator, policy: OwnerPolicy) -> None:
    from demur_client.enrolment import agent_of  # it loads gRPC, which the evaluator need not hold

    agent = agent_of(ledger, evaluator, policy=policy)
    logger.info("started")
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_end_on_signal, tasks.cancel_scope)
            await agent.run()
    except BaseExceptionGroup as group:
        error = ours_in(group)
        if error is None:
            raise
        raise error from None
    logger.info("stopped")


async def _end_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()
            return
