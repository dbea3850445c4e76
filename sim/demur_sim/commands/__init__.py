"""The simulator's commands."""
