"""A linear classifier on the concatenations of all word pairs, fitted to its optimum (Table 3).

The logit of a pair is w . [x_i ; x_j] + bias = u . x_i + v . x_j + bias: each word is multiplied
once, however many pairs it belongs to.

Shape letters: W words, P pairs, D embedding width.
"""

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from raybio.methods.relation_graphs.annotations.word_pairs import WordPairs
from raybio.ops.linear_probe import minimize_regularized
from raybio.ops.scores import check_finite
from raybio.ops.similarity import at_least_fp32, matmul


def fit_pair_classifier(
    words: WordPairs, is_related_P: Tensor, *, l2: float, positive_weight: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Fit logistic regression on the concatenations of all pairs, to its optimum.

    It minimizes the mean loss over the P pairs, with related pairs weighted by ``positive_weight``,
    plus l2 / 2 |weight|^2 on standardized columns; scikit-learn's C is 1 / (l2 P). An iteration
    costs O(W D + P); memory is three times that of the words and some numbers per pair.

    Args:
        words: of the training sentences.
        is_related_P: bool, in the order of ``words.pairs()``.
        l2: weight of the L2 penalty, > 0.
        positive_weight: number of unrelated pairs that a related pair counts for, > 0.

    Returns:
        Weight (2 D,), for the first and then the second word, and bias (), for unscaled vectors.

    Raises:
        ValueError: if there are no pairs, labels do not fit them, settings are <= 0, or vectors are
            not finite.
    """
    _check(words, is_related_P, l2, positive_weight)
    row_WD = at_least_fp32(words.row_WD.detach())
    first_P, second_P = words.pairs()
    num_pairs = len(first_P)
    width = row_WD.shape[1]
    label_P = is_related_P.to(row_WD.dtype)
    first_WD, first_mean_D, first_scale_D, first_DD = _standardized(row_WD, first_P)
    second_WD, second_mean_D, second_scale_D, second_DD = _standardized(row_WD, second_P)
    positive = row_WD.new_tensor(positive_weight)
    weight_P = torch.where(is_related_P, positive, 1.0) / num_pairs

    def mean_loss(weight_1D: Tensor, bias_1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean loss over all pairs, and its gradients for weight and bias."""
        first_W = matmul(first_WD, weight_1D[0, :width])
        second_W = matmul(second_WD, weight_1D[0, width:])
        logit_P = first_W[first_P] + second_W[second_P] + bias_1
        loss = binary_cross_entropy_with_logits(logit_P, label_P, pos_weight=positive)
        gradient_P = weight_P * (logit_P.sigmoid() - label_P)
        gradient_1D = torch.cat(
            [
                matmul(row_WD.new_zeros(len(row_WD)).index_add_(0, word_P, gradient_P), standard_WD)
                for word_P, standard_WD in ((first_P, first_WD), (second_P, second_WD))
            ]
        )
        return loss, gradient_1D[None], gradient_P.sum()[None]

    share_1 = ((label_P.sum() + 1) / (num_pairs + 2))[None]
    # This only preconditions the steps, so the words of a pair may be treated as independent.
    covariance_DD = row_WD.new_zeros(2 * width, 2 * width)
    covariance_DD[:width, :width] = first_DD
    covariance_DD[width:, width:] = second_DD
    fitted = minimize_regularized(mean_loss, covariance_DD, share_1, l2=l2)
    weight_2D = fitted.weight_RD[0] * torch.cat([first_scale_D, second_scale_D])
    return weight_2D, fitted.bias_R[0] - weight_2D @ torch.cat([first_mean_D, second_mean_D])


def pair_logits(words: WordPairs, weight_2D: Tensor, bias: Tensor) -> Tensor:
    """Return the logits (P,) of all pairs, in the order of ``words.pairs()``.

    Raises:
        ValueError: if the weight is not two words wide.
    """
    row_WD = at_least_fp32(words.row_WD)
    if weight_2D.shape != (2 * row_WD.shape[1],):
        raise ValueError(
            f"weight has shape {tuple(weight_2D.shape)}, want ({2 * row_WD.shape[1]},): two words "
            "wide"
        )
    first_P, second_P = words.pairs()
    logit_W2 = matmul(row_WD, weight_2D.to(row_WD.dtype).view(2, -1).T)
    return logit_W2[first_P, 0] + logit_W2[second_P, 1] + bias


def _standardized(row_WD: Tensor, word_P: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return words standardized over pairs (constant columns 0), means, factors and covariance."""
    times_W = torch.bincount(word_P, minlength=len(row_WD)).to(row_WD.dtype) / len(word_P)
    mean_D = matmul(times_W.double(), row_WD.double()).to(row_WD.dtype)
    centered_WD = row_WD - mean_D
    std_D = matmul(times_W, centered_WD.square()).sqrt()
    scale_D = torch.where(std_D > 1e-6 * mean_D.abs(), 1 / std_D, 0.0)
    standard_WD = centered_WD.mul_(scale_D)
    return standard_WD, mean_D, scale_D, matmul(standard_WD.T * times_W, standard_WD)


def _check(words: WordPairs, is_related_P: Tensor, l2: float, positive_weight: float) -> None:
    if (
        is_related_P.shape != (words.num_pairs,)
        or is_related_P.dtype != torch.bool
        or not words.num_pairs
    ):
        raise ValueError(
            f"labels are {is_related_P.dtype} {tuple(is_related_P.shape)}, want torch.bool "
            f"({words.num_pairs},): one a pair, and at least one"
        )
    if not (l2 > 0 and positive_weight > 0):
        raise ValueError(f"l2 is {l2} and positive_weight {positive_weight}, want numbers > 0")
    check_finite(words.row_WD, "words")
