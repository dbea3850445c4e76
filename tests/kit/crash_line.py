"""The line between a client and its collector, on which everything happens that can happen.

Requests are dropped, sent twice or out of order, or brought to the wrong collector. Answers are
lost: either nobody hears them, or the stream is cut after the collector has read its request.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import anyio
import grpc
import numpy as np

from crash_book import Book, Broken, Sent
from crash_keeper import Keeper
from demur_client.connection import send
from demur_proto.errors import ConnectionLost, NotFoundError, StateError
from demur_proto.study import Study
from demur_proto.transport.calls import PEER, calling
from demur_proto.transport.credentials import Credential, DeviceCredential, metadata_of
from demur_proto.v1 import collector_pb2, collector_pb2_grpc, report_pb2
from demur_proto.wire.definition import PROTOCOL_VERSION, Defined
from store_kit import ROUND_CLOSED, TRY_LATER

CALL_S = 15.0
AGAIN_S = 0.003
RATES = {
    "request dropped": 0.1,
    "request sent twice": 0.15,
    "requests out of order": 0.3,
    "answer lost": 0.08,
    "stream cut": 0.12,
    "wrong collector": 0.05,
}
Parcel = list[Sent]  #: what one message holds


@dataclass(slots=True, repr=False, eq=False)
class Line:
    """Of one client."""

    study: Defined[Study]
    keeper: Keeper
    others: list[Keeper]  #: collectors that count other devices
    sender: Credential  #: a device, which visits; or a gateway, which brings frames
    rng: np.random.Generator
    faults: int  #: how many may happen; then the line is good
    happened: Counter[str] = field(default_factory=Counter)

    async def settle(self, book: Book, reports: list[Sent], *, pause_s: float = 0.0) -> None:
        """Send reports until it is known of each what became of it.

        Raises:
            Broken: a promise of the collector's.
        """
        todo = list(reports)
        while todo:
            await anyio.sleep(self.rng.uniform(0, pause_s))
            if self.others and self._strikes("wrong collector"):
                await self._stray(book, todo[:1])
            window = [self._cut(todo) for _ in range(int(self.rng.integers(1, 4)))]
            settled = await self._carry(self.keeper, book, self._garbled(window))
            todo = [report for report in todo if report not in settled]
            if not settled:
                await anyio.sleep(AGAIN_S)

    async def enrol(self, token: bytes, nonce: bytes) -> DeviceCredential:
        """Trade a token in, as often as it takes."""
        request = collector_pb2.EnrolRequest(
            protocol_version=PROTOCOL_VERSION, token=token, nonce=nonce
        )
        while True:
            life = await self.keeper.life()
            stub = collector_pb2_grpc.CollectorStub(life.devices)
            try:
                async with calling(PEER):
                    response = await stub.Enrol(request, timeout=CALL_S)
            except ConnectionLost:
                await anyio.sleep(AGAIN_S)
                continue
            if not self._strikes("answer lost"):
                return DeviceCredential(device_id=response.device_id, secret=response.secret)

    # ---- what happens on the way -------------------------------------------------------------

    def _strikes(self, fault: str) -> bool:
        if not self.faults or self.rng.random() >= RATES[fault]:
            return False
        self.faults -= 1
        self.happened[fault] += 1
        return True

    def _cut(self, todo: list[Sent]) -> Parcel:
        """Some reports in any order, none of them twice."""
        size = 1 if isinstance(self.sender, DeviceCredential) else int(self.rng.integers(1, 6))
        chosen = self.rng.permutation(len(todo))[:size]
        return [todo[i] for i in chosen]

    def _garbled(self, parcels: list[Parcel]) -> list[Parcel]:
        """What arrives of what is sent."""
        arriving: list[Parcel] = []
        for parcel in parcels:
            if self._strikes("request dropped"):
                continue
            arriving += [parcel] * (2 if self._strikes("request sent twice") else 1)
        if len(arriving) > 1 and self._strikes("requests out of order"):
            return [arriving[i] for i in self.rng.permutation(len(arriving))]
        return arriving

    async def _stray(self, book: Book, parcel: Parcel) -> None:
        """Bring reports to a collector that must not count them."""
        wrong = self.others[int(self.rng.integers(len(self.others)))]
        try:
            settled = await self._carry(wrong, book, [parcel], astray=True)
        except StateError:
            return
        if settled:
            raise Broken(f"{parcel[0]} was settled by the collector of another shard")

    # ---- one stream --------------------------------------------------------------------------

    async def _carry(
        self, keeper: Keeper, book: Book, parcels: list[Parcel], *, astray: bool = False
    ) -> set[Sent]:
        """Send parcels on a stream of their own; what is known to be settled by then."""
        life = await keeper.life()
        settled: set[Sent] = set()
        call = self._opened(life.devices)
        try:
            async with calling(PEER):
                await send(call, self._request(hello=self._hello()))
                late = []
                for number, parcel in enumerate(parcels):
                    late.append(book.sending(*parcel))
                    await send(call, self._message(book, number, parcel))
                for number, parcel in enumerate(parcels):
                    if self._strikes("stream cut"):
                        await anyio.sleep(self.rng.uniform(0, 0.004))
                        return settled
                    told = await self._receipt(call, number, parcel)
                    heard = not self._strikes("answer lost")
                    for report, disposition in zip(parcel, told, strict=True):
                        if astray:
                            shut = disposition == ROUND_CLOSED and book.closing
                            if disposition != TRY_LATER and not shut:
                                raise Broken(f"{report}: told {disposition} by the wrong shard")
                        elif book.told(report, disposition, late=late[number]) and heard:
                            settled.add(report)
        except ConnectionLost:
            pass
        except NotFoundError:  # a collector learns a little later what another has opened
            if not self.others:
                raise
        finally:
            call.cancel()
        return settled

    def _opened(self, channel: grpc.aio.Channel) -> Any:
        stub: Any = collector_pb2_grpc.CollectorStub(channel)
        visits = isinstance(self.sender, DeviceCredential)
        method = stub.Visit if visits else stub.SubmitFrames
        return method(metadata=metadata_of(self.sender), timeout=CALL_S)

    def _request(self, **fields: Any) -> Any:
        visits = isinstance(self.sender, DeviceCredential)
        kind = collector_pb2.VisitRequest if visits else collector_pb2.SubmitFramesRequest
        return kind(**fields)

    def _hello(self) -> collector_pb2.Hello:
        return collector_pb2.Hello(protocol_version=PROTOCOL_VERSION, study_hash=self.study.hash)

    def _message(self, book: Book, number: int, parcel: Parcel) -> Any:
        if isinstance(self.sender, DeviceCredential):
            [report] = parcel
            return self._request(
                report=report_pb2.Report(
                    round_hash=book.asked.hash, report_id=report.report_id, words=report.words
                )
            )
        return self._request(
            frame=report_pb2.ReportFrame(
                frame_number=number,
                round_hash=book.asked.hash,
                report_ids=b"".join(report.report_id for report in parcel),
                words=b"".join(report.words for report in parcel),
                device_ids=b"".join(report.device.device_id for report in parcel),
                proofs=b"".join(report.proof for report in parcel),
            )
        )

    async def _receipt(self, call: Any, number: int, parcel: Parcel) -> list[int]:
        """What became of the next parcel; the welcome and rounds may come before it."""
        while True:
            response = await call.read()
            if response is grpc.aio.EOF:
                raise ConnectionLost("the stream has ended")
            if not response.HasField("receipt"):
                continue
            receipt = response.receipt
            if isinstance(self.sender, DeviceCredential):
                if receipt.report_id != parcel[0].report_id:
                    raise Broken("a receipt for another report")
                return [receipt.disposition]
            if receipt.frame_number != number or len(receipt.dispositions) != len(parcel):
                raise Broken("a receipt for another frame")
            return list(receipt.dispositions)
