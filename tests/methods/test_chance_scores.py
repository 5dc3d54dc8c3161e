"""The chance rows of retrieval: exact expectations, compared with the means over many random orders."""
