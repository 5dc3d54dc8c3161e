"""Collation: the rows of a step become one worker's shard of tokens, labels and links.

Crops and masks are counter-based hashes of (seed, step, position in the global batch, position in
the sequence). So a sequence is cropped and masked in the same way for any number of workers.

Shape letters: R sequences of the shard, T tokens of the shard, E links of the shard's sequences.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from raybio.core.batch import IGNORED_LABEL, TokenBatch, deal
from raybio.core.randomness import derive_seed, hash_uniform
from raybio.methods.sppt.config import MaskConfig, PlanConfig
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.plan import LinkPlan, StepRows
from raybio.ops.masking import mask_tokens


class ReadRows(Protocol):
    """Reader of store rows as tokens; must pickle."""

    @property
    def mask_id(self) -> int:
        """Token id of the mask."""
        ...

    @property
    def ordinary_ids(self) -> np.ndarray:
        """Token ids of sequences, without special ones."""
        ...

    def __call__(
        self, row_R: np.ndarray, chance_R: object = 0.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return tokens (T,), row pointers (R + 1,) and which tokens are special, bool (T,).

        ``chance_R``, in [0, 1), decides each random choice of the reader, such as a crop.
        """
        ...

    def lengths(self, row_R: np.ndarray) -> np.ndarray:
        """Return the length of each row (R,), in any unit, without reading the rows."""
        ...


def unmasked(read: ReadRows, row_R: np.ndarray) -> TokenBatch:
    """Return rows as tokens without masks, for embedding."""
    token_T, indptr_R1, _ = read(row_R)
    return TokenBatch.from_numpy(token_T, indptr_R1)


class HasLinks(Protocol):
    """A store of linked rows, or any other object with links between rows."""

    @property
    def graph(self) -> Graph:
        """Training graph over the rows."""
        ...

    @property
    def heldout(self) -> np.ndarray:
        """Links (E, 2) that are kept out of it."""
        ...


@dataclass(frozen=True)
class LinkCollate:
    """Callable (step, rank, world) that returns the arrays of a ``LinkBatch``.

    It pickles as its settings and the store's path. Each process opens the mapped store once.

    Attributes:
        linked: store of the graph.
        plan_config: settings of the plan.
        mask_config: settings of masking.
        read: reader of rows; its random choices depend on the step and the position in the batch.
        seed: the run's seed.
        with_pairs: whether positives, negatives and links are needed (λ > 0).
        mask_anchors: whether anchors are masked, for λ < 1 or for the graph loss.
        self_loops: as in ``LinkPlan``.
    """

    linked: HasLinks
    plan_config: PlanConfig
    mask_config: MaskConfig
    read: ReadRows
    seed: int
    with_pairs: bool
    mask_anchors: bool
    self_loops: bool = False

    @cached_property
    def plan(self) -> LinkPlan:
        """The plan over the store's training graph."""
        return LinkPlan(
            self.linked.graph,
            self.plan_config,
            self.seed,
            self.linked.heldout,
            self.self_loops,
        )

    def __getstate__(self) -> dict[str, object]:
        """Return the fields without the cached plan, to keep the pickle small."""
        return {name: value for name, value in self.__dict__.items() if name != "plan"}

    def __call__(self, step: int, rank: int, world: int) -> Mapping[str, np.ndarray]:
        """Return the arrays of worker ``rank``'s shard of ``step``."""
        batch_rows = self.plan.rows(step) if self.with_pairs else self.plan.anchors(step)
        positions = _global_positions(batch_rows)
        is_own_B = deal(self._lengths(batch_rows, positions), world) == rank
        shard = batch_rows.take(is_own_B)
        row_R = shard.flat
        position_R = positions.take(is_own_B).flat
        crop_key = derive_seed(self.seed, "crop", step)
        num_anchors = len(shard.anchor_B)
        token_T, indptr_R1, is_special_T = self.read(row_R, hash_uniform(crop_key, position_R))
        label_type = np.int16 if token_T.itemsize == 1 else np.int32
        label_T = np.full(len(token_T), IGNORED_LABEL, dtype=label_type)
        if self.mask_anchors and num_anchors:
            end = indptr_R1[num_anchors]
            token_T[:end], label_T[:end] = self._mask(
                token_T[:end],
                is_special_T[:end],
                indptr_R1[: num_anchors + 1],
                position_R[:num_anchors],
                step,
            )
        return {
            "token_T": token_T,
            "indptr_R1": indptr_R1,
            "label_T": label_T,
            "row_R": row_R,
            "num_anchors": np.asarray(num_anchors),
            **self._links(batch_rows, row_R),
            "num_fallback_negatives": np.asarray(self._count_fallbacks(shard)),
        }

    def _lengths(self, rows: StepRows, positions: StepRows) -> np.ndarray:
        """Return the length of each anchor with its positives and negatives (B,)."""
        length_R = self.read.lengths(rows.flat)
        return (
            length_R[positions.anchor_B]
            + length_R[positions.positive_BP].sum(1)
            + length_R[positions.negative_BQ].sum(1)
        )

    def _mask(
        self,
        token_T: np.ndarray,
        is_special_T: np.ndarray,
        indptr_R1: np.ndarray,
        position_R: np.ndarray,
        step: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the masked tokens and the labels of the shard's anchors."""
        length_R = np.diff(indptr_R1)
        position_T = np.repeat(position_R, length_R)
        offset_T = np.arange(len(token_T)) - np.repeat(indptr_R1[:-1], length_R)
        chances = [
            hash_uniform(derive_seed(self.seed, purpose, step), position_T, offset_T)
            for purpose in ("mask", "mask-choice", "mask-residue")
        ]
        return mask_tokens(
            token_T,
            is_special_T,
            *chances,
            rate=self.mask_config.mask_rate,
            mask_id=self.read.mask_id,
            style=self.mask_config.mask_style,
            random_token_ids=self.read.ordinary_ids,
        )

    def _links(self, batch_rows: StepRows, row_R: np.ndarray) -> dict[str, np.ndarray]:
        """Return the links of the shard's sequences to nodes of the global batch."""
        if not self.with_pairs:
            nothing = np.zeros(0, dtype=np.int64)
            return {"link_sequence_E": nothing, "link_row_E": nothing}
        sequence_E, link_row_E = self.linked.graph.links_into(row_R, batch_rows.flat)
        return {"link_sequence_E": sequence_E, "link_row_E": link_row_E}

    def _count_fallbacks(self, shard: StepRows) -> int:
        group_N = self.linked.graph.group_N
        return int((group_N[shard.negative_BQ] != group_N[shard.anchor_B][:, None]).sum())


def _global_positions(rows: StepRows) -> StepRows:
    """Return each sequence's number in the global batch, which does not depend on the workers."""
    sizes = [rows.anchor_B.size, rows.positive_BP.size, rows.negative_BQ.size]
    anchor, positive, negative = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:2])
    return StepRows(
        anchor, positive.reshape(rows.positive_BP.shape), negative.reshape(rows.negative_BQ.shape)
    )
