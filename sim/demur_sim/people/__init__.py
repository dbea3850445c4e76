"""Who the simulated people are, and who of them is there."""
