"""What a sweep's driver notes and tracks, and how it ends: its own part, without a training."""
