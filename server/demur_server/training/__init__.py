"""Training on the analyst's side: from released sums of gradients to a model."""
