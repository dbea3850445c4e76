"""`demur admin` beside a running collector."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import grpc
import pytest

from admin_kit import Admin
from demur_client.connection import connected
from demur_proto.errors import AccessError, StateError
from demur_proto.queries import Feature, Linear
from demur_proto.study import Study
from demur_proto.transport.credentials import read_credential, read_token
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import Defined
from demur_server.admin.data_folder import credential_file
from demur_server.analyst import Analyst
from serve_kit import answer, enrolled, serving


def test_tokens_are_written_to_a_file_of_their_owner_and_over_nothing(
    admin: Admin, folder: Path, tmp_path: Path
) -> None:
    words = ("tokens", "--count", "3", "--out", str(tmp_path / "new"), "--folder", str(folder))

    status, said = admin(*words)[:2]

    tokens = (tmp_path / "new").read_text().splitlines()
    assert (status, len({read_token(each) for each in tokens})) == (0, 3)
    assert "demur_token" not in said
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
    with pytest.raises(StateError, match="exists and is kept"):
        admin(*words)


async def until(condition: Callable[[], Any]) -> None:
    """Wait for what a running collector takes up within seconds."""
    with anyio.fail_after(6.0):
        while not await condition():  # noqa: ASYNC110  another process rings no bell
            await anyio.sleep(0.1)


async def test_beside_a_running_collector_everything_works_and_is_taken_up(
    admin: Admin, tmp_path: Path, study: Defined[Study]
) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup.sqlite"
    where = ("--folder", str(data))
    with serving(data) as server:
        made = admin("tokens", "--count", "2", *where)[1].split()
        device, other = await enrolled(server.devices, *map(read_token, made))
        analyst_text = admin("credential", "Ada", "--role", "analyst", *where)[1].strip()
        file = tmp_path / "gateway"
        admin("credential", "box", "--role", "gateway", "--out", str(file), *where)
        names = json.loads(admin("credentials", "--json", *where)[1])
        ada: Any = read_credential(analyst_text)

        async def ada_is_in() -> bool:
            try:
                async with Analyst.create(server.analysts, study.value, credential=ada):
                    return True
            except AccessError:
                return False

        async def ada_is_out() -> bool:
            return not await ada_is_in()

        await until(ada_is_in)
        async with (
            Analyst.resume(server.analysts, "test", credential=server.analyst) as analyst,
            connected(server.devices) as channel,
        ):
            asked = await analyst.open(Linear([Feature(name="active")], on_grid=True))
            first = await answer(channel, device, study, word=5)
            verified, _ = admin("verify", *where)
            admin("backup", str(backup), *where)
            rounds = json.loads(admin("rounds", "--json", *where)[1])
            admin("revoke", device.device_id.hex(), "--reason", "lost", *where)
            listed = json.loads(admin("devices", "--json", *where)[1])
            table = admin("devices", *where)[1]
            admin("credential", "Ada", "--remove", *where)

            async def device_is_out() -> bool:
                try:
                    await answer(channel, device, study, word=5)
                except grpc.aio.AioRpcError as error:
                    return error.code() is grpc.StatusCode.UNAUTHENTICATED
                return False

            await until(device_is_out)
            await until(ada_is_out)
            await answer(channel, other, study, word=6)
            release = await analyst.close(asked)
        with pytest.raises(
            StateError, match=r"a collector runs on .*; stop it, or restore into an"
        ):
            admin("restore", str(backup), *where)
        server.process.terminate()
        status, out, err = server.ended()

    assert len(set(made)) == 2
    assert file.stat().st_mode & 0o777 == 0o600
    assert {(each["name"], each["role"]) for each in names} == {
        ("Ada", "analyst"),
        ("analyst", "analyst"),
        ("box", "gateway"),
    }
    ids = sorted([device.device_id.hex(), other.device_id.hex()])
    revoked = {device.device_id.hex(): "lost", other.device_id.hex(): None}
    assert listed == [{"device": each, "revoked": revoked[each]} for each in ids]
    assert [line.split() for line in table.splitlines()] == [
        ["device", "revoked"],
        *([each, *([revoked[each]] if revoked[each] else [])] for each in ids),
    ]
    assert first == report_pb2.DISPOSITION_ACCEPTED
    assert verified == 0
    assert (rounds[0]["state"], rounds[0]["reports"]) == ("open", 1)
    assert release.sums.tolist() == [11]
    secrets = [*made, analyst_text, credential_file(data).read_text().strip()]
    assert not any(secret in out + err for secret in secrets)
    assert (status, out, err) == (0, "", "")
