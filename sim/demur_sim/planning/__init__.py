"""Which budget and which question for a population, chosen from a public model of it."""
