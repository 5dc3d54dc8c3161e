"""Warnings of worker processes: they reach the file that the driver follows, and from there the user."""
