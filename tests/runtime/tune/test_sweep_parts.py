"""The parts of a sweep that need no cluster: what has room, what came out of it, and the report."""
