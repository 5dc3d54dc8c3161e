"""Losses."""

import torch
from torch import Tensor

from raybio.ops.grouped import grouped_logsumexp
from raybio.ops.similarity import at_least_fp32, normalise


def pairwise_cosine(one_ND: Tensor, other_ND: Tensor) -> Tensor:
    """Cosine (N,) of row n of the one with row n of the other; 0 for a zero vector."""
    return (normalise(one_ND) * normalise(other_ND)).sum(-1)


def true_graph_loss(
    similarity_G: Tensor, anchor_G: Tensor, *, temperature: float, more_AN: Tensor | None = None
) -> Tensor:
    """-log softmax of each anchor's first graph among its graphs (A,): Equations 4 and 5 of one anchor.

    Args:
        similarity_G: of an anchor and its graph, a cosine.
        anchor_G: anchor of each graph, ascending from 0 without a gap; an anchor's first graph is the true one.
        temperature: τ.
        more_AN: similarities with further false graphs, -inf where there is none; not in the paper.
    """
    logit_G = at_least_fp32(similarity_G) / temperature
    num_anchors = int(anchor_G[-1]) + 1 if len(anchor_G) else 0
    is_first_G = torch.ones_like(anchor_G, dtype=torch.bool)
    is_first_G[1:] = anchor_G[1:] != anchor_G[:-1]
    total_A = grouped_logsumexp(logit_G[:, None], anchor_G, num_anchors)[:, 0]
    if more_AN is not None:
        total_A = torch.logsumexp(
            torch.cat([total_A[:, None], at_least_fp32(more_AN) / temperature], dim=1), dim=1
        )
    return total_A - logit_G[is_first_G]


def has_positive(tag_W: Tensor, sample_WK: Tensor, sample_tag_WK: Tensor) -> Tensor:
    """Whether a word has a sample of its tag (W,), and so a loss; arguments as of ``same_tag_loss``."""
    return (tag_W >= 0) & ((sample_WK >= 0) & (sample_tag_WK == tag_W[:, None])).any(1)


def same_tag_loss(
    word_WD: Tensor,
    tag_W: Tensor,
    other_MD: Tensor,
    sample_WK: Tensor,
    sample_tag_WK: Tensor,
    *,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """-log of the share that samples of a word's own tag have in all its samples' exp(cosine / τ), and where (W,).

    Equation 6 for each word; the sum over positives stands inside the logarithm, as printed and in the authors' code.

    Args:
        word_WD: the words.
        tag_W: their tags; -1: no anchor.
        other_MD: words that samples are among.
        sample_WK: numbers of the samples in it; -1: none.
        sample_tag_WK: their tags.
        temperature: τ.

    Returns:
        losses (W,), 0 where there is none, and whether there is one, bool (W,): anchors with a sample of their tag.
    """
    is_there_WK = sample_WK >= 0
    is_positive_WK = is_there_WK & (sample_tag_WK == tag_W[:, None])
    is_anchor_W = has_positive(tag_W, sample_WK, sample_tag_WK)
    # Of all pairs at once: with a batch's few hundred words that is less than gathering 80 vectors for each.
    cosine_WM = normalise(at_least_fp32(word_WD)) @ normalise(at_least_fp32(other_MD)).T
    logit_WK = cosine_WM.gather(1, sample_WK.clamp(min=0)) / temperature
    lowest = torch.finfo(logit_WK.dtype).min
    total_W = logit_WK.masked_fill(~is_there_WK, lowest).logsumexp(1)
    positive_W = logit_WK.masked_fill(~is_positive_WK, lowest).logsumexp(1)
    return torch.where(is_anchor_W, total_W - positive_W, 0.0), is_anchor_W
