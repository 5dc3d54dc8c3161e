"""Tracking while MLflow is away, broken, hanging or locked: a real server, and real faults on the way to it."""
