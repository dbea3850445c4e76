"""Credentials and proofs, against the standard library and the words of the schema."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.errors import ParameterError
from demur_proto.transport.credentials import (
    METADATA_KEY,
    Credential,
    DeviceCredential,
    NamedSecret,
    make_proofs,
    metadata_of,
    read_credential,
    read_token,
    write_token,
)
from demur_proto.wire.hmacs import derive_keys, hmac_each, prepare_key

ids = st.binary(min_size=16, max_size=16)
secrets = st.binary(min_size=32, max_size=32)
hashes = secrets


@given(device_id=ids, secret=secrets)
def test_a_credential_survives_being_written_down(device_id: bytes, secret: bytes) -> None:
    device = DeviceCredential(device_id=device_id, secret=secret)
    named = NamedSecret(secret=secret)

    for each in (device, named):
        assert read_credential(each.text) == each
        assert read_credential(f"  {each.text}\n") == each
    assert read_token(write_token(secret)) == secret


def test_a_credential_looks_the_same_for_ever() -> None:
    device = DeviceCredential(device_id=bytes(range(16)), secret=bytes(range(32)))
    digits = "000102030405060708090a0b0c0d0e0f"
    digits32 = digits + "101112131415161718191a1b1c1d1e1f"

    assert device.text == f"demur_device_{digits}{digits32}"
    assert NamedSecret(secret=bytes(range(32))).text == f"demur_named_{digits32}"
    assert write_token(bytes(range(32))) == f"demur_token_{digits32}"


@given(device_id=ids, secret=secrets)
def test_a_credential_goes_with_every_call_as_bytes(device_id: bytes, secret: bytes) -> None:
    device = DeviceCredential(device_id=device_id, secret=secret)

    assert metadata_of(device) == ((METADATA_KEY, device_id + secret),)
    assert metadata_of(NamedSecret(secret=secret)) == (("demur-credential-bin", secret),)
    assert metadata_of(None) == ()
    assert METADATA_KEY.endswith("-bin")


@pytest.mark.parametrize(
    "text",
    [
        *("", "demur_device_", "demur_named_", "0" * 96, "demur_token_" + "0" * 64),
        *("demur_device_" + "0" * 95, "demur_device_" + "0" * 97, "demur_device_" + "g" * 96),
        *("demur_named_" + "0" * 96, "demur_device_" + "0" * 64, "Demur_named_" + "0" * 64),
        *(
            "demur_named_" + "0 " * 32,
            "demur_named_" + "\u0660" * 64,
            "demur_named_" * 2 + "0" * 64,
        ),
    ],
)
def test_what_is_no_credential_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ParameterError, match="credential must be demur_device_ and 96") as caught:
        read_credential(text)

    assert "0000" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "demur_token_", "demur_named_" + "0" * 64, "0" * 64])
def test_what_is_no_token_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ParameterError, match="token must be demur_token_ and 64") as caught:
        read_token(text)

    assert "0000" not in str(caught.value)


@pytest.mark.parametrize("wrong", [b"", bytes(15), bytes(17), bytes(31), bytes(33), "0" * 32, None])
def test_lengths_are_checked_and_secrets_not_repeated(wrong: bytes) -> None:
    for make in (
        lambda: DeviceCredential(device_id=bytes(16), secret=wrong),
        lambda: DeviceCredential(device_id=wrong, secret=bytes(32)),
        lambda: NamedSecret(secret=wrong),
        lambda: write_token(wrong),
    ):
        with pytest.raises(ParameterError, match=r"must be (16|32) bytes, got '") as caught:
            make()
        assert "\\x00" not in str(caught.value)


@given(device_id=ids, secret=secrets)
def test_no_secret_is_in_a_repr(device_id: bytes, secret: bytes) -> None:
    credentials: list[Credential] = [
        DeviceCredential(device_id=device_id, secret=secret),
        NamedSecret(secret=secret),
    ]

    for each in credentials:
        assert "secret" not in repr(each)


@given(
    makers=st.lists(st.tuples(ids, secrets, ids, st.binary(min_size=1, max_size=40)), max_size=6),
    round_hash=hashes,
)
def test_proofs_are_hmacs_of_all_that_a_report_says(
    makers: list[tuple[bytes, bytes, bytes, bytes]], round_hash: bytes
) -> None:
    expected = [
        hmac.digest(
            secret,
            b"demur.report\x00" + round_hash + report_id + hashlib.sha256(words).digest(),
            "sha256",
        )[:16]
        for _, secret, report_id, words in makers
    ]

    alone = [
        DeviceCredential(device_id=device_id, secret=secret).proof(round_hash, report_id, words)
        for device_id, secret, report_id, words in makers
    ]
    together = make_proofs(
        [prepare_key(secret) for _, secret, _, _ in makers],
        round_hash,
        [report_id for _, _, report_id, _ in makers],
        [hashlib.sha256(words).digest() for _, _, _, words in makers],
    )

    assert alone == together == expected


@given(st.lists(st.tuples(st.binary(max_size=140), st.binary(max_size=200)), max_size=5))
def test_each_message_has_its_own_key_and_derived_keys_are_whole(
    pairs: list[tuple[bytes, bytes]],
) -> None:
    tags = hmac_each([prepare_key(key) for key, _ in pairs], [message for _, message in pairs])

    assert tags == [hmac.digest(key, message, "sha256")[:16] for key, message in pairs]
    for key, _ in pairs:
        derived = derive_keys(prepare_key(key), [message for _, message in pairs])
        assert derived == [hmac.digest(key, message, "sha256") for _, message in pairs]
