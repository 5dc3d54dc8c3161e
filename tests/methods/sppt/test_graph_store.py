"""Graphs of stores, in the form of torch_geometric."""

import numpy as np
import pytest

import raybio
from raybio.core.errors import ConfigError
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.proteins.store import ProteinStore


@pytest.mark.parametrize("fixture", ["tiny_store", "tiny_citations"])
def test_a_graph_of_torch_geometric_has_the_links_groups_and_ids_of_its_store(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    from torch_geometric.utils import is_undirected

    store: ProteinStore | LinkedTextStore = request.getfixturevalue(fixture)
    opened = raybio.open_store(str(store.path))
    assert type(opened) is type(store)
    training, heldout = opened.to_pyg(), opened.to_pyg("heldout")
    pairs = {tuple(pair) for pair in store.heldout.tolist()}
    assert {*map(tuple, heldout.edge_index.T.tolist())} == pairs | {(v, u) for u, v in pairs}
    links = training.edge_index.T.tolist()
    assert len(links) == 2 * store.graph.num_edges > 0
    assert all(store.graph.has_edge(u, v) for u, v in links)
    assert links == sorted(links)
    assert not {*map(tuple, links)} & pairs
    for data in (training, heldout):
        assert data.validate()
        assert is_undirected(data.edge_index)
        assert data.num_nodes == store.num_rows
        assert data.ids == store.keys.to_pylist()
        np.testing.assert_array_equal(data.group, store.group_N)
        assert data.group_names == list(store.group_names)
    with pytest.raises(ConfigError, match="split: got 'dev', want 'train' or 'heldout'"):
        opened.to_pyg("dev")  # type: ignore[arg-type]
