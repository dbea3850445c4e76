"""HMAC-SHA256 against RFC 4231 and the standard library."""

import hashlib
import hmac
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.wire.hmacs import (
    TAG_BYTES,
    hash_payloads,
    hmac_by_key,
    hmac_by_message,
    prepare_key,
)

# RFC 4231, section 4: test cases 1, 2, 6 (a key longer than a block) and 7; first 16 bytes.
RFC_4231 = [
    (bytes([0x0B] * 20), b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b"),
    (b"Jefe", b"what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c7"),
    (
        bytes([0xAA] * 131),
        b"Test Using Larger Than Block-Size Key - Hash Key First",
        "60e431591ee0b67f0d8a26aacbf5b77f",
    ),
    (
        bytes([0xAA] * 131),
        (
            b"This is a test using a larger than block-size key and a larger than block-size data. "
            b"The key needs to be hashed before being used by the HMAC algorithm."
        ),
        "9b09ffa71b942fcb27635fbcd5b0e944",
    ),
]


@pytest.mark.parametrize(("key", "message", "tag"), RFC_4231, ids=["1", "2", "6", "7"])
def test_published_tags_are_reproduced(key: bytes, message: bytes, tag: str) -> None:
    assert [found.hex() for found in hmac_by_key([prepare_key(key)], message)] == [tag]
    assert [found.hex() for found in hmac_by_message(prepare_key(key), [message])] == [tag]


@given(st.lists(st.binary(max_size=140), max_size=5), st.lists(st.binary(max_size=200), max_size=5))
def test_tags_are_those_of_the_standard_library_in_order(
    keys: list[bytes], messages: list[bytes]
) -> None:
    prepared = [prepare_key(key) for key in keys]

    for message in messages:
        expected = [hmac.digest(key, message, "sha256")[:TAG_BYTES] for key in keys]
        assert hmac_by_key(prepared, message) == expected
    for key, ready in zip(keys, prepared, strict=True):
        expected = [hmac.digest(key, message, "sha256")[:TAG_BYTES] for message in messages]
        assert hmac_by_message(ready, messages) == expected


@given(st.integers(0, 5), st.sampled_from([1, 4, 32, 33, 100]), st.randoms(use_true_random=False))
def test_every_payload_has_its_own_hash(reports: int, size: int, random: Random) -> None:
    payloads = [bytes(random.choices(b"ab", k=size)) for _ in range(reports)]

    hashes = hash_payloads(b"".join(payloads), reports=reports)

    assert hashes == [hashlib.sha256(payload).digest() for payload in payloads]
