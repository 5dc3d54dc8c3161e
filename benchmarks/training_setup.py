"""What the training benchmarks share: a MiniLM-L6-sized protein encoder, a step's batch, its gradients, a GEMM."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from raybio.core.batch import IGNORED_LABEL, TokenBatch
from raybio.core.interfaces import Encoder, Objective, System
from raybio.methods.sppt.batches import LinkBatch
from raybio.methods.sppt.config import ObjectiveConfig
from raybio.methods.sppt.objective import StructurePreserving
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import ProteinEncoder, build_protein_encoder
from raybio.training.collective import SingleProcess
from raybio.training.grad_cache import compute_gradients
from raybio.training.precision import Precision

MINILM_L6 = EncoderConfig(num_layers=6, width=384, num_heads=12, ffn_width=1536, max_positions=512)

_SIZES = ("num_layers", "width", "num_heads", "ffn_width")
MINILM_L6_SETTINGS = {"encoder.source": "scratch"} | {
    f"encoder.{name}": getattr(MINILM_L6, name) for name in _SIZES
}
"""An encoder of MiniLM-L6's size for a system's configuration, its weights drawn."""


def link_batch(
    encoder: ProteinEncoder, num_anchors: int, max_length: int, seed: int = 0
) -> LinkBatch:
    """Anchors, one positive and one negative each; lengths spread as those of proteins, cropped to ``max_length``."""
    rng = np.random.default_rng(seed)
    vocabulary = encoder.vocabulary
    num_rows = 3 * num_anchors
    # Half of all proteins are longer than such a crop, the others spread below it.
    length_R = (
        np.minimum(rng.lognormal(np.log(max_length), 0.6, num_rows), max_length)
        .astype(int)
        .clip(16)
    )
    indptr_R1 = np.concatenate([[0], np.cumsum(length_R)])
    token_T = rng.choice(np.asarray(vocabulary.residue_ids), indptr_R1[-1])
    is_masked_T = (rng.random(indptr_R1[-1]) < 0.15) & (
        np.arange(indptr_R1[-1]) < indptr_R1[num_anchors]
    )
    label_T = np.where(is_masked_T, token_T, IGNORED_LABEL)
    anchor_P = np.arange(num_anchors)
    positive_P = anchor_P + num_anchors
    return LinkBatch.from_arrays(
        {
            "token_T": np.where(is_masked_T, vocabulary.mask_id, token_T),
            "indptr_R1": indptr_R1,
            "label_T": label_T,
            "row_R": np.arange(num_rows),
            "num_anchors": np.array(num_anchors),
            "link_sequence_E": np.concatenate([anchor_P, positive_P]),
            "link_row_E": np.concatenate([positive_P, anchor_P]),
            "num_fallback_negatives": np.array(0),
        }
    )


def sppt_system(encoder: ProteinEncoder, lambda_spml: float = 0.5) -> System:
    return step_system(
        encoder,
        StructurePreserving(ObjectiveConfig(lambda_spml=lambda_spml), num_positives_per_anchor=1),
    )


def step_system(encoder: Encoder, objective: Objective) -> System:
    """Model and objective alone: what a step needs of a system."""
    return SimpleNamespace(model=encoder, objective=objective)  # type: ignore[return-value]


def gradients_of(
    system: System,
    batch: TokenBatch,
    *,
    max_tokens: int,
    gradient_caching: bool,
    precision: str = "fp32",
) -> Tensor:
    """The loss of a step on this CPU; its gradients are in the model afterwards, those of before are not."""
    system.model.zero_grad(set_to_none=True)
    loss, _ = compute_gradients(
        system,
        batch,
        SingleProcess(),
        max_tokens=max_tokens,
        gradient_caching=gradient_caching,
        precision=Precision(precision, "cpu"),
        seed_of=lambda number: number,
    )
    return loss


def minilm_encoder(seed: int = 0) -> ProteinEncoder:
    return build_protein_encoder(MINILM_L6, seed=seed)


def gemm(size: int, dtype: torch.dtype = torch.float32) -> tuple[Callable[[], object], float]:
    """A square matrix product and its number of floating-point operations."""
    left, right = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    out = torch.empty(size, size, dtype=dtype)
    return lambda: torch.mm(left, right, out=out), 2.0 * size**3
