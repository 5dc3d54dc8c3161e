"""Bulk embedding: every model as its folder says, and parts that break."""
