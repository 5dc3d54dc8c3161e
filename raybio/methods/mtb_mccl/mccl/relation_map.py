"""Maps of entity pairs (Zhou et al., 2023, Figure 3): does a relation form one cluster, or many?

Shape letters: P pairs of a split, S selected pairs, C classes (NA first), G selected relations.
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
from raybio.methods.mtb_mccl.frozen_encoder import (
    FrozenEncoder,
    load_frozen,
    truncation_remarks,
)
from raybio.methods.mtb_mccl.mccl.labeled_pairs import LabeledPairs
from raybio.ops.similarity import normalize
from raybio.training.collective import SingleProcess
from raybio.training.embedding_model import MAX_TOKENS_AT_ONCE

NUM_RELATIONS = 4
"""The paper shows the four most frequent relations."""

MOST_UNRELATED = 2000
"""This number of pairs without a relation suffices to show where they are."""


class MapPairs(NamedTuple):
    """The pairs of a map, the same for all models, in the order of their documents.

    Attributes:
        relations: names of the G relations, the most frequent first.
        group_S: index in ``relations``; G for pairs without a relation.
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
    """Select all pairs of the most frequent relations, and sample some without a relation.

    A pair with several of these relations counts as the most frequent of them.

    Raises:
        ConfigError: if fewer than 4 pairs have a relation.
    """
    labeled = LabeledPairs(store, split, 1.0, seed)
    rows = labeled.rows.tolist()
    pairs = [labeled.pairs(row) for row in rows]
    nothing = np.zeros(0, dtype=np.int64)
    head_P = np.concatenate([nothing, *(head_K for head_K, _ in pairs)])
    tail_P = np.concatenate([nothing, *(tail_K for _, tail_K in pairs)])
    row_P = np.repeat(labeled.rows, [len(head_K) for head_K, _ in pairs])
    label_PC = np.concatenate(
        [np.zeros((0, len(store.relation_names)), bool), *map(labeled.labels, rows)]
    )
    class_G = _most_frequent_relations(label_PC)
    num_groups = len(class_G)
    group_P = np.full(len(label_PC), -1)
    # The most frequent relation comes last, and overrides the others.
    for group in reversed(range(num_groups)):
        group_P[label_PC[:, class_G[group]]] = group
    num_related = (group_P >= 0).sum()
    if num_related < 4:
        raise ConfigError(
            f"--store {store.location}: {num_related} {split} pairs have a relation; want at least "
            "4 for a map"
        )
    unrelated = np.flatnonzero(label_PC[:, 0])
    rng = np.random.default_rng(derive_seed(seed, "unrelated pairs"))
    sampled = rng.choice(unrelated, min(len(unrelated), MOST_UNRELATED), replace=False)
    group_P[sampled] = num_groups
    selected = np.flatnonzero(group_P >= 0)
    names = tuple(store.relation_names[number] for number in class_G)
    return MapPairs(names, group_P[selected], row_P[selected], head_P[selected], tail_P[selected])


def relation_maps(
    models: Sequence[str],
    store: DocumentStore,
    selected: MapPairs,
    *,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, np.ndarray]:
    """Return each model's t-SNE coordinates (S, 2) of the pairs, by the model's name.

    Embeddings are scaled to length 1, since pairs are compared by cosine everywhere.

    Args:
        models: exports, or any text encoders; see ``load_frozen``.
        store: the documents.
        selected: the pairs.
        seed: seed of t-SNE, the same for all models.
        say: called with progress messages.

    Raises:
        ConfigError: if a model cannot be loaded.
    """
    position_by_name = {}
    for name, model in model_names(models).items():
        say(f"{name}: embedding and mapping {len(selected.group_S):,} pairs")
        for remark in truncation_remarks(model, store, np.unique(selected.row_S)):
            say(f"{name}: {remark}")
        embedding_SD = normalize(_embed(load_frozen(model), store, selected)).cpu().numpy()
        rng = np.random.default_rng(derive_seed(seed, "map"))
        projected = embedding_map(embedding_SD, rng, max_rows=len(embedding_SD))
        position_by_name[name] = projected.position_S2
    return position_by_name


def _most_frequent_relations(label_PC: np.ndarray) -> list[int]:
    count_C = label_PC.sum(0)
    count_C[0] = 0
    by_frequency = np.argsort(-count_C, kind="stable")[:NUM_RELATIONS].tolist()
    return [number for number in by_frequency if count_C[number]]


def _embed(frozen: FrozenEncoder, store: DocumentStore, selected: MapPairs) -> Tensor:
    row_N, start_N = np.unique(selected.row_S, return_index=True)
    heads = np.split(selected.head_S, start_N[1:])
    tails = np.split(selected.tail_S, start_N[1:])
    pairs = {
        row: (head_P, tail_P)
        for row, head_P, tail_P in zip(row_N.tolist(), heads, tails, strict=True)
    }
    embedded = embed_pairs(
        frozen.model, frozen.reader(store), pairs, SingleProcess(), max_tokens=MAX_TOKENS_AT_ONCE
    )
    return embedded.embedding_PD
