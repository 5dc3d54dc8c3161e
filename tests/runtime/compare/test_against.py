"""Scores against a numeric setting: which pictures there are, and the numbers that they show."""
