"""The store of a protein graph: sequences sorted by group, so that a group is one range of rows, and links as CSR.

Shape letters: N rows, T residues of all rows end to end, E held-out links, M entries of the graph's CSR (two a link).
"""

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from raybio.data.residues import Ragged
from raybio.data.store import Store
from raybio.data.store_writer import Draft, small
from raybio.errors import StoreError
from raybio.graphs import Graph

ROWS, GROUPS, INDPTR, INDICES, HELDOUT = "rows.arrow", "groups.arrow", "indptr.arrow", "indices.arrow", "heldout.arrow"
FILES = (ROWS, GROUPS, INDPTR, INDICES, HELDOUT)


class ProteinStore(Store):
    """An open store of proteins and their links."""

    kind = "proteins"

    @cached_property
    def residue_T(self) -> np.ndarray:
        """Residues of all rows end to end: upper-case ASCII, uint8."""
        return self._rows.column("residues").values.to_numpy(zero_copy_only=True)

    @cached_property
    def indptr_N1(self) -> np.ndarray:
        """Row n is ``residue_T[indptr_N1[n] : indptr_N1[n + 1]]``; int64."""
        return self._rows.column("residues").offsets.to_numpy(zero_copy_only=True)

    @cached_property
    def keys(self) -> pa.Array:
        """Protein ids, Arrow strings."""
        return self._rows.column("key")

    @cached_property
    def group_N(self) -> np.ndarray:
        """Group number of each row, int32, ascending."""
        return self._rows.column("group").to_numpy(zero_copy_only=True)

    @cached_property
    def group_names(self) -> list[str]:
        """Name (taxid) of each group."""
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


def commit_proteins(
    draft: Draft,
    *,
    keys: pa.Array,
    residues: Ragged,
    group_N: np.ndarray,
    group_names: list[str],
    group_labels: list[str],
    graph: Graph,
    heldout_E2: np.ndarray,
    provenance: dict[str, Any],
) -> ProteinStore:
    """Write and commit a store of proteins.

    Args:
        draft: where it is made.
        keys: id of each row (N,), strings.
        residues: upper-case letters of each row; may be mapped from a file.
        group_N: group number of each row, ascending.
        group_names: name of each group.
        group_labels: what people call it.
        graph: training graph over the rows.
        heldout_E2: links (E, 2) that are kept out of it.
        provenance: the manifest's account of the input: ``sources``, ``parameters``, ``quarantine``.

    Raises:
        StoreError: if the rows are not sorted by group, or the store cannot be written.
    """
    if len(group_N) and (np.diff(group_N) < 0).any():
        raise StoreError("group_N: rows must be sorted by group before they are written")
    sequences = pa.LargeListArray.from_arrays(
        pa.array(residues.indptr_N1.astype(np.int64, copy=False)), pa.array(residues.value_T)
    )
    tables = {
        ROWS: {"key": keys.cast(pa.large_string()), "group": pa.array(small(group_N)), "residues": sequences},
        GROUPS: {"name": pa.array(group_names, pa.string()), "label": pa.array(group_labels, pa.string())},
        INDPTR: {"indptr": pa.array(small(graph.indptr))},
        INDICES: {"indices": pa.array(small(graph.indices))},
        HELDOUT: {"heldout": pa.array(small(np.ascontiguousarray(heldout_E2).reshape(-1)))},
    }
    counts = {
        "rows": len(keys),
        "residues": int(residues.indptr_N1[-1]),
        "groups": len(group_names),
        "links": int(graph.num_edges),
        "heldout_links": len(heldout_E2),
    }
    return draft.commit(ProteinStore, tables, counts, provenance)
