"""Where studies, rounds, sums and releases are kept."""
