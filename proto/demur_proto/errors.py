"""Every error this project raises on purpose.

DemurError
├── ParameterError    a caller's argument is outside its documented range
├── DataError         a file of people's data cannot be read as such; names file and line
├── WireError         a message parsed, yet does not describe a valid value
├── VersionError      the other side speaks a protocol version this one does not
├── UnsupportedError  valid, but this build does not do it
├── NotFoundError     no study or round has this hash
├── StateError        valid, but not now: a closed round, a cohort too small
├── StorageError      nothing can be kept or read for now: a full disk, a database out of reach
├── AccessError       not let in: a credential or certificate is missing, wrong, expired or revoked
├── PolicyError       its owner's policy keeps a device from taking part; for public reasons only
├── BusyError         not now: too many calls at once
└── ConnectionLost    the other side went away before it answered
"""


class DemurError(Exception):
    """Base of them all: catch this to catch only us."""


class ParameterError(DemurError, ValueError):
    """An argument is outside its documented range."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name} must be {expected}, got {value!r}")
        self.name = name
        self.value = value
        self.expected = expected

    def __reduce__(self) -> tuple[type["ParameterError"], tuple[str, object, str]]:
        """Errors cross process borders whole."""
        return type(self), (self.name, self.value, self.expected)


class DataError(DemurError, ValueError):
    """A file of people's data cannot be read as such.

    Says where and what was expected, never a person's value beyond the offending cell.
    """


class WireError(DemurError):
    """A message parsed, yet does not describe a valid value."""


class VersionError(DemurError):
    """The other side speaks a protocol version this one does not."""


class UnsupportedError(DemurError):
    """The request is valid, but this build does not do it."""


class NotFoundError(DemurError):
    """No study or round has this hash."""


class StateError(DemurError):
    """The request is valid, but not now."""


class StorageError(DemurError):
    """Nothing can be kept or read for now. What was asked is not half-done."""


class AccessError(DemurError):
    """Not let in: a credential or certificate is missing, wrong, expired or revoked.

    A collector never says which: whoever guesses learns nothing.
    """


class PolicyError(DemurError):
    """A device's owner does not take part in this. The reason depends on nobody's data."""


class BusyError(DemurError):
    """Not now: too many calls at once."""


class ConnectionLost(DemurError):
    """The other side went away before it answered."""


def ours_in(error: BaseException) -> DemurError | None:
    """The first error of our own in an exception or a group of them."""
    if isinstance(error, DemurError):
        return error
    if isinstance(error, BaseExceptionGroup):
        found = (ours_in(member) for member in error.exceptions)
        return next((member for member in found if member is not None), None)
    return None
