"""One person's device, at a running collector: it enrols, agrees to a study, answers every round.

It lives once: its budget is in memory only, so with another token it would begin anew.

    demur admin tokens --out token; python examples/device.py HOST:PORT token --active 3 5
"""

import argparse
from contextlib import suppress
from pathlib import Path

import anyio
import numpy as np

from demur_client.agent import fetch_study, visit
from demur_client.connection import connected
from demur_client.device import Device
from demur_client.enrolment import enrol, new_nonce
from demur_client.evaluator.opening import DeployedEvaluator, open_evaluator
from demur_client.policy import OwnerPolicy
from demur_proto.arrays import Values
from demur_proto.errors import ConnectionLost, DemurError, NotFoundError
from demur_proto.queries import Feature
from demur_proto.transport.credentials import read_token

POLICY = OwnerPolicy()  # what its owner agrees to


class Diary:
    """On which days its owner was active. Whatever goes wrong in here is answered with cover."""

    def __init__(self, days: list[int]) -> None:
        self._days = days

    def evaluate(self, feature: Feature) -> Values:
        """1 or 0 for the feature `active` of the day `period`."""
        known = {"active": feature.parameters.get("period") in self._days}
        return np.array([[float(known[feature.name])]])


async def live(told: argparse.Namespace, evaluator: DeployedEvaluator) -> None:
    """Enrol, agree, answer; after a lost connection go on, with the same bytes."""
    token, nonce, credential, device = read_token(told.token.read_text()), new_nonce(), None, None
    while True:
        with suppress(ConnectionLost, NotFoundError):  # not there, or not with a study yet
            async with connected(told.target) as channel:
                credential = credential or await enrol(channel, token, nonce=nonce)
                if device is None:
                    study = await fetch_study(channel, study_hash=told.study, credential=credential)
                    POLICY.check_study(study)  # or refuse it, before the device agrees
                    device = Device(study, evaluator.source)
                await visit(
                    device, channel, evaluator=evaluator, credential=credential, policy=POLICY
                )
        await anyio.sleep(0.5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One person's device.")
    parser.add_argument("target", metavar="HOST:PORT")
    parser.add_argument("token", type=Path, help="file with an enrolment token")
    parser.add_argument("--active", type=int, nargs="*", default=[], help="days")
    parser.add_argument("--study", type=bytes.fromhex, default=b"", help="by default the only one")
    given = parser.parse_args()
    try:
        # First of all: whatever goes on in the processes that look at the diary, no message shows it.
        with open_evaluator(Diary(given.active), POLICY) as evaluator:
            anyio.run(live, given, evaluator)
    except (DemurError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
