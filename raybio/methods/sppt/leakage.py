"""Leakage: the share of a graph's held-out links that can be looked up in its training links.

Park and Marcotte, "Flaws in evaluation schemes for pair-input computational predictions" (2012):
a prediction for a pair is easier the more of its ends the training has seen. Here an end is seen if
it, or a relative of it, has a training link. Relatives of texts are their copies.

- C1: both ends are seen; C2: one is; C3: none is.
- A link has a *twin* if a training link connects the same two clusters of relatives.

Shape letters: N nodes, E held-out links, W distinct pairs of clusters of held-out links, L training
links from both ends.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raybio.methods.sppt.graph.csr import Graph

LINKS_AT_ONCE = 1 << 21


class LinkClasses(NamedTuple):
    """Classes of held-out links, by what training shows of their ends.

    Attributes:
        num_seen_E: number of ends that have a training link, or a relative with one: 0, 1 or 2.
        has_twin_E: whether a training link connects relatives of both ends.
    """

    num_seen_E: NDArray[np.int64]
    has_twin_E: NDArray[np.bool_]

    def counts(self) -> dict[str, int]:
        """Return the numbers of links by class, for a manifest."""
        return {
            "links": len(self.num_seen_E),
            "with_twin": int(self.has_twin_E.sum()),
            "c1": int((self.num_seen_E == 2).sum()),
            "c2": int((self.num_seen_E == 1).sum()),
            "c3": int((self.num_seen_E == 0).sum()),
        }

    def parts(self, heldout_E2: np.ndarray) -> dict[str, np.ndarray]:
        """Return the links of each class by name of a split; omit classes with all or no links.

        Args:
            heldout_E2: the held-out links.
        """
        is_in_part = {
            "no_twins": ~self.has_twin_E,
            "c1": self.num_seen_E == 2,
            "c2": self.num_seen_E == 1,
            "c3": self.num_seen_E == 0,
        }
        return {
            name: heldout_E2[is_in_E]
            for name, is_in_E in is_in_part.items()
            if 0 < is_in_E.sum() < len(heldout_E2)
        }


def link_classes(graph: Graph, heldout_E2: np.ndarray, cluster_N: np.ndarray) -> LinkClasses:
    """Return the classes of held-out links.

    Args:
        graph: the training links.
        heldout_E2: held-out links.
        cluster_N: cluster of relatives of each node.
    """
    num_clusters = int(cluster_N.max(initial=-1)) + 1
    is_seen_C = np.zeros(num_clusters, bool)
    is_seen_C[cluster_N[graph.degree_N > 0]] = True
    ends_E2 = cluster_N[heldout_E2]
    wanted_E = ends_E2[:, 0].astype(np.int64) * num_clusters + ends_E2[:, 1]
    wanted_W, index_E = np.unique(wanted_E, return_inverse=True)
    is_known_W = np.zeros(len(wanted_W), bool)
    entries = np.arange(LINKS_AT_ONCE, len(graph.indices), LINKS_AT_ONCE)
    bounds = np.unique([0, *np.searchsorted(graph.indptr, entries), graph.num_nodes])
    for first, end in pairwise(bounds.tolist()):
        source_L = np.repeat(cluster_N[first:end], graph.degree_N[first:end])
        target_L = cluster_N[graph.indices[graph.indptr[first] : graph.indptr[end]]]
        # Both directions of a training link are listed, so one order of the ends is enough.
        known_L = source_L.astype(np.int64) * num_clusters + target_L
        is_known_W |= np.isin(wanted_W, known_L)
    return LinkClasses(is_seen_C[ends_E2].sum(axis=1).astype(np.int64), is_known_W[index_E])
