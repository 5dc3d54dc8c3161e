"""A small masked language model from plain sentences, so that mask prediction has something real to run on anywhere.

    PYTHONPATH=. python benchmarks/tiny_masked_lm.py --out FOLDER sentences_0.txt.gz sentences_1.txt.gz
    PYTHONPATH=. python benchmarks/tiny_masked_lm.py --out FOLDER --encoder FOLDER_OF_A_BERT sentences_0.txt.gz

BERT with 4 layers of width 256 and a vocabulary of 8,192 tokens (letters and the most frequent words of the files), or
an encoder of BERT's kind that is given a language-model head; in one process without a cluster, in some minutes on two
cores. The folder is one that ``save_pretrained`` writes. Such a model knows little: its figures say that the code runs,
and how mask prediction compares with rewiring for the same weights.
"""

import argparse
import gzip
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from raybio.core.batch import IGNORED_LABEL, TokenBatch
from raybio.encoders.tokenization import TokenizerSource
from raybio.encoders.word_tokenizer import build_word_tokenizer
from raybio.ops.masking import mask_tokens
from raybio.training.micro_batches import token_budget_micro_batches

MAX_TOKENS, TOKENS_A_STEP, MASK_RATE = 64, 2048, 0.15
FRESH_LR, TUNED_LR = 1e-3, 2e-4


def read_sentences(paths: list[Path]) -> list[str]:
    sentences: list[str] = []
    for path in paths:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
            sentences += [text for line in lines if (text := " ".join(line.split()))]
    return sentences


def fresh_model(tokenizer: PreTrainedTokenizerFast, layers: int, width: int) -> BertForMaskedLM:
    torch.manual_seed(0)
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": max(1, width // 64),
    }
    config = BertConfig(
        vocab_size=len(tokenizer),
        **sizes,
        intermediate_size=4 * width,
        max_position_embeddings=128,
        pad_token_id=0,
    )
    return BertForMaskedLM(config)


def masked_batch(
    token_T: np.ndarray, indptr_R1: np.ndarray, source: TokenizerSource, rng: np.random.Generator
):
    """All sentences, masked anew: an epoch's."""
    ordinary_ids = np.setdiff1d(np.arange(source.vocabulary_size), source.special_ids)
    masked_T, label_T = mask_tokens(
        token_T,
        np.isin(token_T, source.special_ids),
        *rng.random((3, len(token_T))),
        rate=MASK_RATE,
        mask_id=source.mask_id,
        random_token_ids=ordinary_ids,
        style="bert",
    )
    return TokenBatch.from_arrays({"token_T": masked_T, "indptr_R1": indptr_R1, "label_T": label_T})


def train(
    model: BertForMaskedLM,
    sentences: list[str],
    tokenizer: PreTrainedTokenizerFast,
    num_steps: int,
    peak_lr: float,
) -> None:
    """AdamW; the learning rate rises over the first tenth of the steps and then falls to 0."""
    source, rng, started = (
        TokenizerSource.of(tokenizer),
        np.random.default_rng(0),
        time.perf_counter(),
    )
    token_T, indptr_R1 = source.tokenize(sentences, MAX_TOKENS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_lr, weight_decay=0.01)
    losses: list[float] = []
    model.train()
    while len(losses) < num_steps:
        batch = masked_batch(token_T, indptr_R1, source, rng)
        groups = token_budget_micro_batches(batch.length_R, max_tokens=TOKENS_A_STEP)
        for place in rng.permutation(len(groups))[: num_steps - len(losses)]:
            padded = batch.pad(groups[place], source.pad_id)
            is_label_RL = padded.label_RL != IGNORED_LABEL
            share_done = len(losses) / num_steps
            for group in optimizer.param_groups:
                group["lr"] = peak_lr * min(10 * share_done + 1 / num_steps, (1 - share_done) / 0.9)
            hidden_RLD = model.bert(
                padded.token_RL, attention_mask=padded.mask_RL.long()
            ).last_hidden_state
            # The head costs as much as all layers together: only where there is something to guess.
            logits_KV = model.cls(hidden_RLD[is_label_RL])
            loss = F.cross_entropy(
                logits_KV, padded.label_RL[is_label_RL], reduction="sum"
            ) / is_label_RL.sum().clamp(1)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))
            if len(losses) % 50 == 0 or len(losses) == num_steps:
                seconds = time.perf_counter() - started
                print(
                    f"step {len(losses):,} of {num_steps:,}, {seconds:.0f} s, loss {np.mean(losses[-50:]):.3f}",
                    flush=True,
                )
    model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sentences", type=Path, nargs="+", help="text files, one sentence a line, .gz too"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the model")
    parser.add_argument(
        "--encoder", type=Path, help="folder of a BERT to begin with; its head is new"
    )
    parser.add_argument("--steps", type=int, default=600, help=f"of {TOKENS_A_STEP:,} tokens")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256, help="a multiple of 64")
    parser.add_argument("--vocabulary-size", type=int, default=8192)
    given = parser.parse_args()
    sentences = read_sentences(given.sentences)
    if given.encoder:
        torch.manual_seed(0)
        tokenizer = AutoTokenizer.from_pretrained(given.encoder)
        model = BertForMaskedLM.from_pretrained(given.encoder)
    else:
        words = Counter(word for sentence in sentences for word in sentence.split())
        tokenizer = build_word_tokenizer(words, size=given.vocabulary_size, max_tokens=128)
        model = fresh_model(tokenizer, given.layers, given.width)
    print(
        f"{len(sentences):,} sentences, {len(tokenizer):,} tokens, {model.num_parameters():,} weights"
    )
    train(model, sentences, tokenizer, given.steps, TUNED_LR if given.encoder else FRESH_LR)
    model.save_pretrained(given.out)
    tokenizer.save_pretrained(given.out)
    print(given.out)


if __name__ == "__main__":
    main()
