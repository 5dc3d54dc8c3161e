"""What of a source reaches the store of articles, and what becomes of input that is none."""
