"""Continual counting: running counts whose noise is correlated over rounds."""
