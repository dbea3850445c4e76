"""The command `demur` where only a device is installed: the distribution `demur-device`."""

import sys
from collections.abc import Sequence

from demur_client.command_line import Commands, run_command

DEVICE_COMMANDS: Commands = {
    "device": ("demur_client.device_command", "run one person's device", ""),
    "budget": ("demur_client.commands", "say what a privacy budget buys", ""),
    "check-vectors": ("demur_client.commands", "check against vector files", ""),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 is success, 2 bad usage, 1 anything else."""
    return run_command(DEVICE_COMMANDS, arguments)


if __name__ == "__main__":
    sys.exit(main())
