"""Comparisons: which runs they ask for, and how their table reads. The training itself is tested with the jobs."""
