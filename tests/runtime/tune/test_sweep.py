"""Sweeps: trials that are stopped, fail, are killed, or go on from others; all of them end, and nothing is left."""
