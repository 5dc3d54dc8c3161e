"""Objective."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raybio.core.interfaces import Collective, LossReport
from raybio.methods.relation_graphs.batches import RelationGraphBatch
from raybio.methods.relation_graphs.config import GraphObjectiveConfig, Model
from raybio.methods.relation_graphs.loss import (
    has_positive,
    pairwise_cosine,
    same_tag_loss,
    true_graph_loss,
)
from raybio.ops.contrastive import equal_rows
from raybio.ops.grouped import grouped_mean
from raybio.ops.similarity import normalise
from raybio.training.objectives import CouplingObjective


class RelationGraphHead(nn.Module):
    """What is trained beside the encoder.

    Attributes:
        graph: graph convolution, or None.
        entity: linear map of words into the space of tags, or None.
        text_projection: of sentences, or None.
        graph_projection: of graphs, or None.
    """

    def __init__(
        self, graph: nn.Module | None, width: int, *, has_tags: bool, projection_width: int | None
    ) -> None:
        """Linear maps are drawn by torch's generator."""
        super().__init__()
        self.graph = graph
        self.entity = nn.Linear(width, width) if has_tags else None
        self.text_projection = (
            nn.Linear(width, projection_width) if graph and projection_width else None
        )
        self.graph_projection = (
            nn.Linear(width, projection_width) if graph and projection_width else None
        )

    def tag_space(self, word_WD: Tensor) -> Tensor:
        """Words where those of one tag are near each other; as they are, where no such space is trained."""
        return word_WD if self.entity is None else self.entity(word_WD)


@dataclass(frozen=True)
class RelationGraphObjective(CouplingObjective):
    """The loss of graphs, that of tags, or both.

    Attributes:
        config: settings.
        model: which.
        head: what is trained beside the encoder.
    """

    config: GraphObjectiveConfig
    model: Model
    head: RelationGraphHead

    def embedding_loss(
        self, embedding_WD: Tensor, batch: RelationGraphBatch, collective: Collective
    ) -> LossReport:
        """This worker's share."""
        loss, terms = embedding_WD.sum() * 0, dict[str, Tensor]()
        if self.model != "clner":
            found = self.similarities(embedding_WD, batch)
            more_AN = (
                self._other_graphs(found, batch, collective)
                if self.config.in_batch_negatives
                else None
            )
            of_anchor_A = true_graph_loss(
                found.similarity_G,
                batch.anchor_G,
                temperature=self.config.temperature,
                more_AN=more_AN,
            )
            share = self._over_sentences(of_anchor_A, batch, collective)
            loss, terms["graph_loss"] = loss + share, share.detach()
            with torch.no_grad():
                equal_A = true_graph_loss(
                    torch.zeros_like(found.similarity_G),
                    batch.anchor_G,
                    temperature=self.config.temperature,
                    more_AN=None
                    if more_AN is None
                    else torch.where(torch.isneginf(more_AN), more_AN, 0.0),
                )
                terms["graph_chance"] = self._over_sentences(equal_A, batch, collective)
        if self.model in ("clner", "joint"):
            word_WD = self.head.tag_space(embedding_WD)
            share = self._tags(word_WD, batch, collective)
            loss, terms["tag_loss"] = loss + self.weight_of("tag_loss") * share, share.detach()
            with torch.no_grad():
                terms["tag_chance"] = self._tags(equal_rows(word_WD), batch, collective)
        return LossReport(loss, terms)

    def num_averaged(self, batch: RelationGraphBatch) -> dict[str, int]:
        """Over how many sentences or words of a whole batch each term of the loss is a mean."""
        counts = {}
        if self.model != "clner":
            counts["graph_loss"] = len(batch.sentence_A.unique())
        if self.model in ("clner", "joint"):
            is_anchor_W = has_positive(batch.tag_W, batch.sample_WK, batch.sample_tag_WK)
            counts["tag_loss"] = int(is_anchor_W.sum())
        return counts

    def weight_of(self, term: str) -> float:
        """What a term counts in the loss."""
        return self.config.tag_weight if self.model == "joint" and term == "tag_loss" else 1.0

    def similarities(self, embedding_WD: Tensor, batch: RelationGraphBatch) -> "Similarities":
        """Of each graph of an anchor with the text that it is compared with: cosines (G,)."""
        assert self.head.graph is not None
        feature_ND = batch.feature_NF.to(embedding_WD.dtype)
        state_ND = self.head.graph(feature_ND, batch.head_E, batch.tail_E)
        is_first_G = torch.ones_like(batch.anchor_G, dtype=torch.bool)
        is_first_G[1:] = batch.anchor_G[1:] != batch.anchor_G[:-1]
        if self.model == "clgs":
            text_AD = self._sentences(embedding_WD, batch)[batch.sentence_A]
            graph_GD = _pooled(state_ND, batch.node_indptr_G1, self.config.graph_pooling)
            if self.head.graph_projection is not None and self.head.text_projection is not None:
                text_AD = torch.relu(self.head.text_projection(text_AD))
                graph_GD = torch.relu(self.head.graph_projection(graph_GD))
            text_GD = text_AD[batch.anchor_G]
        else:  # both nodes of a pair in a row, tail first
            graph_GD = state_ND.view(-1, 2 * state_ND.shape[1])
            text_GD = torch.relu(embedding_WD[batch.word_N]).view(-1, 2 * state_ND.shape[1])
            text_AD = text_GD[is_first_G]
            if self.config.pairing == "paper":
                text_GD = text_AD[batch.anchor_G]
        return Similarities(pairwise_cosine(text_GD, graph_GD), text_AD, graph_GD[is_first_G])

    def _sentences(self, embedding_WD: Tensor, batch: RelationGraphBatch) -> Tensor:
        """What stands for a sentence (S, D); its first special token takes no part but as "cls"."""
        start_S, size_S = batch.word_indptr_R1[:-1], batch.word_indptr_R1.diff()
        if self.config.text_pooling == "cls":
            return embedding_WD[start_S]
        is_word_W = torch.ones(len(embedding_WD), dtype=torch.bool, device=embedding_WD.device)
        is_word_W[start_S] = False
        indptr_S1 = torch.cat([size_S.new_zeros(1), (size_S - 1).cumsum(0)])
        return _pooled(embedding_WD[is_word_W], indptr_S1, self.config.text_pooling)

    def _other_graphs(
        self, found: "Similarities", batch: RelationGraphBatch, collective: Collective
    ) -> Tensor:
        """Cosines (A, anchors of all workers) with the true graphs of other sentences, -inf elsewhere."""
        gathered = collective.all_gather(found.graph_AD)
        sentences = collective.all_gather(torch.ones_like(batch.word_indptr_R1[:-1]))
        sentence_A = batch.sentence_A + sentences.offset
        other_M = collective.all_gather(sentence_A).row_MD
        cosine_AM = normalise(found.text_AD) @ normalise(gathered.row_MD).T
        return cosine_AM.masked_fill(sentence_A[:, None] == other_M, -torch.inf)

    def _over_sentences(
        self, of_anchor_A: Tensor, batch: RelationGraphBatch, collective: Collective
    ) -> Tensor:
        """Mean over a sentence's anchors; then mean or sum over the sentences of all workers that have one."""
        num_sentences = len(batch.word_indptr_R1) - 1
        of_sentence_S = grouped_mean(of_anchor_A[:, None], batch.sentence_A, num_sentences)
        if self.config.reduction == "sum":
            return of_sentence_S.sum()
        has_anchor_S = torch.bincount(batch.sentence_A, minlength=num_sentences) > 0
        return of_sentence_S.sum() / collective.all_sum(has_anchor_S.sum()).clamp(min=1)

    def _tags(self, word_WD: Tensor, batch: RelationGraphBatch, collective: Collective) -> Tensor:
        """Mean over the words of all workers that have a sample of their tag."""
        loss_W, is_anchor_W = same_tag_loss(
            word_WD,
            batch.tag_W,
            collective.all_gather(word_WD).row_MD,
            batch.sample_WK,
            batch.sample_tag_WK,
            temperature=self.config.temperature,
        )
        return loss_W.sum() / collective.all_sum(is_anchor_W.sum()).clamp(min=1)


@dataclass(frozen=True)
class Similarities:
    """Graphs and texts of a step.

    Attributes:
        similarity_G: cosine of each graph with its text.
        text_AD: text of each anchor.
        graph_AD: true graph of each anchor.
    """

    similarity_G: Tensor
    text_AD: Tensor
    graph_AD: Tensor


def _pooled(row_ND: Tensor, indptr_G1: Tensor, pooling: str) -> Tensor:
    """Mean or greatest of the rows of each group (G, D); zero for a group without rows."""
    size_G = indptr_G1.diff()
    group_N = torch.repeat_interleave(torch.arange(len(size_G), device=row_ND.device), size_G)
    if pooling == "mean":
        return grouped_mean(row_ND, group_N, len(size_G))
    lowest_GD = row_ND.new_zeros(len(size_G), row_ND.shape[1])
    return lowest_GD.scatter_reduce(
        0, group_N[:, None].expand_as(row_ND), row_ND, "amax", include_self=False
    )
