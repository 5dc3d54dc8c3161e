"""Graphs as arrays: neighbours, exact negatives, held-out links."""

from raybio.graphs.csr import Graph
from raybio.graphs.splits import hold_out_links

__all__ = ["Graph", "hold_out_links"]
