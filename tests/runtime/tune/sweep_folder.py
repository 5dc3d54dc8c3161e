"""Search spaces and what trials leave in their folders, without any training."""
