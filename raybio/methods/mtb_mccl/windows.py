"""Encode sequences longer than the encoder's limit, as overlapping windows (ATLOP has two).

Each window begins with the sequence's first token and ends with its last one, as in training.
Between them, windows are equally long and evenly spaced, and overlap as far as needed. The state
of a token is the mean over its windows; attention rows are summed and renormalized.

Shape letters: R sequences, L padded length, W windows, S padded length of a window, D width,
H heads, K requested rows, X (row, window) combinations.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from raybio.core.batch import IGNORED_LABEL, PADDING_MULTIPLE, PaddedTokens
from raybio.methods.mtb_mccl.attention import StatesAndAttention

_EPSILON = 1e-10

Encode = Callable[[PaddedTokens], StatesAndAttention]


def read_in_windows(encode: Encode, tokens: PaddedTokens, window: int) -> StatesAndAttention:
    """Apply ``encode`` to sequences of any length, in windows of at most ``window`` tokens."""
    length_R = tokens.mask_RL.sum(1)
    if int(length_R.max()) > window:
        return _Windows(tokens, length_R.tolist(), window).encode(encode)
    length = min(tokens.token_RL.shape[1], window)
    encoded = encode(
        PaddedTokens(
            *(part[:, :length] for part in (tokens.token_RL, tokens.mask_RL, tokens.label_RL))
        )
    )
    missing = tokens.token_RL.shape[1] - length
    if not missing:
        return encoded

    def padded_rows(row_K: Tensor, position_K: Tensor) -> Tensor:
        attention_KHL = encoded.attention_rows(row_K, position_K)
        return torch.nn.functional.pad(attention_KHL, (0, missing))

    return StatesAndAttention(
        torch.nn.functional.pad(encoded.hidden_RLD, (0, 0, 0, missing)), padded_rows
    )


class _Windows:
    """The windows of a batch.

    Attributes:
        tokens: the whole sequences.
        row_W: sequence of each window.
        shift_W: tokens in ``[low, high)`` are ``shift`` positions earlier in the window.
        low_W: first token of the sequence that the window represents.
        high_W: behind the last one.
        length_R: tokens of each sequence.
        size: S.
    """

    def __init__(self, tokens: PaddedTokens, lengths: list[int], window: int) -> None:
        device = tokens.token_RL.device
        self.tokens = tokens
        spans = [
            (row, *span)
            for row, length in enumerate(lengths)
            for span in window_spans(length, window)
        ]
        self.row_W, self.shift_W, self.low_W, self.high_W = torch.tensor(spans, device=device).T
        self.length_R = torch.tensor(lengths, device=device)
        longest = min(max(lengths), window)
        padded = -(-longest // PADDING_MULTIPLE) * PADDING_MULTIPLE
        self.size = min(padded, window)

    def encode(self, encode: Encode) -> StatesAndAttention:
        """Encode all windows at once, and combine them into whole sequences."""
        encoded = encode(self._cut())
        num_rows, length = self.tokens.token_RL.shape
        index_WL, is_inside_WL = self._index_in_window(length)
        state_WLD = torch.gather(
            encoded.hidden_RLD, 1, index_WL[..., None].expand(-1, -1, encoded.hidden_RLD.shape[2])
        )
        state_WLD = torch.where(is_inside_WL[..., None], state_WLD, 0.0)
        total_RLD = state_WLD.new_zeros(num_rows, *state_WLD.shape[1:]).index_add(
            0, self.row_W, state_WLD
        )
        count_RL = torch.zeros(num_rows, length, device=total_RLD.device).index_add(
            0, self.row_W, is_inside_WL.float()
        )
        hidden_RLD = total_RLD / count_RL.clamp(min=1)[..., None].to(total_RLD.dtype)

        def attention_rows(row_K: Tensor, position_K: Tensor) -> Tensor:
            is_inside_KW = (
                (self.row_W == row_K[:, None])
                & (position_K[:, None] >= self.low_W)
                & (position_K[:, None] < self.high_W)
            )
            request_X, window_X = is_inside_KW.nonzero(as_tuple=True)
            part_XHS = encoded.attention_rows(
                window_X, position_K[request_X] - self.shift_W[window_X]
            )
            index_XHL = index_WL[window_X, None].expand(-1, part_XHS.shape[1], -1)
            part_XHL = torch.gather(part_XHS, 2, index_XHL).where(is_inside_WL[window_X, None], 0.0)
            sum_KHL = part_XHL.new_zeros(len(row_K), *part_XHL.shape[1:]).index_add(
                0, request_X, part_XHL
            )
            return sum_KHL / (sum_KHL.sum(-1, keepdim=True) + _EPSILON)

        return StatesAndAttention(hidden_RLD, attention_rows)

    def _cut(self) -> PaddedTokens:
        """Return the windows as a rectangle (W, S)."""
        length_W = self.length_R[self.row_W]
        offset_S = torch.arange(self.size, device=self.row_W.device)
        # Offset of the window's last token, which is the sequence's last one.
        last_W = self.high_W.clamp(max=length_W - 1) - self.shift_W
        index_WS = self.shift_W[:, None] + offset_S
        index_WS = torch.where(offset_S == last_W[:, None], length_W[:, None] - 1, index_WS)
        index_WS[:, 0] = 0
        mask_WS = offset_S <= last_W[:, None]
        token_WS = self.tokens.token_RL[self.row_W[:, None], torch.where(mask_WS, index_WS, 0)]
        padding = self.tokens.token_RL[~self.tokens.mask_RL]
        if len(padding):
            token_WS = token_WS.masked_fill(~mask_WS, int(padding[0]))
        return PaddedTokens(token_WS, mask_WS, torch.full_like(token_WS, IGNORED_LABEL))

    def _index_in_window(self, length: int) -> tuple[Tensor, Tensor]:
        """Return the index in each window of every token, and whether it is inside (W, L)."""
        position_L = torch.arange(length, device=self.row_W.device)
        is_inside_WL = (position_L >= self.low_W[:, None]) & (position_L < self.high_W[:, None])
        return (position_L - self.shift_W[:, None]).clamp(0, self.size - 1), is_inside_WL


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
