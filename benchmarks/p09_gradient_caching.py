"""P9: gradient caching at an effective batch of 512 pairs beside ``CachedMultipleNegativesRankingLoss``.

Loss and gradients without dropout are equal first; then the time from texts to gradients, with dropout, for the
peer's mini-batches of 32 texts and, where its version has them, of 4,096 tokens.
"""

import inspect
from typing import Any

import torch
from _measure import compare
from sentence_transformers.losses import CachedMultipleNegativesRankingLoss
from store_setup import NUM_PAIRS, SMALL
from text_training_setup import (
    MAX_TOKENS,
    PairReader,
    Pairs,
    check_equal_gradients,
    pairs_system,
    peer_features,
    peer_model,
    read_pairs,
    text_encoder,
)
from torch import Tensor

from raybio.encoders.text import TextEncoder
from raybio.training.gather import SingleProcess
from raybio.training.grad_cache import compute_gradients
from raybio.training.precision import Precision

BATCH_PAIRS = 40 if SMALL else 512
BUDGETS = {"mini_batch_size": 32, "mini_batch_num_tokens": 512 if SMALL else MAX_TOKENS}


def our_gradients(encoder: TextEncoder, read: PairReader, pairs: Pairs) -> Tensor:
    encoder.zero_grad(set_to_none=True)
    loss, _ = compute_gradients(
        pairs_system(encoder),
        read(pairs),
        SingleProcess(),
        max_tokens=BUDGETS["mini_batch_num_tokens"],
        gradient_caching=True,
        precision=Precision("fp32", "cpu"),
        seed_of=lambda number: number,
    )
    return loss


def peer_gradients(model: Any, loss_function: Any, pairs: Pairs) -> Tensor:
    model.zero_grad(set_to_none=True)
    loss = loss_function(peer_features(model, pairs), None)
    loss.backward()
    return loss.detach()


def main() -> None:
    pairs = read_pairs()[:BATCH_PAIRS]
    known = inspect.signature(CachedMultipleNegativesRankingLoss.__init__).parameters
    for name, value in BUDGETS.items():
        if name not in known:
            continue
        exact, exact_peer = text_encoder(dropout=0.0), peer_model(dropout=0.0)
        read = PairReader(exact)
        loss = our_gradients(exact, read, pairs)
        peer_loss = peer_gradients(exact_peer, CachedMultipleNegativesRankingLoss(exact_peer, **{name: value}), pairs)
        torch.testing.assert_close(loss, peer_loss, rtol=1e-5, atol=1e-5)
        worst = check_equal_gradients(exact, exact_peer)
        encoder, model = text_encoder(), peer_model()
        loss_function = CachedMultipleNegativesRankingLoss(model, **{name: value})
        compare(
            "P9",
            f"CachedMultipleNegativesRankingLoss({name}={value})",
            lambda encoder=encoder, read=read: our_gradients(encoder, read, pairs),
            lambda model=model, loss_function=loss_function: peer_gradients(model, loss_function, pairs),
            pairs=NUM_PAIRS,
            note=f"{BATCH_PAIRS} pairs, fp32; gradients without dropout differ by {worst:.0e} at most",
        )


if __name__ == "__main__":
    main()
