"""Baselines of the probe on a small benchmark in MedLAMA's layout, with models of which the right figures are known."""
