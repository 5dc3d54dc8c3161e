"""Embedding stored rows without gradient, divided over the workers."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from raybio.batches import PaddedTokens, TokenBatch
from raybio.protocols import Collective, Encoder
from raybio.training.micro_batches import token_budget_micro_batches
from raybio.training.precision import Precision

ROWS_AT_ONCE = 4096


def embed_rows(
    encoder: Encoder,
    read: Callable[[np.ndarray], TokenBatch],
    row_N: np.ndarray,
    collective: Collective,
    *,
    max_tokens: int,
    precision: Precision | None = None,
) -> Tensor:
    """Embeddings (N, D) of ``row_N``, float32, the same on every worker.

    Each worker encodes a consecutive share of the rows and gathers the others': no row is dropped or padded, however
    many workers there are.

    Args:
        encoder: a ``protocols.Encoder``; used in evaluation mode and left in the mode it was in.
        read: rows -> their tokens.
        row_N: rows to embed, in the order of the result.
        collective: the other workers.
        max_tokens: padded tokens that are encoded at once.
        precision: the arithmetic; default float32.
    """
    precision = precision or Precision("fp32", "cpu")
    num_rows = len(row_N)
    mine = row_N[num_rows * collective.rank // collective.world : num_rows * (collective.rank + 1) // collective.world]
    device = next(encoder.parameters()).device
    was_training = encoder.training
    encoder.eval()
    embedding_MD = torch.empty(len(mine), encoder.width, device=device)
    with torch.no_grad():
        for start in range(0, len(mine), ROWS_AT_ONCE):
            tokens = read(mine[start : start + ROWS_AT_ONCE])
            for rows in token_budget_micro_batches(tokens.length_R, max_tokens=max_tokens):
                with precision.autocast():
                    encoded = encoder(_on(tokens, rows, encoder.pad_id, device))
                embedding_MD[start + rows] = encoded.embedding_RD.float()
        encoder.train(was_training)
        return collective.all_gather(embedding_MD).row_MD


def _on(tokens: TokenBatch, rows: Tensor, pad_id: int, device: torch.device) -> PaddedTokens:
    padded = tokens.pad(rows, pad_id)
    return PaddedTokens(padded.token_RL.to(device), padded.mask_RL.to(device), padded.label_RL.to(device))
