"""Several nodes: one that is taken away with notice, one that is just gone, in the middle of a run and of a sweep."""
