"""Typed, frozen batches of token sequences, as the loader hands them to the training step.

Shape letters: R sequences of a batch, T tokens of all sequences end to end, M selected sequences, L
padded length.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

IGNORED_LABEL = -100
"""Label of a token that is not predicted."""

PADDING_MULTIPLE = 8
"""Padded lengths are rounded up to a multiple of this."""


class Batch:
    """Base class of batches; fields are flat arrays, so that a batch travels through Arrow."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Build a batch from named numpy arrays; integers widen to int64, other dtypes stay."""
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: _tensor(arrays[name]) for name in names})

    def to(self, device: torch.device | str) -> Self:
        """Return the same batch on ``device``."""
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in self._tensors()}
        return type(self)(**moved)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            yield field.name, getattr(self, field.name)


@dataclass(frozen=True)
class PaddedTokens:
    """Some sequences of a batch as a rectangle, ready for an encoder.

    Attributes:
        token_RL: token ids, padded with the pad id.
        mask_RL: True at real tokens.
        label_RL: token ids to predict, ``IGNORED_LABEL`` elsewhere.
    """

    token_RL: Tensor
    mask_RL: Tensor
    label_RL: Tensor


@dataclass(frozen=True)
class TokenBatch(Batch):
    """Ragged token sequences with the labels of masked language modeling.

    Attributes:
        token_T: token ids, all sequences end to end, special tokens included.
        indptr_R1: sequence r is ``token_T[indptr_R1[r] : indptr_R1[r + 1]]``.
        label_T: the original id where a token was masked for prediction, else ``IGNORED_LABEL``.
    """

    token_T: Tensor
    indptr_R1: Tensor
    label_T: Tensor

    @property
    def num_rows(self) -> int:
        """Number of sequences."""
        return len(self.indptr_R1) - 1

    @property
    def length_R(self) -> Tensor:
        """Number of tokens of each sequence."""
        return self.indptr_R1.diff()

    @property
    def num_embeddings(self) -> int:
        """Number of embeddings that an encoder returns for the whole batch."""
        return self.num_rows

    def embedding_rows(self, row_M: Tensor) -> Tensor:
        """Return which embeddings of the whole batch belong to sequences ``row_M``."""
        return row_M

    def pad(self, row_M: Tensor, pad_id: int) -> PaddedTokens:
        """Return sequences ``row_M`` as a rectangle, padded to a multiple of 8 tokens."""
        start_M = self.indptr_R1[row_M]
        length_M = self.length_R[row_M]
        longest = int(length_M.max())
        padded_length = -(-longest // PADDING_MULTIPLE) * PADDING_MULTIPLE
        offset_L = torch.arange(padded_length, device=self.token_T.device)
        mask_ML = offset_L < length_M[:, None]
        index_ML = torch.where(mask_ML, start_M[:, None] + offset_L, 0)
        return PaddedTokens(
            token_RL=self.token_T[index_ML].masked_fill(~mask_ML, pad_id),
            mask_RL=mask_ML,
            label_RL=self.label_T[index_ML].masked_fill(~mask_ML, IGNORED_LABEL),
        )


def shard(rows: np.ndarray, rank: int, world: int) -> np.ndarray:
    """Return the rows of a step that worker ``rank`` of ``world`` handles, a contiguous part."""
    return rows[len(rows) * rank // world : len(rows) * (rank + 1) // world]


def _tensor(array: np.ndarray) -> Tensor:
    array = np.asarray(array)
    if array.dtype.kind in "iu" and array.dtype != np.int64:
        array = array.astype(np.int64)
    # Arrow returns read-only views. torch cannot mark a tensor read-only, so those are copied.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
