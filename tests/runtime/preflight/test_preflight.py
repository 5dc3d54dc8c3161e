"""Each look before the start, seen good and bad, with real causes."""
