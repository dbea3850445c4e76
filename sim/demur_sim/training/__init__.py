"""Training in simulation: people with examples, budgets on devices, and a model that comes of it."""
