"""The command `demur`, with everything.

Imports nothing but the standard library until it knows which command it is, so a device's base
install can run a device's commands.
"""

import sys
from collections.abc import Sequence

from demur_client.cli import DEVICE_COMMANDS
from demur_client.commands.line import Commands, run_command

COMMANDS: Commands = {
    "simulate": ("demur_sim.commands.simulate", "run a scenario on a simulated population", "sim"),
    "train": ("demur_sim.commands.train", "train a model on a simulated population", "sim"),
    "plan": ("demur_sim.commands.plan", "choose budget and question from a public model", "sim"),
    "conformance": ("demur_conformance.command", "try out a device or a collector", ""),
    "serve": ("demur_server.commands.serve", "run a collector on this machine", "server"),
    "certs": ("demur_server.commands.certs", "make certificates for development", "server"),
    "ask": ("demur_server.commands.ask", "ask the devices of a study one question", "server"),
    "close": ("demur_server.commands.close", "close a round that was left open", "server"),
    "admin": ("demur_server.commands.admin", "look into a collector's store", "server"),
    "check-vectors": ("demur_conformance.check_vectors", "check against vector files", ""),
    **DEVICE_COMMANDS,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 is success, 2 bad usage, 1 anything else."""
    return run_command(COMMANDS, arguments)


if __name__ == "__main__":
    sys.exit(main())
