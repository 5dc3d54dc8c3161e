"""The store of a protein graph: sequences, sorted by species, and their links.

Shape letters: N rows, T residues of all rows.
"""

from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import pyarrow as pa

from raybio.methods.sppt.graph_store import ROWS, GraphStore, LinkedRows
from raybio.store.columns import ArrowColumn, NumberColumn, column_tables
from raybio.store.writer import Draft

CLUSTERS = "clusters.arrow"


class ProteinStore(GraphStore):
    """An open store of proteins and their links; a group is a species."""

    kind = "proteins"

    inputs_are: ClassVar[Literal["proteins", "texts"]] = "proteins"
    input_fields = ("sequence",)

    residues = ArrowColumn(ROWS, "residues")
    """Sequence of each row, a list of bytes."""

    cluster_N = NumberColumn(CLUSTERS, "cluster")
    """Cluster of relatives of each row, see ``clusters.py``."""

    def inputs(self, field: str, start: int, end: int) -> tuple[pa.Array, pa.Array]:
        """Return ids and sequences of some proteins."""
        bounds = self.indptr_N1[start : end + 1].tolist()
        sequences = [self.residue_T[i:j].tobytes() for i, j in pairwise(bounds)]
        keys = self.keys.slice(start, end - start).cast(pa.string())
        return keys, pa.array(sequences, pa.large_binary())

    @property
    def has_clusters(self) -> bool:
        """Whether the store was prepared with clusters."""
        return CLUSTERS in self.manifest["files"]

    @cached_property
    def residue_T(self) -> np.ndarray:
        """Residues of all rows end to end: upper-case ASCII, uint8."""
        return self.residues.values.to_numpy(zero_copy_only=True)

    @cached_property
    def indptr_N1(self) -> np.ndarray:
        """Row n is ``residue_T[indptr_N1[n] : indptr_N1[n + 1]]``; int64."""
        return self.residues.offsets.to_numpy(zero_copy_only=True)


def commit_proteins(draft: Draft, rows: LinkedRows, provenance: dict[str, Any]) -> ProteinStore:
    """Write and commit a store of proteins.

    Args:
        draft: folder of the store.
        rows: proteins; their content is upper-case letters.
        provenance: the manifest's account of the input: ``sources``, ``parameters``,
            ``quarantine``.

    Raises:
        StoreError: if the store cannot be written.
    """
    residues = rows.content
    sequences = pa.LargeListArray.from_arrays(
        pa.array(residues.indptr_N1.astype(np.int64, copy=False)), pa.array(residues.value_T)
    )
    assert rows.cluster_N is not None
    more = {"residues": sequences, "cluster_N": rows.cluster_N}
    tables = column_tables(ProteinStore, rows.columns() | more)
    return draft.commit(ProteinStore, tables, rows.counts("residues"), provenance)


class HasResidues(Protocol):
    """A store of proteins, linked or labeled."""

    @property
    def residue_T(self) -> np.ndarray:
        """Residues of all rows end to end, uint8."""
        ...

    @property
    def indptr_N1(self) -> np.ndarray:
        """Row n is ``residue_T[indptr_N1[n] : indptr_N1[n + 1]]``."""
        ...
