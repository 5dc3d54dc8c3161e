"""Embeddings of pairs of entities of stored documents.

P pairs, document by document; D width.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor

from raybio.core.interfaces import Collective
from raybio.methods.mtb_mccl.batches import DocumentBatch, Pairs
from raybio.methods.mtb_mccl.documents.collate import DocumentReader
from raybio.methods.mtb_mccl.encoder import RelationEncoder
from raybio.training.embed import embed_rows


class EmbeddedPairs(NamedTuple):
    """Pairs of entities, document by document.

    Attributes:
        embedding_PD: float32, on the model's device.
        row_P: document.
        head_P: first entity, as numbered in its document.
        tail_P: second entity.
    """

    embedding_PD: Tensor
    row_P: np.ndarray
    head_P: np.ndarray
    tail_P: np.ndarray


def embed_pairs(
    model: RelationEncoder,
    reader: DocumentReader,
    pairs: Mapping[int, Pairs],
    collective: Collective,
    *,
    max_tokens: int,
    is_blank: Callable[[int], np.ndarray | None] = lambda row: None,
) -> EmbeddedPairs:
    """Embed pairs of documents, without gradient, divided over the workers.

    Args:
        model: the encoder.
        reader: documents as it reads them.
        pairs: document -> (head, tail) of its pairs.
        collective: the other workers.
        max_tokens: padded tokens that are encoded at once.
        is_blank: document -> which of its entities lose their words; None: none of them.
    """

    def read(rows: np.ndarray) -> DocumentBatch:
        marked = [reader.marked(row, is_blank(row)) for row in rows.tolist()]
        return DocumentBatch.from_arrays(
            reader.arrays(rows.tolist(), marked, [pairs[row] for row in rows.tolist()])
        )

    row_N, nothing = np.array(list(pairs), dtype=np.int64), np.zeros(0, dtype=np.int64)
    return EmbeddedPairs(
        embed_rows(model, read, row_N, collective, max_tokens=max_tokens),
        np.repeat(row_N, [len(pair[0]) for pair in pairs.values()]),
        np.concatenate([nothing, *(pair[0] for pair in pairs.values())]),
        np.concatenate([nothing, *(pair[1] for pair in pairs.values())]),
    )
