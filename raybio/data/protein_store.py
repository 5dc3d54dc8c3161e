"""The store of a protein graph: sequences, sorted by species, and their links.

Shape letters: N rows, T residues of all rows end to end.
"""

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from raybio.data.graph_store import GraphStore, LinkedRows
from raybio.data.store_writer import Draft


class ProteinStore(GraphStore):
    """An open store of proteins and their links; a group is a species."""

    kind = "proteins"

    @cached_property
    def residue_T(self) -> np.ndarray:
        """Residues of all rows end to end: upper-case ASCII, uint8."""
        return self._rows.column("residues").values.to_numpy(zero_copy_only=True)

    @cached_property
    def indptr_N1(self) -> np.ndarray:
        """Row n is ``residue_T[indptr_N1[n] : indptr_N1[n + 1]]``; int64."""
        return self._rows.column("residues").offsets.to_numpy(zero_copy_only=True)


def commit_proteins(draft: Draft, rows: LinkedRows, provenance: dict[str, Any]) -> ProteinStore:
    """Write and commit a store of proteins.

    Args:
        draft: where it is made.
        rows: proteins; their content is upper-case letters.
        provenance: the manifest's account of the input: ``sources``, ``parameters``, ``quarantine``.

    Raises:
        StoreError: if the store cannot be written.
    """
    residues = rows.content
    sequences = pa.LargeListArray.from_arrays(
        pa.array(residues.indptr_N1.astype(np.int64, copy=False)), pa.array(residues.value_T)
    )
    return draft.commit(ProteinStore, rows.tables(residues=sequences), rows.counts("residues"), provenance)
