"""A small benchmark in MedLAMA's layout, and masked language models whose answers are known."""

import csv
from pathlib import Path

import torch
from transformers import BertForMaskedLM

from tests.encoders.tiny_text import tiny_model, tiny_tokenizer

COLUMNS = ["head_cui", "head_name", "rel", "tail_names", "tail_cuis"]
QUERIES = {
    "may_treat": [("asthma", ["life"]), ("COVID-19", ["risk", "cost"]), ("infection", ["cohort"])],
    "occurs_after": [
        ("life", ["risk"]),
        ("cost", ["risk factors"]),
        ("cohort", ["years"]),
        ("years", ["risk"]),
    ],
}


def write_benchmark(
    folder: Path, queries: dict[str, list[tuple[str, list[str]]]] = QUERIES
) -> Path:
    folder.mkdir(exist_ok=True)
    for relation, rows in queries.items():
        with (folder / f"{relation}_{len(rows)}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for head, answers in rows:
                cuis = [f"C{number}" for number in range(len(answers))]
                writer.writerow(["C9", head, relation, " || ".join(answers), " || ".join(cuis)])
    return folder


def sure_of(token: str, folder: Path, **sizes: int) -> str:
    """A masked language model that is sure of one token, whatever it is asked."""
    tokenizer = tiny_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = tiny_model("bert", len(tokenizer)).config
        config.update(sizes)
        model = BertForMaskedLM(config)
    with torch.no_grad():
        model.cls.predictions.bias[tokenizer.convert_tokens_to_ids(token)] = 100.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
