"""The collector's commands."""

import argparse
import json
import signal

DESCRIPTION = """\
Run a collector on this machine until it is interrupted: devices and gateways reach it on one port,
analysts on another. It keeps everything in memory, so stopping it forgets every study, round and
release. It authenticates nobody: whoever reaches a port may report or ask. Hence it listens on
127.0.0.1 only."""


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `serve`."""
    command = subparsers.add_parser(
        "serve", help="run a collector on this machine", description=DESCRIPTION
    )
    command.add_argument(
        "--port",
        type=_port,
        default=0,
        metavar="P",
        help="port for devices and gateways (default: a free one)",
    )
    command.add_argument(
        "--analyst-port",
        type=_port,
        default=0,
        metavar="P",
        help="port for analysts (default: a free one)",
    )
    command.add_argument(
        "--json", action="store_true", help="say where it listens as one JSON object"
    )
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `demur serve`."""
    import anyio

    return anyio.run(_serve, options.port, options.analyst_port, options.json)


async def _serve(port: int, analyst_port: int, as_json: bool) -> int:
    import anyio

    from demur_server.collector import Collector
    from demur_server.serving import HOST, served
    from demur_server.store.memory import MemoryStore

    collector = Collector(MemoryStore())
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with served(collector, collector_port=port, analyst_port=analyst_port) as ports:
            devices, analysts = f"{HOST}:{ports.collector}", f"{HOST}:{ports.analyst}"
            if as_json:
                print(json.dumps({"collector": devices, "analyst": analysts}), flush=True)
            else:
                print(f"listening on {devices} for devices, {analysts} for analysts", flush=True)
            await anext(signals)
    return 0


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return port
