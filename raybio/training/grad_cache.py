"""Gradients of one step, in memory that does not grow with the batch (GradCache, Gao et al. 2021).

The loss of a step is a sum over sequences (the separable part) plus a function of all embeddings
(the coupling part). Its gradient needs the graph of one micro-batch at a time:

1. Encode everything without graphs.
2. Take the gradient of the coupling part with respect to the embeddings.
3. Encode each micro-batch again. Back-propagate its own loss plus the inner product of its
   embeddings with that gradient.

The seed of the dropout depends on (seed, step, rank, micro-batch) and is set before each encoding.
The second pass therefore equals the first, and a resumed run equals the unbroken one.

Shape letters: R sequences of the shard, D width.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from raybio.core.batch import TokenBatch, Tokens
from raybio.core.interfaces import Collective, Encoded, LossReport, System
from raybio.ops.similarity import at_least_fp32
from raybio.training.gradient_sum import GradientSum
from raybio.training.micro_batches import MicroBatch, micro_batches
from raybio.training.objectives import count_labels
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
    gradients: GradientSum | None = None,
) -> tuple[Tensor, Terms]:
    """Compute the gradients of the step and store them in the model's parameters.

    Args:
        system: model and objective.
        batch: this worker's shard of the step, preferably on the host, where it is split without
            waiting for a GPU.
        collective: the other workers.
        max_tokens: tokens that are encoded at once, padding included.
        gradient_caching: encode twice and keep the graph of one micro-batch at a time, not all.
        precision: the arithmetic of the encoder.
        seed_of: number of a micro-batch -> seed of its dropout.
        gradients: sums over the workers; None: this worker's share is added to the gradients that
            the parameters have.

    Returns:
        This worker's shares of the loss and of its named terms, detached.
    """
    device = next(system.model.parameters()).device
    cut = micro_batches(batch.to("cpu"), system.model, device, max_tokens=max_tokens)
    step = _Step(system, batch.to(device), collective, list(cut), precision, seed_of)
    if gradients is not None:
        step.last_backward = gradients.last_backward
    with nullcontext() if gradients is None else gradients.of_step():
        if not system.objective.uses_embeddings:
            step.run_separable()
        elif gradient_caching and len(step.micro_batches) > 1:
            step.run_cached()
        else:
            step.run_plain()
    if system.objective.uses_rows:
        # Workers sum their terms in the order of the names, so a worker without rows needs them
        # too.
        for name in system.objective.row_terms:
            step.terms.setdefault(name, torch.zeros((), device=device))
    return step.loss, step.terms


class _Step:
    """One step's passes over its micro-batches, and the running sums of its losses and terms."""

    def __init__(
        self,
        system: System,
        batch: TokenBatch,
        collective: Collective,
        micro_batches: list[MicroBatch],
        precision: Precision,
        seed_of: Callable[[int], int],
    ) -> None:
        self.model = system.model
        self.objective = system.objective
        self.batch = batch
        self.collective = collective
        self.precision = precision
        self.seed_of = seed_of
        self.device = batch.token_T.device
        self.micro_batches = micro_batches
        self.num_labels = (
            count_labels(batch, collective)
            if self.objective.uses_rows
            else torch.ones((), device=self.device)
        )
        self.last_backward: Callable[[], AbstractContextManager[None]] = nullcontext
        self.loss = torch.zeros((), device=self.device)
        self.terms: Terms = {}

    def run_separable(self) -> None:
        """Back-propagate each micro-batch on its own: nothing couples the sequences."""
        with self.precision.shared_casts():
            for number in range(len(self.micro_batches)):
                is_last = number == len(self.micro_batches) - 1
                self._backward(self._row_loss(*self._encode(number)), is_last)

    def run_plain(self) -> None:
        """Keep the graphs of all micro-batches until the coupling loss is known."""
        # Micro-batches share no casts here: the single backward pass would add gradients in half
        # precision.
        embeddings = []
        losses = []
        for number in range(len(self.micro_batches)):
            tokens, encoded = self._encode(number)
            embeddings.append(encoded.embedding_RD)
            if self.objective.uses_rows:
                losses.append(self._row_loss(tokens, encoded))
        losses.append(self._embedding_loss(self._in_order(embeddings)))
        self._backward(torch.stack(losses).sum(), is_last=True)

    def run_cached(self) -> None:
        """Encode everything twice and keep the graph of one micro-batch at a time."""
        embeddings = []
        with torch.no_grad(), self.precision.shared_casts():
            for number in range(len(self.micro_batches)):
                _, encoded = self._encode(number)
                embeddings.append(encoded.embedding_RD)
        embedding_RD = self._in_order(embeddings).requires_grad_()
        self._backward(self._embedding_loss(embedding_RD), is_last=False)
        gradient_RD = embedding_RD.grad
        if gradient_RD is None:
            gradient_RD = torch.zeros_like(embedding_RD)
        with self.precision.shared_casts():
            for number, (_, rows) in enumerate(self.micro_batches):
                tokens, encoded = self._encode(number)
                rows_gradient = gradient_RD[rows]
                loss = (encoded.embedding_RD * rows_gradient).sum()
                if self.objective.uses_rows:
                    loss = loss + self._row_loss(tokens, encoded)
                self._backward(loss, is_last=number == len(self.micro_batches) - 1)

    def _encode(self, number: int) -> tuple[Tokens, Encoded]:
        tokens = self.micro_batches[number].tokens
        with _seeded(self.seed_of(number), self.device), self.precision.autocast():
            encoded = self.model(tokens)
        return tokens, Encoded(encoded.hidden_RLD, at_least_fp32(encoded.embedding_RD))

    def _row_loss(self, tokens: Tokens, encoded: Encoded) -> Tensor:
        with self.precision.autocast():
            report = self.objective.row_loss(self.model, encoded, tokens, self.num_labels)
            return self._add(report)

    def _embedding_loss(self, embedding_RD: Tensor) -> Tensor:
        # Its forward pass is float32 with every precision; the backward pass has the run's.
        with Precision("fp32", self.device.type).matmul_settings():
            report = self.objective.embedding_loss(embedding_RD, self.batch, self.collective)
        return self._add(report)

    def _backward(self, loss: Tensor, is_last: bool) -> None:
        overlap = self.last_backward if is_last else nullcontext
        with self.precision.matmul_settings(), overlap():
            loss.backward()

    def _add(self, report: LossReport) -> Tensor:
        """Add a report to the sums of the step, and return its loss."""
        self.loss = self.loss + report.loss.detach().float()
        for name, value in report.terms.items():
            self.terms[name] = self.terms.get(name, 0) + value.float()
        return report.loss

    def _in_order(self, embeddings: list[Tensor]) -> Tensor:
        """Return embeddings in the order of the batch: micro-batches are sorted by length."""
        if not embeddings:
            # A worker without rows still takes part in the gathers of the coupling loss.
            parameter = next(self.model.parameters())
            return at_least_fp32(parameter.new_zeros(0, self.model.width)).requires_grad_()
        order_R = torch.cat([rows for _, rows in self.micro_batches])
        position_R = torch.empty_like(order_R)
        position_R[order_R] = torch.arange(len(order_R), device=self.device)
        return torch.cat(embeddings)[position_R]


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Context in which torch's generators start from ``seed``; they are restored afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
