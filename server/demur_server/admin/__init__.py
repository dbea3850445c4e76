"""What the people who run a collector do beside it."""
