"""Windows."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from raybio.core.batch import IGNORED_LABEL, PADDING_MULTIPLE, PaddedTokens
from raybio.methods.mtb_mccl.attention import StatesAndAttention

_EPSILON = 1e-10


Read = Callable[[PaddedTokens], StatesAndAttention]


def read_in_windows(read: Read, tokens: PaddedTokens, window: int) -> StatesAndAttention:
    """``read`` over sequences of any length, with windows of at most ``window`` tokens."""
    length_R = tokens.mask_RL.sum(1)
    if int(length_R.max()) <= window:
        length = min(tokens.token_RL.shape[1], window)
        found = read(
            PaddedTokens(
                *(part[:, :length] for part in (tokens.token_RL, tokens.mask_RL, tokens.label_RL))
            )
        )
        missing = tokens.token_RL.shape[1] - length
        if not missing:
            return found
        return StatesAndAttention(
            torch.nn.functional.pad(found.hidden_RLD, (0, 0, 0, missing)),
            lambda row_K, place_K: torch.nn.functional.pad(
                found.rows(row_K, place_K), (0, missing)
            ),
        )
    return _Windows(tokens, length_R.tolist(), window).read(read)


class _Windows:
    def __init__(self, tokens: PaddedTokens, lengths: list[int], window: int) -> None:
        self.tokens, device = tokens, tokens.token_RL.device
        spans = [
            (row, *span)
            for row, length in enumerate(lengths)
            for span in window_spans(length, window)
        ]
        self.row_W, self.shift_W, self.low_W, self.high_W = torch.tensor(spans, device=device).T
        self.length_R = torch.tensor(lengths, device=device)
        self.size = -(-min(max(lengths), window) // PADDING_MULTIPLE) * PADDING_MULTIPLE
        self.size = min(self.size, window)

    def read(self, read: Read) -> StatesAndAttention:
        """Encode all windows at once, and put them together again."""
        found = read(self._cut())
        num_rows, length = self.tokens.token_RL.shape
        index_WL, is_here_WL = self._places(length)
        state_WLD = torch.gather(
            found.hidden_RLD, 1, index_WL[..., None].expand(-1, -1, found.hidden_RLD.shape[2])
        )
        state_WLD = torch.where(is_here_WL[..., None], state_WLD, 0.0)
        total_RLD = state_WLD.new_zeros(num_rows, *state_WLD.shape[1:]).index_add(
            0, self.row_W, state_WLD
        )
        count_RL = torch.zeros(num_rows, length, device=total_RLD.device).index_add(
            0, self.row_W, is_here_WL.float()
        )
        hidden_RLD = total_RLD / count_RL.clamp(min=1)[..., None].to(total_RLD.dtype)

        def rows(row_K: Tensor, place_K: Tensor) -> Tensor:
            is_inside_KW = (self.row_W == row_K[:, None]) & (place_K[:, None] >= self.low_W)
            wanted_X, window_X = (is_inside_KW & (place_K[:, None] < self.high_W)).nonzero(
                as_tuple=True
            )
            part_XHS = found.rows(window_X, place_K[wanted_X] - self.shift_W[window_X])
            index_XHL = index_WL[window_X, None].expand(-1, part_XHS.shape[1], -1)
            part_XHL = torch.gather(part_XHS, 2, index_XHL).where(is_here_WL[window_X, None], 0.0)
            sum_KHL = part_XHL.new_zeros(len(row_K), *part_XHL.shape[1:]).index_add(
                0, wanted_X, part_XHL
            )
            return sum_KHL / (sum_KHL.sum(-1, keepdim=True) + _EPSILON)

        return StatesAndAttention(hidden_RLD, rows)

    def _cut(self) -> PaddedTokens:
        """The windows as a rectangle (W, S)."""
        offset_S = torch.arange(self.size, device=self.row_W.device)
        inner_W = (
            self.high_W.clamp(max=self.length_R[self.row_W] - 1) - self.shift_W
        )  # first token counted
        index_WS = self.shift_W[:, None] + offset_S
        index_WS = torch.where(
            offset_S == inner_W[:, None], self.length_R[self.row_W, None] - 1, index_WS
        )
        index_WS[:, 0] = 0
        mask_WS = offset_S <= inner_W[:, None]
        flat = self.row_W[:, None], torch.where(mask_WS, index_WS, 0)
        pad_id = self.tokens.token_RL[~self.tokens.mask_RL]
        token_WS = self.tokens.token_RL[flat]
        if len(pad_id):
            token_WS = token_WS.masked_fill(~mask_WS, int(pad_id[0]))
        return PaddedTokens(token_WS, mask_WS, torch.full_like(token_WS, IGNORED_LABEL))

    def _places(self, length: int) -> tuple[Tensor, Tensor]:
        """Where in its window each token of a sequence stands, and whether it does (W, L)."""
        place_L = torch.arange(length, device=self.row_W.device)
        is_here_WL = (place_L >= self.low_W[:, None]) & (place_L < self.high_W[:, None])
        return (place_L - self.shift_W[:, None]).clamp(0, self.size - 1), is_here_WL


def window_spans(length: int, window: int) -> list[tuple[int, int, int]]:
    """(shift, low, high) of the windows of a sequence: tokens ``low`` to ``high - 1`` stand ``shift`` places earlier.

    The first token belongs to the first window and the last one to the last, though all windows have both.

    Raises:
        ValueError: for windows of fewer than 3 tokens.
    """
    if window < 3:
        raise ValueError(
            f"window is {window}, want at least 3 tokens: the first, the last and one between them"
        )
    inner, room = length - 2, window - 2
    num = max(math.ceil(inner / room), 1)
    shifts = [
        round(number * (inner - room) / max(num - 1, 1)) if num > 1 else 0 for number in range(num)
    ]
    return [
        (shift, 0 if number == 0 else shift + 1, length if number == num - 1 else shift + room + 1)
        for number, shift in enumerate(shifts)
    ]
