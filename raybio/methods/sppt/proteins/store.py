"""The store of a protein graph: sequences, sorted by species, and their links.

Shape letters: N rows, T residues of all rows end to end.

Stored proteins as tokens: how much of each, and which token stands for a letter.

Shape letters: R sequences, T tokens of them end to end.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from raybio.methods.sppt.graph_store import ROWS, GraphStore, LinkedRows
from raybio.ops.segments import indptr_from_lengths
from raybio.store.columns import ArrowColumn, column_tables
from raybio.store.writer import Draft


class ProteinStore(GraphStore):
    """An open store of proteins and their links; a group is a species."""

    kind = "proteins"

    residues = ArrowColumn(ROWS, "residues")
    """Sequence of each row, a list of bytes."""

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
        draft: where it is made.
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
    tables = column_tables(ProteinStore, rows.columns() | {"residues": sequences})
    return draft.commit(ProteinStore, tables, rows.counts("residues"), provenance)


class HasResidues(Protocol):
    """A store of proteins, linked or labelled."""

    @property
    def residue_T(self) -> np.ndarray:
        """Residues of all rows end to end, uint8."""
        ...

    @property
    def indptr_N1(self) -> np.ndarray:
        """Row n is ``residue_T[indptr_N1[n] : indptr_N1[n + 1]]``."""
        ...


@dataclass(frozen=True)
class TokenTable:
    """What collation needs to know of an encoder's vocabulary: plain numbers."""

    token_id_by_byte: np.ndarray
    cls_id: int
    eos_id: int | None
    mask_id: int
    residue_ids: np.ndarray

    @property
    def num_special(self) -> int:
        """Special tokens that are added to each sequence."""
        return 1 if self.eos_id is None else 2


def tokens_of_rows(
    store: HasResidues,
    row_R: np.ndarray,
    table: TokenTable,
    max_length: int,
    crop: str = "front",
    uniform_R: object = 0.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token ids of stored sequences, cropped.

    Args:
        store: an open store.
        row_R: rows to read.
        table: the encoder's vocabulary.
        max_length: most tokens of a sequence, special ones included.
        crop: ``front``, ``back``, ``ends`` (by chance one of the two) or ``random`` (any window).
        uniform_R: chance in [0, 1) of each row, for the crops that need it.

    Returns:
        tokens (T,), row pointers (R + 1,) and whether each token is a special one (T,).
    """
    length_R = store.indptr_N1[row_R + 1] - store.indptr_N1[row_R]
    kept_R = np.minimum(length_R, max_length - table.num_special)
    slack_R, chance_R = length_R - kept_R, np.broadcast_to(np.asarray(uniform_R), length_R.shape)
    skipped_R = {
        "front": np.zeros_like(slack_R),
        "back": slack_R,
        "ends": np.where(chance_R < 0.5, 0, slack_R),
        "random": np.floor(chance_R * (slack_R + 1)).astype(np.int64),
    }[crop]
    indptr_R1 = indptr_from_lengths(kept_R + table.num_special)
    token_T = np.empty(indptr_R1[-1], dtype=np.uint8)
    is_special_T = np.zeros(indptr_R1[-1], dtype=bool)
    is_special_T[indptr_R1[:-1]] = True
    token_T[indptr_R1[:-1]] = table.cls_id
    if table.eos_id is not None:
        is_special_T[indptr_R1[1:] - 1] = True
        token_T[indptr_R1[1:] - 1] = table.eos_id
    source_R = store.indptr_N1[row_R] + skipped_R
    within_T = np.arange(kept_R.sum()) - np.repeat(np.cumsum(kept_R) - kept_R, kept_R)
    token_T[~is_special_T] = table.token_id_by_byte[
        store.residue_T[np.repeat(source_R, kept_R) + within_T]
    ]
    return token_T, indptr_R1, is_special_T


@dataclass(frozen=True)
class ProteinRows:
    """Rows of a store as tokens; a ``collate.ReadRows``.

    Attributes:
        store: where they are.
        table: the encoder's vocabulary.
        max_length: most tokens of a sequence, special ones included.
        crop: which part of a longer one is kept.
    """

    store: HasResidues
    table: TokenTable
    max_length: int
    crop: str = "front"

    @property
    def mask_id(self) -> int:
        """Token id of a masked residue."""
        return self.table.mask_id

    @property
    def ordinary_ids(self) -> np.ndarray:
        """Token ids of all residues."""
        return self.table.residue_ids

    def __call__(
        self, row_R: np.ndarray, chance_R: object = 0.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, pointers and whether each token is a special one; ``chance_R`` decides on crops."""
        return tokens_of_rows(self.store, row_R, self.table, self.max_length, self.crop, chance_R)
