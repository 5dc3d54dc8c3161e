"""Scores of supervised tasks, against scikit-learn and scipy."""
