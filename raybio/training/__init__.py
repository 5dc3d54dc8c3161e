"""Training in plain torch: steps, collectives, gradient caching, optimizer, checkpoints, loop."""
