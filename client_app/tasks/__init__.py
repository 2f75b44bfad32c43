"""Tasks: how records become batches, a loss and metrics."""
