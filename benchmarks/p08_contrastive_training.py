"""P8: contrastive training of MiniLM on real pairs beside ``SentenceTransformerTrainer``: same pairs, same batch.

Ours: tokenize, micro-batches of a token budget, one backward pass, clipping, AdamW, in the precision that auto chooses.
The peer: its trainer with ``MultipleNegativesRankingLoss``, as it comes (fp32), and at its best (bf16 where the
processor is faster with it, and its documented way to another order: a batch sampler, here one that groups pairs by
length). Loss and gradients of one batch are equal first. What is timed is a whole short training, from its first batch
to its last step; all sides of a round train on the same pairs.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import numpy as np
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
from training_setup import gradients_of
from transformers import TrainerCallback

from raybio.training.collective import SingleProcess
from raybio.training.precision import Precision, resolve_precision
from raybio.training.settings import MemoryConfig, OptimConfig, TrainingConfig
from raybio.training.step import TrainStep

try:
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sampler import DefaultBatchSampler
except ImportError as error:
    not_here(PEER_IS_MISSING.format(error))

LENGTH_GROUP_BATCHES = 50  # as in the trainer of transformers
BATCH_PAIRS = 8 if SMALL else 384
NUM_STEPS = 2 if SMALL else 4


class GroupedByLength(DefaultBatchSampler):
    """Batches of pairs of like length: sorted within groups of 50 batches, which come in random order."""

    def __init__(self, dataset: Any, batch_size: int, **settings: Any) -> None:
        super().__init__(dataset, batch_size=batch_size, **settings)
        self.length_N = np.array([len(text) for text in dataset["anchor"]])

    def __iter__(self) -> Iterator[list[int]]:
        rng = np.random.default_rng(self.seed)
        order_N = rng.permutation(len(self.length_N))
        batches = []
        for start in range(0, len(order_N), LENGTH_GROUP_BATCHES * self.batch_size):
            group = order_N[start : start + LENGTH_GROUP_BATCHES * self.batch_size]
            group = group[np.argsort(-self.length_N[group], kind="stable")]
            batches += [
                group[i : i + self.batch_size] for i in range(0, len(group), self.batch_size)
            ]
        for number in rng.permutation(len(batches)):
            yield batches[number].tolist()


class Stopwatch(TrainerCallback):
    """Seconds from the first batch to the last step."""

    def __init__(self) -> None:
        self.start = self.end = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.start = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.end = time.perf_counter()


def our_seconds(pairs: Pairs, precision: Precision) -> float:
    encoder = text_encoder()
    config = TrainingConfig(
        memory=MemoryConfig(max_tokens_per_micro_batch=MAX_TOKENS), optim=OptimConfig(peak_lr=5e-5)
    )
    take_step = TrainStep(pairs_system(encoder), config, SingleProcess(), precision)
    read, watch = PairReader(encoder), Stopwatch()
    watch.on_train_begin()
    for step in range(NUM_STEPS):
        take_step(step, read(pairs[step * BATCH_PAIRS : (step + 1) * BATCH_PAIRS]))
        watch.on_step_end()
    return watch.end - watch.start


def peer_seconds(pairs: Pairs, folder: str, **settings: Any) -> float:
    model, watch = peer_model(), Stopwatch()
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            folder,
            per_device_train_batch_size=BATCH_PAIRS,
            max_steps=NUM_STEPS,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **settings,
        ),
        train_dataset=Dataset.from_dict(
            {"anchor": [a for a, _ in pairs], "positive": [b for _, b in pairs]}
        ),
        loss=MultipleNegativesRankingLoss(model),
        callbacks=[watch],
    )
    trainer.train()
    return watch.end - watch.start


def check_equal(pairs: Pairs) -> str:
    encoder, model = text_encoder(dropout=0.0), peer_model(dropout=0.0)
    loss = gradients_of(
        pairs_system(encoder),
        PairReader(encoder)(pairs),
        max_tokens=MAX_TOKENS,
        gradient_caching=False,
    )
    peer_loss = MultipleNegativesRankingLoss(model)(peer_features(model, pairs), None)
    peer_loss.backward()
    torch.testing.assert_close(loss, peer_loss.detach(), rtol=1e-5, atol=1e-5)
    return f"gradients of one batch differ by {check_equal_gradients(encoder, model):.0e} at most"


def main() -> None:
    pairs = read_pairs(NUM_STEPS * BATCH_PAIRS, 0)
    read = PairReader(text_encoder())
    mean_length = float(read(pairs).length_R.double().mean())
    note = (
        f"{NUM_STEPS} steps of {BATCH_PAIRS} pairs: titles and terms of {mean_length:.0f} "
        f"tokens on average, at most {read.max_length}; {check_equal(pairs[:BATCH_PAIRS])}"
    )
    auto = resolve_precision("auto", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        best = {"batch_sampler": GroupedByLength, "bf16": auto.name == "bf16"}
        sides: list[Callable[[], float]] = [
            partial(our_seconds, pairs, auto),
            partial(peer_seconds, pairs, folder),
            partial(peer_seconds, pairs, folder, **best),
        ]
        rounds = interleaved(sides, NUM_PAIRS, clock=lambda side: side())
    for place, name in ((1, "default, fp32"), (2, f"lengths grouped, {auto.name}")):
        ratios = [seconds[place] / seconds[0] for seconds in rounds]
        peer = f"SentenceTransformerTrainer, {name}"
        report("P8", peer, median(ratios), min(ratios), f"{note}; ours {auto.name}")


if __name__ == "__main__":
    main()
