"""P8: contrastive training of MiniLM on real pairs beside ``SentenceTransformerTrainer``: same pairs, same batch.

Ours: tokenise, micro-batches of a token budget, one backward pass, clipping, AdamW. The peer: its trainer with
``MultipleNegativesRankingLoss``, as it comes (fp32), and at its best (bf16 where the processor is faster with it, and
its documented way to another order: a batch sampler, here one that groups pairs by length). Loss and gradients of
one batch are equal first. What is timed are whole steps, from the end of one to the end of a later one.
"""

import tempfile
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np
import torch
from _measure import report
from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.sampler import DefaultBatchSampler
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
from transformers import TrainerCallback

from raybio.training.gather import SingleProcess
from raybio.training.grad_cache import compute_gradients
from raybio.training.optim import OptimConfig
from raybio.training.precision import Precision, resolve_precision
from raybio.training.settings import MemoryConfig, TrainingConfig
from raybio.training.step import TrainStep

BATCH_PAIRS = 8 if SMALL else 64
NUM_STEPS = 2 if SMALL else 4  # the first one warms up
LENGTH_GROUP_BATCHES = 50  # as in the trainer of transformers


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
            batches += [group[i : i + self.batch_size] for i in range(0, len(group), self.batch_size)]
        for number in rng.permutation(len(batches)):
            yield batches[number].tolist()


class StepTimes(TrainerCallback):
    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ends.append(time.perf_counter())

    @property
    def seconds(self) -> float:
        return (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)


def our_seconds(pairs: Pairs, precision: Precision, seed: int) -> float:
    """Seconds a step."""
    encoder = text_encoder()
    config = TrainingConfig(memory=MemoryConfig(max_tokens_per_micro_batch=MAX_TOKENS), optim=OptimConfig(peak_lr=5e-5))
    take_step = TrainStep(pairs_system(encoder), config, SingleProcess(), precision)
    read, times = PairReader(encoder), StepTimes()
    order_N = np.random.default_rng(seed).permutation(len(pairs))
    for step in range(NUM_STEPS):
        rows = order_N[step * BATCH_PAIRS : (step + 1) * BATCH_PAIRS]
        take_step(step, read([pairs[row] for row in rows]))
        times.on_step_end()
    return times.seconds


def peer_seconds(pairs: Pairs, folder: str, seed: int, **settings: Any) -> float:
    """Seconds a step."""
    model, times = peer_model(), StepTimes()
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            folder,
            per_device_train_batch_size=BATCH_PAIRS,
            max_steps=NUM_STEPS,
            seed=seed,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **settings,
        ),
        train_dataset=Dataset.from_dict({"anchor": [a for a, _ in pairs], "positive": [b for _, b in pairs]}),
        loss=MultipleNegativesRankingLoss(model),
        callbacks=[times],
    )
    trainer.train()
    return times.seconds


def check_equal(pairs: Pairs) -> str:
    encoder, model = text_encoder(dropout=0.0), peer_model(dropout=0.0)
    loss, _ = compute_gradients(
        pairs_system(encoder),
        PairReader(encoder)(pairs),
        SingleProcess(),
        max_tokens=MAX_TOKENS,
        gradient_caching=False,
        precision=Precision("fp32", "cpu"),
        seed_of=lambda number: number,
    )
    peer_loss = MultipleNegativesRankingLoss(model)(peer_features(model, pairs), None)
    peer_loss.backward()
    torch.testing.assert_close(loss, peer_loss.detach(), rtol=1e-5, atol=1e-5)
    return f"gradients of one batch differ by {check_equal_gradients(encoder, model):.0e} at most"


def compare_with(peer: str, pairs: Pairs, precision: Precision, note: str, **settings: Any) -> None:
    """A pair is ours, peer, peer, ours; each of the four has an order of the pairs, the same for both sides."""
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        our_seconds(pairs, precision, 0), peer_seconds(pairs, folder, 0, **settings)
        for number in range(NUM_PAIRS):
            seeds = 2 * number, 2 * number + 1
            ours = our_seconds(pairs, precision, seeds[0])
            theirs = sum(peer_seconds(pairs, folder, seed, **settings) for seed in seeds)
            ratios.append(theirs / (ours + our_seconds(pairs, precision, seeds[1])))
    report("P8", peer, median(ratios), min(ratios), f"{note}; ours {precision.name}")


def main() -> None:
    pairs = read_pairs()
    auto = resolve_precision("auto", "cpu")
    read = PairReader(text_encoder())
    mean_length = float(read(pairs).length_R.double().mean())
    note = (
        f"{BATCH_PAIRS} pairs a step, texts of {mean_length:.0f} tokens on average, at most {read.max_length}; "
        f"{check_equal(pairs[:BATCH_PAIRS])}"
    )
    compare_with("SentenceTransformerTrainer, default", pairs, auto, note)
    if auto.name != "fp32":
        compare_with("SentenceTransformerTrainer, default", pairs, Precision("fp32", "cpu"), "by padding alone")
    best = {"batch_sampler": GroupedByLength, "bf16": auto.name == "bf16"}
    name = f"SentenceTransformerTrainer, lengths grouped, {auto.name}"
    compare_with(name, pairs, auto, "its batches are of like length, ours of any", **best)


if __name__ == "__main__":
    main()
