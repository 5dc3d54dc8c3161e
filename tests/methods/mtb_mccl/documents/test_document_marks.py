"""Markers around mentions, against a slow writer of nested brackets."""
