"""The collector: studies, rounds, exact sums and releases, without a socket."""
