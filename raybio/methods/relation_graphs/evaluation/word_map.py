"""Maps of word pairs and of words, by pair head and tag head (the paper's Figures 6 to 8).

Shape letters: S points of a map, K words of each (2 in pairs), W words of some sentences, D
width.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from raybio.core.errors import ConfigError
from raybio.core.randomness import derive_seed
from raybio.evaluation.projection import embedding_map
from raybio.methods.relation_graphs.annotations.folds import read_fold
from raybio.methods.relation_graphs.annotations.graphs import pair_graphs, read_sentence
from raybio.methods.relation_graphs.annotations.tags import tag_names, tags_of
from raybio.methods.relation_graphs.config import Config, GraphsConfig
from raybio.methods.relation_graphs.encoders.word_model import WordModel, head_of
from raybio.methods.relation_graphs.store import WordStore

PAIRS = "pairs of words"
WORDS = "words, pair head"
TAGS = "words, tag head"
"""Names of the panels: Figures 6, 7 and 8."""

PAIR_LABELS = ("hard negative", "related")

MOST_OF_A_LABEL = 1000
"""Maximum number of points per label; all words outside entities would hide the others."""


class MapPoints(NamedTuple):
    """Pairs of words, or words, in the order of their sentences.

    Attributes:
        labels: names of the labels; the first is the background.
        label_S: index in ``labels``.
        row_S: sentence of the store.
        word_SK: words of each point, from 0; for a pair, the last word of the tail and the last
            word of the head, in ADE (drug, adverse effect).
    """

    labels: tuple[str, ...]
    label_S: np.ndarray
    row_S: np.ndarray
    word_SK: np.ndarray


class Panel(NamedTuple):
    """A map: points with their t-SNE coordinates (S, 2)."""

    name: str
    points: MapPoints
    position_S2: np.ndarray


def select_pairs(store: WordStore, rows: np.ndarray, config: GraphsConfig, seed: int) -> MapPoints:
    """Select related pairs, and hard negatives with one wrong word, as training draws them.

    Each pair comes once, however often it is drawn.

    Raises:
        ConfigError: if there are fewer than 4.
    """
    label_by_pair: dict[tuple[int, ...], int] = {}
    for row in rows.tolist():
        rng = np.random.default_rng(derive_seed(seed, "hard negatives", row))
        for related, *others in pair_graphs(read_sentence(store, row), config, rng):
            label_by_pair[row, *related.words] = 1
            label_by_pair |= {(row, *graph.words): 0 for graph in others}
    label_N = np.array(list(label_by_pair.values()), dtype=np.int64)
    row_and_words_N3 = np.array(list(label_by_pair), dtype=np.int64).reshape(-1, 3)
    return _sample(store, PAIR_LABELS, label_N, row_and_words_N3, seed)


def select_words(store: WordStore, rows: np.ndarray, seed: int) -> MapPoints:
    """Select words of sentences with their BIO tags.

    Raises:
        ConfigError: if there are fewer than 4.
    """
    labels = [np.zeros(0, dtype=np.int64)]
    rows_and_words = [np.zeros((0, 2), dtype=np.int64)]
    for row in rows.tolist():
        tag_W = tags_of(store, row)
        labels.append(tag_W)
        rows_and_words.append(np.stack([np.full(len(tag_W), row), np.arange(len(tag_W))], axis=1))
    return _sample(
        store,
        tag_names(store.entity_types),
        np.concatenate(labels),
        np.concatenate(rows_and_words),
        seed,
    )


def _sample(
    store: WordStore,
    labels: tuple[str, ...],
    label_N: np.ndarray,
    row_and_words_NX: np.ndarray,
    seed: int,
) -> MapPoints:
    """Sample at most ``MOST_OF_A_LABEL`` points of each label."""
    if len(label_N) < 4:
        raise ConfigError(
            f"{store.location}: the fold's test sentences have {len(label_N)} points to show as "
            f"{', '.join(labels)}; want at least 4 for a map"
        )
    rng = np.random.default_rng(derive_seed(seed, "points"))
    sampled = []
    for label in range(len(labels)):
        members = np.flatnonzero(label_N == label)
        sampled.append(rng.choice(members, min(len(members), MOST_OF_A_LABEL), replace=False))
    chosen = np.sort(np.concatenate(sampled))
    return MapPoints(
        labels, label_N[chosen], row_and_words_NX[chosen, 0], row_and_words_NX[chosen, 1:]
    )


def word_maps(
    relations: str | Path | None,
    entities: str | Path | None,
    store: WordStore,
    *,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> list[Panel]:
    """Map words of the test sentences of the models' fold: t-SNE of the vectors that kNN uses.

    Args:
        relations: export of a run with graphs (CLDR or CLGS, or both losses), for two panels; None:
            without these.
        entities: export of a run with tags (CLNER, or both losses), for one panel, if given.
        store: prepared sentences.
        seed: seed of the drawn points and of t-SNE.
        say: called with progress messages.

    Raises:
        ConfigError: if a folder is no such export, the models were trained on different folds, or
            their fold does not exist or has too little to show.
    """
    pair_model = None if relations is None else _with_pairs(relations, store)
    tag_model = None if entities is None else _with_tags(entities, store)
    rows = _test_rows(
        store, [model.config for model in (pair_model, tag_model) if model is not None]
    )
    words = select_words(store, rows, seed)
    panels = []
    if pair_model is not None:
        pairs = select_pairs(store, rows, pair_model.config.graphs, seed)
        say(
            f"{relations}: embedding {len(rows):,} sentences, mapping {len(pairs.row_S):,} {PAIRS} "
            "and their words"
        )
        word_WD, _ = pair_model.embed(rows)
        panels.append(_panel(PAIRS, pairs, word_WD, store, rows, seed))
        panels.append(_panel(WORDS, words, word_WD, store, rows, seed))
    if tag_model is not None:
        say(f"{entities}: embedding {len(rows):,} sentences, mapping {len(words.row_S):,} words")
        _, tag_WD = tag_model.embed(rows)
        panels.append(_panel(TAGS, words, tag_WD, store, rows, seed))
    return panels


def _with_pairs(folder: str | Path, store: WordStore) -> WordModel:
    model = WordModel.load(folder, store)
    if head_of(model.encoder).graph is None:
        raise ConfigError(
            f"{folder}: model={model.config.model} has no pair head; want cldr, clgs or joint"
        )
    return model


def _with_tags(folder: str | Path, store: WordStore) -> WordModel:
    model = WordModel.load(folder, store)
    if head_of(model.encoder).entity is None:
        raise ConfigError(
            f"{folder}: model={model.config.model} has no tag head; want clner or joint"
        )
    return model


def _test_rows(store: WordStore, configs: Sequence[Config]) -> np.ndarray:
    folds = {config.data.fold for config in configs}
    if len(folds) > 1:
        raise ConfigError(
            f"the models were trained on folds {' and '.join(map(str, sorted(folds)))}: one of "
            "them knows test sentences of the other. Want two of one fold"
        )
    return read_fold(store, configs[0].data).test


def _panel(
    name: str, points: MapPoints, word_WD: Tensor, store: WordStore, rows: np.ndarray, seed: int
) -> Panel:
    vector_SX = _vectors(word_WD.cpu().numpy(), store, rows, points)
    # A new generator, so that a panel does not depend on the others.
    rng = np.random.default_rng(derive_seed(seed, "map"))
    return Panel(name, points, embedding_map(vector_SX, rng, max_rows=len(vector_SX)).position_S2)


def _vectors(
    word_WD: np.ndarray, store: WordStore, rows: np.ndarray, points: MapPoints
) -> np.ndarray:
    """Return vectors (S, K * D) of points: the concatenations of their words."""
    indptr_R1 = np.cumsum([0, *(len(store.sentence(row)) for row in rows.tolist())])
    word_SK = indptr_R1[np.searchsorted(rows, points.row_S)][:, None] + points.word_SK
    return word_WD[word_SK].reshape(len(word_SK), -1)
