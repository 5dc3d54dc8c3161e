"""Retrieval: the nearest of many stored vectors, exactly or by an index."""
