"""Synthetic graphs over sentences, as SPPT's experiments have them (facts §7): which sentence is which node.

N nodes, T triangles of a surface, V corners.

The synthetic graphs of SPPT's experiments (facts §7): cliques, surfaces, a cycle with graphlets; and noise.

N nodes, E edges.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raybio.core.errors import DataError
from raybio.core.randomness import derive_seed
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.synthetic.config import SyntheticConfig
from raybio.methods.sppt.synthetic.graphlets import graphlet_degrees
from raybio.methods.sppt.synthetic.simplicial import SURFACES, Floats, geodesic_distances, surface
from raybio.methods.sppt.synthetic.topics import TopicStore
from raybio.ops.segments import Integers, Positions, expand
from raybio.store.store import open_store

NUM_NODES = {"cliques": 50, "plane": 100, "moebius": 300, "sphere": 300, "torus": 300}


RADIUS = {"plane": 0.15, "moebius": 0.15, "sphere": 0.2, "torus": 0.2}


NUM_CLIQUES, BALL_STEPS, NUM_HOMOPHILY, NUM_STRUCTURAL, KMEANS_STARTS = 10, 3, 4, 3, 50


SPREAD_BINS = 10


MAX_TRIES = 200
"""Draws until every node has a link."""


MAX_PARTIAL = 20_000
"""Partial choices of topics for a surface's corners that are looked at."""


@dataclass(frozen=True)
class SyntheticGraph:
    """Sentences as the nodes of a graph; what SPPT trains on.

    Attributes:
        text_N: sentence of each node.
        graph: the links, noise included.
        label_N: number of each node's class.
        place_N: surfaces: triangle of each node.
        weight_N3: surfaces: barycentric coordinates of each.
    """

    text_N: tuple[str, ...]
    graph: Graph
    label_N: np.ndarray
    place_N: np.ndarray | None = None
    weight_N3: np.ndarray | None = None

    @cached_property
    def heldout(self) -> np.ndarray:
        """No link is held out."""
        return np.zeros((0, 2), dtype=np.int64)

    @property
    def group_labels(self) -> list[str]:
        """All nodes are one group."""
        return ["all"]

    def texts(self, row_R: np.ndarray) -> list[str]:
        """Sentences of some nodes."""
        return [self.text_N[row] for row in row_R.tolist()]


def synthetic_graph(store: TopicStore, config: SyntheticConfig) -> SyntheticGraph:
    """Draw the graph and its sentences; the same store and settings give the same.

    Raises:
        DataError: if the store has too few sentences of a kind that is needed.
    """
    rng = np.random.default_rng(derive_seed(config.repeat, "synthetic graph", config.kind))
    draw = _surface if config.kind in SURFACES else _cliques if config.kind == "cliques" else _cycle
    for _ in range(MAX_TRIES):
        drawn = draw(store, config, rng)
        wanted = 0 if draw is _cycle else config.num_nodes or NUM_NODES[config.kind]
        has_links = drawn.graph.num_edges if config.self_loops else (drawn.graph.degree_N > 0).all()
        if has_links and 2 * len(drawn.text_N) >= wanted:
            break
    else:
        raise DataError(
            f"graph.kind {config.kind}: {MAX_TRIES} draws left too many nodes without a link; want a larger "
            "graph.radius or graph.num_nodes"
        )
    if not config.noise:
        return drawn
    noisy = with_noise(drawn.graph, config.noise, rng, may_remove=config.noise_removes)
    is_alone = (noisy.degree_N == 0).any() and not config.self_loops
    if is_alone or (noisy.degree_N == noisy.num_nodes - 1).any():
        raise DataError(
            f"graph.noise {config.noise:g}: leaves a node of {config.kind} linked to all others or to none, and then "
            "there is nothing to tell; want less noise"
        )
    return SyntheticGraph(drawn.text_N, noisy, drawn.label_N, drawn.place_N, drawn.weight_N3)


def _cliques(
    store: TopicStore, config: SyntheticConfig, rng: np.random.Generator
) -> SyntheticGraph:
    rows_by_topic = _pure_rows(store, config.min_share)
    num_nodes = config.num_nodes or NUM_NODES["cliques"]
    ordered = sorted(rows_by_topic, key=lambda topic: (-len(rows_by_topic[topic]), topic))[
        :NUM_CLIQUES
    ]
    equal = len(rows_by_topic[ordered[-1]]) if len(ordered) == NUM_CLIQUES else 0
    if equal * NUM_CLIQUES < 2 * num_nodes:
        raise DataError(
            f"{store.path}: {len(rows_by_topic)} topics have sentences of share {config.min_share:g} or more, the "
            f"tenth of them {equal}; want {NUM_CLIQUES} topics with {-(-2 * num_nodes // NUM_CLIQUES)}. Prepare more "
            "sentences, or set graph.min_share lower"
        )
    rows = np.concatenate(
        [rng.choice(rows_by_topic[topic], equal, replace=False) for topic in ordered]
    )
    chosen = np.sort(rng.choice(len(rows), num_nodes, replace=False))
    label_N = np.unique(np.repeat(np.arange(NUM_CLIQUES), equal)[chosen], return_inverse=True)[1]
    return SyntheticGraph(tuple(store.texts(rows[chosen])), cliques(label_N), label_N)


def _cycle(store: TopicStore, config: SyntheticConfig, rng: np.random.Generator) -> SyntheticGraph:
    graph, part_N = cycle_with_graphlets(rng)
    if config.kind == "motif":
        label_N = part_N
    elif config.kind == "homophily":
        label_N = _clusters(within_steps(graph, BALL_STEPS).astype(float), NUM_HOMOPHILY, rng)
    else:
        label_N = _clusters(graphlet_degrees(graph).astype(float), NUM_STRUCTURAL, rng)
    rows_by_topic, size_by_label = _pure_rows(store, config.min_share), np.bincount(label_N)
    topics = [
        topic for topic, rows in sorted(rows_by_topic.items()) if len(rows) >= size_by_label.max()
    ]
    if len(topics) < len(size_by_label):
        raise DataError(
            f"{store.path}: {len(topics)} topics have {size_by_label.max()} sentences of share {config.min_share:g} or "
            f"more; want {len(size_by_label)} such topics. Prepare more sentences, or set graph.min_share lower"
        )
    topic_of_label = rng.permutation(topics)
    row_N = np.empty(len(label_N), dtype=np.int64)
    for label, size in enumerate(size_by_label.tolist()):
        row_N[label_N == label] = rng.choice(
            rows_by_topic[topic_of_label[label]], size, replace=False
        )
    return SyntheticGraph(tuple(store.texts(row_N)), graph, label_N)


def _surface(
    store: TopicStore, config: SyntheticConfig, rng: np.random.Generator
) -> SyntheticGraph:
    triangle_T3 = surface(config.kind)
    rows_by_triple = _rows_by_triple(store, config.min_sentences)
    topic_V = _topics_of_corners(triangle_T3, set(rows_by_triple), rng)
    if topic_V is None:
        raise DataError(
            f"{store.path}: {len(rows_by_triple)} triples of topics have {config.min_sentences} sentences or more, and "
            f"no topics were found for the corners of graph.kind {config.kind} such that each triangle's have; prepare "
            "more sentences or fewer topics, or set graph.min_sentences lower"
        )
    rows, places, weights = [], [], []
    for place, corners in enumerate(triangle_T3):
        row_M = rows_by_triple[tuple(sorted(topic_V[corners].tolist()))]
        weight_M3 = _coordinates(store, row_M, topic_V[corners])
        size = min(config.per_triangle, len(row_M))
        chosen = rng.choice(len(row_M), size, replace=False, p=chances(weight_M3, config.spread))
        rows.append(row_M[chosen])
        weights.append(weight_M3[chosen])
        places.append(np.full(size, place))
    row_M, place_M, weight_M3 = (
        np.concatenate(rows),
        np.concatenate(places),
        np.concatenate(weights),
    )
    if config.num_nodes is not None and config.num_nodes > len(row_M):
        raise DataError(
            f"graph.num_nodes: got {config.num_nodes}, and the triangles of {config.kind} have {len(row_M)} sentences; "
            "want fewer nodes, a larger graph.per_triangle, or more sentences"
        )
    num_nodes = min(config.num_nodes or NUM_NODES[config.kind], len(row_M))
    chosen = np.sort(rng.choice(len(row_M), num_nodes, replace=False))
    graph = near_on_surface(
        triangle_T3, place_M[chosen], weight_M3[chosen], config.radius or RADIUS[config.kind]
    )
    kept = chosen[(graph.degree_N > 0) | config.self_loops]
    graph = near_on_surface(
        triangle_T3, place_M[kept], weight_M3[kept], config.radius or RADIUS[config.kind]
    )
    label_N = np.unique(store.topic_NK[row_M[kept], 0], return_inverse=True)[1]
    return SyntheticGraph(
        tuple(store.texts(row_M[kept])), graph, label_N, place_M[kept], weight_M3[kept]
    )


def _pure_rows(store: TopicStore, min_share: float) -> dict[int, np.ndarray]:
    """Sentences of which one topic is at least ``min_share``, by that topic."""
    row_M = np.flatnonzero(store.share_NK[:, 0] >= min_share)
    topic_M = store.topic_NK[row_M, 0]
    return {int(topic): row_M[topic_M == topic] for topic in np.unique(topic_M)}


def _rows_by_triple(store: TopicStore, min_sentences: int) -> dict[tuple[int, ...], np.ndarray]:
    """Sentences of which three topics are more than two thirds, by these, ascending; of triples that have enough."""
    return _triples_of(str(store.path), store.digest, min_sentences)


@lru_cache(
    maxsize=2
)  # every draw of a surface asks for it, and of millions of sentences it takes seconds
def _triples_of(path: str, digest: str, min_sentences: int) -> dict[tuple[int, ...], np.ndarray]:
    store = open_store(path, TopicStore)
    row_M = np.flatnonzero(store.share_NK.sum(axis=1) > 2 / 3)
    size = len(store.topic_words)
    code_M = np.sort(store.topic_NK[row_M], axis=1) @ np.array([size * size, size, 1])
    codes, number_M, count = np.unique(code_M, return_inverse=True, return_counts=True)
    by_code = np.split(row_M[np.argsort(number_M, kind="stable")], np.cumsum(count)[:-1])
    return {
        (int(code // size**2), int(code // size % size), int(code % size)): rows
        for code, rows in zip(codes.tolist(), by_code, strict=True)
        if len(rows) >= min_sentences
    }


def _topics_of_corners(
    triangle_T3: np.ndarray, triples: set[tuple[int, ...]], rng: np.random.Generator
) -> np.ndarray | None:
    """Different topics for all corners, at random, such that each triangle's are one of ``triples``; None: not found.

    The paper takes corners from topics of which all triples will do; this finds the same where there are such, and
    something where there are none.
    """
    topics = np.array(sorted({topic for triple in triples for topic in triple}))
    # Neighbours follow each other, so that contradictions show early.
    corners = list(dict.fromkeys(triangle_T3.ravel().tolist()))
    waiting: list[list[int]] = [[]]
    for _ in range(MAX_PARTIAL):
        if not waiting:
            return None
        chosen = waiting.pop()
        if len(chosen) == len(corners):
            topic_of = dict(zip(corners, chosen, strict=True))
            return np.array([topic_of[corner] for corner in sorted(corners)])
        others = [
            [*chosen, topic] for topic in rng.permutation(np.setdiff1d(topics, chosen)).tolist()
        ]
        waiting += [
            more
            for more in others
            if _fits(triangle_T3, dict(zip(corners, more, strict=False)), triples)
        ]
    return None


def _fits(triangle_T3: np.ndarray, topic_of: dict[int, int], triples: set[tuple[int, ...]]) -> bool:
    """Whether the topics of each triangle whose corners all have one are among the triples."""
    found = (
        tuple(sorted(topic_of[corner] for corner in triangle))
        for triangle in triangle_T3.tolist()
        if all(corner in topic_of for corner in triangle)
    )
    return all(triple in triples for triple in found)


def _coordinates(store: TopicStore, row_M: np.ndarray, topic_3: np.ndarray) -> np.ndarray:
    """Barycentric coordinates (M, 3): the shares of three topics, made to add up to 1."""
    share_M3 = np.stack(
        [
            np.where(store.topic_NK[row_M] == topic, store.share_NK[row_M], 0).sum(axis=1)
            for topic in topic_3
        ],
        axis=1,
    )
    return share_M3 / share_M3.sum(axis=1, keepdims=True)


def chances(weight_M3: np.ndarray, spread: str) -> np.ndarray:
    """Chance of each sentence of a triangle to be drawn: the inverse of how many are as mixed as it is."""
    if spread == "uniform":
        return np.full(len(weight_M3), 1 / len(weight_M3))
    entropy_M = -(weight_M3 * np.log(np.maximum(weight_M3, 1e-12))).sum(axis=1)
    edges = np.linspace(entropy_M.min(), entropy_M.max() + 1e-9, SPREAD_BINS + 1)
    bin_M = np.clip(np.searchsorted(edges, entropy_M, side="right") - 1, 0, SPREAD_BINS - 1)
    chance_M = 1 / np.bincount(bin_M, minlength=SPREAD_BINS)[bin_M]
    return chance_M / chance_M.sum()


def _clusters(feature_NF: np.ndarray, num_clusters: int, rng: np.random.Generator) -> np.ndarray:
    # Only now: this takes two seconds.
    from sklearn.cluster import KMeans

    found = KMeans(num_clusters, n_init=KMEANS_STARTS, random_state=int(rng.integers(2**31))).fit(
        feature_NF
    )
    return np.asarray(found.labels_, dtype=np.int64)


def cliques(label_N: Integers) -> Graph:
    """Nodes are linked if and only if their labels are equal."""
    label_N = np.asarray(label_N)
    is_linked_NN = label_N[:, None] == label_N
    return Graph.from_edges(np.argwhere(np.triu(is_linked_NN, 1)), len(label_N))


def near_on_surface(
    triangle_T3: Integers, place_N: Integers, weight_N3: Floats, radius: float
) -> Graph:
    """Nodes are linked if and only if they are nearer than ``radius`` along a surface; see ``geodesic_distances``.

    Raises:
        ValueError: for a radius, a place or coordinates that are out of range.
    """
    distance_NN = geodesic_distances(triangle_T3, place_N, weight_N3, up_to=radius)
    return Graph.from_edges(np.argwhere(np.triu(distance_NN < radius, 1)), len(distance_NN))


class CycleWithGraphlets(NamedTuple):
    """A cycle to which small graphs are joined (Donnat et al., 2018).

    Attributes:
        graph: the cycle's nodes first, then those of each graphlet.
        part_N: 0 for the cycle, 1 and up for the graphlet that a node belongs to.
    """

    graph: Graph
    part_N: NDArray[np.int64]


def cycle_with_graphlets(
    rng: np.random.Generator, *, cycle: int = 36, every: int = 4, max_nodes: int = 6
) -> CycleWithGraphlets:
    """A cycle; at every ``every``-th node a random connected graph hangs by one edge.

    A graphlet has 2 to ``max_nodes`` nodes: a random tree, and each other pair is linked with a chance of its own.

    Raises:
        ValueError: for a cycle of fewer than three nodes, or graphlets of fewer than two.
    """
    if cycle < 3 or every < 1 or max_nodes < 2:
        raise ValueError(
            f"got cycle {cycle}, every {every}, max_nodes {max_nodes}; want at least 3, 1 and 2"
        )
    edges = [(node, (node + 1) % cycle) for node in range(cycle)]
    parts = [0] * cycle
    for number, joint in enumerate(range(0, cycle, every), start=1):
        first, size = len(parts), int(rng.integers(2, max_nodes + 1))
        density = rng.random()
        for node in range(1, size):
            parent = int(rng.integers(node))
            others = [other for other in range(node) if other != parent and rng.random() < density]
            edges += [(first + node, first + other) for other in (parent, *others)]
        edges.append((joint, first + int(rng.integers(size))))
        parts += [number] * size
    return CycleWithGraphlets(Graph.from_edges(np.array(edges), len(parts)), np.array(parts))


def within_steps(graph: Graph, num_steps: int) -> NDArray[np.bool_]:
    """Whether node j is at most ``num_steps`` links away from node i (N, N); each node is near itself."""
    num_nodes = graph.num_nodes
    is_near_NN = np.eye(num_nodes, dtype=np.bool_)
    position, owner = expand(graph.indptr[:-1].astype(np.int64), graph.degree_N.astype(np.int64))
    target = np.asarray(graph.indices)[position]
    for _ in range(num_steps):
        reached_NN = is_near_NN.copy()
        np.logical_or.at(reached_NN, owner, is_near_NN[target])
        is_near_NN = reached_NN
    return is_near_NN


def with_noise(
    graph: Graph, rate: float, rng: np.random.Generator, *, may_remove: bool = False
) -> Graph:
    """Of all pairs of nodes, each with the chance ``rate``: link it; with ``may_remove`` unlink it if it is linked.

    Raises:
        ValueError: for a rate outside [0, 1].
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate is {rate}, want a share in [0, 1]")
    num_nodes = graph.num_nodes
    u_M, v_M = np.triu_indices(num_nodes, 1)
    is_linked_M = graph.has_edge(u_M, v_M)
    is_drawn_M = rng.random(len(u_M)) < rate
    kept_M = is_linked_M ^ is_drawn_M if may_remove else is_linked_M | is_drawn_M
    edge_E2: Positions = np.stack([u_M[kept_M], v_M[kept_M]], axis=1)
    return Graph.from_edges(edge_E2, num_nodes, graph.group_N)
