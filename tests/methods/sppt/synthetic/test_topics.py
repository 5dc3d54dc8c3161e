"""Sentences and their topics."""
