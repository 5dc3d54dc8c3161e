"""Stored proteins as tokens: the crop of each sequence, and the token id of each letter.

Shape letters: R sequences, T their tokens.
"""

from dataclasses import dataclass

import numpy as np

from raybio.core.errors import ConfigError
from raybio.methods.sppt.proteins.store import HasResidues
from raybio.methods.sppt.proteins.vocabulary import Vocabulary
from raybio.ops.segments import indptr_from_lengths, positions_within
from raybio.store.prefetch import request_slices


@dataclass(frozen=True)
class TokenTable:
    """The part of a ``Vocabulary`` that collation needs, as plain numbers.

    Attributes:
        token_id_by_byte: token id of each letter's byte (256,).
        cls_id: id before every sequence, or None.
        eos_id: id after every sequence, or None.
        mask_id: id of a masked residue, or None.
        residue_ids: ids of the standard amino acids.
    """

    token_id_by_byte: np.ndarray
    cls_id: int | None
    eos_id: int | None
    mask_id: int | None
    residue_ids: np.ndarray

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> "TokenTable":
        """Return the table of a vocabulary."""
        return cls(
            token_id_by_byte=vocabulary.token_id_by_byte,
            cls_id=vocabulary.cls_id,
            eos_id=vocabulary.eos_id,
            mask_id=vocabulary.mask_id,
            residue_ids=vocabulary.residue_ids,
        )

    @property
    def num_special(self) -> int:
        """Number of special tokens that are added to each sequence."""
        return sum(special is not None for special in (self.cls_id, self.eos_id))


def tokens_of_rows(
    store: HasResidues,
    row_R: np.ndarray,
    table: TokenTable,
    max_length: int,
    crop: str = "front",
    uniform_R: object = 0.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens of stored sequences, cropped to a maximum length.

    Args:
        store: an open store.
        row_R: rows to read.
        table: the encoder's vocabulary.
        max_length: most tokens of a sequence, special ones included.
        crop: ``front``, ``ends`` (randomly the front or the back) or ``random`` (any window).
        uniform_R: random number in [0, 1) of each row, for crops that need it.

    Returns:
        Tokens (T,), row pointers (R + 1,) and which tokens are special, bool (T,).
    """
    length_R = store.indptr_N1[row_R + 1] - store.indptr_N1[row_R]
    kept_R = np.minimum(length_R, max_length - table.num_special)
    surplus_R = length_R - kept_R
    random_R = np.broadcast_to(np.asarray(uniform_R), length_R.shape)
    skipped_R = {
        "front": np.zeros_like(surplus_R),
        "ends": np.where(random_R < 0.5, 0, surplus_R),
        "random": np.floor(random_R * (surplus_R + 1)).astype(np.int64),
    }[crop]
    indptr_R1 = indptr_from_lengths(kept_R + table.num_special)
    token_T = np.empty(indptr_R1[-1], dtype=np.uint8)
    is_special_T = np.zeros(indptr_R1[-1], dtype=bool)
    if table.cls_id is not None:
        is_special_T[indptr_R1[:-1]] = True
        token_T[indptr_R1[:-1]] = table.cls_id
    if table.eos_id is not None:
        is_special_T[indptr_R1[1:] - 1] = True
        token_T[indptr_R1[1:] - 1] = table.eos_id
    source_R = store.indptr_N1[row_R] + skipped_R
    request_slices(store.residue_T, source_R, source_R + kept_R)
    token_T[~is_special_T] = table.token_id_by_byte[
        store.residue_T[np.repeat(source_R, kept_R) + positions_within(kept_R)]
    ]
    return token_T, indptr_R1, is_special_T


@dataclass(frozen=True)
class ProteinRows:
    """Rows of a store as tokens; a ``raybio.methods.sppt.collate.ReadRows``.

    Attributes:
        store: the stored proteins.
        table: the encoder's vocabulary.
        max_length: most tokens of a sequence, special ones included.
        crop: part of a longer sequence that is kept.
    """

    store: HasResidues
    table: TokenTable
    max_length: int
    crop: str = "front"

    @property
    def mask_id(self) -> int:
        """Token id of a masked residue.

        Raises:
            ConfigError: if the encoder has none.
        """
        if self.table.mask_id is None:
            raise ConfigError(
                "encoder.source: its tokenizer has no mask token, as that of a T5; residues cannot "
                "be masked"
            )
        return self.table.mask_id

    @property
    def ordinary_ids(self) -> np.ndarray:
        """Token ids of all residues."""
        return self.table.residue_ids

    def __call__(
        self, row_R: np.ndarray, chance_R: object = 0.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return tokens, row pointers and which tokens are special; ``chance_R`` decides crops."""
        return tokens_of_rows(self.store, row_R, self.table, self.max_length, self.crop, chance_R)

    def lengths(self, row_R: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each row (R,), int64."""
        length_R = self.store.indptr_N1[row_R + 1] - self.store.indptr_N1[row_R]
        return np.minimum(length_R + self.table.num_special, self.max_length)
