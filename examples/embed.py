"""A device inside an app: a dozen lines, and it keeps its budget through restarts.

demur admin tokens --count 1 --out token; python examples/embed.py HOST:PORT token
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import anyio

from demur_client.agent import Agent
from demur_client.enrolment import agent_of, enrol_device
from demur_client.evaluator.opening import DeployedEvaluator, open_evaluator
from demur_client.ledger.file import LedgerFile
from demur_client.policy import OwnerPolicy
from demur_client.sources.base import FunctionSource
from demur_proto.errors import DemurError
from demur_proto.transport.credentials import read_token

DAYS = {3, 5}  # what the app knows of its owner
POLICY = OwnerPolicy(largest_epsilon=1.0)  # what its owner agrees to


def active(asked: Mapping[str, float]) -> bool:
    """Whether its owner was active in a period."""
    return asked["period"] in DAYS


async def answer(agent: Agent) -> None:
    """Answer as long as there is something to answer. Whatever ends that, the app goes on."""
    try:
        await agent.run()
    except DemurError as error:
        print(f"the device has stopped: {error}", file=sys.stderr)


async def app(target: str, token: bytes, evaluator: DeployedEvaluator) -> None:
    """What the app does anyway, with a device beside it."""
    with LedgerFile(Path("ledger.sqlite"), caps=[POLICY.lifetime_cap]) as ledger:
        if ledger.identity is None or ledger.identity.credential is None:
            await enrol_device(ledger, POLICY, target=target, token=token)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, agent_of(ledger, evaluator, policy=POLICY))
            print("the app is running; Enter ends it")
            await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
            tasks.cancel_scope.cancel()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: embed.py COLLECTOR TOKEN_FILE")
    token = read_token(Path(sys.argv[2]).read_text())
    # First of all: the processes that look at the owner's data know nothing of what the app does later.
    with open_evaluator(FunctionSource({"active": active}), POLICY) as evaluator:
        anyio.run(app, sys.argv[1], token, evaluator)
