"""Faults of a sweep's driver: the whole command is killed or stopped, and given again."""
