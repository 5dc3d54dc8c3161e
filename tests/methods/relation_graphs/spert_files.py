"""Small files in SpERT's layout."""
