"""Means over folds beside the published ones."""
