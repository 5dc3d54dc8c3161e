"""The protocols between encoders, losses, methods and the training loop.

A *step* encodes a batch of sequences and adds two kinds of loss. One is separable over sequences
(masked language modeling). The other couples the embeddings of all sequences of all workers (a
contrastive loss). Every method here has that shape, so one loop does micro-batches, gradient
caching and gathering for all of them.

Shape letters: N rows of this worker, M rows of all workers, R sequences, L padded length, K tokens,
V vocabulary, D width.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from raybio.core.batch import StaticShape, TokenBatch, Tokens
from raybio.core.final_report import FinalReport
from raybio.core.shared_scores import SharedScores


class Encoded(NamedTuple):
    """An encoder's output: hidden states of tokens and embeddings of sequences (R, D).

    Hidden states are (R, L, D) of padded tokens, and (T, D) of packed ones.
    """

    hidden_RLD: Tensor
    embedding_RD: Tensor


class Encoder(nn.Module):
    """A torch module that turns tokens into hidden states and embeddings.

    Attributes:
        width: D, the width of an embedding.
        pad_id: token id of padding.
        packing: whether batches are packed instead of padded for it; "auto": on a GPU.
        static_shape: shape of the micro-batches that a compiled encoder trains on; None if it is
            not compiled.
    """

    width: int
    pad_id: int
    packing: bool | Literal["auto"] = "auto"
    static_shape: StaticShape | None = None

    def why_padded(self) -> str:
        """Return why the encoder reads padded tokens only; empty if it reads packed ones too."""
        return f"{type(self).__name__} reads padded sequences"

    def why_eager(self) -> str:
        """Return why the encoder cannot be compiled; empty if it can."""
        return f"{type(self).__name__} reads other inputs than single sequences"

    @abstractmethod
    def forward(self, tokens: Tokens) -> Encoded:
        """Encode sequences; the embedding of one must not depend on the others in the batch."""

    @abstractmethod
    def token_logits(self, hidden_KD: Tensor) -> Tensor:
        """Return the language-model head's scores (K, V) of the vocabulary for K hidden states."""


class Gathered(NamedTuple):
    """Rows of all workers in rank order.

    Attributes:
        row_MD: the rows (M, D).
        offset: index of the caller's first row.
        num_rows_W: rows of each worker.
    """

    row_MD: Tensor
    offset: int
    num_rows_W: list[int]


class Collective(Protocol):
    """Collective operations over all workers. With one process, each is the identity.

    Attributes:
        rank: number of this worker.
        world: number of workers.
        num_open_gathers: number of gathers with gradient whose backward pass (also a collective
            operation) has not run yet; reset to 0 at the beginning of a step.
        step: optimizer updates so far, for messages about a worker that hangs; None until training
            knows where it starts.
    """

    rank: int
    world: int
    num_open_gathers: int
    step: int | None

    def patient(self, name: str = "an evaluation") -> AbstractContextManager[None]:
        """Lift the time limit on waiting within a ``with`` block, which all workers leave together.

        It is for evaluations and exports, in which one worker may compute for hours, and for
        reading a large store. Every worker enters the block; ``name`` says what they do in it.
        """
        ...

    def all_gather(self, local_ND: Tensor, like: Gathered | None = None) -> Gathered:
        """Concatenate the rows of all workers; gradients flow back to the workers that own them.

        With ``like``, an earlier result in which each worker had as many rows as now, the workers
        do not exchange these numbers.
        """
        ...

    def all_sum(self, tensor: Tensor) -> Tensor:
        """Sum over workers, without gradient."""
        ...

    def all_max(self, tensor: Tensor) -> Tensor:
        """Return the elementwise maximum over workers, without gradient."""
        ...

    def host_sum(self, values: Sequence[int]) -> list[int]:
        """Sum numbers that are on the host over workers, without waiting for a device."""
        ...

    def start_sum(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Callable[[], None]:
        """Start to sum ``tensor`` over workers in place; return a function that waits for the sum.

        The tensor is sent and added in ``dtype``; None: its own.
        """
        ...

    def start_broadcast(self, tensor: Tensor, source: int) -> Callable[[], None]:
        """Start to copy the tensor of worker ``source`` into ``tensor`` of all other workers.

        Return a function that waits for the copy.
        """
        ...


class LossReport(NamedTuple):
    """This worker's *share* of a loss; the sum over workers is the loss of the global batch.

    ``terms`` are shares too, detached, for the log.
    """

    loss: Tensor
    terms: dict[str, Tensor]


class Objective(Protocol):
    """A loss over a batch: one part is separable over sequences, the other couples them."""

    @property
    def uses_rows(self) -> bool:
        """Whether the separable part is used."""
        ...

    @property
    def row_terms(self) -> tuple[str, ...]:
        """Names of the terms of ``row_loss``: a worker without rows reports zeros."""
        ...

    @property
    def uses_embeddings(self) -> bool:
        """Whether the coupling part is used."""
        ...

    def row_loss(
        self, encoder: Encoder, encoded: Encoded, tokens: Tokens, num_labels: Tensor
    ) -> LossReport:
        """Compute the separable part over one micro-batch.

        ``num_labels`` is the number of labeled tokens of the global batch, at least 1.
        """
        ...

    def embedding_loss(
        self, embedding_RD: Tensor, batch: Any, collective: Collective
    ) -> LossReport:
        """Compute the coupling part of this worker's embeddings; gather those of the others."""
        ...


Collate = Callable[[int, int, int], Mapping[str, np.ndarray]]
"""(step, rank, world) -> arrays of that worker's shard; picklable, for Ray Data."""

Evaluate = Callable[[Encoder, Collective], Mapping[str, float]]
"""(model, collective) -> metrics, equal on every worker."""


class FinalEvaluate(Protocol):
    """The whole evaluation of a finished run."""

    def __call__(
        self,
        model: Encoder,
        collective: Collective,
        shared: SharedScores | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> FinalReport:
        """Return the report of the trained model, equal on every worker.

        Args:
            model: the trained model.
            collective: workers that share the work.
            shared: scores of untrained models that runs share.
            should_stop: whether to stop before the next model is scored.

        Raises:
            EvaluationStoppedError: if ``should_stop`` returns True on any worker.
        """
        ...


Export = Callable[[Path, Mapping[str, Any]], Path]
"""(folder, sections of the model card) -> the folder that holds the exported model."""


@dataclass(frozen=True)
class System:
    """One published method, wired: everything that ``training.loop.fit`` needs to know about it.

    Attributes:
        name: its key in ``METHODS``.
        model: everything that is trained; an ``Encoder``.
        objective: the loss to minimize.
        batch_type: class of the typed batch, built from the arrays of ``collate``.
        collate: makes this worker's shard of a step.
        steps_per_epoch: steps in which every row is an anchor once; a fraction if the batch does
            not divide the rows.
        evaluate: validation metrics during training, or None.
        final_evaluate: the whole evaluation of the finished run, or None.
        export: writes the trained model for programs that do not know raybio.
        data_digest: identifies the store and the tokenizer that batches are made from; a run
            resumes only with these.
        is_pretrained: whether the encoder starts from trained weights.
        is_supervised: whether labels may legitimately put all embeddings on a line, as two classes
            or a number do.
        prepare_node: fills a machine's cache, while training runs, with data that ``collate`` reads
            if it exists; None if no cache is worthwhile. Picklable.
    """

    name: str
    model: Encoder
    objective: Objective
    batch_type: type[TokenBatch]
    collate: Collate
    steps_per_epoch: float
    evaluate: Evaluate | None
    final_evaluate: FinalEvaluate | None
    export: Export
    data_digest: str
    is_pretrained: bool
    is_supervised: bool = False
    prepare_node: Callable[[], None] | None = None
