"""Channels, calls and credentials: the only place with sockets and files."""
