"""Mechanisms that no round can ask for: they are here to be studied and compared."""
