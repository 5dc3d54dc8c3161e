"""What a store of sentences with entities and relations is made of: the CLDR paper's Tables 1, 5 and 6, as plain data.

Shape letter: G tags.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from raybio.data.document_store import SPLITS
from raybio.data.word_store import WordStore
from raybio.data.word_tags import tag_names, tags_of
from raybio.markdown import markdown_table

COUNTED = ("sentences", "relations", "entities")


def statistics_of_words(store: WordStore, batch_sentences: int = 16) -> dict[str, Any]:
    """Count folds and tags.

    Args:
        store: the sentences.
        batch_sentences: size of the batch of Table 5, in sentences.

    Returns:
        ``folds``: for each fold and split the number of each of ``COUNTED`` (Table 1); ``num_by_tag``: words of each
        tag in the whole store (Table 6); ``mean_by_tag``: expected words of each tag in a batch of ``batch_sentences``
        that are drawn from the whole store (Table 5).
    """
    num_relations_N = np.array([len(store.relations(row)[0]) for row in range(store.num_rows)])
    num_entities_N = np.array([len(store.entities(row)[0]) for row in range(store.num_rows)])
    folds = []
    for fold in range(1, store.num_folds + 1):
        rows_by_split = {split: store.fold_rows(fold, split) for split in SPLITS}
        folds.append(
            {
                split: {
                    "sentences": len(rows),
                    "relations": int(num_relations_N[rows].sum()),
                    "entities": int(num_entities_N[rows].sum()),
                }
                for split, rows in rows_by_split.items()
            }
        )
    names = tag_names(store.entity_types)
    tag_T = np.concatenate([tags_of(store, row) for row in range(store.num_rows)])
    num_G = np.bincount(tag_T, minlength=len(names)).tolist()
    return {
        "folds": folds,
        "num_by_tag": dict(zip(names, num_G, strict=True)),
        "batch_sentences": batch_sentences,
        "mean_by_tag": {name: batch_sentences * num / store.num_rows for name, num in zip(names, num_G, strict=True)},
    }


def word_statistics_markdown(data: Mapping[str, Any]) -> str:
    """The tables of ``statistics_of_words``; splits that are empty in every fold are left out."""
    splits = [split for split in SPLITS if any(fold[split]["sentences"] for fold in data["folds"])]
    folds = [
        [f"{number}", *(f"{fold[split][what]:,}" for split in splits for what in COUNTED)]
        for number, fold in enumerate(data["folds"], start=1)
    ]
    means = [[tag, f"{mean:.1f}"] for tag, mean in data["mean_by_tag"].items()]
    totals = [[tag, f"{num:,}"] for tag, num in data["num_by_tag"].items()]
    return "\n\n".join(
        [
            "## Folds (Table 1)",
            markdown_table(["fold", *(f"{split} {what}" for split in splits for what in COUNTED)], folds),
            f"## Words of each tag in a batch of {data['batch_sentences']:,} sentences, mean (Table 5)",
            markdown_table(["tag", "words"], means),
            "## Words of each tag (Table 6)",
            markdown_table(["tag", "words"], totals),
        ]
    )
