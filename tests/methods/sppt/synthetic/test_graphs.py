"""Synthetic graphs over sentences with topics."""

import numpy as np
import pytest
from sklearn.cluster import KMeans

from raybio.core.errors import DataError
from raybio.methods.sppt.graph.homophily import homophily
from raybio.methods.sppt.synthetic.config import KINDS, SyntheticConfig
from raybio.methods.sppt.synthetic.graphlets import graphlet_degrees
from raybio.methods.sppt.synthetic.graphs import (
    NUM_NODES,
    SyntheticGraph,
    draw_probabilities,
    strongest_rows,
    synthetic_graph,
)
from raybio.methods.sppt.synthetic.simplicial import geodesic_distances, surface
from raybio.methods.sppt.synthetic.store import TopicStore
from raybio.methods.sppt.synthetic.structures import within_steps


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TopicStore:
    """The built-in corpus."""
    from raybio.methods.sppt.synthetic.demo import SIMULATED_TOPICS

    return SIMULATED_TOPICS.prepare(tmp_path_factory.mktemp("topics"))


def rows_of(store: TopicStore, nodes: SyntheticGraph) -> np.ndarray:
    row_by_text = {text: row for row, text in enumerate(store.texts(np.arange(store.num_rows)))}
    return np.array([row_by_text[text] for text in nodes.text_N])


@pytest.mark.parametrize("kind", KINDS)
def test_every_graph_has_links_at_all_nodes_and_classes_without_gaps(
    store: TopicStore, kind: str
) -> None:
    nodes = synthetic_graph(store, SyntheticConfig(kind=kind))
    assert (nodes.graph.degree_N > 0).all()
    assert (
        len(nodes.text_N) == nodes.graph.num_nodes == len(nodes.label_N) == len(set(nodes.text_N))
    )
    assert set(nodes.label_N.tolist()) == set(range(nodes.label_N.max() + 1))
    again = synthetic_graph(store, SyntheticConfig(kind=kind))
    assert again.text_N == nodes.text_N
    assert (again.graph.indices == nodes.graph.indices).all()
    assert synthetic_graph(store, SyntheticConfig(kind=kind, repeat=1)).text_N != nodes.text_N


def test_cliques_are_of_sentences_with_one_topic(store: TopicStore) -> None:
    nodes = synthetic_graph(store, SyntheticConfig())
    rows = rows_of(store, nodes)
    assert (store.share_NK[rows, 0] >= 0.9).all()
    same = store.topic_NK[rows, 0][:, None] == store.topic_NK[rows, 0]
    u, v = np.triu_indices(50, 1)
    np.testing.assert_array_equal(nodes.graph.has_edge(u, v), same[u, v])
    assert homophily(nodes.graph, nodes.label_N) == 1


@pytest.mark.parametrize("kind", ["plane", "moebius", "sphere", "torus"])
def test_nodes_of_a_surface_lie_where_their_topics_say(store: TopicStore, kind: str) -> None:
    nodes = synthetic_graph(store, SyntheticConfig(kind=kind))
    rows, triangles = rows_of(store, nodes), surface(kind)
    topic_of_corner: dict[int, int] = {}
    for row, place, weight_3 in zip(rows, nodes.triangle_N, nodes.weight_N3, strict=True):
        assert store.share_NK[row].sum() > 2 / 3
        for corner, weight in zip(triangles[place], weight_3, strict=True):
            share = store.share_NK[row] / store.share_NK[row].sum()
            (topic,) = store.topic_NK[row][np.isclose(share, weight)][:1]
            if np.isclose(share, weight).sum() == 1:
                assert topic_of_corner.setdefault(int(corner), int(topic)) == topic
    assert len(set(topic_of_corner.values())) == len(topic_of_corner)
    distance = geodesic_distances(triangles, nodes.triangle_N, nodes.weight_N3, up_to=0.3)
    radius = 0.2 if kind in ("sphere", "torus") else 0.15
    u, v = np.triu_indices(len(rows), 1)
    np.testing.assert_array_equal(nodes.graph.has_edge(u, v), distance[u, v] < radius)


@pytest.mark.parametrize("kind", ["homophily", "motif", "structural"])
def test_each_label_of_a_cycle_has_a_topic_of_its_own(store: TopicStore, kind: str) -> None:
    nodes = synthetic_graph(store, SyntheticConfig(kind=kind))
    topic_N = store.topic_NK[rows_of(store, nodes), 0]
    pairs = set(zip(nodes.label_N.tolist(), topic_N.tolist(), strict=True))
    assert len(pairs) == nodes.label_N.max() + 1 == len({topic for _, topic in pairs})


@pytest.mark.parametrize("kind", ["homophily", "motif", "structural"])
def test_the_strongest_sentences_of_a_topic_come_first_if_wanted(
    store: TopicStore, kind: str
) -> None:
    random, strongest = (
        synthetic_graph(store, SyntheticConfig(kind=kind, sentences=which))
        for which in ("random", "strongest")
    )
    np.testing.assert_array_equal(random.label_N, strongest.label_N)
    assert random.text_N != strongest.text_N
    row_N = rows_of(store, strongest)
    for label in set(strongest.label_N.tolist()):
        rows = row_N[strongest.label_N == label].tolist()
        (topic,) = set(store.topic_NK[rows, 0].tolist())
        of_topic = [row for row in range(store.num_rows) if store.topic_NK[row, 0] == topic]
        by_share = sorted(of_topic, key=lambda row: -store.share_NK[row, 0])
        assert rows == by_share[: len(rows)]


def test_of_equal_shares_the_first_row_is_the_strongest() -> None:
    rows = strongest_rows(np.array([4, 7, 9, 12]), np.array([0.9, 0.95, 0.95, 0.9]), 3)
    assert rows.tolist() == [7, 9, 4]


@pytest.mark.parametrize("kind", ["plane", "moebius", "sphere", "torus"])
def test_the_class_of_a_node_on_a_surface_is_its_strongest_topic(
    store: TopicStore, kind: str
) -> None:
    nodes = synthetic_graph(store, SyntheticConfig(kind=kind))
    rows = rows_of(store, nodes)
    assert (np.diff(store.share_NK[rows], axis=1) <= 0).all()  # the strongest first
    pairs = set(zip(nodes.label_N.tolist(), store.topic_NK[rows, 0].tolist(), strict=True))
    assert len(pairs) == nodes.label_N.max() + 1 == len({topic for _, topic in pairs})


def scatter(feature_NF: np.ndarray, label_N: np.ndarray) -> float:
    """Sum of squared distances to the mean of each class."""
    parts = [feature_NF[label_N == one] for one in set(label_N.tolist())]
    return sum(float(((part - part.mean(0)) ** 2).sum()) for part in parts)


@pytest.mark.parametrize(("kind", "num_classes"), [("homophily", 4), ("structural", 3)])
def test_classes_of_a_cycle_are_the_best_clusters_of_what_they_are_named_after(
    store: TopicStore, kind: str, num_classes: int
) -> None:
    for repeat in range(4):
        nodes = synthetic_graph(store, SyntheticConfig(kind=kind, repeat=repeat))
        graph = nodes.graph
        feature_NF = graphlet_degrees(graph) if kind == "structural" else within_steps(graph, 3)
        best = KMeans(num_classes, n_init=50, random_state=7).fit(feature_NF.astype(float)).inertia_
        assert nodes.label_N.max() + 1 == num_classes
        assert scatter(feature_NF.astype(float), nodes.label_N) <= 1.01 * best


def test_noise_removes_links_only_if_it_is_to(store: TopicStore) -> None:
    plain = synthetic_graph(store, SyntheticConfig(kind="homophily")).graph
    u, v = np.triu_indices(plain.num_nodes, 1)
    linked = plain.has_edge(u, v)
    left = {}
    for removes in (False, True):
        noisy = synthetic_graph(
            store, SyntheticConfig(kind="homophily", noise=0.2, noise_removes=removes)
        ).graph
        left[removes] = noisy.has_edge(u, v)[linked].mean()
        assert noisy.has_edge(u, v)[~linked].any()
    assert left[False] == 1 and 0.6 < left[True] < 0.95


@pytest.mark.parametrize("kind", ["sphere", "torus"])
def test_with_self_loops_a_surface_keeps_nodes_that_are_near_no_other(
    store: TopicStore, kind: str
) -> None:
    plain, looped = (
        synthetic_graph(store, SyntheticConfig(kind=kind, self_loops=loops))
        for loops in (False, True)
    )
    assert len(looped.text_N) == NUM_NODES[kind] > len(plain.text_N)
    linked = looped.graph.degree_N > 0
    assert (plain.graph.degree_N > 0).all() and not linked.all()
    assert plain.text_N == tuple(
        text for text, has_link in zip(looped.text_N, linked, strict=True) if has_link
    )
    assert (
        plain.graph.num_edges == looped.graph.num_edges
    )  # Graph has no self pairs: the plan draws them


def test_noise_may_take_a_nodes_last_link_if_it_has_itself(store: TopicStore) -> None:
    settings = {"kind": "homophily", "noise": 0.02, "noise_removes": True}
    alone = 0
    for repeat in range(40):
        noisy = synthetic_graph(store, SyntheticConfig(**settings, repeat=repeat, self_loops=True))
        if (noisy.graph.degree_N == 0).any():
            alone += 1
            with pytest.raises(DataError, match="linked to all others or to none"):
                synthetic_graph(store, SyntheticConfig(**settings, repeat=repeat))
    assert alone


def test_spread_decides_which_sentences_a_triangle_has(store: TopicStore) -> None:
    drawn = [
        synthetic_graph(store, SyntheticConfig(kind="plane", spread=spread))
        for spread in ("even", "uniform")
    ]
    assert drawn[0].text_N != drawn[1].text_N


def test_labels_of_structure_are_less_homophilous_than_those_of_neighborhoods(
    store: TopicStore,
) -> None:
    def mean(kind: str) -> float:
        graphs = [
            synthetic_graph(store, SyntheticConfig(kind=kind, repeat=draw)) for draw in range(3)
        ]
        return float(np.mean([homophily(nodes.graph, nodes.label_N) for nodes in graphs]))

    assert min(mean("homophily"), mean("motif")) > 0.9 > 0.75 > mean("structural")


def test_noise_leaves_sentences_and_labels_as_they_are(store: TopicStore) -> None:
    plain, noisy = (synthetic_graph(store, SyntheticConfig(noise=noise)) for noise in (0, 0.2))
    assert plain.text_N == noisy.text_N
    assert (plain.label_N == noisy.label_N).all()
    assert noisy.graph.num_edges > 1.5 * plain.graph.num_edges


def test_even_spread_draws_rare_mixtures_as_often_as_frequent_ones() -> None:
    pure, mixed = np.array([0.9, 0.05, 0.05]), np.array([0.4, 0.3, 0.3])
    weight_M3 = np.concatenate([np.tile(pure, (30, 1)), np.tile(mixed, (10, 1))])
    assert draw_probabilities(weight_M3, "even")[:30].sum() == pytest.approx(0.5)
    assert draw_probabilities(weight_M3, "uniform")[:30].sum() == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (
            {"kind": "cliques", "min_share": 0.999},
            "want 10 topics with 10. Prepare more sentences, or set graph.min_share",
        ),
        (
            {"kind": "motif", "min_share": 0.999},
            "want 10 such topics. Prepare more sentences, or set graph.min_share",
        ),
        (
            {"kind": "torus", "min_sentences": 10_000},
            "0 triples of topics have 10000 sentences or more",
        ),
        (
            {"kind": "plane", "num_nodes": 1000},
            "the triangles of plane have .* sentences; want fewer nodes",
        ),
        (
            {"kind": "cliques", "noise": 1.0},
            "a node of cliques is linked to all others .*want less noise",
        ),
        pytest.param(
            {"kind": "sphere", "radius": 1e-9},
            "too many nodes had no link",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_too_few_sentences_are_reported(
    store: TopicStore, settings: dict[str, object], wanted: str
) -> None:
    with pytest.raises(DataError, match=wanted):
        synthetic_graph(store, SyntheticConfig(**settings))
