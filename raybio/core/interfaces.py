"""What the parts of a system promise each other.

A *step* encodes a batch of sequences and adds two kinds of loss: one that is separable over sequences (masked language
modelling) and one that couples the embeddings of all sequences of all workers (a contrastive loss). Everything that
trains here has that shape, which is what lets one loop do micro-batches, gradient caching and gathering for all of it.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor, nn

from raybio.core.batch import PaddedTokens, TokenBatch
from raybio.core.final_report import FinalReport


class Encoded(NamedTuple):
    """An encoder's output: hidden states of each token (R, L, D) and one embedding of each sequence (R, D)."""

    hidden_RLD: Tensor
    embedding_RD: Tensor


class Encoder(nn.Module):
    """A torch module that turns padded tokens into states and embeddings.

    Attributes:
        width: D, numbers in an embedding.
        pad_id: token id of padding.
    """

    width: int
    pad_id: int

    @abstractmethod
    def forward(self, tokens: PaddedTokens) -> Encoded:
        """Encode; the embedding of a sequence must not depend on the others in the batch."""

    @abstractmethod
    def token_logits(self, hidden_KD: Tensor) -> Tensor:
        """Scores (K, V) of the vocabulary for K hidden states, by the language-model head."""


class Gathered(NamedTuple):
    """Rows of all workers in rank order (M, D), and the index in it of the caller's first row."""

    row_MD: Tensor
    offset: int


class Collective(Protocol):
    """The other workers, handed to whoever needs them; one process alone is the case with nobody else."""

    rank: int
    world: int

    def all_gather(self, local_ND: Tensor) -> Gathered:
        """Concatenate the rows of all workers; gradients flow back to the workers that own them."""
        ...

    def all_sum(self, tensor: Tensor) -> Tensor:
        """Sum over workers, without gradient."""
        ...

    def all_max(self, tensor: Tensor) -> Tensor:
        """Greatest over workers, element by element, without gradient."""
        ...


class LossReport(NamedTuple):
    """This worker's *share* of a loss: the loss of the global batch is the sum of the shares of all workers.

    ``terms`` are shares too, detached, for the log.
    """

    loss: Tensor
    terms: dict[str, Tensor]


class Objective(Protocol):
    """A loss over a batch, in a part that is separable over sequences and a part that couples them."""

    @property
    def uses_rows(self) -> bool:
        """Whether the separable part counts."""
        ...

    @property
    def uses_embeddings(self) -> bool:
        """Whether the coupling part counts."""
        ...

    def normaliser(self, batch: Any, collective: Collective) -> Tensor:
        """The global count by which the separable part is divided; called once a step, before encoding."""
        ...

    def row_loss(
        self, encoder: Encoder, encoded: Encoded, tokens: PaddedTokens, normaliser: Tensor
    ) -> LossReport:
        """The separable part over one micro-batch."""
        ...

    def embedding_loss(
        self, embedding_RD: Tensor, batch: Any, collective: Collective
    ) -> LossReport:
        """The coupling part over this worker's embeddings of the step; it gathers the others' itself."""
        ...


Collate = Callable[[int, int, int], Mapping[str, np.ndarray]]
"""(step, rank, world) -> arrays of that worker's shard of the step; picklable, so that Ray Data can carry it."""


Evaluate = Callable[[Encoder, Collective], Mapping[str, float]]
"""(model, collective) -> metrics, equal on every worker."""


FinalEvaluate = Callable[[Encoder, Collective], FinalReport]
"""(trained model, collective) -> the whole evaluation of a finished run, equal on every worker."""


Export = Callable[[Path, Mapping[str, Any]], Path]
"""(folder, sections of the model card) -> the folder, in which others find the trained model."""


@dataclass(frozen=True)
class System:
    """One published method, wired: all that ``training.loop.fit`` needs to know about it.

    Attributes:
        name: its key in ``METHODS``.
        model: everything that is trained; an ``Encoder``.
        objective: what is minimised.
        batch_type: turns the arrays of ``collate`` into a typed batch.
        collate: makes this worker's shard of a step.
        steps_per_epoch: steps in which every row is an anchor once, a fraction where the batch does not divide them.
        evaluate: validation metrics during training, or None.
        final_evaluate: the whole evaluation of the finished run, or None.
        export: writes the trained model for programs that do not know raybio.
        data_digest: names the store and the tokenizer that the batches are made from; a run goes on with these alone.
        is_pretrained: whether the encoder begins with trained weights.
        is_supervised: whether labels may rightly put all embeddings on a line, as two classes or one number do.
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
