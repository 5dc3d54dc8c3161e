"""P26: embedding the pairs of documents with the attention at their markers alone, or with all of all layers.

Forward and backward over the same documents with the same weights; the peer is the model's own attention ("eager", with
``output_attentions``), as ATLOP computes it.
"""

import tempfile
from collections.abc import Callable
from functools import partial

import torch
from _measure import NUM_PAIRS, SMALL, compare
from torch import Tensor
from training_setup import MINILM_L6_SETTINGS

from raybio.core.config import override_all
from raybio.methods import METHODS
from raybio.methods.mtb_mccl.batches import LabeledDocumentBatch
from raybio.methods.mtb_mccl.documents.demo import SIMULATED_DOCUMENTS, DocumentsConfig
from raybio.methods.mtb_mccl.encoder import RelationEncoder

SETTINGS = MINILM_L6_SETTINGS | {
    "encoder.dropout": 0.0,
    "plan.global_batch_rows": 2 if SMALL else 8,
}
CORPUS = DocumentsConfig(
    num_entities=40,
    num_facts=120,
    num_train=8,
    num_dev=4,
    num_test=4,
    facts_per_document=12,
    co_mentions=14,
)


def main() -> None:
    entry = METHODS["relation_finetune"]
    with tempfile.TemporaryDirectory() as folder:
        store = SIMULATED_DOCUMENTS.prepare(folder, CORPUS).path
        systems = [entry.build(override_all(entry.config(), SETTINGS), store) for _ in range(2)]
        arrays = systems[0].collate(0, 0, 1)
    assert arrays is not None
    batch = LabeledDocumentBatch.from_arrays(arrays)
    ours, eager = (system.model for system in systems)
    assert isinstance(ours, RelationEncoder) and isinstance(eager, RelationEncoder)
    eager.text.model.set_attn_implementation("eager")
    rows = torch.arange(batch.num_rows)
    padded = batch.pad(rows, ours.pad_id)

    def step(encoder: RelationEncoder) -> Tensor:
        encoder.zero_grad()
        embedding_PD = encoder(padded).embedding_RD
        embedding_PD.square().mean().backward()
        return embedding_PD.detach()

    torch.testing.assert_close(step(ours), step(eager), rtol=1e-4, atol=1e-5)
    sides: list[Callable[[], Tensor]] = [partial(step, encoder) for encoder in (ours, eager)]
    note = (
        f"{batch.num_rows} documents of {int(batch.length_R.max())} tokens at most, {batch.num_embeddings:,} pairs, "
        "forward and backward, MiniLM-L6's size, float32, equal embeddings"
    )
    compare("P26", "the model's own attention, all of it", *sides, pairs=NUM_PAIRS, note=note)


if __name__ == "__main__":
    main()
