"""Comparing runs: which are meant, which may be compared, and what the report says of differences that are known."""
