"""The command `demur close`."""

import argparse
import json
from typing import TYPE_CHECKING

from demur_server.commands.ask import add_place, place_of

if TYPE_CHECKING:
    from demur_proto.release import Release


DESCRIPTION = """\
Close a round that was left open, for ever, and print its release: one whose reports did not come in time, or
whose question was interrupted. `demur admin rounds` lists rounds with their hashes. A round that is
closed already stays as it is, and its release is printed."""


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `close`."""
    command = subparsers.add_parser(
        "close",
        help="close a round that was left open",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("round", metavar="HASH", help="the round's hash; its first 16 digits do")
    command.add_argument(
        "--reports", type=int, default=0, metavar="N", help="wait for so many first (default: 0)"
    )
    command.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="seconds to wait (default: 60)"
    )
    command.add_argument("--json", action="store_true", help="print the release as JSON")
    add_place(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `demur close`."""
    import anyio

    from demur_server.formatting import release_table, told

    round_hash = _hash_of(options.round)

    async def close() -> "Release":
        from demur_server.analyst_calls import close_round

        return await close_round(
            round_hash=round_hash,
            after_reports=options.reports,
            timeout_s=options.timeout,
            **place_of(options),
        )

    release = anyio.run(close)
    if options.json:
        print(json.dumps(release_table(release)))
    else:
        print(
            told(
                f"round {release.round_hash.hex()[:16]}",
                release,
                histogram=bool(release.low_end.size),
            )
        )
    return 0


def _hash_of(text: str) -> bytes:
    from demur_proto.errors import ParameterError

    try:
        round_hash = bytes.fromhex(text)
    except ValueError:
        round_hash = b""
    if not 8 <= len(round_hash) <= 32:
        raise ParameterError(
            "round", text, "a hash, or 16 or more of its digits, as `demur admin rounds` lists them"
        )
    return round_hash
