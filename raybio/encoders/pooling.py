"""What encoders share: states of tokens, and one embedding from the states of a sequence.

Shape letters: R sequences, L padded length, D width.
"""

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from raybio.batches import PaddedTokens
from raybio.functional.similarity import at_least_fp32


def last_hidden_states(model: PreTrainedModel, tokens: PaddedTokens, max_tokens: int) -> Tensor:
    """The model's last states (R, L, D); behind ``max_tokens``, where there may be no positions, they are zero.

    Padding to a multiple of 8 may stick out there; that no sequence does is the caller's to check.
    """
    length = tokens.token_RL.shape[1]
    token_RL, mask_RL = tokens.token_RL[:, :max_tokens], tokens.mask_RL[:, :max_tokens]
    hidden_RLD: Tensor = model(input_ids=token_RL, attention_mask=mask_RL.long()).last_hidden_state
    return functional.pad(hidden_RLD, (0, 0, 0, length - max_tokens)) if length > max_tokens else hidden_RLD


def mean_over(hidden_RLD: Tensor, mask_RL: Tensor) -> Tensor:
    """Mean (R, D) of the states where ``mask_RL`` is True, in float32 or wider; zero where it is True nowhere."""
    total_RD = torch.where(mask_RL[..., None], at_least_fp32(hidden_RLD), 0.0).sum(1)
    return total_RD / mask_RL.sum(1, keepdim=True).clamp(min=1)
