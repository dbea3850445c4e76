import pickle

import grpc
import pytest

from demur_proto import errors
from demur_proto.errors import (
    ConnectionLost,
    DataError,
    DemurError,
    NotFoundError,
    ParameterError,
    StateError,
    UnsupportedError,
    WireError,
)
from demur_proto.transport.calls import ERRORS, STATUS, error_of
from demur_proto.wire.definition import OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION, check_version

Code = grpc.StatusCode


def leaves(kind: type[DemurError]) -> set[type[DemurError]]:
    """The kinds that our errors module defines below this one and no further."""
    below = {sub for sub in kind.__subclasses__() if sub.__module__ == errors.__name__}
    return set().union(*map(leaves, below)) if below else {kind}


LEAVES = sorted(leaves(DemurError), key=lambda kind: kind.__name__)


def example(kind: type[DemurError]) -> DemurError:
    if issubclass(kind, ParameterError):
        return kind("sigma", float("-inf"), "a finite number > 0")
    return kind("what happened")


def test_every_kind_of_error_has_a_status_and_nothing_else_has() -> None:
    assert set(STATUS) == set(LEAVES)
    assert Code.OK not in STATUS.values()


def test_the_tree_in_the_module_names_every_kind() -> None:
    assert errors.__doc__ is not None
    named = {line.split()[1] for line in errors.__doc__.splitlines() if "──" in line}

    assert named == {kind.__name__ for kind in LEAVES}


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_cross_process_borders_whole(kind: type[DemurError], protocol: int) -> None:
    error = example(kind)

    back = pickle.loads(pickle.dumps(error, protocol))

    assert type(back) is kind
    assert str(back) == str(error)
    assert back.args == error.args
    assert vars(back) == vars(error)


def test_a_parameter_error_says_what_was_expected_and_what_came() -> None:
    error = ParameterError("sigma", -1.0, "> 0")

    assert str(error) == "sigma must be > 0, got -1.0"
    assert (error.name, error.value, error.expected) == ("sigma", -1.0, "> 0")


@pytest.mark.parametrize("kind", [ParameterError, DataError], ids=lambda kind: kind.__name__)
def test_errors_about_values_are_value_errors(kind: type[DemurError]) -> None:
    assert issubclass(kind, ValueError)


def failed(code: grpc.StatusCode, details: str | None) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.INVALID_ARGUMENT, WireError),
        (Code.FAILED_PRECONDITION, StateError),
        (Code.UNIMPLEMENTED, UnsupportedError),
        (Code.NOT_FOUND, NotFoundError),
    ],
)
def test_a_refusal_becomes_the_error_that_it_was(
    code: grpc.StatusCode, kind: type[DemurError]
) -> None:
    error = error_of(failed(code, "round 3 is still open"), peer="the collector")

    assert type(error) is kind
    assert str(error) == "round 3 is still open"
    assert str(error_of(failed(code, None), peer="the collector")) == code.name


def test_a_call_at_the_port_for_others_says_that_there_are_two() -> None:
    error = error_of(failed(Code.UNIMPLEMENTED, "Method not found!"), peer="the collector")

    assert type(error) is UnsupportedError
    assert "devices and analysts have a port each" in str(error)


@pytest.mark.parametrize("code", [code for code in Code if code not in ERRORS])
def test_whatever_leaves_the_outcome_open_is_a_lost_connection(code: grpc.StatusCode) -> None:
    error = error_of(failed(code, "reset"), peer="the collector")

    assert type(error) is ConnectionLost
    assert "the collector" in str(error)


def test_an_error_without_a_status_is_a_lost_connection() -> None:
    assert type(error_of(grpc.RpcError("gone"), peer="the collector")) is ConnectionLost


@pytest.mark.parametrize("version", range(OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION + 1))
def test_every_version_in_the_range_is_spoken(version: int) -> None:
    check_version(version)


@pytest.mark.parametrize("version", [0, -1, PROTOCOL_VERSION + 1, 1 << 31])
def test_another_version_is_refused_with_the_range(version: int) -> None:
    with pytest.raises(errors.VersionError, match=r"speaks 1 to 1"):
        check_version(version)
