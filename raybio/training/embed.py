"""Embeddings of stored rows and of tokens without gradient.

Shape letters: N rows, M rows of one round of all workers, T tokens, K some of them, D width.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from raybio.core.batch import PackedTokens, TokenBatch
from raybio.core.errors import ConfigError
from raybio.core.interfaces import Collective, Encoder
from raybio.ops.segments import entries_of_rows
from raybio.training.micro_batches import micro_batches
from raybio.training.precision import Precision, current_embedding_precision

ROWS_AT_ONCE = 4096


def embed_rows(
    encoder: Encoder,
    read: Callable[[np.ndarray], TokenBatch],
    row_N: np.ndarray,
    collective: Collective,
    *,
    max_tokens: int,
) -> Tensor:
    """Return embeddings (N, D) of stored rows, float32, the same on every worker.

    Each worker encodes a share of the rows and gathers the rest. No row is dropped or added as
    padding, whatever the number of workers. If ``read`` returns batches of documents, N counts
    their pairs. The arithmetic is that of the surrounding ``embedding_precision``: the run's in its
    evaluations, that of ``--precision`` in commands, and float32 outside of any.

    Args:
        encoder: it encodes in evaluation mode and keeps the mode it was in.
        read: rows -> their tokens.
        row_N: rows to embed, in the order of the result.
        collective: the other workers.
        max_tokens: tokens that are encoded at once, padding included.
    """
    precision = current_embedding_precision()
    device = next(encoder.parameters()).device
    was_training = encoder.training
    encoder.eval()
    parts = [torch.zeros(0, encoder.width, device=device)]
    with torch.no_grad():
        # The workers gather often: over millions of rows of different lengths, one could otherwise
        # wait for another until a timeout.
        for start in range(0, len(row_N), ROWS_AT_ONCE * collective.world):
            row_M = row_N[start : start + ROWS_AT_ONCE * collective.world]
            begin = len(row_M) * collective.rank // collective.world
            end = len(row_M) * (collective.rank + 1) // collective.world
            batch = read(row_M[begin:end])
            embedding_MD = _embed(encoder, batch, device, max_tokens, precision)
            parts.append(collective.all_gather(embedding_MD).row_MD)
    encoder.train(was_training)
    return torch.cat(parts)


def check_embeddings(embedding_ND: Tensor, name: str) -> None:
    """Check that all embeddings are finite.

    Raises:
        ConfigError: beginning with ``name``, the user's name of the encoder.
    """
    if not embedding_ND.isfinite().all():
        raise ConfigError(
            f"{name}: its embeddings are not finite, want numbers. Are its weights of a training "
            "that diverged?"
        )


def embed_tokens(encoder: Encoder, batch: TokenBatch, *, max_tokens: int) -> Tensor:
    """Return the last hidden states (T, D) of a batch's tokens, end to end, float32, on the host.

    The arithmetic is that of the surrounding ``embedding_precision``.

    Args:
        encoder: it encodes in evaluation mode and keeps the mode it was in.
        batch: on the host.
        max_tokens: tokens that are encoded at once, padding included.
    """
    precision = current_embedding_precision()
    device = next(encoder.parameters()).device
    was_training = encoder.training
    encoder.eval()
    indptr_R1 = batch.indptr_R1.numpy()
    state_TD = torch.empty(len(batch.token_T), encoder.width)
    # One autocast context converts trainable weights to half precision once.
    with torch.no_grad(), precision.autocast():
        for tokens, rows in micro_batches(batch, encoder, device, max_tokens=max_tokens):
            hidden = encoder(tokens).hidden_RLD
            entry_K, _ = entries_of_rows(indptr_R1, rows.cpu().numpy())
            index_K = torch.from_numpy(entry_K)
            # Packed tokens have padding only at the end.
            if isinstance(tokens, PackedTokens):
                state_KD = hidden[: len(index_K)]
            else:
                state_KD = hidden[tokens.mask_RL]
            state_TD[index_K] = state_KD.float().cpu()
    encoder.train(was_training)
    return state_TD


def _embed(
    encoder: Encoder,
    batch: TokenBatch,
    device: torch.device,
    max_tokens: int,
    precision: Precision,
) -> Tensor:
    embedding_MD = torch.empty(batch.num_embeddings, encoder.width, device=device)
    # One autocast context converts trainable weights to half precision once.
    with precision.autocast():
        for tokens, rows in micro_batches(batch, encoder, device, max_tokens=max_tokens):
            embedding_MD[rows] = encoder(tokens).embedding_RD.float()
    return embedding_MD
