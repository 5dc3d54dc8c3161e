"""Gradients of one step, in memory that does not grow with the batch (GradCache, Gao et al. 2021).

The loss of a step is a sum over sequences (the separable part) plus a function of all embeddings (the coupling part).
Its gradient needs the graph of one micro-batch at a time: encode everything without graphs, take the gradient of the
coupling part with respect to the embeddings, then encode each micro-batch again and back-propagate its own loss plus
the inner product of its embeddings with that gradient.

Dropout draws from a seed of (seed, step, rank, micro-batch), set anew before each encoding: the second pass equals the
first by construction, and a resumed run draws as the unbroken one.

Cutting a worker shard into micro-batches that fit a budget of padded tokens.

Shape letters: R sequences of the shard, M sequences of one micro-batch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from raybio.core.batch import PADDING_MULTIPLE, PaddedTokens, TokenBatch
from raybio.core.interfaces import Collective, Encoded, LossReport, System
from raybio.ops.similarity import at_least_fp32
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
    step = _Step(system, batch, collective, _split(batch, max_tokens), precision, seed_of)
    if not system.objective.uses_embeddings:
        step.separable()
    elif gradient_caching and len(step.micro_batches) > 1:
        step.cached()
    else:
        step.plain()
    return step.loss, step.terms


class _Step:
    """One step's passes over its micro-batches, and the running sums of its losses and terms."""

    def __init__(
        self,
        system: System,
        batch: TokenBatch,
        collective: Collective,
        micro_batches: list[Tensor],
        precision: Precision,
        seed_of: Callable[[int], int],
    ) -> None:
        self.model, self.objective = system.model, system.objective
        self.batch, self.collective, self.precision, self.seed_of = (
            batch,
            collective,
            precision,
            seed_of,
        )
        self.device = batch.token_T.device
        self.micro_batches = [rows.to(self.device) for rows in micro_batches]
        self.normaliser = self.objective.normaliser(batch, collective)
        self.loss = torch.zeros((), device=self.device)
        self.terms: Terms = {}

    def separable(self) -> None:
        """Nothing couples the sequences: each micro-batch is done with at once."""
        for number in range(len(self.micro_batches)):
            self._row_loss(*self._encode(number)).backward()

    def plain(self) -> None:
        """The graphs of all micro-batches are kept until the coupling loss is known."""
        embeddings, losses = [], []
        for number in range(len(self.micro_batches)):
            tokens, encoded = self._encode(number)
            embeddings.append(encoded.embedding_RD)
            if self.objective.uses_rows:
                losses.append(self._row_loss(tokens, encoded))
        losses.append(self._embedding_loss(self._in_order(embeddings)))
        torch.stack(losses).sum().backward()

    def cached(self) -> None:
        """Everything is encoded twice, the graph of one micro-batch is kept at a time."""
        with torch.no_grad():
            embeddings = [
                self._encode(number)[1].embedding_RD for number in range(len(self.micro_batches))
            ]
        embedding_RD = self._in_order(embeddings).requires_grad_()
        self._embedding_loss(embedding_RD).backward()
        gradient_RD = (
            torch.zeros_like(embedding_RD) if embedding_RD.grad is None else embedding_RD.grad
        )
        for number, rows in enumerate(self.micro_batches):
            tokens, encoded = self._encode(number)
            surrogate = (encoded.embedding_RD * gradient_RD[self.batch.embedding_rows(rows)]).sum()
            (
                surrogate + self._row_loss(tokens, encoded)
                if self.objective.uses_rows
                else surrogate
            ).backward()

    def _encode(self, number: int) -> tuple[PaddedTokens, Encoded]:
        tokens = self.batch.pad(self.micro_batches[number], self.model.pad_id)
        with _seeded(self.seed_of(number), self.device), self.precision.autocast():
            encoded = self.model(tokens)
        return tokens, Encoded(encoded.hidden_RLD, at_least_fp32(encoded.embedding_RD))

    def _row_loss(self, tokens: PaddedTokens, encoded: Encoded) -> Tensor:
        with self.precision.autocast():
            return self._note(self.objective.row_loss(self.model, encoded, tokens, self.normaliser))

    def _embedding_loss(self, embedding_RD: Tensor) -> Tensor:
        return self._note(self.objective.embedding_loss(embedding_RD, self.batch, self.collective))

    def _note(self, report: LossReport) -> Tensor:
        self.loss = self.loss + report.loss.detach().float()
        for name, value in report.terms.items():
            self.terms[name] = self.terms.get(name, 0) + value.float()
        return report.loss

    def _in_order(self, embeddings: list[Tensor]) -> Tensor:
        """Embeddings in the batch's own order: micro-batches are sorted by length."""
        if not embeddings:
            # A worker without rows still takes part in the gathers of the coupling loss.
            return torch.zeros(0, self.model.width, device=self.device, requires_grad=True)
        order_R = torch.cat([self.batch.embedding_rows(rows) for rows in self.micro_batches])
        position_R = torch.empty_like(order_R)
        position_R[order_R] = torch.arange(len(order_R), device=self.device)
        return torch.cat(embeddings)[position_R]


def _split(batch: TokenBatch, max_tokens: int) -> list[Tensor]:
    if not batch.num_rows:
        return []
    overhead_tokens = overhead_tokens_on(batch.token_T.device)
    return token_budget_micro_batches(
        batch.length_R, max_tokens=max_tokens, overhead_tokens=overhead_tokens
    )


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's generators start from ``seed`` inside, and are as before outside."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


CPU_OVERHEAD_TOKENS = 128
"""Padded tokens whose encoding takes a CPU about as long as what one more micro-batch costs by itself."""


def token_budget_micro_batches(
    length_R: Tensor,
    *,
    max_tokens: int,
    multiple: int = PADDING_MULTIPLE,
    overhead_tokens: int | None = None,
) -> list[Tensor]:
    """Group sequences of similar length so that each group, padded to its longest, stays within ``max_tokens``.

    Groups go from long to short, so that memory peaks in the first one: a budget too large fails at once and not
    after an hour. The result depends on the lengths alone.

    Args:
        length_R: tokens of each sequence.
        max_tokens: limit of sequences × padded length of a group; one sequence longer than that gets its own group.
        multiple: padded lengths are rounded up to this.
        overhead_tokens: what one more group costs, in padded tokens: groups are cut so that the padded tokens and these
            are fewest in all. None: groups are filled to the limit, as a GPU wants it.

    Returns:
        Row indices (M,) of each group, int64 on the device of ``length_R``; every row is in exactly one group.

    Raises:
        ValueError: if ``max_tokens`` or ``multiple`` is not positive.
    """
    if max_tokens < 1 or multiple < 1:
        raise ValueError(
            f"got max_tokens={max_tokens} and multiple={multiple}, want both at least 1"
        )
    sorted_length_R, order_R = torch.sort(length_R, descending=True, stable=True)
    lengths = sorted_length_R.cpu().numpy()
    padded_length_R = np.maximum(-(-lengths // multiple) * multiple, 1)
    most_R = np.minimum(
        np.maximum(max_tokens // padded_length_R, 1), np.arange(len(lengths), 0, -1)
    )
    size_R = (
        most_R
        if overhead_tokens is None
        else _cheapest_sizes(padded_length_R, most_R, overhead_tokens)
    )
    sizes, start = [], 0
    while start < len(lengths):
        sizes.append(int(size_R[start]))
        start += sizes[-1]
    return list(torch.split(order_R, sizes)) if sizes else []


def overhead_tokens_on(device: torch.device) -> int | None:
    """What one more micro-batch costs there: a CPU is never idle, a GPU is filled by larger ones."""
    return CPU_OVERHEAD_TOKENS if device.type == "cpu" else None


def _cheapest_sizes(
    padded_length_R: np.ndarray, most_R: np.ndarray, overhead_tokens: int
) -> np.ndarray:
    """The size of the group that begins at each row, of the cheapest way to cut that row and all behind it."""
    num_rows = len(padded_length_R)
    size_R, cost_R1 = np.zeros(num_rows, dtype=np.int64), np.zeros(num_rows + 1, dtype=np.int64)
    for row in range(num_rows - 1, -1, -1):
        ways = (
            padded_length_R[row] * np.arange(1, most_R[row] + 1)
            + cost_R1[row + 1 : row + 1 + most_R[row]]
        )
        size_R[row] = ways.argmin() + 1
        cost_R1[row] = ways[size_R[row] - 1] + overhead_tokens
    return size_R
