"""Losses of relation-aware embeddings (Theodoropoulos et al., 2021, Equations 4 to 6).

Shape letters: A anchors, G graphs of all anchors, W words of this worker, M words of all workers,
K samples of a word, D embedding width.
"""

import torch
from torch import Tensor

from raybio.ops.grouped import grouped_logsumexp
from raybio.ops.similarity import at_least_fp32, normalize


def pairwise_cosine(first_ND: Tensor, second_ND: Tensor) -> Tensor:
    """Return the cosine (N,) of each row with the same row of the other; 0 for a zero vector."""
    return (normalize(first_ND) * normalize(second_ND)).sum(-1)


def first_graphs(anchor_G: Tensor, num_anchors: int) -> Tensor:
    """Return the first graph of each anchor (A,); ``anchor_G`` ascends without gaps."""
    return torch.searchsorted(anchor_G, torch.arange(num_anchors, device=anchor_G.device))


def true_graph_loss(
    similarity_G: Tensor,
    anchor_G: Tensor,
    num_anchors: int,
    *,
    temperature: float,
    more_AN: Tensor | None = None,
) -> Tensor:
    """Return -log softmax of each anchor's true graph among its graphs (A,): Equations 4 and 5.

    Args:
        similarity_G: cosine of each graph with its text.
        anchor_G: anchor of each graph, ascending from 0 without gaps; the first is the true one.
        num_anchors: A.
        temperature: τ.
        more_AN: similarities with more false graphs, -inf where there is none; not in the paper.
    """
    logit_G = at_least_fp32(similarity_G) / temperature
    total_A = grouped_logsumexp(logit_G[:, None], anchor_G, num_anchors)[:, 0]
    if more_AN is not None:
        total_A = torch.logsumexp(
            torch.cat([total_A[:, None], at_least_fp32(more_AN) / temperature], dim=1), dim=1
        )
    return total_A - logit_G.index_select(0, first_graphs(anchor_G, num_anchors))


def has_positive(tag_W: Tensor, sample_WK: Tensor, sample_tag_WK: Tensor) -> Tensor:
    """Return which words have a sample of their tag, and so a loss (W,); see ``same_tag_loss``."""
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
    """Return each word's -log( sum over samples of its tag of e^(cos / τ) / sum over all samples ).

    This is Equation 6 for each word; the sum over positives is inside the logarithm, as printed and
    in the authors' code.

    Args:
        word_WD: the words.
        tag_W: their tags; -1: no anchor.
        other_MD: the words that samples are taken from.
        sample_WK: indices of the samples in ``other_MD``; -1: none.
        sample_tag_WK: tags of the samples.
        temperature: τ.

    Returns:
        Losses (W,), 0 for words without one, and bool (W,): anchors with a sample of their tag.
    """
    exists_WK = sample_WK >= 0
    is_positive_WK = exists_WK & (sample_tag_WK == tag_W[:, None])
    is_anchor_W = has_positive(tag_W, sample_WK, sample_tag_WK)
    # All cosines at once: for a few hundred words, cheaper than gathering 80 vectors for each.
    cosine_WM = normalize(at_least_fp32(word_WD)) @ normalize(at_least_fp32(other_MD)).T
    logit_WK = cosine_WM.gather(1, sample_WK.clamp(min=0)) / temperature
    lowest = torch.finfo(logit_WK.dtype).min
    total_W = logit_WK.masked_fill(~exists_WK, lowest).logsumexp(1)
    positive_W = logit_WK.masked_fill(~is_positive_WK, lowest).logsumexp(1)
    return torch.where(is_anchor_W, total_W - positive_W, 0.0), is_anchor_W
