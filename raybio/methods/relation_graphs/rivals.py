"""Rivals of trained word encoders: entities and relations without training an encoder.

- ``look-up``: the usual tag of a word form, and the usual relation of two entity types
  (``classifiers/look_up.py``).
- ``character 2-4-grams``: kNN and the linear probe over the characters of a word and of its
  neighbors (``encoders/character_vectors.py``).
- ``initial - chosen settings``: kNN and the linear probe over the encoder before training.

The validation sentences choose the settings of the last two among
``config.CANDIDATES``.
"""

from collections.abc import Iterator, Mapping

from raybio.core.final_report import CHARACTERS
from raybio.methods.relation_graphs.annotations.folds import FoldRows
from raybio.methods.relation_graphs.annotations.gold import read_gold
from raybio.methods.relation_graphs.classifiers.look_up import LookUp
from raybio.methods.relation_graphs.config import KnnConfig
from raybio.methods.relation_graphs.encoders.character_vectors import CharacterVectors
from raybio.methods.relation_graphs.evaluation.fold_scores import EmbedsWords, evaluate_fold
from raybio.methods.relation_graphs.evaluation.sentence_scores import (
    SentenceScores,
    score_predictions,
)
from raybio.methods.relation_graphs.store import WordStore

LOOK_UP = "look-up"

CHOSEN = "initial - chosen settings"


def look_up_scores(
    store: WordStore, fold: FoldRows, *, has_dev_scores: bool, spert_overlaps: bool = True
) -> dict[str, SentenceScores]:
    """Return the scores of ``look-up`` by split, counted over the reference set of kNN."""
    rows_by_split = {"test": (fold.train_and_dev, fold.test)}
    if has_dev_scores:
        rows_by_split = {"dev": (fold.train, fold.dev), **rows_by_split}
    scores = {}
    for split, (reference, rows) in rows_by_split.items():
        tag_W, related = LookUp.of(store, reference).predict(rows)
        gold = read_gold(store, rows)
        scores[split] = score_predictions(
            gold, related, tag_W, store, spert_overlaps=spert_overlaps
        )
    return scores


def lexical_rivals(
    store: WordStore, fold: FoldRows, config: KnnConfig, *, has_dev: bool, has_dev_scores: bool
) -> Iterator[tuple[str, Mapping[str, SentenceScores]]]:
    """Yield the rivals without an encoder; arguments as ``fold_rivals``."""
    yield (
        LOOK_UP,
        look_up_scores(
            store, fold, has_dev_scores=has_dev_scores, spert_overlaps=config.spert_overlaps
        ),
    )
    chosen = config.with_candidates if has_dev else config
    characters = CharacterVectors(store, fold.train)
    yield (
        CHARACTERS,
        evaluate_fold(characters, characters, fold, chosen, has_dev_scores=has_dev_scores),
    )


def fold_rivals(
    store: WordStore,
    fold: FoldRows,
    config: KnnConfig,
    initial: EmbedsWords,
    *,
    has_dev: bool,
    has_dev_scores: bool,
) -> Iterator[tuple[str, Mapping[str, SentenceScores]]]:
    """Yield the name of each rival, and its scores by split.

    Args:
        store: the sentences.
        fold: rows of the splits.
        config: settings of the evaluation.
        initial: the encoder before training. If ``config`` has several numbers of neighbors, it has
            no row here, since the table's row ``initial`` already chooses among them.
        has_dev: whether validation sentences were not trained on. Without them nothing is chosen.
        has_dev_scores: whether validation sentences are scored, too.
    """
    yield from lexical_rivals(store, fold, config, has_dev=has_dev, has_dev_scores=has_dev_scores)
    if has_dev and not config.chooses_neighbors:
        chosen = config.with_candidates
        yield CHOSEN, evaluate_fold(initial, initial, fold, chosen, has_dev_scores=has_dev_scores)
