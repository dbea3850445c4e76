"""A person's budget: charges, decisions, filters and what is left."""
