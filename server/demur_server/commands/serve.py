"""The command `demur serve`."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demur_server.serve import Started


DESCRIPTION = """\
Run a collector until it is told to stop (SIGINT or SIGTERM; it then lets open calls end, and a second
signal stops it at once). Devices and gateways reach it on one port, analysts on another. Everything
it must not forget is in a data folder, made at the first start together with a credential for an
analyst; nobody is let in without a credential. It listens on 127.0.0.1 only, until a configuration
names another address and a certificate. What the command line says goes before the file."""

GARBAGE = 10_000  #: objects more than there were before Python looks for garbage among them

FLAGS = (
    # flag, key, metavar, what it is for
    ("--folder", "folder", "DIR", "data folder: keys, store (default: demur-data)"),
    ("--postgres", "store.postgres", "URL", "keep the store in PostgreSQL; no password here"),
    ("--shard", "store.shard", "N", "which part of the devices this process counts (default: 0)"),
    ("--shards", "store.shards", "N", "how many processes share the database (default: 1)"),
    ("--host", "listen.host", "HOST", "address for devices and gateways (default: 127.0.0.1)"),
    ("--port", "listen.port", "P", "port for devices and gateways (default: a free one)"),
    ("--analyst-host", "listen.analyst_host", "HOST", "address for analysts (default: the same)"),
    ("--analyst-port", "listen.analyst_port", "P", "port for analysts (default: a free one)"),
    ("--certificate", "tls.certificate", "FILE", "the server's certificate, PEM"),
    ("--key", "tls.key", "FILE", "its private key, PEM"),
    ("--client-ca", "tls.client_ca", "FILE", "callers need a certificate of this CA (mTLS)"),
)


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `serve`."""
    command = subparsers.add_parser(
        "serve", help="run a collector on this machine", description=DESCRIPTION
    )
    command.add_argument("--config", type=Path, metavar="FILE", help="a TOML file")
    for flag, key, metavar, purpose in FLAGS:
        kind: Any = str
        if metavar == "P":
            kind = _port
        elif metavar == "N":
            kind = int
        command.add_argument(flag, dest=key, type=kind, metavar=metavar, help=purpose)
    command.add_argument(
        "--open-access",
        action="store_const",
        const="open",
        dest="access",
        help="authenticate nobody: whoever reaches a port may report or ask; for simulations, on "
        "loopback only",
    )
    command.add_argument(
        "--insecure-plaintext",
        action="store_true",
        default=None,
        dest="insecure_plaintext",
        help="without a certificate, listen beyond this machine all the same: whoever is on the way "
        "reads every credential and report",
    )
    command.add_argument(
        "--verbose", action="store_true", help="log studies, rounds and releases on stderr"
    )
    command.add_argument(
        "--json", action="store_true", help="say where it listens as one JSON object"
    )
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `demur serve`."""
    import logging

    import anyio

    from demur_server.config import load_config
    from demur_server.serve import serve

    keys = [key for _, key, _, _ in FLAGS] + ["access", "insecure_plaintext"]
    config = load_config(options.config, overrides={key: getattr(options, key) for key in keys})
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(message)s",
        level=logging.INFO if options.verbose else logging.WARNING,
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)

    def begin(started: "Started") -> None:
        _collect_less_often()
        (_say_json if options.json else _say)(started)

    async def served() -> None:
        await serve(config, say=begin)

    anyio.run(served)
    return 0


def _collect_less_often() -> None:
    """Have Python look for garbage in cycles less often: it looks at all that open streams hold."""
    import gc

    gc.freeze()  # what there is by now stays for as long as the process
    gc.set_threshold(GARBAGE, 10, 10)


def _say(started: "Started") -> None:
    listening = started.listening
    if started.folder_is_new:
        print(f"made {started.folder}: a backup needs its store and, apart from it, its keys")
    if started.analyst_credential is not None:
        print(f"made a credential for an analyst: {started.analyst_credential}")
    if started.access == "open":
        print("open access: whoever reaches a port may report or ask")
    print(
        f"listening on {listening.collector} for devices, {listening.analyst} for analysts",
        flush=True,
    )


def _say_json(started: "Started") -> None:
    credential = started.analyst_credential
    print(
        json.dumps(
            {
                "collector": started.listening.collector,
                "analyst": started.listening.analyst,
                "folder": str(started.folder),
                "made_folder": started.folder_is_new,
                "store": started.store,
                "access": started.access,
                "made_analyst_credential": None if credential is None else str(credential),
            }
        ),
        flush=True,
    )


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return port
