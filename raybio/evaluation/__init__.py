"""Evaluation of models, and reports of it: scores, unit scores, plots."""
