"""Embeddings of names and queries by a text encoder with fixed weights.

As in the authors' code, the embedding of a text is the unscaled state of its first token ([CLS]).
Different: texts with equal tokens (names that differ in case, for an uncased model) are embedded
once, so they tie; a query that is too long keeps its mask.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from raybio.core.errors import ConfigError
from raybio.core.interfaces import Collective
from raybio.encoders.checkpoints import check_source
from raybio.encoders.config import Pooling, TextEncoderConfig
from raybio.encoders.sentence_folder import read_sentence_folder
from raybio.encoders.text import TextEncoder, build_text_encoder
from raybio.encoders.tokenization import TokenizerSource, read_texts
from raybio.methods.contrastive_probe.config import NAME_TOKENS, QUERY_TOKENS
from raybio.training.collective import SingleProcess
from raybio.training.embed import check_embeddings, embed_rows
from raybio.training.embedding_model import MAX_TOKENS_AT_ONCE
from raybio.training.precision import default_device


class TextEmbedder:
    """Embeds texts with an encoder; each of the U distinct token sequences is embedded once."""

    def __init__(
        self,
        encoder: TextEncoder,
        collective: Collective | None = None,
        name: str = "the encoder",
    ) -> None:
        """Divide the work among the workers of ``collective``; each gets all embeddings."""
        self.encoder = encoder
        self.name = name
        self.collective = collective or SingleProcess()
        self._tokenizer = TokenizerSource.of(encoder.tokenizer)
        self._row_by_tokens: dict[bytes, int] = {}
        self._known_UD = torch.empty(0, encoder.width, device=next(encoder.parameters()).device)

    @property
    def tokenizer_fingerprint(self) -> str:
        """A digest of everything that determines the tokens of a text."""
        return self._tokenizer.fingerprint

    @property
    def known_UD(self) -> Tensor:  # shape letters
        """Embeddings (U, D) of all distinct texts so far."""
        return self._known_UD

    def __call__(self, texts: Sequence[str], max_tokens: int) -> Tensor:
        """Return embeddings (N, D) of texts cut to ``max_tokens``, keeping the mask of a query.

        Raises:
            ConfigError: if one is not finite.
        """
        max_length = min(max_tokens, self.encoder.max_tokens)
        tokenize = partial(self._tokenizer.tokenize, max_length=max_length, keep_mask=True)
        token_T, indptr_N1 = tokenize(texts)
        num_known = len(self._row_by_tokens)
        new_texts: list[str] = []
        row_N = []
        for text, (start, end) in zip(texts, pairwise(indptr_N1.tolist()), strict=True):
            next_row = num_known + len(new_texts)
            row = self._row_by_tokens.setdefault(token_T[start:end].tobytes(), next_row)
            if row == next_row:
                new_texts.append(text)
            row_N.append(row)
        new_UD = embed_rows(
            self.encoder,
            lambda row_M: read_texts([new_texts[row] for row in row_M.tolist()], tokenize),
            np.arange(len(new_texts)),
            self.collective,
            max_tokens=MAX_TOKENS_AT_ONCE,
        )
        check_embeddings(new_UD, self.name)
        self._known_UD = torch.cat([self._known_UD, new_UD])
        return self._known_UD[torch.tensor(row_N, device=new_UD.device)]


def load_embedder(
    model: str, pooling: Pooling | None = None, num_layers: int | None = None
) -> TextEmbedder:
    """Return an embedder of names and queries, on the GPU if there is one.

    Args:
        model: folder or hub id.
        pooling: how the states of a text are pooled; None: ``default_pooling`` of the model.
        num_layers: number of layers used, from the first; None: all.

    Raises:
        ConfigError: if the model cannot be loaded, or has fewer layers.
    """
    check_source(model, "main")
    settings: dict[str, Any] = {
        "source": model,
        "pooling": pooling or default_pooling(model),
        "normalize": False,
        "max_length": max(NAME_TOKENS, QUERY_TOKENS),
        "num_layers_kept": num_layers,
    }
    encoder = build_text_encoder(TextEncoderConfig.from_mapping(settings), seed=0)
    return TextEmbedder(encoder.to(default_device()), name=f"model {model!r}")


def default_pooling(model: str) -> Pooling:
    """Return the pooling in the files of a sentence-transformers model, else "cls" (the paper).

    Exports of runs are in that layout.

    Raises:
        ConfigError: if the model cannot be found, or its files specify another pooling.
    """
    folder = read_sentence_folder(model, "main")
    return (folder and folder.pooling) or "cls"


def mask_token_of(tokenizer: PreTrainedTokenizerFast) -> str:
    """Return the mask token of a tokenizer, which stands for the answer in a query.

    Raises:
        ConfigError: if it has none.
    """
    token: str | None = tokenizer.mask_token
    if token is None:
        raise ConfigError(
            "the encoder's tokenizer has no mask token to stand for the answer; "
            "want a masked language model's"
        )
    return token
