"""A cross-validation as a sweep."""
