"""The store of sentences with entities and relations; rows are in the order of the files.

Shape letters: N sentences, T words of all sentences end to end; W words, E entities and P relations
of one sentence.
"""

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raybio.core.errors import ConfigError
from raybio.methods.relation_graphs.config import FoldConfig
from raybio.methods.relation_graphs.formats import WordSentence
from raybio.ops.segments import entries_of_rows, indptr_from_lengths
from raybio.store.columns import NumberColumn, TextColumn, column_tables
from raybio.store.ragged import RaggedStore, ragged_tables
from raybio.store.relation_labels import NO_RELATION
from raybio.store.store import SPLITS
from raybio.store.text_keys import text_keys
from raybio.store.word_counts import WordCounts, count_words
from raybio.store.writer import Draft

ROWS = "rows.arrow"
WORDS = "words.arrow"
WORD_COUNTS = "word_counts.arrow"


TYPES = "types.arrow"
RELATION_NAMES = "relation_names.arrow"


FOLD_POINTERS = "fold_pointers.arrow"
FOLD_ROWS = "fold_rows.arrow"

VALIDATION_SEED = 42
"""The authors' seed."""

PARTS: dict[str, tuple[str, ...]] = {
    "tokens": ("word",),
    "entities": ("start", "end", "type"),
    "relations": ("head", "tail", "label"),
}
"""Part of a sentence -> columns of the part's file; ``pointers.arrow`` holds its CSR pointers."""


class WordStore(RaggedStore):
    """An open store of sentences, divided into one or several folds."""

    kind = "words"
    parts = PARTS

    orig_ids = TextColumn(ROWS, "orig_id", pa.large_string())
    """Name of each sentence (N,); "" if it has none."""

    words = TextColumn(WORDS, "word", pa.large_string())
    """Distinct words as written, by descending frequency, ties in alphabetical order."""

    count_by_word = WordCounts(WORD_COUNTS)
    """Counts of the most frequent lower-case words in sentences that any fold trains on.

    For a tokenizer that is trained from scratch. In a cross-validation these are all sentences, so
    words of a fold's test sentences may get pieces of their own; that reveals their spelling, not
    their meaning.
    """

    entity_types = TextColumn(TYPES, "name")
    """The types that occur, in alphabetical order."""

    relation_names = TextColumn(RELATION_NAMES, "name")
    """Names of the relations, sorted, after ``NO_RELATION``, which is never stored."""

    fold_indptr = NumberColumn(FOLD_POINTERS, "indptr", np.int64)
    fold_row = NumberColumn(FOLD_ROWS, "row")

    def sentence(self, row: int) -> np.ndarray:
        """Return the words of a sentence, indices of ``words`` (W,), memory-mapped."""
        return self.word_T[self.indptr_N1[row] : self.indptr_N1[row + 1]]

    def entities(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (first word (E,), end word, exclusive (E,), type (E,)), int64, as in the file.

        Types are indices of ``entity_types``. Entities may overlap.
        """
        return (
            self._of("entities", "start", row),
            self._of("entities", "end", row),
            self._of("entities", "type", row),
        )

    def entities_of(
        self, row_S: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return (first word, end word (exclusive), type, index in ``row_S``), each (E,), int64.

        These are the entities of some sentences, in the order of ``row_S`` and then of the file.
        """
        entry_E, owner_E = entries_of_rows(self._arrays["entities", ""], row_S)
        start_E, end_E, type_E = (
            self._arrays["entities", name][entry_E].astype(np.int64) for name in PARTS["entities"]
        )
        return start_E, end_E, type_E, owner_E

    def relations(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (head entity (P,), tail entity (P,), label (P,)), int64, as in the file.

        Labels are indices of ``relation_names``, 1 or more.
        """
        return (
            self._of("relations", "head", row),
            self._of("relations", "tail", row),
            self._of("relations", "label", row),
        )

    def fold_rows(self, fold: int, split: str) -> np.ndarray:
        """Return the rows of "train", "dev" or "test" of a fold, int64, as in the file of folds.

        Args:
            fold: number of the fold, from 1.
            split: name of the split.

        Raises:
            ConfigError: for a fold that does not exist, or another name of a split.
        """
        if not 1 <= fold <= self.num_folds:
            want = (
                f"one of 1 to {self.num_folds}"
                if self.num_folds > 1
                else "1, the only one there is"
            )
            raise ConfigError(f"{self.path}: got fold {fold}, want {want}")
        if split not in SPLITS:
            raise ConfigError(f"split {split!r} is none of {', '.join(SPLITS)}")
        number = (fold - 1) * len(SPLITS) + SPLITS.index(split)
        first, stop = self.fold_indptr[number : number + 2]
        return self.fold_row[first:stop].astype(np.int64)

    @property
    def num_folds(self) -> int:
        """Number of folds: 1 if the files themselves are training and test set."""
        return int(self.manifest["counts"]["folds"])

    @property
    def indptr_N1(self) -> np.ndarray:
        """CSR pointers to the words of each sentence in ``word_T``, int64, memory-mapped."""
        return self._arrays["tokens", ""]

    @property
    def word_T(self) -> np.ndarray:
        """Words of all sentences end to end, as indices of ``words``; memory-mapped."""
        return self._arrays["tokens", "word"]


def commit_words(
    draft: Draft,
    *,
    sentences: Sequence[WordSentence],
    folds: Sequence[Mapping[str, np.ndarray]],
    provenance: Mapping[str, Any],
) -> WordStore:
    """Write and commit a store of sentences.

    Args:
        draft: the store's draft.
        sentences: at least one sentence.
        folds: for each fold, the rows of each of ``SPLITS``, in the order that ``fold_rows``
            returns.
        provenance: more entries of the manifest.

    Raises:
        StoreError: if it cannot be written.
    """
    words = _by_count(sentences)
    types = sorted({kind for sentence in sentences for kind, _, _ in sentence.entities})
    labels = sorted({label for sentence in sentences for label, _, _ in sentence.relations})
    rows_by_part = _numbered(sentences, words, types, labels)
    indptr_by_part = {
        part: indptr_from_lengths([len(sentence) for sentence in rows])
        for part, rows in rows_by_part.items()
    }
    columns: dict[str, np.ndarray] = {}
    for part, names in PARTS.items():
        values = np.array(
            [entry for sentence in rows_by_part[part] for entry in sentence], np.int64
        ).reshape(-1, len(names))
        columns |= {
            name: np.ascontiguousarray(values[:, index]) for index, name in enumerate(names)
        }
    trained_on = np.unique(np.concatenate([fold["train"] for fold in folds]))
    parts = [fold[split] for fold in folds for split in SPLITS]
    declared = column_tables(
        WordStore,
        {
            "orig_ids": [sentence.orig_id for sentence in sentences],
            "words": words,
            "count_by_word": count_words(" ".join(sentences[row].words) for row in trained_on),
            "entity_types": types,
            "relation_names": [NO_RELATION, *labels],
            "fold_indptr": indptr_from_lengths([len(rows) for rows in parts]),
            "fold_row": np.concatenate(parts),
        },
    )
    tables = declared | ragged_tables(PARTS, indptr_by_part, columns)
    counts = _counts(sentences, types) | {"words": len(words), "folds": len(folds)}
    counts["sentences_in_no_fold"] = len(sentences) - len(np.unique(np.concatenate(parts)))
    leakage = _leakage(sentences, folds)
    return draft.commit(WordStore, tables, counts, {**provenance, "leakage": leakage})


def draw_validation(
    train_N: NDArray[np.int64], share: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the training and the validation sentences of a fold without validation sentences.

    Python's generator and the fold's own order give the authors' validation sentences.

    Args:
        train_N: training sentences, in the order of the file of folds.
        share: share of these sentences that is kept for validation.
    """
    size = int(share * len(train_N))
    is_dev_N = np.zeros(len(train_N), dtype=bool)
    is_dev_N[random.Random(VALIDATION_SEED).sample(range(len(train_N)), size)] = True
    return train_N[~is_dev_N], train_N[is_dev_N]


def _leakage(
    sentences: Sequence[WordSentence], folds: Sequence[Mapping[str, np.ndarray]]
) -> dict[str, int]:
    """Count sentences of dev and test, over all folds, whose words are also in another split.

    Folds without dev use the sentences that the default ``data.validation_share`` draws. Test is
    compared with all training sentences, since the last training of the paper reads dev, too.
    """
    key_N = text_keys(" ".join(sentence.words) for sentence in sentences)
    leakage = dict.fromkeys(
        ("dev_sentences_in_training", "dev_sentences_in_test", "test_sentences_in_training"), 0
    )
    for fold in folds:
        train = fold["train"]
        dev = fold["dev"]
        if not len(dev):
            train, dev = draw_validation(train, FoldConfig().validation_share)
        for name, row_M, other_M in (
            ("dev_sentences_in_training", dev, train),
            ("dev_sentences_in_test", dev, fold["test"]),
            ("test_sentences_in_training", fold["test"], fold["train"]),
        ):
            leakage[name] += int(np.isin(key_N[row_M], key_N[other_M]).sum())
    return leakage


def _by_count(sentences: Sequence[WordSentence]) -> list[str]:
    count_by_word = Counter(word for sentence in sentences for word in sentence.words)
    return sorted(count_by_word, key=lambda word: (-count_by_word[word], word))


def _numbered(
    sentences: Sequence[WordSentence],
    words: Sequence[str],
    types: Sequence[str],
    labels: Sequence[str],
) -> dict[str, list[list[tuple[int, ...]]]]:
    """Return the values of each part's columns, sentence by sentence."""
    word = {name: number for number, name in enumerate(words)}
    kind = {name: number for number, name in enumerate(types)}
    label = {name: number for number, name in enumerate(labels, start=1)}
    return {
        "tokens": [[(word[name],) for name in sentence.words] for sentence in sentences],
        "entities": [
            [(start, end, kind[name]) for name, start, end in sentence.entities]
            for sentence in sentences
        ],
        "relations": [
            [(head, tail, label[name]) for name, head, tail in sentence.relations]
            for sentence in sentences
        ],
    }


def _counts(sentences: Sequence[WordSentence], types: Sequence[str]) -> dict[str, int]:
    kinds = Counter(kind for sentence in sentences for kind, _, _ in sentence.entities)
    return {
        "rows": len(sentences),
        "tokens": sum(len(sentence.words) for sentence in sentences),
        "entities": kinds.total(),
        **{f"{kind}_entities": kinds[kind] for kind in types},
        "relations": sum(len(sentence.relations) for sentence in sentences),
        "sentences_with_overlapping_entities": sum(
            _has_overlap(sentence) for sentence in sentences
        ),
        "relations_within_a_word": sum(_num_within_a_word(sentence) for sentence in sentences),
    }


def _has_overlap(sentence: WordSentence) -> bool:
    """Return whether two entities share a word."""
    spans = sorted((start, end) for _, start, end in sentence.entities)
    return any(second[0] < first[1] for first, second in itertools.pairwise(spans))


def _num_within_a_word(sentence: WordSentence) -> int:
    """Count relations whose entities end with the same word, which no word pair represents."""
    return sum(
        sentence.entities[head][2] == sentence.entities[tail][2]
        for _, head, tail in sentence.relations
    )
