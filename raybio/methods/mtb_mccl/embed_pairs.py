"""Embed entity pairs of stored documents, without gradient.

Shape letters: N documents, P pairs in the order of their documents, D embedding width.
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
    """Embedded entity pairs in the order of their documents.

    Attributes:
        embedding_PD: float32, on the model's device.
        row_P: document, a row of the store.
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
    """Embed pairs of documents; the workers share the documents.

    Args:
        model: the encoder.
        reader: reads documents for this encoder.
        pairs: document -> (head, tail) of its pairs.
        collective: the other workers.
        max_tokens: padded tokens encoded at once.
        is_blank: document -> bool (E,), True for entities to be blanked; None blanks none.
    """

    def read(rows: np.ndarray) -> DocumentBatch:
        reader.store.request(rows)
        marked = [reader.marked(row, is_blank(row)) for row in rows.tolist()]
        return DocumentBatch.from_arrays(
            reader.arrays(rows.tolist(), marked, [pairs[row] for row in rows.tolist()])
        )

    row_N = np.array(list(pairs), dtype=np.int64)
    nothing = np.zeros(0, dtype=np.int64)
    return EmbeddedPairs(
        embed_rows(model, read, row_N, collective, max_tokens=max_tokens),
        np.repeat(row_N, [len(head_P) for head_P, _ in pairs.values()]),
        np.concatenate([nothing, *(head_P for head_P, _ in pairs.values())]),
        np.concatenate([nothing, *(tail_P for _, tail_P in pairs.values())]),
    )
