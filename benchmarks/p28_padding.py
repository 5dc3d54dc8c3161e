"""P28: real tokens over computed ones, in micro-batches as a GPU cuts them, on real texts and proteins.

Counted, not timed. Texts have MiniLM's tokens, proteins one a residue, and all of them two special tokens. Compiled
steps pad each micro-batch to one of few sizes, at most the default of ``memory.max_tokens_per_micro_batch``.
"""

import csv
import gzip
import json
from collections.abc import Callable

import numpy as np
import torch
from _measure import SMALL, not_here, report

from raybio.core.batch import NUM_STATIC_SIZES, PADDING_MULTIPLE, StaticShape
from raybio.encoders.text_checkpoint import token_counts
from raybio.training.micro_batches import (
    GPU_OVERHEAD_TOKENS,
    packed_micro_batches,
    token_budget_micro_batches,
)
from raybio.training.settings import MemoryConfig
from tests.minilm import WHY_NOT, minilm_folder
from tests.paths import SHARED_DATA

MAX_TOKENS = 32_768
COMPILED_TOKENS = MemoryConfig().max_tokens_per_micro_batch
SHAPE = StaticShape(COMPILED_TOKENS, longest=1)  # the longest sequence does not matter here
NUM_STEPS = 2 if SMALL else 20
NUM_READ = 500 if SMALL else 20_000


def titles_and_terms() -> list[list[str]]:
    """(title, first MeSH term) of articles."""
    path = SHARED_DATA / "biostransformers" / "validation_data_3M.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        rows = zip(range(NUM_READ), csv.reader(lines), strict=False)
        return [[row[1], row[2].split(";")[0]] for _, row in rows]


def abstracts() -> list[list[str]]:
    with gzip.open(SHARED_DATA / "pubmedqa" / "ori_pqal.json.gz", "rt", encoding="utf-8") as file:
        return [[" ".join(article["CONTEXTS"])] for article in json.load(file).values()]


def documents() -> list[list[str]]:
    path = SHARED_DATA / "re_docred" / "dev_revised.json.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [[" ".join(" ".join(words) for words in one["sents"])] for one in json.load(file)]


def text_lengths(read: Callable[[], list[list[str]]]) -> np.ndarray:
    """Tokens of each row's texts (N, texts of a row)."""
    folder = minilm_folder()
    if folder is None:
        not_here(f"{WHY_NOT}. Run pip install -c constraints.txt -e '.[bench]'")
    rows = read()
    counts = token_counts(str(folder), [text for row in rows for text in row])
    return np.array(counts).reshape(len(rows), -1) + 2


def protein_lengths() -> np.ndarray:
    path = SHARED_DATA / "ppi_multispecies_normalised" / "proteins.tsv.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        rows = zip(range(NUM_READ), csv.DictReader(lines, delimiter="\t"), strict=False)
        return np.array([[len(row["sequence"])] for _, row in rows]) + 2


def measure(name: str, length_NC: np.ndarray, rows_per_step: int, max_length: int) -> None:
    """Report the share over steps of rows that are drawn at random."""
    rng = np.random.default_rng(0)
    num_real = 0
    num_packed = 0
    num_padded = 0
    num_compiled = 0
    for _ in range(NUM_STEPS):
        drawn = rng.choice(len(length_NC), min(rows_per_step, len(length_NC)), replace=False)
        length_R = torch.from_numpy(np.minimum(length_NC[drawn].T.ravel(), max_length))
        num_real += int(length_R.sum())
        for rows in packed_micro_batches(length_R, max_tokens=MAX_TOKENS):
            num_packed += _rounded(int(length_R[rows].sum()))
        for rows in token_budget_micro_batches(
            length_R, max_tokens=MAX_TOKENS, overhead_tokens=GPU_OVERHEAD_TOKENS
        ):
            num_padded += len(rows) * _rounded(int(length_R[rows].max()))
        filled = packed_micro_batches(length_R, max_tokens=COMPILED_TOKENS)
        num_compiled += sum(SHAPE.num_tokens_for(int(length_R[rows].sum())) for rows in filled)
    share = num_real / num_packed
    note = (
        f"{num_real} real tokens; padded for encoders that cannot pack: {num_real / num_padded:.3f}"
    )
    report("P28", name, share, share, note)
    share = num_real / num_compiled
    note = f"{num_real} real tokens; {NUM_STATIC_SIZES} sizes, the largest of {COMPILED_TOKENS:,}"
    report("P28", f"{name}, compiled", share, share, note)


def _rounded(num_tokens: int) -> int:
    return -(-num_tokens // PADDING_MULTIPLE) * PADDING_MULTIPLE


def main() -> None:
    if not SHARED_DATA.is_dir():
        not_here("this row needs the folder of real data")
    texts = text_lengths(titles_and_terms)
    measure("384 titles and their MeSH terms, at most 128 tokens", texts, 384, 128)
    measure("96 abstracts, at most 512", text_lengths(abstracts), 96, 512)
    measure("32 documents, at most 512", text_lengths(documents), 32, 512)
    proteins = protein_lengths()
    measure("300 proteins, at most 512", proteins, 300, 512)
    measure("150 proteins, at most 1,024", proteins, 150, 1024)


if __name__ == "__main__":
    main()
