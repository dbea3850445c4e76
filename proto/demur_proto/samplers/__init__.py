"""Exact samplers: integers whose law is certified, drawn from uniform bits."""
