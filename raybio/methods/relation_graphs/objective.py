"""Objectives of CLDR, CLGS, CLNER and their combination (Theodoropoulos et al., 2021, Section 3).

Shape letters: W words of this worker, M words or anchors of all workers, A anchors, G graphs,
N nodes, E edges, S sentences, D embedding width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raybio.core.interfaces import Collective, LossReport
from raybio.methods.relation_graphs.batches import RelationGraphBatch
from raybio.methods.relation_graphs.config import GraphObjectiveConfig, Model
from raybio.methods.relation_graphs.loss import (
    first_graphs,
    has_positive,
    pairwise_cosine,
    same_tag_loss,
    true_graph_loss,
)
from raybio.ops.contrastive import equal_rows
from raybio.ops.grouped import group_sizes, grouped_mean
from raybio.ops.similarity import normalize
from raybio.training.objectives import CouplingObjective


class RelationGraphHead(nn.Module):
    """Parameters that are trained next to the encoder.

    Attributes:
        graph: graph convolution, or None.
        entity: tag head: a linear map of words, or None.
        text_projection: projection of sentences, or None.
        graph_projection: projection of graphs, or None.
    """

    def __init__(
        self, graph: nn.Module | None, width: int, *, has_tags: bool, projection_width: int | None
    ) -> None:
        """Create the linear maps; they are drawn by torch's generator."""
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
        """Return the words after the tag head; unchanged without one."""
        return word_WD if self.entity is None else self.entity(word_WD)


@dataclass(frozen=True)
class RelationGraphObjective(CouplingObjective):
    """The loss of graphs, of tags, or both.

    Attributes:
        config: settings.
        model: name of the model.
        head: parameters trained next to the encoder.
    """

    config: GraphObjectiveConfig
    model: Model
    head: RelationGraphHead

    def embedding_loss(
        self, embedding_WD: Tensor, batch: RelationGraphBatch, collective: Collective
    ) -> LossReport:
        """Return this worker's share of the loss."""
        loss = embedding_WD.sum() * 0
        terms = dict[str, Tensor]()
        if self.model != "clner":
            similarities = self.similarities(embedding_WD, batch)
            more_AN = None
            if self.config.in_batch_negatives:
                more_AN = self._other_graphs(similarities, batch, collective)
            loss_A = true_graph_loss(
                similarities.similarity_G,
                batch.anchor_G,
                len(batch.sentence_A),
                temperature=self.config.temperature,
                more_AN=more_AN,
            )
            share = self._over_sentences(loss_A, batch, collective)
            loss = loss + share
            terms["graph_loss"] = share.detach()
            terms["graph_chance"] = self._graph_chance(similarities, more_AN, batch, collective)
        if self.model in ("clner", "joint"):
            word_WD = self.head.tag_space(embedding_WD)
            other_MD = collective.all_gather(word_WD).row_MD
            share = self._tag_loss(word_WD, other_MD, batch, collective)
            loss = loss + self.weight_of("tag_loss") * share
            terms["tag_loss"] = share.detach()
            with torch.no_grad():
                terms["tag_chance"] = self._tag_loss(
                    equal_rows(word_WD), equal_rows(other_MD), batch, collective
                )
        return LossReport(loss, terms)

    def num_averaged(self, batch: RelationGraphBatch) -> dict[str, int]:
        """Return term -> number of sentences or words of a batch over which it is averaged."""
        counts = {}
        if self.model != "clner":
            counts["graph_loss"] = len(batch.sentence_A.unique())
        if self.model in ("clner", "joint"):
            is_anchor_W = has_positive(batch.tag_W, batch.sample_WK, batch.sample_tag_WK)
            counts["tag_loss"] = int(is_anchor_W.sum())
        return counts

    def weight_of(self, term: str) -> float:
        """Return the weight of a term in the loss."""
        return self.config.tag_weight if self.model == "joint" and term == "tag_loss" else 1.0

    def similarities(self, embedding_WD: Tensor, batch: RelationGraphBatch) -> "Similarities":
        """Return the cosines (G,) of all graphs with their texts."""
        assert self.head.graph is not None
        feature_NF = batch.feature_UF.to(embedding_WD.dtype).index_select(0, batch.feature_N)
        state_ND = self.head.graph(feature_NF, batch.head_E, batch.tail_E)
        first_A = first_graphs(batch.anchor_G, len(batch.sentence_A))
        if self.model == "clgs":
            text_AD = self._sentences(embedding_WD, batch)[batch.sentence_A]
            graph_GD = _pooled(state_ND, batch.node_indptr_G1, self.config.graph_pooling)
            if self.head.graph_projection is not None and self.head.text_projection is not None:
                text_AD = torch.relu(self.head.text_projection(text_AD))
                graph_GD = torch.relu(self.head.graph_projection(graph_GD))
            text_GD = text_AD[batch.anchor_G]
        else:  # a pair is the concatenation of its two nodes, tail first
            graph_GD = state_ND.view(-1, 2 * state_ND.shape[1])
            text_GD = torch.relu(embedding_WD[batch.word_N]).view(-1, 2 * state_ND.shape[1])
            text_AD = text_GD.index_select(0, first_A)
            if self.config.pairing == "paper":
                text_GD = text_AD[batch.anchor_G]
        return Similarities(
            pairwise_cosine(text_GD, graph_GD), text_AD, graph_GD.index_select(0, first_A)
        )

    def _graph_chance(
        self,
        similarities: "Similarities",
        more_AN: Tensor | None,
        batch: RelationGraphBatch,
        collective: Collective,
    ) -> Tensor:
        """Return the loss of an encoder for which all graphs are equally similar."""
        with torch.no_grad():
            if more_AN is not None:
                more_AN = torch.where(torch.isneginf(more_AN), more_AN, 0.0)
            equal_A = true_graph_loss(
                torch.zeros_like(similarities.similarity_G),
                batch.anchor_G,
                len(batch.sentence_A),
                temperature=self.config.temperature,
                more_AN=more_AN,
            )
            return self._over_sentences(equal_A, batch, collective)

    def _sentences(self, embedding_WD: Tensor, batch: RelationGraphBatch) -> Tensor:
        """Return pooled sentences (S, D); the first special token counts only for "cls"."""
        start_S = batch.word_indptr_R1[:-1]
        size_S = batch.word_indptr_R1.diff()
        if self.config.text_pooling == "cls":
            return embedding_WD[start_S]
        is_word_W = torch.ones(len(embedding_WD), dtype=torch.bool, device=embedding_WD.device)
        is_word_W = is_word_W.index_fill(0, start_S, False)
        num_words = len(embedding_WD) - len(start_S)
        word_N = torch.nonzero_static(is_word_W, size=num_words)[:, 0]
        indptr_S1 = torch.cat([size_S.new_zeros(1), (size_S - 1).cumsum(0)])
        return _pooled(embedding_WD.index_select(0, word_N), indptr_S1, self.config.text_pooling)

    def _other_graphs(
        self, similarities: "Similarities", batch: RelationGraphBatch, collective: Collective
    ) -> Tensor:
        """Return cosines (A, M) with true graphs of other sentences; -inf for the own sentence."""
        gathered = collective.all_gather(similarities.graph_AD)
        # Make sentence numbers unique across workers.
        sentence_A = batch.sentence_A + (collective.rank << 32)
        sentence_M = collective.all_gather(sentence_A, gathered).row_MD
        cosine_AM = normalize(similarities.text_AD) @ normalize(gathered.row_MD).T
        return cosine_AM.masked_fill(sentence_A[:, None] == sentence_M, -torch.inf)

    def _over_sentences(
        self, loss_A: Tensor, batch: RelationGraphBatch, collective: Collective
    ) -> Tensor:
        """Return the share of the mean (or sum) over sentences of the mean over their anchors."""
        num_sentences = len(batch.word_indptr_R1) - 1
        loss_S = grouped_mean(loss_A[:, None], batch.sentence_A, num_sentences)
        if self.config.reduction == "sum":
            return loss_S.sum()
        has_anchor_S = group_sizes(batch.sentence_A, num_sentences) > 0
        return loss_S.sum() / collective.all_sum(has_anchor_S.sum()).clamp(min=1)

    def _tag_loss(
        self,
        word_WD: Tensor,
        other_MD: Tensor,
        batch: RelationGraphBatch,
        collective: Collective,
    ) -> Tensor:
        """Return the share of the mean over all words that have a sample of their tag."""
        loss_W, is_anchor_W = same_tag_loss(
            word_WD,
            batch.tag_W,
            other_MD,
            batch.sample_WK,
            batch.sample_tag_WK,
            temperature=self.config.temperature,
        )
        return loss_W.sum() / collective.all_sum(is_anchor_W.sum()).clamp(min=1)


@dataclass(frozen=True)
class Similarities:
    """Similarities of graphs and texts.

    Attributes:
        similarity_G: cosine of each graph with its text.
        text_AD: text of each anchor.
        graph_AD: true graph of each anchor.
    """

    similarity_G: Tensor
    text_AD: Tensor
    graph_AD: Tensor


def _pooled(row_ND: Tensor, indptr_G1: Tensor, pooling: str) -> Tensor:
    """Return the mean or maximum of the rows of each group (G, D); 0 for an empty group."""
    size_G = indptr_G1.diff()
    graph_G = torch.arange(len(size_G), device=row_ND.device)
    group_N = torch.repeat_interleave(graph_G, size_G, output_size=len(row_ND))
    if pooling == "mean":
        return grouped_mean(row_ND, group_N, len(size_G))
    zero_GD = row_ND.new_zeros(len(size_G), row_ND.shape[1])
    return zero_GD.scatter_reduce(
        0, group_N[:, None].expand_as(row_ND), row_ND, "amax", include_self=False
    )
