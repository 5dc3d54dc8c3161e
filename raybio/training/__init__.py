"""Training in plain torch: steps, collectives, gradient caching, optimiser, checkpoints, loop."""
