"""One module for each step, never changed once released."""
