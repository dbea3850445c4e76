"""A collector's two ports: who may call, and what each call does."""
