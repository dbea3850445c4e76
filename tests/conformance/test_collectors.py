"""Collectors on trial: the real one conforms, and each planted fault is found by its own rule."""

import secrets
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from access_kit import House, opened
from demur_conformance.collector import Visitor, try_collector
from demur_conformance.verdicts import COLLECTOR_RULES, Verdict, Verdicts
from demur_proto.errors import AccessError, ParameterError, StateError
from demur_proto.queries import Feature, Linear
from demur_proto.round import Round, round_of
from demur_proto.study import Policy, Study, View, design_study
from demur_proto.transport.credentials import DeviceCredential, write_token
from demur_proto.v1 import collector_pb2, report_pb2
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_server.grpc import serving
from demur_server.grpc.access import Caller, CredentialAccess, MetadataItems
from demur_server.grpc.services import CollectorService
from demur_server.store.base import Role


def small_study() -> Defined[Study]:
    return define_study(
        design_study(
            name="tried out",
            epsilon=1.0,
            delta=1e-6,
            answers=4,
            minimum_cohort=2,
            view=View.LOCAL,
            policy=Policy.SKIP,
            horizon=8,
            maximum_dimension=4,
        )
    )


@asynccontextmanager
async def a_collector() -> AsyncIterator[tuple[House, Visitor]]:
    """The real one, with an open round, four tokens and a gateway."""
    study = small_study()
    asked = first_round(study)
    async with opened(study) as house:
        await house.collector.open_round(asked.definition)

        async def close() -> None:
            await house.collector.close_round(asked.hash)

        yield (
            house,
            Visitor(
                target=f"127.0.0.1:{house.ports.collector}",
                tokens=tuple([await house.token() for _ in range(4)]),
                gateway=await house.named("gateway", Role.GATEWAY),
                close=close,
            ),
        )


def first_round(study: Defined[Study]) -> Defined[Round]:
    return define_round(round_of(study, Linear([Feature(name=each) for each in "ab"]), number=1))


async def failures() -> set[str]:
    """The rules that a collector which is made now breaks."""
    verdicts = Verdicts(COLLECTOR_RULES)
    async with a_collector() as (_, visitor):
        await try_collector(visitor, verdicts)
    return {f.rule.id for f in verdicts.findings() if f.verdict is Verdict.FAIL}


async def test_the_real_collector_keeps_every_rule() -> None:
    verdicts = Verdicts(COLLECTOR_RULES)

    async with a_collector() as (_, visitor):
        await try_collector(visitor, verdicts)

    assert [found for found in verdicts.findings() if found.verdict is not Verdict.PASS] == []


class CountsAnything(CollectorService):
    """Says ACCEPTED to all that is sound."""

    def _submitted(self, *parts: Any) -> Awaitable[int]:
        submitted = super()._submitted(*parts)

        async def accepted() -> int:
            await submitted
            return report_pb2.DISPOSITION_ACCEPTED

        return accepted()


class PushesAll(CollectorService):
    """Does not look at after_round."""

    async def _attend(self, hello: collector_pb2.Hello, *rest: Any) -> None:
        hello.after_round = 0
        await super()._attend(hello, *rest)


class FailsWholeFrames(CollectorService):
    """One bad report spoils its frame."""

    async def _submit_frame(self, frame: report_pb2.ReportFrame, *rest: Any) -> list[int]:
        said = await super()._submit_frame(frame, *rest)
        return [report_pb2.DISPOSITION_INVALID] * len(said)


class OnlyStudy(CollectorService):
    """Gives its study whatever is asked for."""

    async def GetStudy(
        self, request: collector_pb2.GetStudyRequest, context: Any
    ) -> collector_pb2.GetStudyResponse:
        request.study_hash = b""
        return await super().GetStudy(request, context)


class ForgetsNonces(CollectorService):
    """Gives another secret when it is asked a second time."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.seen: set[bytes] = set()

    async def Enrol(
        self, request: collector_pb2.EnrolRequest, context: Any
    ) -> collector_pb2.EnrolResponse:
        answer = await super().Enrol(request, context)
        if request.token in self.seen:
            answer.secret = secrets.token_bytes(32)
        self.seen.add(request.token)
        return answer


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (CountsAnything, {"duplicate", "conflict", "invalid", "closed"}),
        (PushesAll, {"welcome"}),
        (FailsWholeFrames, {"frame"}),
        (OnlyStudy, {"study"}),
        (ForgetsNonces, {"enrol-again"}),
    ],
)
async def test_a_collector_that_is_wrong_in_one_way_breaks_its_rule_and_no_other(
    kind: type[CollectorService], broken: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "CollectorService", kind)

    assert await failures() == broken


async def test_a_collector_that_says_what_was_wrong_with_a_credential_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admit = CredentialAccess.admit

    def telling(self: CredentialAccess, method: str, metadata: MetadataItems) -> Caller:
        try:
            return admit(self, method, metadata)
        except AccessError:
            raise AccessError(f"{len(list(metadata))} items came") from None

    monkeypatch.setattr(CredentialAccess, "admit", telling)

    assert "unauthenticated" in await failures()


async def test_without_gateway_and_close_command_their_rules_are_not_tested() -> None:
    verdicts = Verdicts(COLLECTOR_RULES)

    async with a_collector() as (_, visitor):
        await try_collector(replace(visitor, gateway=None, close=None), verdicts)

    untested = {f.rule.id for f in verdicts.findings() if f.verdict is Verdict.NOT_TESTED}
    assert untested == {"frame", "closed"}
    assert not verdicts.all_pass()


async def test_a_close_command_that_fails_costs_no_verdict_but_its_own(tmp_path: Path) -> None:
    verdicts = Verdicts(COLLECTOR_RULES)
    command = (sys.executable, "-c", "import sys; sys.exit(3)")

    async with a_collector() as (_, visitor):
        (tmp_path / "tokens").write_text("\n".join(map(write_token, visitor.tokens)))
        failing = Visitor.of(visitor.target, tokens=tmp_path / "tokens", close_command=command)
        await try_collector(replace(failing, gateway=visitor.gateway), verdicts)

    [other] = [f for f in verdicts.findings() if f.verdict is not Verdict.PASS]
    assert (other.rule.id, other.verdict) == ("closed", Verdict.NOT_TESTED)
    assert other.evidence == "the close command failed with exit status 3"


async def test_a_collector_without_an_open_round_is_refused_with_the_reason() -> None:
    async with opened(small_study()) as house:
        visitor = Visitor(
            target=f"127.0.0.1:{house.ports.collector}",
            tokens=tuple([await house.token() for _ in range(4)]),
        )
        with pytest.raises(StateError, match="no open linear round"):
            await try_collector(visitor, Verdicts(COLLECTOR_RULES))


async def test_a_used_token_is_refused_with_the_reason() -> None:
    async with a_collector() as (house, visitor):
        await house.access.enrol(visitor.tokens[0], bytes(16))

        with pytest.raises(StateError, match="not used yet"):
            await try_collector(visitor, Verdicts(COLLECTOR_RULES))


def test_what_a_visitor_is_made_of_is_checked(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("\n".join(write_token(secrets.token_bytes(32)) for _ in range(3)))
    device = tmp_path / "device"
    device.write_text(DeviceCredential(device_id=bytes(16), secret=bytes(32)).text)

    assert len(Visitor.of("127.0.0.1:1", tokens=tokens).tokens) == 3
    with pytest.raises(ParameterError, match="one of a gateway"):
        Visitor.of("127.0.0.1:1", tokens=tokens, gateway=device)
    assert "tokens" not in repr(Visitor.of("127.0.0.1:1", tokens=tokens))


async def test_too_few_tokens_are_refused() -> None:
    with pytest.raises(ParameterError, match="4 or more"):
        await try_collector(
            Visitor(target="127.0.0.1:1", tokens=(bytes(32),)), Verdicts(COLLECTOR_RULES)
        )
