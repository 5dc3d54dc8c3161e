"""Embed the words of stored sentences, without gradient.

Shape letters: W words of all sentences, D embedding width.
"""

import numpy as np
import torch
from torch import Tensor

from raybio.core.interfaces import Collective
from raybio.methods.relation_graphs.encoder import WordEncoder
from raybio.methods.relation_graphs.encoders.word_reader import WordReader
from raybio.training.embed import embed_rows


def embed_words(
    model: WordEncoder,
    reader: WordReader,
    rows: np.ndarray,
    collective: Collective,
    *,
    max_tokens: int,
) -> Tensor:
    """Return the words (W, D) of sentences, end to end, divided over the workers.

    The result is float32 and on the model's device.
    """
    embedded_WD = embed_rows(model, reader.batch, rows, collective, max_tokens=max_tokens)
    is_word = torch.from_numpy(reader.is_word(rows.tolist()))
    return embedded_WD[is_word.to(embedded_WD.device)]
