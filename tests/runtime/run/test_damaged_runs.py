"""Whole runs whose files were damaged between two starts."""
