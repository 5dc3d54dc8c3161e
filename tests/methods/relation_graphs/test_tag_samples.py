"""Samples of CLNER: own tag first, then the other tags evenly."""
