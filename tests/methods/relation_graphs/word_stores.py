"""Small stores of sentences whose words carry entities and relations."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raybio.methods.relation_graphs.prepare import prepare_words
from raybio.methods.relation_graphs.store import WordStore

Written = tuple[Sequence[str], Sequence[tuple[str, int, int]], Sequence[tuple[Any, ...]]]
"""Words, entities (type, start, end) and relations (head, tail) or (head, tail, type)."""


def write_sentences(path: Path, sentences: Sequence[Written]) -> Path:
    """In SpERT's layout, numbered from 0."""
    content = [
        {
            "tokens": list(words),
            "entities": [
                {"type": kind, "start": start, "end": end} for kind, start, end in entities
            ],
            "relations": [
                {"type": kind[0] if kind else "Adverse-Effect", "head": head, "tail": tail}
                for head, tail, *kind in relations
            ],
            "orig_id": number,
        }
        for number, (words, entities, relations) in enumerate(sentences)
    ]
    path.write_text(json.dumps(content))
    return path


def store_of(folder: Path, sentences: Sequence[Written]) -> WordStore:
    """One fold that trains on all of them; its test set is a sentence of its own."""
    entities = [("Adverse-Effect", 0, 1), ("Drug", 2, 3)]
    everything = [*sentences, (["effects", "of", "this"], entities, [(0, 1)])]
    *train, test = (str(number) for number in range(len(everything)))
    (folder / "folds.json").write_text(
        json.dumps({"split_1": {"train set": train, "test set": [test]}})
    )
    files = [write_sentences(folder / "sentences.json", everything)]
    return prepare_words(folder / "words", files, splits=folder / "folds.json")
