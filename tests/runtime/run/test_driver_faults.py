"""Faults of the driver: the whole command is killed, stopped or interrupted, and given again."""
