"""Graph losses of SPPT: pull linked nodes together, push unlinked nodes apart.

They are pure functions of embeddings and masks. ``objective.py`` combines them with masked language
modeling and divides them over workers.

Shape letters: N anchors, M candidates, D embedding width. A mask named ``linked`` is True where two
nodes are linked in the graph, one named ``ignore`` where a pair is neither positive nor negative.
Every other pair is a negative.
"""

import torch
from torch import Tensor

from raybio.ops.similarity import at_least_fp32, cosine, matmul


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
    """Return the Multi-Similarity loss of each anchor (Wang et al., 2019, Eq. 10 to 13).

    This is the form in the code of McDermott et al.; their paper prints
    ``multi_similarity_global``. With cosine s, positives P and negatives N of an anchor:

        loss = 1/w+ log(1 + sum_P exp(-w+ (s - t))) + 1/w- log(1 + sum_N exp(w- (s - t)))

    With a mining margin e, only negatives with s + e > min_P s and positives with s - e < max_N s
    enter the sums. An anchor counts if it has a positive and a negative, before and after mining.

    Args:
        anchor_ND: this worker's embeddings.
        candidate_MD: embeddings of all workers.
        linked_NM: bool, pairs that are linked in the graph.
        ignore_NM: bool; must be True where anchor and candidate are the same sequence.
        positive_weight: w+ > 0.
        negative_weight: w- > 0.
        threshold: t.
        mining_margin: e; None keeps all pairs, and so does e >= 2.

    Returns:
        The loss (N,), 0 for an anchor that does not count, and which anchors count, bool (N,).

    Raises:
        ValueError: if a weight is not positive.
    """
    _check_weights(positive_weight, negative_weight)
    similarity_NM = cosine(anchor_ND, candidate_MD)
    positive_NM = linked_NM & ~ignore_NM
    negative_NM = ~linked_NM & ~ignore_NM
    is_counted_N = positive_NM.any(1) & negative_NM.any(1)
    if mining_margin is not None:
        # Mining selects pairs; it has no gradient.
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
    """Return the Multi-Similarity loss as McDermott et al. print it.

    It has inner products and one logarithm over all pairs:

        1/(N w+) log(1 + sum_linked   exp(-w+ (<f_i, f_j> - t)))
      + 1/(N w-) log(1 + sum_unlinked exp( w- (<f_i, f_j> - t)))

    Sums run over ordered pairs, so each undirected pair counts from both ends. The diagonal is
    never a pair. The authors' code has the per-anchor form with cosines, see
    ``multi_similarity_per_anchor``.

    Args:
        embedding_ND: embeddings of any length.
        linked_NN: bool, symmetric for an undirected graph.
        positive_weight: w+ > 0.
        negative_weight: w- > 0.
        threshold: t.
        ignore_NN: bool, pairs to ignore in addition to the diagonal.
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
    """Return the contrastive loss with margins of McDermott et al., the sum of two means.

        mean_i max(|anchor_i - positive_i| - positive_margin, 0)
        + mean_i max(negative_margin - |anchor_i - negative_i|, 0)

    Distances are Euclidean. The authors' code takes one mean over both kinds of pairs (half of
    this) and adds 1e-6 to each coordinate of a difference. Here the distance is exact, and its
    gradient at 0 is 0.

    Args:
        anchor_ND: anchors.
        positive_ND: a neighbor of each anchor.
        negative_ND: a non-neighbor of each anchor.
        positive_margin: distance below which a positive costs nothing; the paper's mu+ = 0.
        negative_margin: distance above which a negative costs nothing; the authors' mu- = 10.
    """
    positive_N: Tensor = torch.linalg.vector_norm(anchor_ND - positive_ND, dim=-1)
    negative_N: Tensor = torch.linalg.vector_norm(anchor_ND - negative_ND, dim=-1)
    return (positive_N - positive_margin).clamp(min=0).mean() + (
        negative_margin - negative_N
    ).clamp(min=0).mean()


def _log_one_plus_sum_exp(exponent: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Return log(1 + sum of exp over the masked entries), with a finite gradient for any input."""
    # A finite fill value: with -inf, an empty sum would have the gradient inf - inf.
    fill_value = torch.finfo(exponent.dtype).min / 4
    total = torch.logsumexp(exponent.masked_fill(~mask, fill_value), dim)
    return torch.logaddexp(total, torch.zeros_like(total))


def _check_weights(positive_weight: float, negative_weight: float) -> None:
    if positive_weight <= 0 or negative_weight <= 0:
        raise ValueError(f"weights are {positive_weight} and {negative_weight}, want both > 0")
