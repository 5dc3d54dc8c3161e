"""Similarity matrices.

N anchors, M candidates, D embedding width.
"""

import torch
from torch import Tensor


def cosine(anchor_ND: Tensor, candidate_MD: Tensor) -> Tensor:
    """Cosine of each anchor with each candidate, shape (N, M), in fp32 or better whatever autocast says.

    A zero vector has no direction: its cosines are 0 and so is its gradient.
    """
    return matmul(normalise(anchor_ND), normalise(candidate_MD).T)


def euclidean(anchor_ND: Tensor, candidate_MD: Tensor) -> Tensor:
    """Euclidean distance of each anchor to each candidate, shape (N, M).

    From differences, not from |a|^2 - 2ab + |b|^2, whose cancellation swamps small distances between large vectors;
    D times the memory traffic of a matrix product. The gradient at distance 0 is 0.
    """
    distance_NM: Tensor = torch.cdist(
        at_least_fp32(anchor_ND),
        at_least_fp32(candidate_MD),
        compute_mode="donot_use_mm_for_euclid_dist",
    )
    return distance_NM


def normalise(vector_ND: Tensor) -> Tensor:
    """Rows scaled to length 1, in fp32 or better; zero rows stay zero and get no gradient."""
    vector_ND = at_least_fp32(vector_ND)
    # Scaled by the largest entry first: squares of entries below 1e-19 or above 1e19 do not fit fp32.
    largest_N1 = vector_ND.detach().abs().amax(dim=-1, keepdim=True)
    is_zero_N1 = largest_N1 == 0
    scaled_ND = vector_ND / largest_N1.masked_fill(is_zero_N1, 1)
    length_N1: Tensor = torch.linalg.vector_norm(scaled_ND, dim=-1, keepdim=True)
    return (scaled_ND / length_N1.masked_fill(is_zero_N1, 1)).masked_fill(is_zero_N1, 0)


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """Matrix product in the operands' own dtype: autocast would round scores to 8 bits before an exponential."""
    with torch.autocast(left.device.type, enabled=False):
        return left @ right


def at_least_fp32(tensor: Tensor) -> Tensor:
    """Half precision becomes float32: sums, exponentials and similarities need more digits; wider types stay."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
