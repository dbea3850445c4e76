"""Running counts, whose noise is correlated over rounds: segments, factorisations, estimates."""
