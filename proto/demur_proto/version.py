"""Which protocol versions this build speaks."""

from demur_proto.errors import VersionError

PROTOCOL_VERSION = 1
OLDEST_PROTOCOL_VERSION = 1


def check_version(version: int) -> None:
    """Refuse a protocol version outside the supported range, and name the range.

    >>> check_version(1)
    """
    if not OLDEST_PROTOCOL_VERSION <= version <= PROTOCOL_VERSION:
        raise VersionError(
            f"protocol version {version} is not supported; "
            f"this side speaks {OLDEST_PROTOCOL_VERSION} to {PROTOCOL_VERSION}"
        )
