import numpy as np
import pytest

from raybio.methods.sppt.graph.splits import hold_out_links


def split(edge, num_nodes, group=None, share=0.3, seed=0):
    group = np.zeros(num_nodes, dtype=int) if group is None else group
    return hold_out_links(edge, num_nodes, group, share=share, rng=np.random.default_rng(seed))


def degree(edge, num_nodes):
    count = [0] * num_nodes
    for u, v in {tuple(sorted(pair)) for pair in edge.tolist() if pair[0] != pair[1]}:
        count[u] += 1
        count[v] += 1
    return np.array(count)


def random_edges(num_nodes=80, num_edges=400, seed=0):
    group = np.arange(num_nodes) // 20
    rng = np.random.default_rng(seed)
    edge = rng.integers(0, 20, (num_edges, 2)) + rng.integers(0, 4, num_edges)[:, None] * 20
    return np.unique(np.sort(edge[edge[:, 0] != edge[:, 1]], axis=1), axis=0), group


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("num_edges", [40, 400])
def test_no_node_loses_its_last_link_and_each_group_gives_its_share(share, num_edges):
    edge, group = random_edges(num_edges=num_edges)
    for seed in range(5):
        held = split(edge, 80, group, share, seed)
        assert (degree(edge[~held], 80)[degree(edge, 80) > 0] > 0).all()
        for number in range(4):
            in_group = group[edge[:, 0]] == number
            assert held[in_group].sum() <= share * in_group.sum() + 1
            if share <= 0.3 and num_edges == 400:
                assert held[in_group].sum() >= share * in_group.sum() - 1


def test_when_everything_is_requested_at_most_one_link_a_node_stays():
    edge, group = random_edges()
    held = split(edge, 80, group, 1.0)
    assert 40 <= (~held).sum() <= 80


def test_links_are_held_out_equally_often_where_none_is_protected():
    num = 12
    edge = np.array([[u, v] for u in range(num) for v in range(u)])
    count = sum(split(edge, num, share=0.25, seed=seed).astype(int) for seed in range(2000))
    expected = count.mean()
    assert abs(expected - 500) < 20
    assert abs(count - expected).max() < 6 * np.sqrt(expected)


def test_copies_of_an_edge_go_together_and_self_pairs_stay():
    edge, group = random_edges()
    doubled = np.concatenate([edge, edge[:, ::-1], [[3, 3]]])
    held = split(doubled, 80, group)
    assert np.array_equal(held[: len(edge)], held[len(edge) : -1])
    assert not held[-1]
    assert np.array_equal(held[: len(edge)], split(edge, 80, group))


def test_the_order_of_the_edges_does_not_matter():
    edge, group = random_edges()
    order = np.random.default_rng(1).permutation(len(edge))
    assert np.array_equal(split(edge, 80, group)[order], split(edge[order], 80, group))


@pytest.mark.parametrize(
    "edge",
    [
        [[0, v] for v in range(1, 9)],
        [[2 * k, 2 * k + 1] for k in range(4)],
        np.zeros((0, 2), dtype=int),
    ],
)
def test_stars_single_links_and_no_links_lose_nothing(edge):
    assert not split(np.array(edge), 10, share=0.9).any()


def test_small_groups_give_their_share_on_average():
    edge = np.array(
        [[4 * k + u, 4 * k + v] for k in range(1000) for u in range(4) for v in range(u)]
    )
    assert 0.04 < split(edge, 4000, np.arange(4000) // 4, 0.05).mean() < 0.06


def test_a_share_that_is_none_is_refused():
    with pytest.raises(ValueError, match="share is 1.5"):
        split(np.array([[0, 1]]), 2, share=1.5)
