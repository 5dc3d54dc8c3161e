"""Exported models of words, judged together."""
