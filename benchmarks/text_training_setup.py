"""What the text benchmarks share: real pairs of texts, MiniLM on both sides, a step of ours and the peer's model.

Pairs are articles and their first MeSH term; half of the articles are titles, half abstracts, so that lengths vary as
in training on titles and abstracts.
"""

import csv
import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from store_setup import SMALL
from torch import Tensor

from raybio.batches import IGNORED_LABEL, PaddedTokens, TokenBatch
from raybio.encoders.text import TextEncoder, TextEncoderConfig, build_text_encoder
from raybio.encoders.tokens import TokenizerSource
from raybio.functional.contrastive import info_nce
from raybio.protocols import Collective, Encoded, Encoder, LossReport, System
from tests.minilm import WHY_NOT, minilm_folder

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
MAX_LENGTH = 32 if SMALL else 128  # the paper's
TEMPERATURE = 0.05  # 1 / scale 20, sentence-transformers' default
MAX_TOKENS = 4096
NUM_TITLES = NUM_ABSTRACTS = 1000

Pairs = list[tuple[str, str]]


def read_pairs(seed: int = 0) -> Pairs:
    """(text, MeSH term) of 1,000 titles and 1,000 abstracts, in a fixed random order."""
    titles_file = DATA / "biostransformers" / "validation_data_3M.csv.gz"
    abstracts_file = DATA / "pubmedqa" / "ori_pqal.json.gz"
    if not titles_file.exists() or not abstracts_file.exists():
        sys.exit(f"the texts {titles_file} and {abstracts_file} are not here")
    with gzip.open(titles_file, "rt", encoding="utf-8", newline="") as lines:
        titles = [(row[1], row[2].split(";")[0]) for _, row in zip(range(NUM_TITLES), csv.reader(lines), strict=False)]
    with gzip.open(abstracts_file, "rt", encoding="utf-8") as file:
        articles = json.load(file).values()
    abstracts = [(" ".join(article["CONTEXTS"]), article["MESHES"][0]) for article in articles if article["MESHES"]]
    pairs = titles + abstracts[:NUM_ABSTRACTS]
    return [pairs[row] for row in np.random.default_rng(seed).permutation(len(pairs))]


def minilm() -> str:
    folder = minilm_folder()
    if folder is None:
        sys.exit(WHY_NOT)
    return str(folder)


def text_encoder(dropout: float | None = None) -> TextEncoder:
    return build_text_encoder(TextEncoderConfig(source=minilm(), max_length=MAX_LENGTH, dropout=dropout), seed=0)


def peer_model(dropout: float | None = None) -> Any:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(minilm(), device="cpu")
    model.max_seq_length = MAX_LENGTH
    for module in model.modules():
        if dropout is not None and isinstance(module, torch.nn.Dropout):
            module.p = dropout
    for module in model.modules():
        if dropout is not None and hasattr(module, "dropout_prob"):
            module.dropout_prob = dropout
    return model.train()


def peer_features(model: Any, pairs: Pairs) -> list[dict[str, Any]]:
    """Both columns, tokenised and padded as the peer's own data collator does."""
    read = getattr(model, "preprocess", None) or model.tokenize
    return [read([pair[column] for pair in pairs]) for column in (0, 1)]


class PairReader:
    """Pairs -> a batch of the anchors, then the positives."""

    def __init__(self, encoder: TextEncoder) -> None:
        self.source, self.max_length = TokenizerSource.of(encoder.tokenizer), encoder.max_tokens

    def __call__(self, pairs: Pairs) -> TokenBatch:
        texts = [pair[column] for column in (0, 1) for pair in pairs]
        token_T, indptr_R1 = self.source.tokenise(texts, self.max_length)
        labels = np.full(len(token_T), IGNORED_LABEL)
        return TokenBatch.from_arrays({"token_T": token_T, "indptr_R1": indptr_R1, "label_T": labels})


class PairsObjective:
    """Multiple negatives ranking: InfoNCE of anchors (the first half of the rows) over the positives of all workers."""

    uses_rows = False
    uses_embeddings = True

    def normaliser(self, batch: TokenBatch, collective: Collective) -> Tensor:
        return torch.zeros(())

    def row_loss(self, encoder: Encoder, encoded: Encoded, tokens: PaddedTokens, normaliser: Tensor) -> LossReport:
        raise NotImplementedError("nothing is separable here")

    def embedding_loss(self, embedding_RD: Tensor, batch: TokenBatch, collective: Collective) -> LossReport:
        anchor_ND, positive_ND = embedding_RD.chunk(2)
        candidates = collective.all_gather(positive_ND)
        own_N = torch.arange(len(anchor_ND), device=anchor_ND.device) + candidates.offset
        loss = info_nce(anchor_ND, candidates.row_MD, own_N, temperature=TEMPERATURE)
        return LossReport(loss * len(anchor_ND) / len(candidates.row_MD), {})


def pairs_system(encoder: TextEncoder) -> System:
    """Model and objective alone: what a step needs of a system. Another objective over pairs goes in here."""
    return SimpleNamespace(model=encoder, objective=PairsObjective())  # type: ignore[return-value]


def check_equal_gradients(encoder: TextEncoder, model: Any) -> float:
    """The largest difference of two gradients, after the check that they are equal to 1e-5."""
    ours = dict(encoder.model.named_parameters())
    theirs = dict(model[0].model.named_parameters())
    worst = 0.0
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-5)
        worst = max(worst, float((parameter.grad - theirs[name].grad).abs().max()))
    return worst
