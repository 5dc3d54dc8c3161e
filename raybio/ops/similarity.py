"""Similarity matrices in fp32 or better.

Shape letters: N anchors, M candidates, D embedding width.
"""

import torch
from torch import Tensor


def cosine(anchor_ND: Tensor, candidate_MD: Tensor) -> Tensor:
    """Return the cosine of each anchor with each candidate, shape (N, M), even under autocast.

    A zero vector has no direction: its cosines and its gradient are 0.
    """
    return matmul(normalize(anchor_ND), normalize(candidate_MD).T)


def normalize(vector_ND: Tensor) -> Tensor:
    """Scale rows to length 1, in fp32 or better; zero rows stay zero and get no gradient."""
    vector_ND = at_least_fp32(vector_ND)
    # Scale by the largest entry first: squares of entries beyond 1e-19 or 1e19 do not fit fp32.
    largest_N1 = vector_ND.detach().abs().amax(dim=-1, keepdim=True)
    is_zero_N1 = largest_N1 == 0
    scaled_ND = vector_ND / largest_N1.masked_fill(is_zero_N1, 1)
    length_N1: Tensor = torch.linalg.vector_norm(scaled_ND, dim=-1, keepdim=True)
    return (scaled_ND / length_N1.masked_fill(is_zero_N1, 1)).masked_fill(is_zero_N1, 0)


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """Multiply in the operands' own dtype, since autocast would round scores to 8 bits."""
    with torch.autocast(left.device.type, enabled=False):
        return left @ right


def scores_at_once(device: torch.device) -> int:
    """Return how many scores to compute at once.

    A block of them stays in the cache of a CPU; a GPU is faster with few, large kernels.
    """
    return 1 << 20 if device.type == "cpu" else 1 << 25


def at_least_fp32(tensor: Tensor) -> Tensor:
    """Convert half precision to float32, for sums and exponentials; wider types stay."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
