"""Stores of graphs: rows sorted by group, so that a group is one range of them, and their links as CSR.

What a row holds beside its id and group is the business of the kinds of store: ``protein_store.py``,
``linked_text_store.py``.

Shape letters: N rows, E held-out links.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from raybio.data.residues import Ragged
from raybio.data.store import Store, open_store
from raybio.data.store_writer import small
from raybio.errors import StoreError
from raybio.graphs import Graph

ROWS, GROUPS, INDPTR, INDICES, HELDOUT = "rows.arrow", "groups.arrow", "indptr.arrow", "indices.arrow", "heldout.arrow"
FILES = (ROWS, GROUPS, INDPTR, INDICES, HELDOUT)


class GraphStore(Store):
    """An open store of linked rows."""

    @cached_property
    def keys(self) -> pa.Array:
        """Ids of the rows, Arrow strings."""
        return self._rows.column("key")

    @cached_property
    def group_N(self) -> np.ndarray:
        """Group number of each row, int32, ascending."""
        return self._rows.column("group").to_numpy(zero_copy_only=True)

    @cached_property
    def group_names(self) -> list[str]:
        """Name of each group: a species' taxid, for instance."""
        return [str(name) for name in self._groups.column("name").to_pylist()]

    @cached_property
    def group_labels(self) -> list[str]:
        """What people call each group: the species' name where a species table gave it, else the taxid."""
        return [str(label) for label in self._groups.column("label").to_pylist()]

    @cached_property
    def graph(self) -> Graph:
        """The training graph, over mapped CSR arrays."""
        return Graph(self._column(INDPTR), self._column(INDICES), self.group_N)

    @cached_property
    def heldout(self) -> np.ndarray:
        """Held-out links (E, 2), u < v; none of them is in ``graph``."""
        return self._column(HELDOUT).reshape(-1, 2)

    @cached_property
    def _rows(self) -> pa.RecordBatch:
        return self._batch(ROWS)

    @cached_property
    def _groups(self) -> pa.RecordBatch:
        return self._batch(GROUPS)


def open_graph(path: str | Path) -> GraphStore:
    """Open a store of linked rows, whatever they hold.

    Raises:
        StoreError: as ``open_store``, and if it is of a kind without links.
    """
    store = open_store(path, GraphStore)
    if INDPTR not in store.manifest["files"]:
        raise StoreError(
            f"{path}: is a store of {store.manifest['kind']}, which has no links; want proteins or articles"
        )
    return store


@dataclass(frozen=True)
class LinkedRows:
    """What every kind of graph store is written from.

    Attributes:
        keys: id of each row (N,), strings.
        content: bytes of each row: residues, or a text; may be mapped from a file.
        group_N: group number of each row, ascending.
        group_names: name of each group.
        group_labels: what people call it.
        graph: training graph over the rows.
        heldout_E2: links (E, 2) that are kept out of it.

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

    def __post_init__(self) -> None:
        if len(self.group_N) and (np.diff(self.group_N) < 0).any():
            raise StoreError("group_N: rows must be sorted by group before they are written")

    def tables(self, **content: pa.Array) -> dict[str, dict[str, pa.Array]]:
        """The files that all kinds have; ``content``: a kind's own columns of the rows."""
        strings = pa.string()
        return {
            ROWS: {"key": self.keys.cast(pa.large_string()), "group": pa.array(small(self.group_N)), **content},
            GROUPS: {"name": pa.array(self.group_names, strings), "label": pa.array(self.group_labels, strings)},
            INDPTR: {"indptr": pa.array(small(self.graph.indptr))},
            INDICES: {"indices": pa.array(small(self.graph.indices))},
            HELDOUT: {"heldout": pa.array(small(np.ascontiguousarray(self.heldout_E2).reshape(-1)))},
        }

    def counts(self, content: str) -> dict[str, int]:
        """What the manifest counts; ``content``: what the bytes of the rows are called."""
        return {
            "rows": len(self.keys),
            content: int(self.content.indptr_N1[-1]),
            "groups": len(self.group_names),
            "links": int(self.graph.num_edges),
            "heldout_links": len(self.heldout_E2),
        }
