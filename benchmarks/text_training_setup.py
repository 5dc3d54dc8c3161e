"""What the text benchmarks share: real pairs of texts, MiniLM on both sides, our objective and the peer's model.

Pairs are a title or an abstract and the first MeSH term of its article.
"""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import SMALL, not_here
from training_setup import step_system

from raybio.core.batch import IGNORED_LABEL
from raybio.core.interfaces import System
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.text import TextEncoder, build_text_encoder
from raybio.encoders.tokenization import TokenizerSource
from raybio.methods.biostransformers.batches import PairBatch
from raybio.methods.biostransformers.config import RankingConfig
from raybio.methods.biostransformers.loss import MultipleNegativesRanking
from tests.minilm import WHY_NOT, minilm_folder

PEER_IS_MISSING = "{}: the peer is not installed. Run pip install -c constraints.txt -e '.[bench]'"

try:
    from sentence_transformers import SentenceTransformer
except ImportError as error:
    not_here(PEER_IS_MISSING.format(error))

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
MAX_LENGTH = 32 if SMALL else 128  # the paper's
MAX_TOKENS = 4096

Pairs = list[tuple[str, str]]


def read_pairs(num_titles: int, num_abstracts: int, seed: int = 0) -> Pairs:
    """(text, MeSH term) of some titles and some abstracts, in a fixed random order."""
    titles_file = DATA / "biostransformers" / "validation_data_3M.csv.gz"
    abstracts_file = DATA / "pubmedqa" / "ori_pqal.json.gz"
    if not titles_file.exists() or not abstracts_file.exists():
        not_here(
            f"the texts {titles_file} and {abstracts_file} are not here: this row needs the folder of real data"
        )
    with gzip.open(titles_file, "rt", encoding="utf-8", newline="") as lines:
        titles = [
            (row[1], row[2].split(";")[0])
            for _, row in zip(range(num_titles), csv.reader(lines), strict=False)
        ]
    with gzip.open(abstracts_file, "rt", encoding="utf-8") as file:
        articles = json.load(file).values()
    abstracts = [
        (" ".join(article["CONTEXTS"]), article["MESHES"][0])
        for article in articles
        if article["MESHES"]
    ]
    pairs = titles + abstracts[:num_abstracts]
    return [pairs[row] for row in np.random.default_rng(seed).permutation(len(pairs))]


def minilm() -> str:
    folder = minilm_folder()
    if folder is None:
        not_here(f"{WHY_NOT}. Run pip install -c constraints.txt -e '.[bench]'")
    return str(folder)


def text_encoder(dropout: float | None = None) -> TextEncoder:
    return build_text_encoder(
        TextEncoderConfig(source=minilm(), max_length=MAX_LENGTH, dropout=dropout), seed=0
    )


def peer_model(dropout: float | None = None) -> SentenceTransformer:
    model = SentenceTransformer(minilm(), device="cpu")
    model.max_seq_length = MAX_LENGTH
    for module in model.modules():
        if dropout is not None and isinstance(module, torch.nn.Dropout):
            module.p = dropout
    return model.train()


def peer_features(model: Any, pairs: Pairs) -> list[dict[str, Any]]:
    """Both columns, tokenized and padded as the peer's own data collator does."""
    read = getattr(model, "preprocess", None) or model.tokenize
    return [read([pair[column] for pair in pairs]) for column in (0, 1)]


class PairReader:
    """Pairs -> a batch of the texts, then the terms; as in the peer, every other term is a negative."""

    def __init__(self, encoder: TextEncoder) -> None:
        self.source, self.max_length = TokenizerSource.of(encoder.tokenizer), encoder.max_tokens

    def __call__(self, pairs: Pairs) -> PairBatch:
        texts = [pair[column] for column in (0, 1) for pair in pairs]
        token_T, indptr_R1 = self.source.tokenize(texts, self.max_length)
        return PairBatch.from_arrays(
            {
                "token_T": token_T,
                "indptr_R1": indptr_R1,
                "label_T": np.full(len(token_T), IGNORED_LABEL),
                "term_N": np.arange(len(pairs)),
                "pair_E": np.zeros(0, dtype=np.int64),
                "term_E": np.zeros(0, dtype=np.int64),
                "num_deferred": np.array(0),
                "num_forced": np.array(0),
                "num_dropped": np.array(0),
            }
        )


def pairs_system(encoder: TextEncoder) -> System:
    """BioSTransformers' objective; its temperature 0.05 is the peer's default scale of 20."""
    return step_system(encoder, MultipleNegativesRanking(RankingConfig()))


def check_equal_gradients(encoder: TextEncoder, model: Any) -> float:
    """The largest difference of two gradients, after the check that they are equal to 1e-5."""
    ours = dict(encoder.model.named_parameters())
    theirs = dict(model[0].model.named_parameters())
    worst = 0.0
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-5)
        worst = max(worst, float((parameter.grad - theirs[name].grad).abs().max()))
    return worst
