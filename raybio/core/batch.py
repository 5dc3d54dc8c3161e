"""Typed, frozen batches of token sequences, as the loader hands them to the training step.

Shape letters: R sequences of a batch, T tokens of all sequences end to end, M selected sequences, L
padded length, K tokens with a label, S sequences of packed tokens, including padding sequences at
the end.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

_Moved = TypeVar("_Moved")

IGNORED_LABEL = -100
"""Label of a token that is not predicted."""

PADDING_MULTIPLE = 8
"""Padded lengths, and the tokens of packed sequences, are rounded up to a multiple of this."""

NUM_STATIC_SIZES = 8
"""Sizes of micro-batches for compiled encoders, at most. Each is compiled once, which takes up to
half a minute; with fewer sizes, more padding is computed."""


class Batch:
    """Base class of batches; fields are flat arrays, so that a batch travels through Arrow."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Build a batch from named numpy arrays; integers widen to int64, other dtypes stay."""
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: _tensor(arrays[name]) for name in names})

    def to(self, device: torch.device | str) -> Self:
        """Return the same batch on ``device``."""
        return _moved(self, torch.device(device))


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

    def to(self, device: torch.device) -> Self:
        """Return the same tokens on ``device``."""
        return _moved(self, device)

    def states_of_labels(self, state_RLX: Tensor) -> Tensor:
        """Return the states (K, X) of the tokens with a label."""
        return state_RLX[self.label_RL != IGNORED_LABEL]

    @property
    def label_K(self) -> Tensor:
        """The labels."""
        return self.label_RL[self.label_RL != IGNORED_LABEL]


@dataclass(frozen=True)
class PackedTokens:
    """Some sequences of a batch, concatenated, with little padding and only at the end.

    All sizes are known on the host, so an encoder never waits for a GPU.

    Attributes:
        token_T: token ids.
        indptr_S1: sequence s is ``token_T[indptr_S1[s] : indptr_S1[s + 1]]``, int32. The padding
            counts as sequences of its own, after the others.
        position_T: position of each token in its sequence.
        row_T: sequence of each token.
        label_index_K: tokens to predict.
        label_K: their labels.
        num_rows: number of sequences, padding sequences excluded.
        longest: number of tokens of the longest sequence.
    """

    token_T: Tensor
    indptr_S1: Tensor
    position_T: Tensor
    row_T: Tensor
    label_index_K: Tensor
    label_K: Tensor
    num_rows: int
    longest: int

    def to(self, device: torch.device) -> Self:
        """Return the same tokens on ``device``."""
        return _moved(self, device)

    def states_of_labels(self, state_TX: Tensor) -> Tensor:
        """Return the states (K, X) of the tokens with a label."""
        return state_TX.index_select(0, self.label_index_K)

    @cached_property
    def mask_SL(self) -> Tensor:
        """True at the tokens of each sequence, in a rectangle."""
        offset_L = torch.arange(self.longest, device=self.token_T.device)
        return offset_L < self.indptr_S1.diff()[:, None]

    @cached_property
    def _index_T(self) -> Tensor:
        """Index of each token in the rectangle, flattened."""
        return self.row_T * self.longest + self.position_T

    def to_rectangle(self, value_TX: Tensor) -> Tensor:
        """Return values of tokens as a rectangle (S, L, X), 0 at padding."""
        num_sequences = len(self.indptr_S1) - 1
        shape = (num_sequences * self.longest, *value_TX.shape[1:])
        flat = value_TX.new_zeros(shape).index_copy(0, self._index_T, value_TX)
        return flat.view(num_sequences, self.longest, *value_TX.shape[1:])

    def from_rectangle(self, value_SLX: Tensor) -> Tensor:
        """Return the values (T, X) of a rectangle at the tokens."""
        return value_SLX.flatten(0, 1).index_select(0, self._index_T)

    def padded(self) -> PaddedTokens:
        """Return the sequences as a rectangle, without the padding at the end."""
        rows = slice(0, self.num_rows)
        label_T = torch.full_like(self.token_T, IGNORED_LABEL)
        label_T = label_T.index_copy(0, self.label_index_K, self.label_K)
        mask_RL = self.mask_SL[rows]
        label_RL = self.to_rectangle(label_T)[rows].masked_fill(~mask_RL, IGNORED_LABEL)
        return PaddedTokens(self.to_rectangle(self.token_T)[rows], mask_RL, label_RL)


class StaticTokens(PackedTokens):
    """Packed tokens for compiled encoders: ``longest`` never differs, T is one of few sizes."""


@dataclass(frozen=True)
class StaticShape:
    """Sizes of ``StaticTokens``.

    Attributes:
        num_tokens: maximum of T.
        longest: maximum number of tokens of a sequence.
    """

    num_tokens: int
    longest: int

    def num_tokens_for(self, num_real: int) -> int:
        """Return T for micro-batches of ``num_real`` tokens: the next of ``NUM_STATIC_SIZES``."""
        multiple = PADDING_MULTIPLE * NUM_STATIC_SIZES
        part = -(-self.num_tokens // multiple) * PADDING_MULTIPLE
        return min(-(-num_real // part) * part, self.num_tokens)


Tokens = PaddedTokens | PackedTokens
"""Input of an encoder."""


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

    @staticmethod
    def from_numpy(
        token_T: np.ndarray, indptr_R1: np.ndarray, label_T: np.ndarray | None = None
    ) -> "TokenBatch":
        """Return a batch of int64 copies; without ``label_T``, no token has a label."""
        if label_T is None:
            label_T = np.full(len(token_T), IGNORED_LABEL, np.int64)
        return TokenBatch(
            token_T=torch.from_numpy(token_T.astype(np.int64)),
            indptr_R1=torch.from_numpy(indptr_R1.astype(np.int64)),
            label_T=torch.from_numpy(label_T),
        )

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
        """Return which embeddings of the whole batch belong to sequences ``row_M``.

        The batch is on the host.
        """
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

    def pack_static(self, row_M: Tensor, pad_id: int, shape: StaticShape) -> StaticTokens:
        """Return sequences ``row_M`` end to end in one of few shapes.

        Raises:
            ValueError: if they do not fit.
        """
        num_tokens = shape.num_tokens_for(int(self.length_R[row_M].sum()))
        packed = self._pack(row_M, pad_id, num_tokens, shape.longest)
        if packed.longest > shape.longest:
            raise ValueError(
                f"a sequence has {packed.longest} tokens, want at most {shape.longest}"
            )
        return StaticTokens(**field_values(packed))

    def pack(self, row_M: Tensor, pad_id: int, *, num_tokens: int | None = None) -> PackedTokens:
        """Return sequences ``row_M`` end to end.

        The batch is on the host. Packing uses numpy only, so all torch operations run on the
        device.

        Args:
            row_M: at least one sequence.
            pad_id: token id of padding.
            num_tokens: T, reached by padding; None: the next multiple of 8.

        Raises:
            ValueError: if the sequences have more tokens.
        """
        return self._pack(row_M, pad_id, num_tokens, 1)

    def _pack(
        self, row_M: Tensor, pad_id: int, num_tokens: int | None, longest: int
    ) -> PackedTokens:
        """Pack as ``pack`` does; padding sequences may have ``longest`` tokens or more."""
        rows = row_M.numpy()
        indptr_R1 = self.indptr_R1.numpy()
        length_M = np.diff(indptr_R1)[rows]
        num_real = int(length_M.sum())
        if num_tokens is None:
            num_tokens = -(-num_real // PADDING_MULTIPLE) * PADDING_MULTIPLE
        if num_real > num_tokens:
            raise ValueError(f"the sequences have {num_real} tokens, want at most {num_tokens}")
        longest = max(int(length_M.max()), longest)
        # No sequence of padding is longer than the others, so that attention does not grow.
        num_full, rest = divmod(num_tokens - num_real, longest)
        length_S = np.concatenate([length_M, [longest] * num_full, [rest] * bool(rest)])
        length_S = length_S.astype(np.int64)
        indptr_S1 = np.concatenate([[0], np.cumsum(length_S)])
        row_T = np.repeat(np.arange(len(length_S)), length_S)
        position_T = np.arange(num_tokens) - indptr_S1[row_T]
        source_K = indptr_R1[rows][row_T[:num_real]] + position_T[:num_real]
        token_T = np.full(num_tokens, pad_id, dtype=np.int64)
        token_T[:num_real] = self.token_T.numpy()[source_K]
        label_K = self.label_T.numpy()[source_K]
        label_index_K = np.flatnonzero(label_K != IGNORED_LABEL)
        return PackedTokens(
            token_T=torch.from_numpy(token_T),
            indptr_S1=torch.from_numpy(indptr_S1.astype(np.int32)),
            position_T=torch.from_numpy(position_T),
            row_T=torch.from_numpy(row_T),
            label_index_K=torch.from_numpy(label_index_K),
            label_K=torch.from_numpy(label_K[label_index_K]),
            num_rows=len(rows),
            longest=longest,
        )


def deal(length_B: np.ndarray, world: int) -> np.ndarray:
    """Return the worker that handles each row of a step (B,), one of 0 to ``world`` - 1.

    All workers wait for the one with the most tokens, so rows are dealt by length, the longest
    first: to workers 0, 1, …, W - 1, then W - 1, …, 1, 0, and so on.

    Args:
        length_B: length of each row of the global batch, in any unit, the same on all workers.
        world: number of workers, W.
    """
    turn_B = np.arange(len(length_B)) % (2 * world)
    worker_B = np.empty_like(turn_B)
    longest_first_B = np.argsort(-np.asarray(length_B), kind="stable")
    worker_B[longest_first_B] = np.minimum(turn_B, 2 * world - 1 - turn_B)
    return worker_B


def field_values(tokens: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, without its cached properties."""
    return {field.name: getattr(tokens, field.name) for field in dataclasses.fields(tokens)}


def _moved(tokens: _Moved, device: torch.device) -> _Moved:
    """Return a copy of a dataclass with its tensors on ``device``; see ``to_device``."""
    moved = field_values(tokens)
    for name, value in moved.items():
        if isinstance(value, Tensor):
            moved[name] = to_device(value, device)
    return type(tokens)(**moved)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on ``device``; copies to a GPU are asynchronous."""
    if tensor.device == device:
        return tensor
    if device.type == "cuda" and tensor.device.type == "cpu":
        # Without pinned memory, the copy would wait for all work queued on the GPU.
        tensor = tensor.pin_memory()
    # An asynchronous copy to the host could be read before it is complete.
    return tensor.to(device, non_blocking=device.type != "cpu")


def _tensor(array: np.ndarray) -> Tensor:
    array = np.asarray(array)
    if array.dtype.kind in "iu" and array.dtype != np.int64:
        array = array.astype(np.int64)
    # Arrow returns read-only views. torch cannot mark a tensor read-only, so those are copied.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
