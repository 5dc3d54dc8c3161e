"""Tiny text checkpoints of several architectures, made on the spot."""

from collections import Counter
from pathlib import Path

import numpy as np
import torch
from tokenizers.normalizers import BertNormalizer
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from raybio.core.batch import IGNORED_LABEL, PaddedTokens, TokenBatch
from raybio.encoders.text import TextEncoder
from raybio.encoders.tokenization import TokenizerSource
from raybio.encoders.word_tokenizer import build_word_tokenizer

SENTENCES = [
    "Asthma and risk factors in the first 6 years of life in a population-based cohort.",
    "COVID-19",
    "Hypersensitivity; Pharyngitis",
    "Sphingosine 1 phosphate receptor modulators reduce β-amyloid, don't they?",
    "",
    "Cost of illness of RSV infection in a middle-income tropical country, " * 3,
]
COUNT_BY_WORD = Counter(" ".join(SENTENCES).split())
ARCHITECTURES = ("bert", "roberta", "mpnet", "electra", "distilbert", "modernbert")
MAX_POSITIONS = 64
_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": MAX_POSITIONS,
}


def tiny_tokenizer(size: int = 300, **settings) -> PreTrainedTokenizerFast:
    return build_word_tokenizer(COUNT_BY_WORD, size=size, **settings)


def tiny_cased_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.normalizer = BertNormalizer(lowercase=False)
    return tokenizer


def tiny_model(architecture: str, vocabulary_size: int, pad_id: int = 0, seed: int = 0):
    common = {"vocab_size": vocabulary_size, "pad_token_id": pad_id}
    # RoBERTa and MPNet number positions from the padding id on, and so have fewer than their
    # table's length.
    shifted = _SIZES | {"max_position_embeddings": MAX_POSITIONS + pad_id + 1}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if architecture == "bert":
            return BertModel(BertConfig(**_SIZES, **common))
        if architecture == "roberta":  # with a head, as published
            return RobertaForMaskedLM(RobertaConfig(**shifted, **common))
        if architecture == "xlm-roberta":
            return XLMRobertaModel(XLMRobertaConfig(**shifted, **common))
        if architecture == "mpnet":
            return MPNetModel(MPNetConfig(**shifted, **common))
        if architecture == "electra":
            return ElectraModel(ElectraConfig(embedding_size=16, **_SIZES, **common))
        if architecture == "modernbert":
            # A layer of global attention and one of a window, shorter than the longest text.
            windows = {"global_attn_every_n_layers": 2, "local_attention": 8}
            special = dict.fromkeys(("bos", "eos", "cls", "sep"), pad_id)
            special_ids = {f"{name}_token_id": token_id for name, token_id in special.items()}
            return ModernBertModel(ModernBertConfig(**_SIZES, **common, **windows, **special_ids))
        sizes = {
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": MAX_POSITIONS,
        }
        return DistilBertModel(DistilBertConfig(**sizes, **common))


def save_tiny(folder: Path, architecture: str = "bert") -> str:
    """A plain checkpoint, as save_pretrained writes it."""
    # MPNet takes 1 for padding, whatever its configuration says.
    tokenizer = tiny_tokenizer() if architecture != "mpnet" else _padded_with_one()
    tiny_model(architecture, len(tokenizer), tokenizer.pad_token_id).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def save_with_head(folder: Path, architecture: str) -> str:
    """A masked language model, as save_pretrained writes it."""
    save_tiny(folder, architecture)  # its tokenizer and configuration
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    return str(folder)


def _padded_with_one() -> PreTrainedTokenizerFast:
    plain = tiny_tokenizer()
    names = plain.special_tokens_map | {"pad_token": "[UNK]", "unk_token": "[PAD]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=plain.backend_tokenizer, model_max_length=512, **names
    )


def batch_of(encoder: TextEncoder, texts: list[str]) -> TokenBatch:
    token_T, indptr_R1 = TokenizerSource.of(encoder.tokenizer).tokenize(texts, encoder.max_tokens)
    labels = np.full(len(token_T), IGNORED_LABEL)
    return TokenBatch.from_arrays({"token_T": token_T, "indptr_R1": indptr_R1, "label_T": labels})


def padded(encoder: TextEncoder, texts: list[str]) -> PaddedTokens:
    return batch_of(encoder, texts).pad(torch.arange(len(texts)), encoder.pad_id)


def embed(encoder: TextEncoder, texts: list[str]) -> np.ndarray:
    encoder.eval()
    with torch.no_grad():
        return encoder(padded(encoder, texts)).embedding_RD.numpy()
