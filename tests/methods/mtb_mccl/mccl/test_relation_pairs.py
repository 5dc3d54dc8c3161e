"""Labelled pairs: which keep their label, which classes they have, which documents make a step."""
