"""Graph convolutions against the matrix products of the paper."""
