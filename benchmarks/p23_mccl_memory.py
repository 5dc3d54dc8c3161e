"""P23: a training step of MCCL over 32 documents and over 256, whose pairs are eight times as many: peak memory.

A fresh process each, peak resident bytes of the step above those before it; gradients are cached, so that a step holds
the activations of one micro-batch, and the loss is computed in blocks of anchors.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from _measure import SMALL, peak_growth_bytes, report
from training_setup import MINILM_L6_SETTINGS, gradients_of

from raybio.core.config import override_all
from raybio.core.interfaces import System
from raybio.methods import METHODS
from raybio.methods.mtb_mccl.batches import LabeledDocumentBatch
from raybio.methods.mtb_mccl.documents.demo import SIMULATED_DOCUMENTS, DocumentsConfig

FEW, MANY = (4, 32) if SMALL else (32, 256)
MAX_TOKENS = 2048
SETTINGS = MINILM_L6_SETTINGS | {
    "precision": "fp32",
}
CORPUS = DocumentsConfig(
    num_entities=40,
    num_facts=120,
    num_train=MANY,
    num_dev=4,
    num_test=4,
    facts_per_document=8,
    co_mentions=5,
)


def print_peak_bytes(store: str, num_documents: int) -> None:
    """The size of the batch, and the peak of a step over it."""
    system, batch = step(store, num_documents)
    # Gradients and one small step's buffers exist before the measurement, as they do in a run.
    gradients_of(system, step(store, 2)[1], max_tokens=MAX_TOKENS, gradient_caching=True)
    for parameter in system.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    grown = peak_growth_bytes(
        lambda: gradients_of(system, batch, max_tokens=MAX_TOKENS, gradient_caching=True)
    )
    print(len(batch.label_PC), grown)


def step(store: str, num_documents: int) -> tuple[System, LabeledDocumentBatch]:
    entry = METHODS["relation_finetune"]
    system = entry.build(
        override_all(entry.config(), SETTINGS | {"plan.global_batch_rows": num_documents}), store
    )
    arrays = system.collate(0, 0, 1)
    assert arrays is not None
    return system, LabeledDocumentBatch.from_arrays(arrays)


def measured(store: Path, num_documents: int) -> tuple[int, int]:
    command = [sys.executable, "-W", "ignore", __file__, str(store), str(num_documents)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(said[-2]), int(said[-1])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = SIMULATED_DOCUMENTS.prepare(folder, CORPUS).path
        (few_pairs, few_bytes), (many_pairs, many_bytes) = (
            measured(store, number) for number in (FEW, MANY)
        )
    ratio = few_bytes / many_bytes
    note = (
        f"{FEW} documents, {few_pairs:,} pairs: {few_bytes >> 20} MiB; {MANY} documents, {many_pairs:,} pairs: "
        f"{many_bytes >> 20} MiB ({1 / ratio:.2f}×); MiniLM-L6's size, {MAX_TOKENS:,} tokens at once"
    )
    report("P23", "our own step over an eighth of it", ratio, ratio, note)


if __name__ == "__main__":
    print_peak_bytes(sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 1 else main()
