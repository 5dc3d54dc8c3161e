"""What Ray Data parses or counts is what one process does."""
