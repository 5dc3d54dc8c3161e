"""Synthetic graphs over sentences with topics."""
