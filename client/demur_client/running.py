"""A device that goes on by itself: visits, waits, comes back, for as long as it is left to."""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime
from typing import final

import anyio
import grpc

from demur_client.agent import Watcher, fetch_study, visit
from demur_client.backoff import Backoff
from demur_client.device import Device
from demur_client.evaluator.base import Evaluator
from demur_client.ledger.base import Ledger
from demur_client.models import ModelCache
from demur_client.policy import OwnerPolicy
from demur_proto.credentials import DeviceCredential
from demur_proto.errors import AccessError, DemurError, NotFoundError, PolicyError
from demur_proto.noise import Sampler

FIRST_RETRY_S = 1.0  #: bound of the first wait after something failed
LONGEST_RETRY_S = 300.0  #: bound of all waits
SETTLED_S = 10.0  #: a visit that lasted so long is no failure
LOOK_S = 30.0  #: between looks at the clock on the wall, which may be set at any time

Opening = Callable[[], AbstractAsyncContextManager[grpc.aio.Channel]]

logger = logging.getLogger(__name__)


@final
class Agent:
    """Takes part in every study that its owner's policy allows, one visit at a time in each.

    What it sends, when, and what it logs follows from what is public: the policy, studies and rounds, the
    state of the connection, and waits drawn at random for nothing else. What went wrong with the
    owner's data is in the ledger only.

    Args:
        ledger: what the device must not forget. Nobody else uses it meanwhile.
        evaluator: computes values of its owner's data, for one round of each study at a time: on a person's
            device a `SupervisedEvaluator`.
        policy: its owner's.
        open_channel: opens a channel to the collector, as `connected` does.
        credential: from `enrol`; None where the collector takes reports from anybody.
        sampler: where noise comes from; the exact one when not given.
        watcher: told of every message.
        first_retry_s: bound of the first wait after a failure; they double, at random below that.
        longest_retry_s: bound of all waits.
        now: the clock on the wall, for quiet hours only.

    Raises:
        ParameterError: a bound is not a number above 0.
    """

    def __init__(
        self,
        ledger: Ledger,
        evaluator: Evaluator,
        *,
        policy: OwnerPolicy,
        open_channel: Opening,
        credential: DeviceCredential | None = None,
        sampler: Sampler | None = None,
        watcher: Watcher | None = None,
        first_retry_s: float = FIRST_RETRY_S,
        longest_retry_s: float = LONGEST_RETRY_S,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._ledger = ledger
        self._evaluator = evaluator
        self._policy = policy
        self._open_channel = open_channel
        self._credential = credential
        self._sampler = sampler
        self._watcher = watcher
        self._bounds = Backoff(first_s=first_retry_s, longest_s=longest_retry_s)
        self._now = now
        self._visits: set[anyio.CancelScope] = set()
        self._refusals: list[DemurError] = []

    async def run(self) -> None:
        """Go on until cancelled.

        Raises:
            PolicyError: the policy refuses every study.
            AccessError: the collector does not know this device, or it is not the right one.
        """
        if self._policy.opt_out:
            raise PolicyError("this device takes part in nothing: its owner opted out (opt_out)")
        known = [study.hash for study in self._ledger.studies()]
        # Without a name it is the only one that the collector has.
        hashes = list(self._policy.studies or known or [b""])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_quiet)
            async with anyio.create_task_group() as attending:
                for study_hash in hashes:
                    attending.start_soon(self._attend, study_hash)
            tasks.cancel_scope.cancel()
        raise self._refusals[0]

    async def _attend(self, study_hash: bytes) -> None:
        """Visit for one study, again and again, until that is of no use for good."""
        backoff, models = replace(self._bounds), ModelCache()
        device: Device | None = None
        told = ""  # why there is no study yet
        while True:
            await self._until_loud()
            began = time.monotonic()
            try:
                with anyio.CancelScope() as scope:
                    self._visits.add(scope)
                    async with self._open_channel() as channel:
                        if device is None:
                            device = await self._join(channel, study_hash)
                        await visit(
                            device,
                            channel,
                            evaluator=self._evaluator,
                            credential=self._credential,
                            watcher=self._watcher,
                            models=models,
                            policy=self._policy,
                        )
                        logger.info("the collector ended the visit")
            except (AccessError, PolicyError) as error:
                logger.error("%s", error)
                self._refusals.append(error)
                return
            except NotFoundError as error:
                if device is not None:
                    logger.warning("%s", error)
                elif told != str(error):  # once: it may take days until somebody asks
                    told = str(error)
                    logger.info("waits for a study: %s", told)
            except DemurError as error:
                logger.warning("%s", error)
            finally:
                self._visits.discard(scope)
            if time.monotonic() - began >= SETTLED_S:
                backoff.reset()
            await anyio.sleep(backoff.next_s())

    async def _join(self, channel: grpc.aio.Channel, study_hash: bytes) -> Device:
        """The device for a study, once its owner's policy allows it."""
        known = {study.hash: study for study in self._ledger.studies()}
        study = known.get(study_hash)
        if study is None:
            study = await fetch_study(channel, study_hash=study_hash, credential=self._credential)
            known = {each.hash: each for each in self._ledger.studies()}
        # From here to the agreement nothing else runs: two studies never both take the last room.
        agreed = [each.value for each in known.values() if each.hash != study.hash]
        self._policy.check_study(study, agreed=agreed)
        if self._ledger.forgotten(study.hash):
            # Nobody knows any more which rounds were answered, and none is answered twice.
            raise PolicyError(f"study {study.value.name!r} was forgotten on this device, for good")
        device = Device(
            study, self._evaluator.source, self._sampler, ledger=self._ledger
        )  # it agrees
        logger.info("takes part in study %r, %s", study.value.name, study.hash.hex())
        return device

    async def _until_loud(self) -> None:
        # The clock may be set meanwhile, and no event would tell.
        while left := self._policy.quiet_for(self._now()).total_seconds():  # noqa: ASYNC110
            await anyio.sleep(min(left, LOOK_S))

    async def _keep_quiet(self) -> None:
        """End visits when quiet hours begin. What was sealed is sent after them."""
        while self._policy.quiet_hours:
            if self._policy.quiet_for(self._now()):
                for scope in self._visits:
                    scope.cancel()
            await anyio.sleep(LOOK_S)
