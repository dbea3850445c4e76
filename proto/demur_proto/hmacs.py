"""HMAC-SHA256, truncated to 16 bytes, many at a time.

HMAC (RFC 2104) is two hashes over a padded key and a text. Padding each key once makes a tag about
twice as fast as the library's one-shot call, and tags are most of what a simulated report costs.
"""

import hashlib
from collections.abc import Iterable, Sequence

TAG_BYTES = 16
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
    tags = {
        message: sha256(outer + sha256(inner + message).digest()).digest()[:TAG_BYTES]
        for message in set(messages)
    }
    return [tags[message] for message in messages]
