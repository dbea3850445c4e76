"""The command `demur` where only a device is installed: the distribution `demur-device`."""

import sys
from collections.abc import Sequence

from demur_client.commands.line import Commands, run_command

DEVICE_COMMANDS: Commands = {
    "device": ("demur_client.commands.device", "run one person's device", ""),
    "budget": ("demur_client.commands.budget", "say what a privacy budget buys", ""),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 is success, 2 bad usage, 1 anything else."""
    return run_command(DEVICE_COMMANDS, arguments)


if __name__ == "__main__":
    sys.exit(main())
