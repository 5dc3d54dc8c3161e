"""Evaluation of models and its reports: scores, unit scores, plots."""
