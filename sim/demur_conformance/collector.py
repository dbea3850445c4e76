"""Scripts about a collector: who is let in, and what is counted."""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import numpy as np

from demur_client.connection import connected
from demur_conformance.probe import (
    NOTHING_S,
    Ending,
    Knocker,
    frames_hello,
    hello,
    same_words,
    shown,
)
from demur_conformance.verdicts import Verdicts
from demur_proto.errors import (
    DataError,
    DemurError,
    ParameterError,
    StateError,
    UnsupportedError,
    WireError,
)
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries import Linear
from demur_proto.queries.registry import mechanism_for
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.transport.channels import ClientTls
from demur_proto.transport.credentials import (
    DeviceCredential,
    Metadata,
    NamedSecret,
    read_credential,
    read_token,
)
from demur_proto.v1 import collector_pb2, report_pb2
from demur_proto.wire.definition import Defined, read_round, read_study, report_id
from demur_proto.wire.frames import LARGEST_FRAMED_BYTES
from demur_proto.wire.words import encode_words

OVERSIZED = 6 << 20
ANOTHER_VERSION = 99
FIRST_S = 2.0  #: by then a collector has pushed the first of its open rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the scripts stand on: a study, an open round, and devices."""

    study: Defined[Study]
    asked: Defined[Round]
    mechanism: GaussianLinear
    devices: tuple[DeviceCredential, ...]
    secrets: tuple[bytes, ...] = field(repr=False)  #: from which report ids follow

    def shown(self, device: int) -> Metadata:
        """What goes with a device's calls."""
        return shown(self.devices[device].wire)

    def report(self, device: int, *, word: int = 0, second_id: bool = False) -> report_pb2.Report:
        """A report of equal words: nobody can see from outside that it has no noise."""
        secret = bytes(32) if second_id else self.secrets[device]
        words = np.full((1, self.mechanism.report_length), word)
        return report_pb2.Report(
            round_hash=self.asked.hash,
            report_id=report_id(secret, self.asked.hash),
            words=encode_words(words, self.asked.value.word_type),
        )

    async def send(self, knocker: Knocker, device: int, *reports: report_pb2.Report) -> str:
        """Hand in reports in one visit; what became of each, or how the call ended."""
        first = hello(self.study.hash, after_round=self.asked.value.number)
        said = []
        async with knocker.visiting(self.shown(device), first) as visiting:
            for report in reports:
                await visiting.write(collector_pb2.VisitRequest(report=report))
                receipt = await visiting.receipt()
                said.append(_disposition(receipt, report))
        return " ".join(said)


async def find_ground(knocker: Knocker, tokens: tuple[bytes, ...], verdicts: Verdicts) -> Ground:
    """Enrol devices, fetch the study and find an open round, all of which are rules as well.

    Raises:
        StateError: there is nothing to stand on.
    """
    devices = [await _enrolled(knocker, token, verdicts) for token in tokens]
    await _check_tokens(knocker, tokens[0], verdicts)
    metadata = shown(devices[0].wire)
    study = await _study(knocker, metadata, verdicts)
    number, rounds = 0, []
    async with knocker.visiting(metadata, hello(study.hash)) as visiting:
        first = await visiting.read()
        welcomed = isinstance(first, collector_pb2.VisitResponse) and first.HasField("welcome")
        patience_s = FIRST_S
        while isinstance(message := await visiting.read(patience_s), collector_pb2.VisitResponse):
            patience_s = NOTHING_S
            definition = message.opened_round.definition
            try:
                asked = read_round(definition, study=study)
            except (WireError, UnsupportedError):
                continue
            if isinstance(asked.value.query, Linear):
                rounds.append(asked)
            number = asked.value.number
    verdicts.check("welcome", welcomed, f"first came {'a' if welcomed else 'no'} welcome")
    for asked in rounds:
        mechanism = mechanism_for(study.value, asked.value)
        size = asked.value.word_type.report_bytes(mechanism.report_length)
        if isinstance(mechanism, GaussianLinear) and size <= LARGEST_FRAMED_BYTES:
            async with knocker.visiting(metadata, hello(study.hash, after_round=number)) as later:
                await later.read()
                more = await later.read(NOTHING_S)
            verdicts.check("welcome", more is None, f"after round {number} came {_kind(more)}")
            return Ground(
                study=study,
                asked=asked,
                mechanism=mechanism,
                devices=tuple(devices),
                secrets=tuple(secrets.token_bytes(32) for _ in devices),
            )
    raise StateError("there is no open linear round whose report fits a message; open one first")


async def check_doors(knocker: Knocker, ground: Ground, verdicts: Verdicts) -> None:
    """Who is let in, and how a stream begins."""
    device, other = ground.devices[0], ground.devices[1]
    wrong = [
        (),
        shown(device.device_id + secrets.token_bytes(32)),
        shown(device.device_id + other.secret),
        shown(secrets.token_bytes(32)),
        shown(b"short"),
        shown(device.wire, device.wire),
    ]
    endings: list[object] = []
    for metadata in wrong:
        endings.append(await knocker.study(ground.study.hash, metadata))
        endings.append(await knocker.ended(metadata, hello(ground.study.hash)))
    verdicts.check("unauthenticated", same_words(endings), _texts(endings))
    ending = await knocker.ended(ground.shown(0), frames_hello(ground.study.hash), frames=True)
    verdicts.check("frames-only", same_words([ending]), str(ending))

    answer = await knocker.study(ground.study.hash, ground.shown(0), version=ANOTHER_VERSION)
    early = hello(ground.study.hash, version=ANOTHER_VERSION)
    async with knocker.visiting(ground.shown(0), early) as visiting:
        ending = await visiting.ending()
    for each in (answer, ending):
        names = (
            isinstance(each, Ending) and each.code == "FAILED_PRECONDITION" and "1" in each.details
        )
        verdicts.check("version", names, _text(each))

    report = collector_pb2.VisitRequest(report=ground.report(0))
    for messages in [(report,), (hello(ground.study.hash),) * 2]:
        async with knocker.visiting(ground.shown(0), *messages) as visiting:
            await _check_ending(visiting.ending(), "hello-first", verdicts)


async def check_reports(
    knocker: Knocker, ground: Ground, verdicts: Verdicts, *, gateway: NamedSecret | None
) -> None:
    """What is counted, and what is not."""
    good, other = ground.report(0), ground.report(0, word=1)
    said = await ground.send(knocker, 0, good, good, other, ground.report(0, second_id=True), good)
    first, second, changed, doubled, last = (
        said.split(" ")[:5] if said.count(" ") == 4 else [said] * 5
    )
    verdicts.check("accepted", first == "ACCEPTED", first)
    verdicts.check("duplicate", second == last == "DUPLICATE", f"{second}, {last}")
    verdicts.check("conflict", changed == doubled == "CONFLICT", f"{changed}, {doubled}")
    later = await ground.send(knocker, 0, good)
    verdicts.check("duplicate", later == "DUPLICATE", f"in the next visit {later}")

    limit = ground.mechanism.word_limit
    if limit < ground.asked.value.word_type.limit:
        beyond = ground.report(1, word=limit + 1)
        said = await ground.send(knocker, 1, beyond, ground.report(1))
        verdicts.check("invalid", said == "INVALID ACCEPTED", said)

    short = ground.report(2)
    short.words = short.words[:-1]
    no_id = ground.report(2)
    no_id.report_id = no_id.report_id[:-1]
    unknown = ground.report(2)
    unknown.round_hash = secrets.token_bytes(32)
    chunk = report_pb2.ReportChunk(
        round_hash=good.round_hash, report_id=ground.report(2).report_id, words=good.words
    )
    oversized = ground.report(2)
    oversized.words = bytes(OVERSIZED)
    for rule, code, message in (
        ("wrong-length", "INVALID_ARGUMENT", collector_pb2.VisitRequest(report=short)),
        ("wrong-length", "INVALID_ARGUMENT", collector_pb2.VisitRequest(report=no_id)),
        ("unknown-round", "NOT_FOUND", collector_pb2.VisitRequest(report=unknown)),
        ("unparsable", "INVALID_ARGUMENT", b"\xff\xff\xff"),
        ("oversized", "RESOURCE_EXHAUSTED", collector_pb2.VisitRequest(report=oversized)),
        ("chunks", "INVALID_ARGUMENT", collector_pb2.VisitRequest(chunk=chunk)),
    ):
        async with knocker.visiting(ground.shown(2), hello(ground.study.hash), message) as visiting:
            await _check_ending(visiting.ending(), rule, verdicts, code=code)
    if gateway is not None:
        await _check_frame(knocker, ground, verdicts, gateway)


async def _check_frame(
    knocker: Knocker, ground: Ground, verdicts: Verdicts, gateway: NamedSecret
) -> None:
    """One frame with a report that was counted, one whose proof is wrong, and one that is new."""
    reports = [ground.report(0), ground.report(1), ground.report(2)]
    proofs = [
        credential.proof(each.round_hash, each.report_id, each.words)
        for credential, each in zip(ground.devices, reports, strict=False)
    ]
    proofs[1] = bytes(16)
    frame = report_pb2.ReportFrame(
        frame_number=7_000_000_000,
        round_hash=ground.asked.hash,
        report_ids=b"".join(each.report_id for each in reports),
        words=b"".join(each.words for each in reports),
        device_ids=b"".join(each.device_id for each in ground.devices[:3]),
        proofs=b"".join(proofs),
    )
    message = collector_pb2.SubmitFramesRequest(frame=frame)
    metadata, first = shown(gateway.wire), frames_hello(ground.study.hash)
    async with knocker.visiting(metadata, first, message, frames=True) as visiting:
        receipt = await visiting.receipt()
    if isinstance(receipt, report_pb2.FrameReceipt):
        said = " ".join(map(_name, receipt.dispositions))
        holds = said == "DUPLICATE INVALID ACCEPTED" and receipt.frame_number == frame.frame_number
        verdicts.check("frame", holds, f"{said}, number {receipt.frame_number}")
    else:
        verdicts.check("frame", False, _text(receipt))


async def _enrolled(knocker: Knocker, token: bytes, verdicts: Verdicts) -> DeviceCredential:
    nonce = secrets.token_bytes(16)
    answer = await knocker.enrol(token, nonce)
    if isinstance(answer, Ending):
        raise StateError(f"a token was not accepted: {answer}; give tokens that are not used yet")
    sizes = (len(answer.device_id), len(answer.secret))
    verdicts.check("enrol", sizes == (16, 32), f"an id of {sizes[0]} bytes, a secret of {sizes[1]}")
    again = await knocker.enrol(token, nonce)
    verdicts.check("enrol-again", again == answer, "asked twice with one nonce")
    return DeviceCredential(device_id=answer.device_id, secret=answer.secret)


async def _check_tokens(knocker: Knocker, used: bytes, verdicts: Verdicts) -> None:
    endings = [
        await knocker.enrol(used, secrets.token_bytes(16)),
        await knocker.enrol(secrets.token_bytes(32), secrets.token_bytes(16)),
    ]
    verdicts.check("enrol-refused", same_words(endings), _texts(endings))
    short = await knocker.enrol(used, bytes(15))
    right = isinstance(short, Ending) and short.code == "INVALID_ARGUMENT"
    verdicts.check("enrol-nonce", right, _text(short))


async def _study(knocker: Knocker, metadata: Metadata, verdicts: Verdicts) -> Defined[Study]:
    answer = await knocker.study(b"", metadata)
    if isinstance(answer, Ending):
        raise StateError(f"the collector must have just one study: {answer}")
    study = read_study(answer.definition)
    again = await knocker.study(study.hash, metadata)
    verdicts.check("study", again == answer, "asked for by its hash")
    unknown = await knocker.study(secrets.token_bytes(32), metadata)
    verdicts.check(
        "study", isinstance(unknown, Ending) and unknown.code == "NOT_FOUND", _text(unknown)
    )
    return study


async def _check_ending(
    ending: Awaitable[Ending | None],
    rule: str,
    verdicts: Verdicts,
    *,
    code: str = "INVALID_ARGUMENT",
) -> None:
    came = await ending
    verdicts.check(rule, isinstance(came, Ending) and came.code == code, _text(came))


def _disposition(receipt: object, report: report_pb2.Report) -> str:
    if not isinstance(receipt, report_pb2.Receipt):
        return _text(receipt).replace(" ", "_")
    return _name(receipt.disposition) if receipt.report_id == report.report_id else "another's"


def _name(disposition: int) -> str:
    try:
        name = report_pb2.Disposition.Name(report_pb2.Disposition.ValueType(disposition))
    except ValueError:
        return str(disposition)
    return name.removeprefix("DISPOSITION_")


def _kind(message: object) -> str:
    if isinstance(message, collector_pb2.VisitResponse):
        return str(message.WhichOneof("message"))
    return _text(message)


def _text(answer: object) -> str:
    if answer is None:
        return "nothing"
    return str(answer) if isinstance(answer, Ending) else "an answer"


def _texts(answers: Sequence[object]) -> str:
    return "; ".join(dict.fromkeys(map(_text, answers)))


# Tries out a collector that has one study and an open linear round, with a few enrolled devices.

DEVICES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """How a collector is tried out."""

    target: str  #: HOST:PORT
    tokens: tuple[bytes, ...] = field(repr=False)  #: 32 bytes each; four of them are used up
    gateway: NamedSecret | None = None  #: to test frames
    close: Callable[[], Awaitable[None]] | None = None  #: closes the open round
    tls: ClientTls | None = None

    @classmethod
    def of(
        cls,
        target: str,
        *,
        tokens: Path,
        gateway: Path | None = None,
        close_command: tuple[str, ...] = (),
        ca: Path | None = None,
    ) -> "Visitor":
        """From files and a command.

        Raises:
            DataError: a file cannot be read.
            ParameterError: it holds something else.
            AccessError: the CA's file is no good.
        """
        secret = read_credential(_read(gateway)) if gateway else None
        if secret is not None and not isinstance(secret, NamedSecret):
            raise ParameterError("gateway-credential", "a device's", "one of a gateway")

        async def close() -> None:
            done = await anyio.run_process(close_command, check=False, stderr=None)
            if done.returncode:
                raise StateError(f"the close command failed with exit status {done.returncode}")

        return cls(
            target=target,
            tokens=tuple(map(read_token, _read(tokens).split())),
            gateway=secret,
            close=close if close_command else None,
            tls=ClientTls.read(ca) if ca else None,
        )


async def try_collector(visitor: Visitor, verdicts: Verdicts) -> None:
    """Run the scripts; what they see goes into the verdicts.

    Raises:
        ParameterError: there are too few tokens.
        StateError: there is no open linear round whose report fits one message.
        DemurError: the collector cannot be reached.
    """
    if len(visitor.tokens) < DEVICES:
        raise ParameterError("tokens", f"{len(visitor.tokens)} of them", f"{DEVICES} or more")
    async with connected(visitor.target, tls=visitor.tls) as channel:
        knocker = Knocker(channel)
        ground = await find_ground(knocker, visitor.tokens[:DEVICES], verdicts)
        await check_doors(knocker, ground, verdicts)
        await check_reports(knocker, ground, verdicts, gateway=visitor.gateway)
        if visitor.close is not None:
            try:
                await visitor.close()
                await _check_closed(knocker, ground, verdicts)
            except DemurError as error:  # what was found so far is worth keeping
                verdicts.omit("closed", str(error))


async def _check_closed(knocker: Knocker, ground: Ground, verdicts: Verdicts) -> None:
    counted = await ground.send(knocker, 0, ground.report(0))
    new = await ground.send(knocker, 3, ground.report(3))
    verdicts.check(
        "closed",
        (counted, new) == ("ROUND_CLOSED", "ROUND_CLOSED"),
        f"a report that was counted: {counted}, a new one: {new}",
    )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise DataError(f"{path} cannot be read: {reason}") from None
