"""Encode sequences longer than the encoder's limit, as overlapping windows (ATLOP has two).

Each window begins with the sequence's first token and ends with its last one, as in training.
Between them, windows are equally long and evenly spaced, and overlap as far as needed. The state
of a token is the mean over its windows; attention rows are summed and renormalized.

Shape letters: R sequences, L padded length, W windows, S longest window, D width,
H heads, J requested rows of each sequence.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from raybio.core.batch import IGNORED_LABEL, PackedTokens, PaddedTokens, TokenBatch, to_device
from raybio.methods.mtb_mccl.attention import StatesAndAttention
from raybio.ops.segments import indptr_from_lengths, positions_within

_EPSILON = 1e-10

EncodePadded = Callable[[PaddedTokens], StatesAndAttention]
EncodePacked = Callable[[PackedTokens], StatesAndAttention]


def read_in_windows(
    encode: EncodePadded, tokens: PaddedTokens, num_tokens_R: list[int], window: int, *, pad_id: int
) -> StatesAndAttention:
    """Apply ``encode`` to sequences of any length, in windows of at most ``window`` tokens.

    Args:
        encode: encodes sequences that are no longer than a window.
        tokens: the sequences.
        num_tokens_R: tokens of each of them, on the host.
        window: longest window.
        pad_id: token id of padding.
    """
    if max(num_tokens_R) > window:
        windows = _Windows(num_tokens_R, window, tokens.token_RL.device)
        encoded = encode(windows.padded(tokens, pad_id))
        return windows.joined(encoded, tokens.token_RL.shape[1])
    length = min(tokens.token_RL.shape[1], window)
    encoded = encode(
        PaddedTokens(
            *(part[:, :length] for part in (tokens.token_RL, tokens.mask_RL, tokens.label_RL))
        )
    )
    missing = tokens.token_RL.shape[1] - length
    if not missing:
        return encoded

    def padded_rows(position_RJ: Tensor) -> Tensor:
        return torch.nn.functional.pad(encoded.attention_rows(position_RJ), (0, missing))

    return StatesAndAttention(
        torch.nn.functional.pad(encoded.hidden_RLD, (0, 0, 0, missing)), padded_rows
    )


def read_packed_in_windows(
    encode: EncodePacked, tokens: PackedTokens, num_tokens_R: list[int], window: int
) -> StatesAndAttention:
    """Apply ``encode`` to packed sequences, at least one of which is longer than ``window``.

    Args:
        encode: encodes packed sequences that are no longer than a window; its states are (T, D).
        tokens: the sequences.
        num_tokens_R: tokens of each of them, on the host.
        window: longest window.

    Returns:
        A rectangle, whose L is the longest length.
    """
    windows = _Windows(num_tokens_R, window, tokens.token_T.device)
    packed = windows.packed(tokens)
    encoded = encode(packed)
    hidden_WSD = packed.to_rectangle(encoded.hidden_RLD)[: packed.num_rows]
    return windows.joined(StatesAndAttention(hidden_WSD, encoded.attention_rows), tokens.longest)


class _Windows:
    """The windows of some sequences, at least one of which is longer than a window.

    Attributes:
        num_tokens_R: tokens of each sequence, on the host.
        row_W: sequence of each window.
        shift_W: tokens in ``[low, high)`` are ``shift`` positions earlier in the window.
        low_W: first token of the sequence that the window represents.
        high_W: end of these tokens (exclusive).
        size: S.
    """

    def __init__(self, num_tokens_R: Sequence[int], window: int, device: torch.device) -> None:
        spans = [
            (row, *span)
            for row, length in enumerate(num_tokens_R)
            for span in window_spans(length, window)
        ]
        self.num_tokens_R = np.array(num_tokens_R)
        self._span_W4 = np.array(spans)
        self.row_W, self.shift_W, self.low_W, self.high_W = to_device(
            torch.from_numpy(self._span_W4), device
        ).T
        self.size = window

    def padded(self, tokens: PaddedTokens, pad_id: int) -> PaddedTokens:
        """Return the windows of padded sequences as a rectangle (W, S)."""
        num_rows, length = tokens.token_RL.shape
        index = self._index(np.arange(num_rows) * length)
        rectangle = index.pad(torch.arange(index.num_rows), pad_id=0)
        device = tokens.token_RL.device
        index_WS, mask_WS = (
            to_device(part[:, : self.size], device)
            for part in (rectangle.token_RL, rectangle.mask_RL)
        )
        token_WS = tokens.token_RL.flatten()[index_WS].masked_fill(~mask_WS, pad_id)
        return PaddedTokens(token_WS, mask_WS, torch.full_like(token_WS, IGNORED_LABEL))

    def packed(self, tokens: PackedTokens) -> PackedTokens:
        """Return the windows of packed sequences end to end."""
        index = self._index(indptr_from_lengths(self.num_tokens_R)[:-1])
        packed = index.pack(torch.arange(index.num_rows), pad_id=0).to(tokens.token_T.device)
        # Padding behind the windows, which nothing reads, has the first token's id.
        return replace(packed, token_T=tokens.token_T.index_select(0, packed.token_T))

    def _index(self, first_R: np.ndarray) -> TokenBatch:
        """Return the windows on the host, with indices of tokens in place of their ids.

        Args:
            first_R: index of the first token of each sequence.
        """
        row_W, shift_W = self._span_W4[:, :2].T
        length_W = self.num_tokens_R[row_W]
        size_W = np.minimum(length_W, self.size)
        indptr_W1 = indptr_from_lengths(size_W)
        position_T = positions_within(size_W) + np.repeat(shift_W, size_W)
        position_T[indptr_W1[:-1]] = 0
        position_T[indptr_W1[1:] - 1] = length_W - 1
        return TokenBatch.from_numpy(position_T + np.repeat(first_R[row_W], size_W), indptr_W1)

    def joined(self, encoded: StatesAndAttention, length: int) -> StatesAndAttention:
        """Combine encoded windows into whole sequences.

        Args:
            encoded: states (W, S, D) and attention rows of all windows.
            length: L.
        """
        num_rows = len(self.num_tokens_R)
        index_WL, is_inside_WL = self._index_in_window(length)
        state_WLD = torch.gather(
            encoded.hidden_RLD, 1, index_WL[..., None].expand(-1, -1, encoded.hidden_RLD.shape[2])
        )
        state_WLD = torch.where(is_inside_WL[..., None], state_WLD, 0.0)
        total_RLD = self._sum(state_WLD, num_rows)
        count_RL = self._sum(is_inside_WL.to(total_RLD.dtype), num_rows)
        hidden_RLD = total_RLD / count_RL.clamp(min=1)[..., None]

        def attention_rows(position_RJ: Tensor) -> Tensor:
            position_WJ = position_RJ[self.row_W]
            is_inside_WJ = self._is_inside(position_WJ)
            part_WJHS = encoded.attention_rows(
                torch.where(is_inside_WJ, position_WJ - self.shift_W[:, None], 0)
            )
            index_WJHL = index_WL[:, None, None].expand(-1, *part_WJHS.shape[1:3], -1)
            is_inside_WJL = is_inside_WJ[..., None] & is_inside_WL[:, None]
            part_WJHL = torch.gather(part_WJHS, 3, index_WJHL).where(is_inside_WJL[:, :, None], 0.0)
            sum_RJHL = self._sum(part_WJHL, num_rows)
            return sum_RJHL / (sum_RJHL.sum(-1, keepdim=True) + _EPSILON)

        return StatesAndAttention(hidden_RLD, attention_rows)

    def _is_inside(self, position_WX: Tensor) -> Tensor:
        """Return which positions of its sequence each window represents, bool (W, X)."""
        return (position_WX >= self.low_W[:, None]) & (position_WX < self.high_W[:, None])

    def _index_in_window(self, length: int) -> tuple[Tensor, Tensor]:
        """Return the index in each window of every token, and whether it is inside (W, L)."""
        position_L = torch.arange(length, device=self.row_W.device)
        index_WL = (position_L - self.shift_W[:, None]).clamp(0, self.size - 1)
        return index_WL, self._is_inside(position_L)

    def _sum(self, value_WX: Tensor, num_rows: int) -> Tensor:
        """Return the sums (R, ...) over the windows of each sequence."""
        return value_WX.new_zeros(num_rows, *value_WX.shape[1:]).index_add(0, self.row_W, value_WX)


def window_spans(length: int, window: int) -> list[tuple[int, int, int]]:
    """Return (shift, low, high) of the windows of a sequence.

    Tokens ``low`` to ``high - 1`` of the sequence are ``shift`` positions earlier in the window.
    The first token counts for the first window and the last one for the last window only, although
    all windows contain both.

    Raises:
        ValueError: for windows of fewer than 3 tokens.
    """
    if window < 3:
        raise ValueError(
            f"window is {window}, want at least 3 tokens: the first, the last and one between them"
        )
    inner = length - 2
    room = window - 2
    num_windows = max(math.ceil(inner / room), 1)
    spans = []
    for number in range(num_windows):
        shift = 0
        if num_windows > 1:
            shift = round(number * (inner - room) / (num_windows - 1))
        low = 0 if number == 0 else shift + 1
        high = length if number == num_windows - 1 else shift + room + 1
        spans.append((shift, low, high))
    return spans
