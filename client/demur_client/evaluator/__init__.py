"""Evaluating an owner's data where nothing that happens to the evaluation shows outside."""
