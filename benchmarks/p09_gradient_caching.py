"""P9: gradient caching at an effective batch of 512 pairs beside ``CachedMultipleNegativesRankingLoss``.

Loss and gradients without dropout are equal first; then the time from texts to gradients, with dropout, for the
peer's mini-batches of 32 texts and, where its version has them, of 4,096 tokens. Titles alone and MiniLM's first three
layers, so that the whole takes minutes: what is compared is how a batch is cut, which is the same in every layer.
"""

import inspect
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from _measure import NUM_PAIRS, SMALL, interleaved, not_here, report
from text_training_setup import (
    MAX_TOKENS,
    PEER_IS_MISSING,
    PairReader,
    Pairs,
    check_equal_gradients,
    pairs_system,
    peer_features,
    peer_model,
    read_pairs,
    text_encoder,
)
from torch import Tensor, nn
from training_setup import gradients_of

from raybio.encoders.text import TextEncoder

try:
    from sentence_transformers.losses import CachedMultipleNegativesRankingLoss
except ImportError as error:
    not_here(PEER_IS_MISSING.format(error))

BATCH_PAIRS = 40 if SMALL else 512
NUM_LAYERS = 3
BUDGETS = {"mini_batch_size": 32, "mini_batch_num_tokens": 512 if SMALL else MAX_TOKENS}


def models(dropout: float | None = None) -> tuple[TextEncoder, Any]:
    encoder, model = text_encoder(dropout), peer_model(dropout)
    for bert in (encoder.model, model[0].model):
        bert.encoder.layer = nn.ModuleList(bert.encoder.layer[:NUM_LAYERS])
    return encoder, model


def our_gradients(encoder: TextEncoder, pairs: Pairs) -> Tensor:
    batch = PairReader(encoder)(pairs)
    return gradients_of(
        pairs_system(encoder),
        batch,
        max_tokens=BUDGETS["mini_batch_num_tokens"],
        gradient_caching=True,
    )


def peer_gradients(model: Any, pairs: Pairs, **budget: int) -> Tensor:
    model.zero_grad(set_to_none=True)
    loss = CachedMultipleNegativesRankingLoss(model, **budget)(peer_features(model, pairs), None)
    loss.backward()
    return loss.detach()


def main() -> None:
    pairs = read_pairs(num_titles=BATCH_PAIRS, num_abstracts=0)
    known = inspect.signature(CachedMultipleNegativesRankingLoss.__init__).parameters
    budgets = [{name: value} for name, value in BUDGETS.items() if name in known]
    exact, exact_peer = models(dropout=0.0)
    loss, worst = our_gradients(exact, pairs), []
    for budget in budgets:
        torch.testing.assert_close(
            loss, peer_gradients(exact_peer, pairs, **budget), rtol=1e-5, atol=1e-5
        )
        worst.append(check_equal_gradients(exact, exact_peer))
    encoder, model = models()
    sides: list[Callable[[], Tensor]] = [partial(our_gradients, encoder, pairs)]
    sides += [partial(peer_gradients, model, pairs, **budget) for budget in budgets]
    rounds = interleaved(sides, NUM_PAIRS)
    mean_length = float(PairReader(encoder)(pairs).length_R.double().mean())
    for place, budget in enumerate(budgets, start=1):
        ratios = [seconds[place] / seconds[0] for seconds in rounds]
        settings = ", ".join(f"{name}={value}" for name, value in budget.items())
        note = (
            f"{BATCH_PAIRS} titles with terms, {mean_length:.0f} tokens on average, {NUM_LAYERS} layers, fp32; "
            f"gradients without dropout differ by {worst[place - 1]:.0e} at most"
        )
        report(
            "P9",
            f"CachedMultipleNegativesRankingLoss({settings})",
            median(ratios),
            min(ratios),
            note,
        )


if __name__ == "__main__":
    main()
