"""Maps of pairs of entities: does an encoder lay a relation in one place, or in many? (the paper's Figure 3).

Shape letters: P pairs of a split, S pairs that are shown, C classes, "none" first, G relations that are shown.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from raybio.core.errors import ConfigError
from raybio.core.randomness import derive_seed
from raybio.encoders.checkpoints import model_names
from raybio.evaluation.projection import embedding_map
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.embed_pairs import embed_pairs
from raybio.methods.mtb_mccl.mccl.frozen_pairs import (
    MAX_TOKENS_AT_ONCE,
    FrozenEncoder,
    load_frozen,
    truncation_remarks,
)
from raybio.methods.mtb_mccl.mccl.labelled_pairs import LabelledPairs
from raybio.ops.similarity import normalise
from raybio.training.collective import SingleProcess

NUM_RELATIONS, MOST_UNRELATED = 4, 2000
"""The paper shows the four most frequent relations; so many pairs without any are enough to see where they lie."""


class MapPairs(NamedTuple):
    """Pairs that are drawn, the same for all models, document by document.

    Attributes:
        relations: names of the G relations, the most frequent first.
        group_S: place in ``relations``; G: none.
        row_S: document.
        head_S: first entity, as numbered in its document.
        tail_S: second entity.
    """

    relations: tuple[str, ...]
    group_S: np.ndarray
    row_S: np.ndarray
    head_S: np.ndarray
    tail_S: np.ndarray


def select_map_pairs(store: DocumentStore, split: str, seed: int) -> MapPairs:
    """All pairs of the most frequent relations, and some without any, drawn by ``seed``.

    A pair with several of these relations counts as the most frequent of them.

    Raises:
        ConfigError: if fewer than 4 pairs have a relation.
    """
    every = LabelledPairs(store, split, 1.0, seed)
    rows, nothing = every.rows.tolist(), np.zeros(0, dtype=np.int64)
    head_P, tail_P = (
        np.concatenate([nothing, *(every.pairs(row)[side] for row in rows)]) for side in (0, 1)
    )
    row_P = np.repeat(every.rows, [len(every.pairs(row)[0]) for row in rows])
    label_PC = np.concatenate(
        [np.zeros((0, len(store.relation_names)), bool), *map(every.labels, rows)]
    )
    count_C = label_PC.sum(0)
    count_C[0] = 0
    class_G = [
        number
        for number in np.argsort(-count_C, kind="stable")[:NUM_RELATIONS].tolist()
        if count_C[number]
    ]
    group_P = np.full(len(label_PC), -1)
    for group, number in reversed(list(enumerate(class_G))):
        group_P[label_PC[:, number]] = group
    if (group_P >= 0).sum() < 4:
        raise ConfigError(
            f"--store {store.path}: {(group_P >= 0).sum()} {split} pairs have a relation; want at least 4 for a map"
        )
    unrelated = np.flatnonzero(label_PC[:, 0])
    rng = np.random.default_rng(derive_seed(seed, "unrelated pairs"))
    group_P[rng.choice(unrelated, min(len(unrelated), MOST_UNRELATED), replace=False)] = len(
        class_G
    )
    shown = np.flatnonzero(group_P >= 0)
    names = tuple(store.relation_names[number] for number in class_G)
    return MapPairs(names, group_P[shown], row_P[shown], head_P[shown], tail_P[shown])


def relation_maps(
    models: Sequence[str],
    store: DocumentStore,
    shown: MapPairs,
    *,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, np.ndarray]:
    """Where each model lays the pairs: name -> t-SNE coordinates (S, 2), of embeddings at length 1.

    Pairs are compared by cosine everywhere, so their length does not count here either.

    Args:
        models: exports of ours or any text encoders: see ``load_frozen``.
        store: the documents.
        shown: the pairs.
        seed: of t-SNE, the same for all models.
        say: called with what is being done.

    Raises:
        ConfigError: if a model cannot be loaded.
    """
    position_by_name = {}
    for name, model in model_names(models).items():
        say(f"{name}: embedding and mapping {len(shown.group_S):,} pairs")
        for cut in truncation_remarks(model, store, np.unique(shown.row_S)):
            say(f"{name}: {cut}")
        embedding_SD = normalise(_embedded(load_frozen(model), store, shown)).cpu().numpy()
        rng = np.random.default_rng(derive_seed(seed, "map"))
        position_by_name[name] = embedding_map(
            embedding_SD, rng, max_rows=len(embedding_SD)
        ).position_S2
    return position_by_name


def _embedded(frozen: FrozenEncoder, store: DocumentStore, shown: MapPairs) -> Tensor:
    row_N, start_N = np.unique(shown.row_S, return_index=True)
    parts = zip(
        np.split(shown.head_S, start_N[1:]), np.split(shown.tail_S, start_N[1:]), strict=True
    )
    pairs = dict(zip(row_N.tolist(), parts, strict=True))
    reader = frozen.reader(store)
    return embed_pairs(
        frozen.model, reader, pairs, SingleProcess(), max_tokens=MAX_TOKENS_AT_ONCE
    ).embedding_PD
