"""Tiny text checkpoints of several architectures, made on the spot."""
