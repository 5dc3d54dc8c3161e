"""Batches: ragged in, rectangles out, nothing lost on the way."""
