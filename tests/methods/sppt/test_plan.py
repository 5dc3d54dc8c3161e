import numpy as np
import pytest

from raybio.core.errors import ConfigError, DataError
from raybio.methods.sppt.config import PlanConfig
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.plan import LinkPlan
from raybio.store.store import Store


def plan_of(store: Store, **settings: object) -> LinkPlan:
    return LinkPlan(store.graph, PlanConfig(**settings), seed=3)


@pytest.mark.parametrize("batch", [1, 7, 64, 150])
def test_every_epoch_holds_each_node_exactly_once_whatever_the_batch(
    tiny_store: Store, batch: int
) -> None:
    plan = plan_of(tiny_store, global_batch_rows=batch)
    num_nodes = tiny_store.num_rows
    stream = np.concatenate(
        [plan.rows(step).anchor_B for step in range(3 * num_nodes // batch + 1)]
    )
    for epoch in range(2):
        assert sorted(stream[epoch * num_nodes : (epoch + 1) * num_nodes]) == list(range(num_nodes))


def test_epochs_are_ordered_differently(tiny_store: Store) -> None:
    plan = plan_of(tiny_store, global_batch_rows=tiny_store.num_rows)
    assert not np.array_equal(plan.rows(0).anchor_B, plan.rows(1).anchor_B)


def test_positives_are_linked_and_negatives_are_of_the_group_and_not_linked(
    tiny_store: Store,
) -> None:
    plan = plan_of(
        tiny_store, global_batch_rows=40, num_positives_per_anchor=3, num_negatives_per_anchor=2
    )
    graph, group_N = tiny_store.graph, tiny_store.group_N
    for step in range(5):
        rows = plan.rows(step)
        assert graph.has_edge(np.repeat(rows.anchor_B, 3), rows.positive_BP.ravel()).all()
        assert not graph.has_edge(np.repeat(rows.anchor_B, 2), rows.negative_BQ.ravel()).any()
        assert (group_N[rows.negative_BQ] == group_N[rows.anchor_B][:, None]).all()
        assert (rows.negative_BQ != rows.anchor_B[:, None]).all()


def test_anchors_and_links_differ_by_step_and_by_seed(tiny_store: Store) -> None:
    num_nodes = tiny_store.num_rows
    config = PlanConfig(global_batch_rows=num_nodes, num_negatives_per_anchor=1)
    anchors = set()
    links = set()
    for seed, step in ((3, 0), (3, 1), (4, 0)):
        rows = LinkPlan(tiny_store.graph, config, seed).rows(step)
        anchors.add(rows.anchor_B.tobytes())
        # Anchors are all nodes: in their order, only the links differ.
        links.add(rows.positive_BP[np.argsort(rows.anchor_B)].tobytes())
        links.add(rows.negative_BQ[np.argsort(rows.anchor_B)].tobytes())
    assert (len(anchors), len(links)) == (3, 6)


def test_group_first_fills_a_batch_from_one_group_without_repetition(tiny_store: Store) -> None:
    plan = plan_of(tiny_store, global_batch_rows=16, anchor_order="group_first")
    seen = set()
    for step in range(30):
        anchors = plan.rows(step).anchor_B
        assert len(set(anchors)) == 16
        assert len(set(tiny_store.group_N[anchors])) == 1
        seen.add(int(tiny_store.group_N[anchors[0]]))
    assert seen == {0, 1}


def test_group_first_takes_a_second_group_where_the_first_is_too_small(tiny_store: Store) -> None:
    anchors = plan_of(tiny_store, global_batch_rows=40, anchor_order="group_first").rows(0).anchor_B
    assert len(set(anchors)) == 40


def test_isolated_nodes_are_no_anchors() -> None:
    graph = Graph.from_edges(np.array([[0, 1], [1, 3]]), 5, np.zeros(5, dtype=np.int32))
    plan = LinkPlan(graph, PlanConfig(global_batch_rows=3), seed=0)
    assert sorted(plan.rows(0).anchor_B) == [0, 1, 3]
    assert plan.steps_per_epoch == 1
    assert LinkPlan(graph, PlanConfig(global_batch_rows=2), seed=0).steps_per_epoch == 1.5


def test_nodes_that_are_held_out_are_never_drawn_and_the_others_alike() -> None:
    # Nodes 1 and 8 are held out; node 4 has no link at all, and node 9 a training link, too.
    edges = np.array([[0, 2], [0, 3], [2, 3], [5, 3], [6, 7], [7, 9]])
    heldout = np.array([[1, 8], [8, 9]])
    group_N = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 1], dtype=np.int32)
    graph = Graph.from_edges(edges, 10, group_N)
    config = PlanConfig(global_batch_rows=7, num_negatives_per_anchor=3)
    plan = LinkPlan(graph, config, 0, heldout)
    drawn: dict[int, list[int]] = {node: [] for node in (0, 2, 3, 5, 6, 7, 9)}
    for step in range(400):
        rows = plan.rows(step)
        for anchor, negatives in zip(rows.anchor_B, rows.negative_BQ, strict=True):
            drawn[int(anchor)] += negatives.tolist()
    # Node 7 is linked to all others of its group that are seen: its negatives are of the other one.
    wanted = {0: {4, 5}, 2: {4, 5}, 3: {4}, 5: {0, 2, 4}, 6: {9}, 7: {0, 2, 3, 4, 5}, 9: {6}}
    assert {node: set(found) for node, found in drawn.items()} == wanted
    for found in drawn.values():
        _, count = np.unique(found, return_counts=True)
        np.testing.assert_allclose(count / len(found), 1 / len(count), atol=0.06)


def test_with_self_loops_each_node_is_an_anchor_and_one_of_its_own_positives() -> None:
    star = Graph.from_edges(np.array([[0, 1], [0, 2], [0, 3]]), 6)
    plan = LinkPlan(
        star, PlanConfig(global_batch_rows=6, num_positives_per_anchor=2), seed=0, self_loops=True
    )
    drawn = [plan.rows(step) for step in range(1500)]
    assert sorted(drawn[0].anchor_B) == list(range(6)) and plan.steps_per_epoch == 1
    for node, wanted in {0: {0, 1, 2, 3}, 1: {0, 1}, 5: {5}}.items():
        positives = np.concatenate(
            [rows.positive_BP[rows.anchor_B == node].ravel() for rows in drawn]
        )
        found, count = np.unique(positives, return_counts=True)
        assert set(found.tolist()) == wanted
        np.testing.assert_allclose(count / len(positives), 1 / len(wanted), atol=0.05)
    for rows in drawn[:50]:
        assert (rows.negative_BQ != rows.anchor_B[:, None]).all()
        assert not star.has_edge(rows.anchor_B, rows.negative_BQ[:, 0]).any()


def test_a_batch_of_isolated_nodes_has_only_their_self_loops() -> None:
    graph = Graph.from_edges(np.array([[0, 1]]), 40)
    plan = LinkPlan(graph, PlanConfig(global_batch_rows=1), seed=0, self_loops=True)
    for step in range(40):
        rows = plan.rows(step)
        assert rows.anchor_B[0] < 2 or rows.positive_BP[0, 0] == rows.anchor_B[0]


@pytest.mark.parametrize("loops", [False, True])
def test_a_graph_without_links_is_refused(loops: bool) -> None:
    graph = Graph.from_edges(np.empty((0, 2), dtype=np.int64), 3, np.zeros(3, dtype=np.int32))
    with pytest.raises(DataError, match="no links"):
        LinkPlan(graph, PlanConfig(), seed=0, self_loops=loops)


def test_group_first_refuses_a_batch_larger_than_the_graph(tiny_store: Store) -> None:
    with pytest.raises(ConfigError, match="only 64 nodes"):
        plan_of(tiny_store, global_batch_rows=65, anchor_order="group_first")


def test_a_hub_without_a_negative_is_an_error_only_where_negatives_are_wanted() -> None:
    triangle = Graph.from_edges(np.array([[0, 1], [1, 2], [0, 2]]), 3, np.zeros(3, dtype=np.int32))
    with pytest.raises(DataError, match="num_negatives_per_anchor=0"):
        LinkPlan(triangle, PlanConfig(global_batch_rows=2), seed=0).rows(0)
    with pytest.raises(DataError, match="3 of 3 nodes are linked to all others"):
        LinkPlan(triangle, PlanConfig(global_batch_rows=2), seed=0).check_negatives()
    plan = LinkPlan(triangle, PlanConfig(global_batch_rows=2, num_negatives_per_anchor=0), seed=0)
    assert plan.rows(0).negative_BQ.shape == (2, 0)
    plan.check_negatives()


def test_anchors_alone_are_those_of_the_whole_step(tiny_store: Store) -> None:
    plan = plan_of(tiny_store, global_batch_rows=7)
    np.testing.assert_array_equal(plan.anchors(5).anchor_B, plan.rows(5).anchor_B)
    assert plan.anchors(5).flat.shape == (7,)


def test_where_a_species_has_no_negative_it_comes_from_another_one_and_is_counted() -> None:
    edges = np.array([[0, 1], [1, 2], [0, 2], [3, 4], [4, 5], [5, 6]])
    group_N = np.array([0, 0, 0, 1, 1, 1, 1], dtype=np.int32)
    rows = LinkPlan(
        Graph.from_edges(edges, 7, group_N), PlanConfig(global_batch_rows=7), seed=0
    ).rows(0)
    outside = group_N[rows.negative_BQ[:, 0]] != group_N[rows.anchor_B]
    assert (outside == (group_N[rows.anchor_B] == 0)).all()
