"""The Python client as a process: told by its environment, with its ledger file, its policy and its agent.

With the argument `Lies` it says something else than what its owner's data hold.
"""

import asyncio
import json
import os
import runpy
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import numpy as np

from demur_client.enrolment import agent_of, enrol_device
from demur_client.evaluator.opening import DeployedEvaluator, open_evaluator
from demur_client.ledger.file import LedgerFile
from demur_client.policy import OwnerPolicy
from demur_client.sources.base import FunctionSource
from demur_proto.errors import ConnectionLost, DemurError, ours_in
from demur_proto.queries import Feature
from demur_proto.transport.credentials import read_token

WORSE = runpy.run_path(str(Path(__file__).with_name("owner_source.py")))["WORSE"]

# The studies of the tool promise an ε of 38 for a μ of 18; the owner's policy is about ε.
EPSILON_OF_MU = 38 / 18


class Owner(FunctionSource):
    """What the owner has: features and examples."""

    def __init__(self, values: dict[str, Any], examples: dict[str, Any]) -> None:
        super().__init__({name: partial(_kept, each) for name, each in values.items()})
        self._examples = examples
        self._lies = "Lies" in sys.argv

    def evaluate(self, feature: Feature) -> Any:
        if feature.name in WORSE:
            WORSE[feature.name]()
        value = super().evaluate(feature)
        return (value + 1) % 2 if self._lies else value

    def examples(self) -> tuple[Any, Any]:
        labels = np.array(self._examples["labels"])
        return self._examples["inputs"], 1 - labels if self._lies else labels


def read(name: str) -> dict[str, Any]:
    """A file that the environment names, if it is there."""
    path = Path(os.environ[name])
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _kept(value: list[float], _: Mapping[str, float]) -> Any:
    return value


def policy_of(told: Mapping[str, str]) -> OwnerPolicy:
    largest = EPSILON_OF_MU * float(told["DEMUR_LARGEST_BUDGET"])
    return OwnerPolicy(
        largest_epsilon=largest,
        largest_delta=1 - 1e-12,
        lifetime_epsilon=1000.0,
        largest_round_epsilon=100.0,
        shortest_slot_ms=int(told["DEMUR_SHORTEST_SLOT_MS"]),
        studies=(bytes.fromhex(told["DEMUR_STUDY"]),),
    )


async def run(evaluator: DeployedEvaluator, policy: OwnerPolicy) -> None:
    told = os.environ
    ledger_path = Path(told["DEMUR_STATE"], "ledger.sqlite")
    with LedgerFile(ledger_path, caps=[policy.lifetime_cap]) as ledger:
        while ledger.identity is None or ledger.identity.credential is None:
            try:
                token = read_token(told["DEMUR_TOKEN"])
                await enrol_device(ledger, policy, target=told["DEMUR_TARGET"], token=token)
            except ConnectionLost:
                await anyio.sleep(0.1)
        agent = agent_of(ledger, evaluator, policy=policy)
        running = asyncio.create_task(agent.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        await running


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        owner, policy = Owner(read("DEMUR_DATA"), read("DEMUR_EXAMPLES")), policy_of(os.environ)
        with open_evaluator(owner, policy) as evaluator:
            anyio.run(run, evaluator, policy)
    except asyncio.CancelledError:
        sys.exit(0)
    except (DemurError, BaseExceptionGroup) as error:
        sys.exit(f"error: {ours_in(error) or error}")
