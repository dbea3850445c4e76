"""The command `demur certs`."""

import argparse
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

DESCRIPTION = """\
Make certificates for development: an authority (CA), one for a server and one for each client, each
with its private key, in PEM form. Clients know the server by ca.pem; a server that asks for client
certificates knows clients by the same file. Whoever has ca.key can pretend to be any of them: for
anything but development let a real authority sign. No file is ever overwritten."""

HOSTS = ("localhost", "127.0.0.1", "::1")
CLIENTS = ("client",)
RESERVED = ("ca", "server")


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `certs`."""
    command = subparsers.add_parser(
        "certs", help="make certificates for development", description=DESCRIPTION
    )
    command.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path("demur-certs"),
        metavar="FOLDER",
        help="where to put them (default: demur-certs)",
    )
    command.add_argument(
        "--host",
        action="append",
        metavar="NAME",
        help="a name or address by which clients reach the server; may be repeated "
        f"(default: {', '.join(HOSTS)})",
    )
    command.add_argument(
        "--client",
        action="append",
        metavar="NAME",
        help="make a certificate for a client of this name; may be repeated (default: client)",
    )
    command.add_argument(
        "--days", type=int, default=365, metavar="N", help="how long they are valid (default: 365)"
    )
    command.add_argument("--json", action="store_true", help="say what was made as one JSON object")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `demur certs`."""
    made = make_folder(
        options.folder,
        hosts=tuple(dict.fromkeys(options.host or HOSTS)),
        clients=tuple(dict.fromkeys(options.client or CLIENTS)),
        days=options.days,
    )
    if options.json:
        print(json.dumps(made))
        return 0
    for name, purpose in (
        ("ca.pem", "for clients: they know the server by it"),
        ("ca.key", "for nobody: it signs, and only you should have it"),
        ("server.pem", f"for the server: {', '.join(options.host or HOSTS)}"),
        ("server.key", "for the server, and for nobody else"),
        *(
            (f"{client}.{end}", f"for the client {client}")
            for client in dict.fromkeys(options.client or CLIENTS)
            for end in ("pem", "key")
        ),
    ):
        print(f"{options.folder / name}  {purpose}")
    return 0


def make_folder(
    folder: Path, *, hosts: tuple[str, ...], clients: tuple[str, ...], days: int
) -> dict[str, object]:
    """Make an authority and what it signs, each file readable by its owner only.

    Args:
        folder: where to put them; made if need be.
        hosts: the names and addresses by which clients reach the server.
        clients: names of clients; each makes two files.
        days: how long the certificates are valid, from 1 to 3650.

    Returns:
        The paths of all files, by what they are for.

    Raises:
        ParameterError: an argument is outside its range.
        StateError: one of the files is there already; none is written.
        StorageError: a file cannot be written; none is left.
    """
    from demur_proto.errors import ParameterError
    from demur_server.grpc.tls import Authority

    for client in clients:
        plain = client.isascii() and client.replace("-", "a").replace("_", "a").isalnum()
        if not plain or len(client) > 60 or client.lower() in RESERVED:
            raise ParameterError(
                "client", client, "1 to 60 letters, digits, - and _, and neither ca nor server"
            )
    authority = Authority(days=days)
    issued = {
        "ca": authority.issued,
        "server": authority.server(hosts),
        **{client: authority.client(client) for client in clients},
    }
    files = {}
    for name, each in issued.items():
        files[folder / f"{name}.pem"] = each.certificate
        files[folder / f"{name}.key"] = each.key
    write_private(folder, files)
    paths = {
        name: {"certificate": str(folder / f"{name}.pem"), "key": str(folder / f"{name}.key")}
        for name in issued
    }
    return {
        "ca": paths["ca"],
        "server": paths["server"],
        "clients": {client: paths[client] for client in clients},
        "hosts": list(hosts),
        "days": days,
    }


def write_private(folder: Path, files: Mapping[Path, bytes]) -> None:
    """Write files that only their owner can read, all or none, and none over another.

    Raises:
        StateError: one of them exists.
        StorageError: one of them cannot be written.
    """
    from demur_proto.errors import StateError, StorageError

    for path in files:
        if os.path.lexists(path):
            raise StateError(f"{path} exists and is kept; name another folder, or move it away")
    made: list[Path] = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, content in files.items():
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            made.append(path)
            with open(handle, "wb") as file:
                file.write(content)
    except OSError as error:
        for path in made:
            with suppress(OSError):
                path.unlink()
        where = error.filename or folder
        raise StorageError(
            f"{where} cannot be written: {error.strerror}; name another folder"
        ) from None
