"""Mechanisms: how a value is noised, what that costs, and how it is undone."""
