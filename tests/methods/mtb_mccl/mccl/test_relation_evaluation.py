"""An exported relation model, read again and judged, and the command that does it."""
