"""How a population is asked, at every fidelity."""
