"""Rows of the last layer's attention, for the few positions whose rows are wanted.

A model that returns its attention has to compute every layer's whole (L, L) matrices without a fused kernel. Here the
fused kernel runs, and the last layer's queries and keys are remembered: a row costs one product.

Shape letters: R sequences, L padded length, H heads, D width of a head, K wanted rows.

Sequences longer than an encoder reads, as overlapping windows (Zhou et al., 2021, ATLOP; two windows there).

Each window begins with the sequence's first token and ends with its last one, as the encoder was trained; between them
windows divide what is left into parts of equal length that overlap where they must. States of a token are the mean over
its windows, attention rows their renormalised sum.

Shape letters: R sequences, L padded length, W windows, S padded length of a window, D width, H heads, K wanted rows.
"""

import math
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from raybio.core.batch import IGNORED_LABEL, PADDING_MULTIPLE, PaddedTokens
from raybio.core.errors import ConfigError
from raybio.ops.similarity import at_least_fp32

IMPLEMENTATION = "raybio_remembering_sdpa"


class StatesAndRows(NamedTuple):
    """Last hidden states (R, L, D), and a function of (sequence_K, position_K) to attention rows (K, H, L)."""

    hidden_RLD: Tensor
    rows: Callable[[Tensor, Tensor], Tensor]


class _Remembered(NamedTuple):
    query_RHLD: Tensor
    key_RHLD: Tensor
    scaling: float
    mask_RHLL: Tensor | None


_last: ContextVar[list[_Remembered] | None] = ContextVar("_last", default=None)


def remember_attention(model: PreTrainedModel) -> None:
    """Prepare a model for ``states_and_rows``.

    Raises:
        ConfigError: if it gives its attention in no way.
    """
    if model._supports_sdpa:
        model.set_attn_implementation(IMPLEMENTATION)
        return
    try:
        model.set_attn_implementation("eager")
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(
            f"encoder.source: {type(model).__name__} does not give its attention ({error})"
        ) from None


def states_and_rows(model: PreTrainedModel, tokens: PaddedTokens) -> StatesAndRows:
    """Encode with a model that ``remember_attention`` has prepared.

    Rows are softmax(q k / sqrt(d)) over real tokens, in float32 or wider; they have gradients. They are without
    dropout, but of models that know no other attention than their own ("eager"): those give it after dropout while they
    train.

    Raises:
        ConfigError: if the model turns out not to give its attention.
    """
    given = {"input_ids": tokens.token_RL, "attention_mask": tokens.mask_RL.long()}
    if model.config._attn_implementation != IMPLEMENTATION:
        output = model(**given, output_attentions=True)
        if not output.attentions or output.attentions[-1] is None:
            raise ConfigError(
                f"encoder.source: {type(model).__name__} gives no attention; want a model that does"
            )
        whole_RHLL = output.attentions[-1]
        return StatesAndRows(
            output.last_hidden_state, lambda row_K, place_K: whole_RHLL[row_K, :, place_K]
        )
    found: list[_Remembered] = []
    token = _last.set(found)
    try:
        hidden_RLD = model(**given).last_hidden_state
    finally:
        _last.reset(token)
    if not found:
        raise ConfigError(
            f"encoder.source: {type(model).__name__} gives no attention; want a model that does"
        )
    return StatesAndRows(hidden_RLD, partial(_rows, found[-1], tokens.mask_RL))


def _rows(last: _Remembered, mask_RL: Tensor, sequence_K: Tensor, position_K: Tensor) -> Tensor:
    order_K = torch.sort(sequence_K, stable=True).indices
    query_KHD = last.query_RHLD[sequence_K[order_K], :, position_K[order_K]]
    sizes = torch.bincount(sequence_K, minlength=len(mask_RL)).tolist()
    # By sequence: its keys are read once, not once for each of its rows.
    scores = [
        torch.einsum("phd,hld->phl", query_PHD, last.key_RHLD[number])
        for number, query_PHD in enumerate(query_KHD.split(sizes))
    ]
    score_KHL = at_least_fp32(torch.cat(scores)) * last.scaling
    score_KHL = score_KHL.masked_fill(~mask_RL[sequence_K[order_K], None], -torch.inf)
    if last.mask_RHLL is not None:  # layers that look at their neighbourhood alone
        sees_KHL = last.mask_RHLL.expand(len(mask_RL), -1, -1, -1)[
            sequence_K[order_K], :, position_K[order_K]
        ]
        if sees_KHL.dtype == torch.bool:
            score_KHL = score_KHL.masked_fill(~sees_KHL, -torch.inf)
        else:
            score_KHL = score_KHL + sees_KHL
    return score_KHL.softmax(-1)[torch.argsort(order_K)]


def _remembering_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    found = _last.get()
    # None while activations are computed again for the backward pass.
    if found is not None:
        scaling = options.get("scaling")
        found[:] = [
            _Remembered(
                query, key, query.shape[-1] ** -0.5 if scaling is None else scaling, attention_mask
            )
        ]
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)  # type: ignore[return-value]


AttentionInterface.register(IMPLEMENTATION, _remembering_sdpa)


AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


_EPSILON = 1e-10


Read = Callable[[PaddedTokens], StatesAndRows]


def read_in_windows(read: Read, tokens: PaddedTokens, window: int) -> StatesAndRows:
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
        return StatesAndRows(
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

    def read(self, read: Read) -> StatesAndRows:
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

        return StatesAndRows(hidden_RLD, rows)

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
