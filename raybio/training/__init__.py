"""Training in plain torch: steps, gathering, gradient caching, optimiser, checkpoints and the loop."""
