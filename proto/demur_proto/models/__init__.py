"""Models: what is trained, as both sides must know it."""
