"""Structure-preserving losses: linked nodes together, unlinked nodes apart (McDermott et al., SPPT).

N anchors, M candidates, D embedding width. A mask named ``linked`` is True where two nodes are
linked in the graph, one named ``ignore`` where a pair is neither positive nor negative; every other
pair is a negative.

The objective of structure-preserving pre-training (McDermott et al.): L = (1 - λ) L_MLM + λ L_SPML.

Shape letters: R sequences of this worker, G sequences of all workers, D embedding width.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from raybio.core.batch import PaddedTokens
from raybio.core.interfaces import Collective, Encoded, Encoder, LossReport
from raybio.methods.sppt.batches import LinkBatch
from raybio.methods.sppt.config import ObjectiveConfig
from raybio.ops.contrastive import equal_rows
from raybio.ops.similarity import at_least_fp32, cosine, matmul
from raybio.training.objectives import count_labels, masked_language_model


def multi_similarity(
    embedding_ND: Tensor,
    linked_NN: Tensor,
    *,
    positive_weight: float,
    negative_weight: float,
    threshold: float,
    mining_margin: float | None = None,
    ignore_NN: Tensor | None = None,
) -> Tensor:
    """Mean multi-similarity loss of the anchors that have a positive and a negative; 0 with gradient if none has.

    See ``multi_similarity_per_anchor``. The diagonal is never a pair.

    Args:
        embedding_ND: embeddings; their length does not matter.
        linked_NN: bool, symmetric for an undirected graph.
        positive_weight: w+ > 0, sharpness of the pull.
        negative_weight: w- > 0, sharpness of the push.
        threshold: t, the cosine that both compare with.
        mining_margin: None keeps all pairs.
        ignore_NN: bool pairs to leave out besides the diagonal.
    """
    ignore_self_NN = torch.eye(len(embedding_ND), dtype=torch.bool, device=embedding_ND.device)
    loss_N, is_counted_N = multi_similarity_per_anchor(
        embedding_ND,
        embedding_ND,
        linked_NN,
        ignore_self_NN if ignore_NN is None else ignore_NN | ignore_self_NN,
        positive_weight=positive_weight,
        negative_weight=negative_weight,
        threshold=threshold,
        mining_margin=mining_margin,
    )
    return loss_N.sum() / is_counted_N.sum().clamp(min=1)


def multi_similarity_per_anchor(
    anchor_ND: Tensor,
    candidate_MD: Tensor,
    linked_NM: Tensor,
    ignore_NM: Tensor,
    *,
    positive_weight: float,
    negative_weight: float,
    threshold: float,
    mining_margin: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Multi-similarity loss of each anchor against the candidates (Wang et al., 2019, eq. 10-13; SPPT's code).

    With cosine s, positives P and negatives N of an anchor:

        loss = 1/w+ log(1 + sum_P exp(-w+ (s - t))) + 1/w- log(1 + sum_N exp(w- (s - t)))

    With a mining margin e, only negatives with s + e > min_P s and positives with s - e < max_N s
    enter the sums. An anchor with no positive or no negative, before or after mining, is not
    counted.

    Args:
        anchor_ND: this worker's embeddings.
        candidate_MD: the embeddings of all workers.
        linked_NM: bool.
        ignore_NM: bool; must be True where anchor and candidate are the same sequence.
        positive_weight: w+ > 0.
        negative_weight: w- > 0.
        threshold: t.
        mining_margin: e; None keeps all pairs, which e >= 2 does too.

    Returns:
        The loss (N,), 0 where not counted, and whether an anchor is counted, bool (N,).

    Raises:
        ValueError: for a weight that is not positive.
    """
    _check_weights(positive_weight, negative_weight)
    similarity_NM = cosine(anchor_ND, candidate_MD)
    positive_NM = linked_NM & ~ignore_NM
    negative_NM = ~linked_NM & ~ignore_NM
    is_counted_N = positive_NM.any(1) & negative_NM.any(1)
    if mining_margin is not None:
        seen_NM = similarity_NM.detach()
        hardest_positive_N1 = seen_NM.masked_fill(~positive_NM, torch.inf).amin(1, keepdim=True)
        hardest_negative_N1 = seen_NM.masked_fill(~negative_NM, -torch.inf).amax(1, keepdim=True)
        positive_NM = positive_NM & (seen_NM - mining_margin < hardest_negative_N1)
        negative_NM = negative_NM & (seen_NM + mining_margin > hardest_positive_N1)
        is_counted_N = is_counted_N & positive_NM.any(1) & negative_NM.any(1)
    pull_N = (
        _log_one_plus_sum_exp(-positive_weight * (similarity_NM - threshold), positive_NM, 1)
        / positive_weight
    )
    push_N = (
        _log_one_plus_sum_exp(negative_weight * (similarity_NM - threshold), negative_NM, 1)
        / negative_weight
    )
    return torch.where(is_counted_N, pull_N + push_N, 0.0), is_counted_N


def multi_similarity_global(
    embedding_ND: Tensor,
    linked_NN: Tensor,
    *,
    positive_weight: float,
    negative_weight: float,
    threshold: float,
    ignore_NN: Tensor | None = None,
) -> Tensor:
    """The multi-similarity loss as the SPPT paper prints it: inner products and one logarithm over all pairs.

        1/(N w+) log(1 + sum_linked exp(-w+ (<f_i, f_j> - t))) + 1/(N w-) log(1 + sum_unlinked
        exp(w- (<f_i, f_j> - t)))

    Sums run over ordered pairs, so each undirected pair counts from both ends; the diagonal is
    never a pair. The authors' code is the per-anchor form with cosines, see ``multi_similarity``.
    Arguments as there.
    """
    _check_weights(positive_weight, negative_weight)
    num_anchors = len(embedding_ND)
    is_pair_NN = ~torch.eye(num_anchors, dtype=torch.bool, device=embedding_ND.device)
    if ignore_NN is not None:
        is_pair_NN = is_pair_NN & ~ignore_NN
    wide_ND = at_least_fp32(embedding_ND)
    margin_NN = matmul(wide_ND, wide_ND.T) - threshold
    pull = _log_one_plus_sum_exp(
        (-positive_weight * margin_NN).flatten(), (linked_NN & is_pair_NN).flatten(), 0
    )
    push = _log_one_plus_sum_exp(
        (negative_weight * margin_NN).flatten(), (~linked_NN & is_pair_NN).flatten(), 0
    )
    return (pull / positive_weight + push / negative_weight) / max(num_anchors, 1)


def margin_contrastive(
    anchor_ND: Tensor,
    positive_ND: Tensor,
    negative_ND: Tensor,
    *,
    positive_margin: float,
    negative_margin: float,
) -> Tensor:
    """Contrastive loss with margins, the SPPT paper's two means added.

        mean_i max(|anchor_i - positive_i| - positive_margin, 0)
        + mean_i max(negative_margin - |anchor_i - negative_i|, 0)

    Euclidean distances. The authors' code takes one mean over both kinds of pairs (half of this)
    and adds 1e-6 to each coordinate of a difference; here the distance is exact and its gradient at
    0 is 0, which is finite as well.

    Args:
        anchor_ND: anchors.
        positive_ND: a neighbour of each anchor.
        negative_ND: a non-neighbour of each anchor.
        positive_margin: distance below which a positive costs nothing; the paper's mu+ = 0.
        negative_margin: distance above which a negative costs nothing; the authors' mu- = 10.
    """
    positive_N: Tensor = torch.linalg.vector_norm(anchor_ND - positive_ND, dim=-1)
    negative_N: Tensor = torch.linalg.vector_norm(anchor_ND - negative_ND, dim=-1)
    return (positive_N - positive_margin).clamp(min=0).mean() + (
        negative_margin - negative_N
    ).clamp(min=0).mean()


def _log_one_plus_sum_exp(exponent: Tensor, mask: Tensor, dim: int) -> Tensor:
    """log(1 + sum of exp over the masked entries), finite and with a finite gradient for any input, also no entry."""
    # A finite filling: with -inf an empty sum would have the gradient inf - inf.
    filling = torch.finfo(exponent.dtype).min / 4
    total = torch.logsumexp(exponent.masked_fill(~mask, filling), dim)
    return torch.logaddexp(total, torch.zeros_like(total))


def _check_weights(positive_weight: float, negative_weight: float) -> None:
    if positive_weight <= 0 or negative_weight <= 0:
        raise ValueError(f"weights are {positive_weight} and {negative_weight}, want both > 0")


@dataclass(frozen=True)
class StructurePreserving:
    """Masked language modelling and a graph loss, weighted by λ; the part of weight 0 is not computed."""

    config: ObjectiveConfig
    num_positives_per_anchor: int

    @property
    def uses_rows(self) -> bool:
        """Whether the language model counts (λ < 1)."""
        return self.config.lambda_spml < 1

    @property
    def uses_embeddings(self) -> bool:
        """Whether the graph loss counts (λ > 0)."""
        return self.config.lambda_spml > 0

    def normaliser(self, batch: LinkBatch, collective: Collective) -> Tensor:
        """Masked tokens of the global batch."""
        return count_labels(batch, collective)

    def row_loss(
        self, encoder: Encoder, encoded: Encoded, tokens: PaddedTokens, normaliser: Tensor
    ) -> LossReport:
        """(1 - λ) times this micro-batch's share of the language-model loss."""
        return masked_language_model(
            encoder, encoded, tokens, normaliser, weight=1 - self.config.lambda_spml
        )

    def embedding_loss(
        self, embedding_RD: Tensor, batch: LinkBatch, collective: Collective
    ) -> LossReport:
        """λ times this worker's share of the graph loss."""
        graph_loss = {
            "multi_similarity": self._multi_similarity,
            "multi_similarity_global": self._multi_similarity_global,
            "margin_contrastive": self._margin_contrastive,
        }[self.config.loss]
        share, terms = graph_loss(embedding_RD, batch, collective)
        terms |= {
            "spml_loss": share.detach(),
            "fallback_negatives": batch.num_fallback_negatives.float(),
        }
        return LossReport(self.config.lambda_spml * share, terms)

    def _multi_similarity(
        self, embedding_RD: Tensor, batch: LinkBatch, collective: Collective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Every local sequence against all sequences of all workers; mean over those with a positive and a negative."""
        gathered = collective.all_gather(embedding_RD)
        loss_R, is_counted_R = multi_similarity_per_anchor(
            embedding_RD,
            gathered.row_MD,
            batch.linked_RG,
            batch.ignore_RG,
            **self.config.multi_similarity(),
        )
        num_counted = collective.all_sum(is_counted_R.sum()).clamp(min=1)
        with torch.no_grad():
            # All embeddings alike: where the loss stays when the encoder has collapsed.
            equal_R, _ = multi_similarity_per_anchor(
                equal_rows(embedding_RD),
                equal_rows(gathered.row_MD),
                batch.linked_RG,
                batch.ignore_RG,
                **self.config.multi_similarity(),
            )
        num_pairs = max(1, len(gathered.row_MD) * (len(gathered.row_MD) - 1))
        # A sequence and itself are no pair, so they do not count as ignored.
        terms = {
            "ignored_pair_rate": (batch.ignore_RG.sum() - len(embedding_RD)) / num_pairs,
            "counted_anchors": is_counted_R.sum().float(),
            "spml_chance": equal_R.sum() / num_counted,
        }
        return loss_R.sum() / num_counted, terms

    def _multi_similarity_global(
        self, embedding_RD: Tensor, batch: LinkBatch, collective: Collective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One logarithm over the pairs of all workers does not fall into shares: each computes all, and counts 1/W."""
        weights = {
            name: value
            for name, value in self.config.multi_similarity().items()
            if name != "mining_margin"
        }
        row_MD = collective.all_gather(embedding_RD).row_MD
        linked_MM = collective.all_gather(batch.linked_RG).row_MD
        ignore_MM = collective.all_gather(batch.ignore_RG).row_MD
        whole = multi_similarity_global(row_MD, linked_MM, ignore_NN=ignore_MM, **weights)
        with torch.no_grad():
            equal = multi_similarity_global(
                equal_rows(row_MD), linked_MM, ignore_NN=ignore_MM, **weights
            )
        return whole / collective.world, {"spml_chance": equal / collective.world}

    def _margin_contrastive(
        self, embedding_RD: Tensor, batch: LinkBatch, collective: Collective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Each anchor with its own positives and negatives; nothing has to be gathered."""
        num_anchors = int(batch.num_anchors)
        num_pairs = num_anchors * self.num_positives_per_anchor
        anchor_ND, positive_ND, negative_ND = torch.split(
            embedding_RD, [num_anchors, num_pairs, num_pairs]
        )
        num_pairs_global = collective.all_sum(
            torch.tensor(num_pairs, device=embedding_RD.device)
        ).clamp(min=1)
        if num_pairs == 0:
            return embedding_RD.sum() * 0, {}
        margin_loss = partial(
            margin_contrastive,
            positive_margin=self.config.positive_margin,
            negative_margin=self.config.negative_margin,
        )
        anchor_PD = anchor_ND.repeat_interleave(self.num_positives_per_anchor, dim=0)
        mean = margin_loss(anchor_PD, positive_ND, negative_ND)
        with torch.no_grad():
            equal = margin_loss(
                equal_rows(anchor_PD), equal_rows(positive_ND), equal_rows(negative_ND)
            )
        share = num_pairs / num_pairs_global
        return mean * share, {"spml_chance": equal * share}
