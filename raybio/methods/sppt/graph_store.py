"""Stores of linked rows: rows sorted by group, so that a group is a range, and links as CSR.

Each kind of store adds the content of its rows: ``proteins/store.py``, ``articles/store.py``.

Shape letters: N rows, L directed links, E held-out links.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from raybio.core.errors import ConfigError, StoreError
from raybio.core.extras import from_extra
from raybio.core.location import Location
from raybio.methods.sppt.graph.csr import Graph
from raybio.store.columns import ArrowColumn, NumberColumn, TextColumn
from raybio.store.manifest import PREPARED_BY, kind_and_command
from raybio.store.ragged import Ragged
from raybio.store.store import Store, open_store

if TYPE_CHECKING:
    from torch_geometric.data import Data

ROWS = "rows.arrow"
GROUPS = "groups.arrow"
INDPTR = "indptr.arrow"
INDICES = "indices.arrow"
HELDOUT = "heldout.arrow"


class GraphStore(Store):
    """An open store of linked rows."""

    keys = ArrowColumn(ROWS, "key", pa.large_string())
    """Ids of the rows."""

    group_N = NumberColumn(ROWS, "group")
    """Group number of each row, int32, ascending."""

    group_names = TextColumn(GROUPS, "name")
    """Name of each group: a species' taxid, for instance."""

    group_labels = TextColumn(GROUPS, "label")
    """Display name of each group: the species' name if a table gave it, else the taxid."""

    link_indptr_N1 = NumberColumn(INDPTR, "indptr")
    link_index_L = NumberColumn(INDICES, "indices")

    heldout = NumberColumn(HELDOUT, "heldout", width=2)
    """Held-out links (E, 2), u < v; none of them is in ``graph``."""

    @cached_property
    def graph(self) -> Graph:
        """The training graph, over mapped CSR arrays."""
        return Graph(self.link_indptr_N1, self.link_index_L, self.group_N)

    def groups_of(self, row_R: np.ndarray) -> list[str]:
        """Return the display name of each row's group."""
        return [self.group_labels[group] for group in self.group_N[row_R].tolist()]

    def links_of(self, row_R: np.ndarray) -> dict[str, list[list[str]]]:
        """Return the keys that each row is linked to, in training and held out."""
        heldout = Graph.from_edges(self.heldout, self.num_rows)
        return {
            kind: [
                self.keys.take(pa.array(graph.indices[start:end])).to_pylist()
                for start, end in zip(graph.indptr[row_R], graph.indptr[row_R + 1], strict=True)
            ]
            for kind, graph in (("link", self.graph), ("held-out link", heldout))
        }

    def to_pyg(self, split: Literal["train", "heldout"] = "train") -> "Data":
        """Return the graph as ``torch_geometric.data.Data``, in memory.

        Args:
            split: the links: those of training, or the held-out ones.

        Returns:
            ``edge_index`` (2, L) with both directions of each link, sorted, int64; ``group`` (N,),
            int64; ``group_names`` and ``ids``, lists of texts; ``num_nodes``, N.

        Raises:
            ConfigError: for another split, or if torch-geometric is not installed.
        """
        if split not in ("train", "heldout"):
            raise ConfigError(f"split: got {split!r}, want 'train' or 'heldout'")
        # Imported here: it takes seconds to import.
        import torch

        with from_extra("torch-geometric", "graphs"):
            from torch_geometric.data import Data

        graph = self.graph
        if split == "heldout":
            graph = Graph.from_edges(self.heldout, self.num_rows)
        source_L = np.repeat(np.arange(self.num_rows), graph.degree_N)
        return Data(
            edge_index=torch.from_numpy(np.stack([source_L, graph.indices]).astype(np.int64)),
            group=torch.from_numpy(self.group_N.astype(np.int64)),
            group_names=list(self.group_names),
            ids=self.keys.to_pylist(),
            num_nodes=self.num_rows,
        )


def open_graph(path: str | Location) -> GraphStore:
    """Open a store of linked rows of any kind.

    Raises:
        StoreError: as ``open_store``, and if it is of a kind without links.
    """
    store = open_store(path, GraphStore)
    if INDPTR not in store.manifest["files"]:
        raise StoreError(
            f"{path}: is a store of {kind_and_command(store.manifest['kind'])}, which has no "
            f"links; want proteins or articles ({PREPARED_BY['proteins']} or "
            f"{PREPARED_BY['linked texts']})"
        )
    return store


@dataclass(frozen=True)
class LinkedRows:
    """The part of a graph store that all kinds have, in memory or mapped.

    Attributes:
        keys: id of each row (N,), strings.
        content: bytes of each row: residues, or a text; may be mapped from a file.
        group_N: group number of each row, ascending.
        group_names: name of each group.
        group_labels: display name of each group.
        graph: training graph over the rows.
        heldout_E2: links (E, 2) that are kept out of it.
        cluster_N: cluster of relatives of each row; None: rows are not clustered.

    Raises:
        StoreError: if the rows are not sorted by group.
    """

    keys: pa.Array
    content: Ragged
    group_N: np.ndarray
    group_names: list[str]
    group_labels: list[str]
    graph: Graph
    heldout_E2: np.ndarray
    cluster_N: np.ndarray | None = None

    def __post_init__(self) -> None:
        if len(self.group_N) and (np.diff(self.group_N) < 0).any():
            raise StoreError("group_N: rows must be sorted by group before they are written")

    def columns(self) -> dict[str, Any]:
        """Return the values of the columns that every ``GraphStore`` declares, by attribute."""
        return {
            "keys": self.keys,
            "group_N": self.group_N,
            "group_names": self.group_names,
            "group_labels": self.group_labels,
            "link_indptr_N1": self.graph.indptr,
            "link_index_L": self.graph.indices,
            "heldout": self.heldout_E2,
        }

    def counts(self, content: str) -> dict[str, int]:
        """Return the manifest's counts; ``content`` names the rows' bytes, such as "residues"."""
        return {
            "rows": len(self.keys),
            content: int(self.content.indptr_N1[-1]),
            "groups": len(self.group_names),
            "links": int(self.graph.num_edges),
            "heldout_links": len(self.heldout_E2),
        }
