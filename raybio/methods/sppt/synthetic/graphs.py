"""Synthetic graphs over sentences: the sentence of each node, and the links between nodes.

The graphs are those of the synthetic experiments of McDermott et al., Table 1. The links come from
``structures.py`` and the sentences from a store of topics.

Shape letters: N nodes, M candidate sentences, T triangles of a surface, V corners.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from raybio.core.errors import DataError
from raybio.core.randomness import derive_seed
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.synthetic.config import SyntheticConfig
from raybio.methods.sppt.synthetic.simplicial import SURFACES, surface
from raybio.methods.sppt.synthetic.store import TopicStore
from raybio.methods.sppt.synthetic.structures import (
    cliques,
    cycle_with_graphlets,
    near_on_surface,
    with_noise,
    within_steps,
)
from raybio.store.store import open_store

# The paper's settings of each graph.
NUM_NODES = {"cliques": 50, "plane": 100, "moebius": 300, "sphere": 300, "torus": 300}
RADIUS = {"plane": 0.15, "moebius": 0.15, "sphere": 0.2, "torus": 0.2}
NUM_CLIQUES = 10
BALL_STEPS = 3
NUM_HOMOPHILY_CLASSES = 4
NUM_STRUCTURAL_CLASSES = 3
NUM_KMEANS_STARTS = 50
NUM_ENTROPY_BINS = 10

MAX_DRAWS = 200
"""Draws of a graph before giving up that every node has a link."""

MAX_PARTIAL_ASSIGNMENTS = 20_000
"""Partial assignments of topics to corners that the search visits."""


@dataclass(frozen=True)
class SyntheticGraph:
    """A graph whose nodes are sentences: the training data of SPPT.

    Attributes:
        text_N: sentence of each node.
        graph: the links, noise included.
        label_N: class of each node.
        triangle_N: surfaces only: index of each node's triangle.
        weight_N3: surfaces only: barycentric coordinates of each node.
    """

    text_N: tuple[str, ...]
    graph: Graph
    label_N: np.ndarray
    triangle_N: np.ndarray | None = None
    weight_N3: np.ndarray | None = None

    @cached_property
    def heldout(self) -> np.ndarray:
        """No held-out links (0, 2)."""
        return np.zeros((0, 2), dtype=np.int64)

    @property
    def group_labels(self) -> list[str]:
        """The single group."""
        return ["all"]

    def texts(self, row_R: np.ndarray) -> list[str]:
        """Return the sentences of these nodes."""
        return [self.text_N[row] for row in row_R.tolist()]

    def text_lengths(self, row_R: np.ndarray) -> np.ndarray:
        """Return the letters of these nodes' sentences (R,)."""
        return np.array([len(self.text_N[row]) for row in row_R.tolist()])


def synthetic_graph(store: TopicStore, config: SyntheticConfig) -> SyntheticGraph:
    """Draw a graph and its sentences. Equal stores and settings give equal graphs.

    Raises:
        DataError: if the store has too few suitable sentences, or noise leaves a node linked to all
            others or to none.
    """
    rng = np.random.default_rng(derive_seed(config.repeat, "synthetic graph", config.kind))
    for _ in range(MAX_DRAWS):
        drawn = _draw(store, config, rng)
        if _has_enough_links(drawn, config):
            break
    else:
        raise DataError(
            f"graph.kind {config.kind}: in {MAX_DRAWS} draws too many nodes had no link; want a "
            "larger graph.radius or graph.num_nodes"
        )
    if not config.noise:
        return drawn
    noisy = with_noise(drawn.graph, config.noise, rng, may_remove=config.noise_removes)
    has_isolated = (noisy.degree_N == 0).any() and not config.self_loops
    if has_isolated or (noisy.degree_N == noisy.num_nodes - 1).any():
        raise DataError(
            f"graph.noise {config.noise:g}: a node of {config.kind} is linked to all others or to "
            "none, which leaves no positive or no negative pair; want less noise"
        )
    return SyntheticGraph(drawn.text_N, noisy, drawn.label_N, drawn.triangle_N, drawn.weight_N3)


def _draw(store: TopicStore, config: SyntheticConfig, rng: np.random.Generator) -> SyntheticGraph:
    if config.kind in SURFACES:
        return _draw_surface(store, config, rng)
    if config.kind == "cliques":
        return _draw_cliques(store, config, rng)
    return _draw_cycle(store, config, rng)


def _has_enough_links(drawn: SyntheticGraph, config: SyntheticConfig) -> bool:
    """Return whether no node is isolated and at least half of the wanted nodes remain."""
    if config.self_loops:
        has_links = drawn.graph.num_edges > 0
    else:
        has_links = bool((drawn.graph.degree_N > 0).all())
    wanted = 0
    if config.kind in NUM_NODES:  # a cycle has as many nodes as its graphlets happen to have
        wanted = config.num_nodes or NUM_NODES[config.kind]
    return has_links and 2 * len(drawn.text_N) >= wanted


def _draw_cliques(
    store: TopicStore, config: SyntheticConfig, rng: np.random.Generator
) -> SyntheticGraph:
    rows_by_topic = _pure_rows(store, config.min_share)
    num_nodes = config.num_nodes or NUM_NODES["cliques"]
    by_size = sorted(rows_by_topic, key=lambda topic: (-len(rows_by_topic[topic]), topic))
    topics = by_size[:NUM_CLIQUES]
    rows_per_topic = len(rows_by_topic[topics[-1]]) if len(topics) == NUM_CLIQUES else 0
    if rows_per_topic * NUM_CLIQUES < 2 * num_nodes:
        wanted = -(-2 * num_nodes // NUM_CLIQUES)
        raise DataError(
            f"{store.location}: {len(rows_by_topic)} topics have sentences of share "
            f"{config.min_share:g} or more, the tenth of them {rows_per_topic}; want {NUM_CLIQUES} "
            f"topics with {wanted}. Prepare more sentences, or set graph.min_share lower"
        )
    rows = np.concatenate(
        [rng.choice(rows_by_topic[topic], rows_per_topic, replace=False) for topic in topics]
    )
    chosen = np.sort(rng.choice(len(rows), num_nodes, replace=False))
    clique_M = np.repeat(np.arange(NUM_CLIQUES), rows_per_topic)
    label_N = np.unique(clique_M[chosen], return_inverse=True)[1]
    return SyntheticGraph(tuple(store.texts(rows[chosen])), cliques(label_N), label_N)


def _draw_cycle(
    store: TopicStore, config: SyntheticConfig, rng: np.random.Generator
) -> SyntheticGraph:
    graph, part_N = cycle_with_graphlets(rng)
    if config.kind == "motif":
        label_N = part_N
    elif config.kind == "homophily":
        ball_NN = within_steps(graph, BALL_STEPS).astype(float)
        label_N = _clusters(ball_NN, NUM_HOMOPHILY_CLASSES, rng)
    else:
        # Imported here: no other graph needs numba.
        from raybio.methods.sppt.synthetic.graphlets import graphlet_degrees

        orbit_NO = graphlet_degrees(graph).astype(float)
        label_N = _clusters(orbit_NO, NUM_STRUCTURAL_CLASSES, rng)
    rows_by_topic = _pure_rows(store, config.min_share)
    size_by_label = np.bincount(label_N)
    topics = [
        topic for topic, rows in sorted(rows_by_topic.items()) if len(rows) >= size_by_label.max()
    ]
    if len(topics) < len(size_by_label):
        raise DataError(
            f"{store.location}: {len(topics)} topics have {size_by_label.max()} sentences of share "
            f"{config.min_share:g} or more; want {len(size_by_label)} such topics. Prepare more "
            "sentences, or set graph.min_share lower"
        )
    topic_of_label = rng.permutation(topics)
    row_N = np.empty(len(label_N), dtype=np.int64)
    for label, size in enumerate(size_by_label.tolist()):
        rows = rows_by_topic[topic_of_label[label]]
        if config.sentences == "strongest":
            row_N[label_N == label] = strongest_rows(rows, store.share_NK[rows, 0], size)
        else:
            row_N[label_N == label] = rng.choice(rows, size, replace=False)
    return SyntheticGraph(tuple(store.texts(row_N)), graph, label_N)


def strongest_rows(row_M: np.ndarray, share_M: np.ndarray, size: int) -> np.ndarray:
    """Return the rows of the largest shares (size,), the largest first; ties in order of rows.

    The authors' code chooses sentences in this way for motif, homophily and structural graphs.
    """
    return row_M[np.argsort(-share_M, kind="stable")[:size]]


def _draw_surface(
    store: TopicStore, config: SyntheticConfig, rng: np.random.Generator
) -> SyntheticGraph:
    triangle_T3 = surface(config.kind)
    rows_by_triple = _rows_by_triple(store, config.min_sentences)
    topic_V = _assign_topics(triangle_T3, set(rows_by_triple), rng)
    if topic_V is None:
        raise DataError(
            f"{store.location}: {len(rows_by_triple)} triples of topics have "
            f"{config.min_sentences} sentences or more, and no assignment of topics to the "
            f"corners of graph.kind {config.kind} gives every triangle such a triple; prepare "
            "more sentences or fewer topics, or set graph.min_sentences lower"
        )
    row_blocks = []
    triangle_blocks = []
    weight_blocks = []
    for triangle, corners in enumerate(triangle_T3):
        row_M = rows_by_triple[tuple(sorted(topic_V[corners].tolist()))]
        weight_M3 = _coordinates(store, row_M, topic_V[corners])
        size = min(config.per_triangle, len(row_M))
        probability_M = draw_probabilities(weight_M3, config.spread)
        chosen = rng.choice(len(row_M), size, replace=False, p=probability_M)
        row_blocks.append(row_M[chosen])
        triangle_blocks.append(np.full(size, triangle))
        weight_blocks.append(weight_M3[chosen])
    row_M = np.concatenate(row_blocks)
    triangle_M = np.concatenate(triangle_blocks)
    weight_M3 = np.concatenate(weight_blocks)
    if config.num_nodes is not None and config.num_nodes > len(row_M):
        raise DataError(
            f"graph.num_nodes: got {config.num_nodes}, and the triangles of {config.kind} have "
            f"{len(row_M)} sentences; want fewer nodes, a larger graph.per_triangle, or more "
            "sentences"
        )
    num_nodes = min(config.num_nodes or NUM_NODES[config.kind], len(row_M))
    radius = config.radius or RADIUS[config.kind]
    chosen = np.sort(rng.choice(len(row_M), num_nodes, replace=False))
    graph = near_on_surface(triangle_T3, triangle_M[chosen], weight_M3[chosen], radius)
    kept = chosen[(graph.degree_N > 0) | config.self_loops]
    graph = near_on_surface(triangle_T3, triangle_M[kept], weight_M3[kept], radius)
    label_N = np.unique(store.topic_NK[row_M[kept], 0], return_inverse=True)[1]
    texts = tuple(store.texts(row_M[kept]))
    return SyntheticGraph(texts, graph, label_N, triangle_M[kept], weight_M3[kept])


def _pure_rows(store: TopicStore, min_share: float) -> dict[int, np.ndarray]:
    """Return topic -> sentences of which it makes up at least ``min_share``."""
    row_M = np.flatnonzero(store.share_NK[:, 0] >= min_share)
    topic_M = store.topic_NK[row_M, 0]
    return {int(topic): row_M[topic_M == topic] for topic in np.unique(topic_M)}


def _rows_by_triple(store: TopicStore, min_sentences: int) -> dict[tuple[int, ...], np.ndarray]:
    """Return triple of topics (ascending) -> sentences of which it makes up over two thirds.

    Triples with fewer than ``min_sentences`` sentences are omitted.
    """
    return _cached_rows_by_triple(str(store.path), store.digest, min_sentences)


# Cached: every draw of a surface needs it, and it takes seconds for millions of sentences.
@lru_cache(maxsize=2)
def _cached_rows_by_triple(
    path: str, digest: str, min_sentences: int
) -> dict[tuple[int, ...], np.ndarray]:
    store = open_store(path, TopicStore)
    row_M = np.flatnonzero(store.share_NK.sum(axis=1) > 2 / 3)
    base = len(store.topic_words)
    code_M = np.sort(store.topic_NK[row_M], axis=1) @ np.array([base * base, base, 1])
    codes, number_M, count = np.unique(code_M, return_inverse=True, return_counts=True)
    rows_by_code = np.split(row_M[np.argsort(number_M, kind="stable")], np.cumsum(count)[:-1])
    rows_by_triple: dict[tuple[int, ...], np.ndarray] = {}
    for code, rows in zip(codes.tolist(), rows_by_code, strict=True):
        if len(rows) >= min_sentences:
            triple = (int(code // base**2), int(code // base % base), int(code % base))
            rows_by_triple[triple] = rows
    return rows_by_triple


def _assign_topics(
    triangle_T3: np.ndarray, triples: set[tuple[int, ...]], rng: np.random.Generator
) -> np.ndarray | None:
    """Return a random assignment of distinct topics to corners (V,), or None if none was found.

    The topics of each triangle are one of ``triples``. The paper uses a set of topics of which all
    triples are valid. This depth-first search is less strict: it also finds an assignment where no
    such set exists.
    """
    topics = np.array(sorted({topic for triple in triples for topic in triple}))
    # In the order of triangles, so that contradictions show early.
    corners = list(dict.fromkeys(triangle_T3.ravel().tolist()))
    stack: list[list[int]] = [[]]
    for _ in range(MAX_PARTIAL_ASSIGNMENTS):
        if not stack:
            return None
        assigned = stack.pop()
        if len(assigned) == len(corners):
            topic_by_corner = dict(zip(corners, assigned, strict=True))
            return np.array([topic_by_corner[corner] for corner in sorted(corners)])
        for topic in rng.permutation(np.setdiff1d(topics, assigned)).tolist():
            extended = [*assigned, topic]
            if _fits(triangle_T3, dict(zip(corners, extended, strict=False)), triples):
                stack.append(extended)
    return None


def _fits(
    triangle_T3: np.ndarray, topic_by_corner: dict[int, int], triples: set[tuple[int, ...]]
) -> bool:
    """Return whether each triangle with three assigned corners has a valid triple of topics."""
    for triangle in triangle_T3.tolist():
        if all(corner in topic_by_corner for corner in triangle):
            triple = tuple(sorted(topic_by_corner[corner] for corner in triangle))
            if triple not in triples:
                return False
    return True


def _coordinates(store: TopicStore, row_M: np.ndarray, topic_3: np.ndarray) -> np.ndarray:
    """Return barycentric coordinates (M, 3): the shares of three topics, normalized to sum 1."""
    columns = []
    for topic in topic_3:
        is_topic_MK = store.topic_NK[row_M] == topic
        columns.append(np.where(is_topic_MK, store.share_NK[row_M], 0).sum(axis=1))
    share_M3 = np.stack(columns, axis=1)
    return share_M3 / share_M3.sum(axis=1, keepdims=True)


def draw_probabilities(weight_M3: np.ndarray, spread: str) -> np.ndarray:
    """Return the probability (M,) to draw each sentence of a triangle.

    With ``spread`` "uniform" all are equal. With "even" each is inversely proportional to the
    number of sentences in its bin of entropy, so that points spread over the triangle.
    """
    if spread == "uniform":
        return np.full(len(weight_M3), 1 / len(weight_M3))
    entropy_M = -(weight_M3 * np.log(np.maximum(weight_M3, 1e-12))).sum(axis=1)
    edges = np.linspace(entropy_M.min(), entropy_M.max() + 1e-9, NUM_ENTROPY_BINS + 1)
    bin_M = np.searchsorted(edges, entropy_M, side="right") - 1
    bin_M = np.clip(bin_M, 0, NUM_ENTROPY_BINS - 1)
    probability_M = 1 / np.bincount(bin_M, minlength=NUM_ENTROPY_BINS)[bin_M]
    return probability_M / probability_M.sum()


def _clusters(feature_NF: np.ndarray, num_clusters: int, rng: np.random.Generator) -> np.ndarray:
    # Imported here: it takes two seconds.
    from sklearn.cluster import KMeans

    model = KMeans(
        num_clusters, n_init=NUM_KMEANS_STARTS, random_state=int(rng.integers(2**31))
    ).fit(feature_NF)
    return np.asarray(model.labels_, dtype=np.int64)
