"""What every command for analysts is told about where the collector is, and what to show it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demur_proto.credentials import NamedSecret


def add_place(command: argparse.ArgumentParser) -> None:
    """Add the options that say where the collector is."""
    place = command.add_argument_group("the collector")
    place.add_argument(
        "--folder",
        type=Path,
        default=Path("demur-data"),
        metavar="DIR",
        help="data folder of a collector on this machine, which says where it listens and holds "
        "the first credential (default: demur-data)",
    )
    place.add_argument("--target", metavar="HOST:PORT", help="its port for analysts")
    place.add_argument("--credential", type=Path, metavar="FILE", help="an analyst's credential")
    place.add_argument("--ca", type=Path, metavar="FILE", help="CA that vouches for it, PEM")
    place.add_argument("--certificate", type=Path, metavar="FILE", help="one's own, for mTLS")
    place.add_argument("--key", type=Path, metavar="FILE", help="its private key")
    place.add_argument(
        "--insecure-plaintext",
        action="store_true",
        help="without a CA, send the credential over the network all the same",
    )


def place_of(options: argparse.Namespace) -> dict[str, Any]:
    """Where the collector is, and what to show it."""
    from demur_proto.channels import ClientTls
    from demur_proto.errors import ParameterError, StateError
    from demur_server.data_folder import credential_file, find_listening, read_secret_file

    target = options.target
    if target is None:
        listening = find_listening(options.folder)
        if listening is None:
            raise StateError(
                f"no collector runs on the folder {options.folder}: name another --folder, or say "
                "--target HOST:PORT"
            )
        target = listening.analyst
    file = options.credential
    if file is None and credential_file(options.folder).exists():
        file = credential_file(options.folder)
    secret: NamedSecret | None = None if file is None else read_secret_file(file)
    tls = None
    if options.ca is not None:
        tls = ClientTls.read(options.ca, certificate=options.certificate, key=options.key)
    elif options.certificate or options.key:
        raise ParameterError("--ca", None, "given with --certificate and --key")
    return {
        "target": target,
        "credential": secret,
        "tls": tls,
        "insecure_plaintext": options.insecure_plaintext,
    }
