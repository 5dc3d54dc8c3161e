"""Graphlet degree vectors, against looking at every set of two to four nodes."""
