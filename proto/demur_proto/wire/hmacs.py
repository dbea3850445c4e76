"""HMAC-SHA256, many at a time; tags are its first 16 bytes.

HMAC (RFC 2104) is two hashes over a padded key and a text. Padding each key once makes a tag about
twice as fast as the library's one-shot call, and tags are most of what a simulated report costs.
"""

import hashlib
from collections.abc import Iterable, Sequence

TAG_BYTES = 16
_OFTEN_EQUAL_BYTES = 32  #: payloads up to this size repeat within a frame; looking pays off
_INNER = bytes(0x36 ^ byte for byte in range(256))
_OUTER = bytes(0x5C ^ byte for byte in range(256))

PreparedKey = tuple[bytes, bytes]  # the key padded for the inner and for the outer hash


def prepare_key(key: bytes) -> PreparedKey:
    """A key, padded for both hashes."""
    block = (key if len(key) <= 64 else hashlib.sha256(key).digest()).ljust(64, b"\x00")
    return block.translate(_INNER), block.translate(_OUTER)


def hmac_by_key(keys: Iterable[PreparedKey], message: bytes) -> list[bytes]:
    """The tags of one message under many keys.

    >>> import hmac
    >>> hmac_by_key([prepare_key(b"k")], b"m") == [hmac.digest(b"k", b"m", "sha256")[:16]]
    True
    """
    sha256 = hashlib.sha256
    return [
        sha256(outer + sha256(inner + message).digest()).digest()[:TAG_BYTES]
        for inner, outer in keys
    ]


def hmac_by_message(key: PreparedKey, messages: Sequence[bytes]) -> list[bytes]:
    """The tags of many messages under one key.

    Equal messages are hashed once: short noisy words repeat a lot within a frame.

    >>> hmac_by_message(prepare_key(b"k"), [b"m", b"m"]) == 2 * hmac_by_key([prepare_key(b"k")], b"m")
    True
    """
    sha256 = hashlib.sha256
    inner, outer = key
    if len(messages) == 1:  # a report on its own
        return [sha256(outer + sha256(inner + messages[0]).digest()).digest()[:TAG_BYTES]]
    tags = {
        message: sha256(outer + sha256(inner + message).digest()).digest()[:TAG_BYTES]
        for message in set(messages)
    }
    return [tags[message] for message in messages]


def hash_payloads(words: bytes | memoryview, *, reports: int) -> list[bytes]:
    """SHA-256 of each report's words, 32 bytes each.

    Args:
        words: the encoded words of all reports, one after the other, equally long.
        reports: how many there are.

    >>> hash_payloads(b"abab", reports=2) == 2 * [hashlib.sha256(b"ab").digest()]
    True
    """
    if reports == 1:
        return [hashlib.sha256(words).digest()]
    size = len(words) // max(1, reports)
    starts = range(0, reports * size, max(1, size))
    if size > _OFTEN_EQUAL_BYTES:
        whole = memoryview(words)  # slices of it copy nothing
        return [hashlib.sha256(whole[at : at + size]).digest() for at in starts]
    data = bytes(words)  # a copy only of what is not in bytes already
    payloads = [data[at : at + size] for at in starts]
    hashes = {payload: hashlib.sha256(payload).digest() for payload in set(payloads)}
    return [hashes[payload] for payload in payloads]


def hmac_each(keys: Iterable[PreparedKey], messages: Iterable[bytes]) -> list[bytes]:
    """The tag of each message under its own key.

    >>> import hmac
    >>> hmac_each([prepare_key(b"k")], [b"m"]) == [hmac.digest(b"k", b"m", "sha256")[:16]]
    True
    """
    sha256 = hashlib.sha256
    return [
        sha256(outer + sha256(inner + message).digest()).digest()[:TAG_BYTES]
        for (inner, outer), message in zip(keys, messages, strict=True)
    ]


def derive_keys(key: PreparedKey, messages: Iterable[bytes]) -> list[bytes]:
    """The whole HMAC of many messages under one key, 32 bytes each: to be keys themselves.

    >>> import hmac
    >>> derive_keys(prepare_key(b"k"), [b"m"]) == [hmac.digest(b"k", b"m", "sha256")]
    True
    """
    sha256 = hashlib.sha256
    inner, outer = key
    return [sha256(outer + sha256(inner + message).digest()).digest() for message in messages]


def hash_definition(tag: bytes, definition: bytes) -> bytes:
    r"""SHA-256(tag ‖ definition), 32 bytes.

    >>> hash_definition(b"demur.study.v1\x00", b"").hex()[:16]
    '034c2ab2433a7f56'
    """
    return hashlib.sha256(tag + definition).digest()
