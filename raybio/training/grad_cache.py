"""Gradients of one step, in memory that does not grow with the batch (GradCache, Gao et al. 2021).

The loss of a step is a sum over sequences (the separable part) plus a function of all embeddings (the coupling part).
Its gradient needs the graph of one micro-batch at a time: encode everything without graphs, take the gradient of the
coupling part with respect to the embeddings, then encode each micro-batch again and back-propagate its own loss plus
the inner product of its embeddings with that gradient.

Dropout draws from a seed of (seed, step, rank, micro-batch), set anew before each encoding: the second pass equals the
first by construction, and a resumed run draws as the unbroken one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from raybio.batches import PaddedTokens, TokenBatch
from raybio.protocols import Collective, Encoded, Encoder, LossReport, System
from raybio.training.micro_batches import token_budget_micro_batches
from raybio.training.precision import Precision

Terms = dict[str, Tensor]


def compute_gradients(
    system: System,
    batch: TokenBatch,
    collective: Collective,
    *,
    max_tokens: int,
    gradient_caching: bool,
    precision: Precision,
    seed_of: Callable[[int], int],
) -> tuple[Tensor, Terms]:
    """Add this worker's share of the step's gradient to the model's parameters.

    Args:
        system: model and objective.
        batch: this worker's shard of the step.
        collective: the other workers.
        max_tokens: padded tokens that are encoded at once.
        gradient_caching: encode twice and keep the graph of one micro-batch at a time, instead of all of them.
        precision: the arithmetic of the encoder.
        seed_of: the seed of the dropout of a micro-batch, by its number.

    Returns:
        this worker's shares of the loss and of its named terms, detached.
    """
    model, objective = system.model, system.objective
    micro_batches = [rows.to(batch.token_T.device) for rows in _split(batch, max_tokens)]
    normaliser = objective.normaliser(batch, collective)
    ledger = _Ledger(batch.token_T.device)

    def encode(number: int) -> tuple[PaddedTokens, Encoded]:
        tokens = batch.pad(micro_batches[number], model.pad_id)
        with _seeded(seed_of(number), batch.token_T.device), precision.autocast():
            encoded = model(tokens)
        return tokens, Encoded(encoded.hidden_RLD, encoded.embedding_RD.float())

    def row_loss(tokens: PaddedTokens, encoded: Encoded) -> Tensor:
        with precision.autocast():
            return ledger.add(objective.row_loss(model, encoded, tokens, normaliser))

    if not objective.uses_embeddings:
        for number in range(len(micro_batches)):
            row_loss(*encode(number)).backward()
        return ledger.loss, ledger.terms

    order = torch.cat(micro_batches) if micro_batches else torch.empty(0, dtype=torch.long)
    if gradient_caching and len(micro_batches) > 1:
        with torch.no_grad():
            embeddings = [encode(number)[1].embedding_RD for number in range(len(micro_batches))]
        embedding_RD = _restore_order(embeddings, order).requires_grad_()
        ledger.add(objective.embedding_loss(embedding_RD, batch, collective)).backward()
        gradient_RD = torch.zeros_like(embedding_RD) if embedding_RD.grad is None else embedding_RD.grad
        for number, rows in enumerate(micro_batches):
            tokens, encoded = encode(number)
            surrogate = (encoded.embedding_RD * gradient_RD[rows]).sum()
            (surrogate + row_loss(tokens, encoded) if objective.uses_rows else surrogate).backward()
        return ledger.loss, ledger.terms

    embeddings, losses = [], []
    for number in range(len(micro_batches)):
        tokens, encoded = encode(number)
        embeddings.append(encoded.embedding_RD)
        if objective.uses_rows:
            losses.append(row_loss(tokens, encoded))
    # A worker without rows still takes part in the gathers, of which the embedding loss consists.
    embedding_RD = _restore_order(embeddings, order) if embeddings else _no_embeddings(model, batch)
    losses.append(ledger.add(objective.embedding_loss(embedding_RD, batch, collective)))
    torch.stack(losses).sum().backward()
    return ledger.loss, ledger.terms


class _Ledger:
    """Running sums of the losses and terms of a step."""

    def __init__(self, device: torch.device) -> None:
        self.loss = torch.zeros((), device=device)
        self.terms: Terms = {}

    def add(self, report: LossReport) -> Tensor:
        self.loss = self.loss + report.loss.detach().float()
        for name, value in report.terms.items():
            self.terms[name] = self.terms.get(name, 0) + value.float()
        return report.loss


def _split(batch: TokenBatch, max_tokens: int) -> list[Tensor]:
    return token_budget_micro_batches(batch.length_R, max_tokens=max_tokens) if batch.num_rows else []


def _restore_order(parts: list[Tensor], order_R: Tensor) -> Tensor:
    """Embeddings in the batch's own order: micro-batches are sorted by length."""
    stacked_RD = torch.cat(parts)
    position_R = torch.empty_like(order_R)
    position_R[order_R] = torch.arange(len(order_R), device=order_R.device)
    return stacked_RD[position_R]


def _no_embeddings(model: Encoder, batch: TokenBatch) -> Tensor:
    return torch.zeros(0, model.width, device=batch.token_T.device, requires_grad=True)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's generators start from ``seed`` inside, and are as before outside."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
