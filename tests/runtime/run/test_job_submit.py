"""``ray job submit`` against a head node with token authentication."""
