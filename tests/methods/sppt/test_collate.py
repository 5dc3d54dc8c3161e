import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch

from raybio.core.batch import IGNORED_LABEL
from raybio.methods.sppt.batches import LinkBatch
from raybio.methods.sppt.collate import LinkCollate
from raybio.methods.sppt.config import MaskConfig, PlanConfig
from raybio.methods.sppt.pair_masks import pair_masks
from raybio.methods.sppt.proteins.collate import ProteinRows, TokenTable, tokens_of_rows
from raybio.store.store import Store
from tests.ops.threads import in_threads

TABLE = TokenTable(np.arange(256), cls_id=2, eos_id=None, mask_id=1, residue_ids=np.arange(65, 90))


def collate_of(
    store: Store, *, batch: int = 10, max_length: int = 512, **settings: object
) -> LinkCollate:
    defaults = {"with_pairs": True, "mask_anchors": True}
    read = ProteinRows(store, TABLE, max_length, "random")
    return LinkCollate(
        store, PlanConfig(global_batch_rows=batch), MaskConfig(), read, 5, **(defaults | settings)
    )


def sequences(arrays: dict[str, np.ndarray], name: str = "token_T") -> list[tuple[int, ...]]:
    bounds = arrays["indptr_R1"]
    return [tuple(arrays[name][a:b].tolist()) for a, b in pairwise(bounds)]


def letters(store: Store, row: int) -> bytes:
    return store.residue_T[store.indptr_N1[row] : store.indptr_N1[row + 1]].tobytes()


@pytest.mark.parametrize("eos_id", [None, 3])
@pytest.mark.parametrize("crop", ["front", "ends", "random"])
def test_a_crop_is_a_window_of_the_stored_sequence_between_its_special_tokens(
    tiny_store: Store, crop: str, eos_id: int | None
) -> None:
    table = TokenTable(
        np.arange(256), cls_id=2, eos_id=eos_id, mask_id=1, residue_ids=np.arange(65, 90)
    )
    rows = np.array([5, 0, 63, 5])
    chances = np.array([0.0, 0.49, 0.51, 0.999])
    token_T, indptr_R1, is_special_T = tokens_of_rows(tiny_store, rows, table, 12, crop, chances)
    for number, row in enumerate(rows):
        tokens = token_T[indptr_R1[number] : indptr_R1[number + 1]]
        window = tokens[1:] if eos_id is None else tokens[1:-1]
        whole = letters(tiny_store, row)
        assert len(tokens) == 12
        assert tokens[0] == 2
        assert eos_id is None or tokens[-1] == 3
        assert window.astype(np.uint8).tobytes() in whole
        if crop in ("front", "ends"):
            front = crop == "front" or chances[number] < 0.5
            assert whole.startswith(window.astype(np.uint8).tobytes()) or not front
            assert whole.endswith(window.astype(np.uint8).tobytes()) or front
    assert is_special_T.sum() == (4 if eos_id is None else 8)


@pytest.mark.parametrize("world", [2, 3])
def test_masks_crops_and_pairs_do_not_depend_on_the_number_of_workers(
    tiny_store: Store, world: int
) -> None:
    collate = collate_of(tiny_store, max_length=14)
    whole = collate(7, 0, 1)
    shards = [collate(7, rank, world) for rank in range(world)]
    for name in ("token_T", "label_T"):
        assert sorted(sequences(whole, name)) == sorted(
            s for shard in shards for s in sequences(shard, name)
        )

    def links(arrays: dict[str, np.ndarray]) -> list[tuple[int, int]]:
        row_E = arrays["row_R"][arrays["link_sequence_E"]]
        return list(zip(row_E.tolist(), arrays["link_row_E"].tolist(), strict=True))

    assert len(links(whole)) > 0
    assert sorted(links(whole)) == sorted(link for shard in shards for link in links(shard))


def test_only_anchors_are_masked_and_labels_are_the_original_residues(tiny_store: Store) -> None:
    arrays = collate_of(tiny_store, batch=30)(2, 0, 1)
    end = arrays["indptr_R1"][arrays["num_anchors"]]
    is_label = arrays["label_T"] != IGNORED_LABEL
    assert not is_label[end:].any()
    assert 0.1 < is_label[:end].mean() < 0.2
    assert (arrays["token_T"][is_label] == TABLE.mask_id).all()
    for number in range(30):
        part = slice(arrays["indptr_R1"][number] + 1, arrays["indptr_R1"][number + 1])
        tokens, labels = arrays["token_T"][part], arrays["label_T"][part]
        restored = np.where(labels == IGNORED_LABEL, tokens, labels).astype(np.uint8).tobytes()
        assert restored == letters(tiny_store, arrays["row_R"][number])


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("same_node", ["ignore", "positive", "negative"])
def test_pair_masks_equal_their_definition(tiny_store: Store, world: int, same_node: str) -> None:
    collate = collate_of(tiny_store, batch=50)
    graph = tiny_store.graph
    neighbors = [
        set(graph.indices[first:end].tolist()) for first, end in pairwise(graph.indptr.tolist())
    ]
    shards = [LinkBatch.from_arrays(collate(3, rank, world)) for rank in range(world)]
    columns = torch.cat([shard.row_R for shard in shards]).tolist()
    offset = 0
    masks_of_workers = in_threads(
        world, lambda collective: pair_masks(shards[collective.rank], collective, same_node)
    )
    for shard, masks in zip(shards, masks_of_workers, strict=True):
        linked_RG = masks.linked_RG.tolist()
        ignore_RG = masks.ignore_RG.tolist()
        for i, u in enumerate(shard.row_R.tolist()):
            for j, v in enumerate(columns):
                is_itself = j == offset + i
                is_copy = u == v and not is_itself
                linked = v in neighbors[u] or (same_node == "positive" and is_copy)
                ignored = is_itself or (same_node == "ignore" and u == v)
                assert linked_RG[i][j] == linked
                assert ignore_RG[i][j] == ignored
        offset += len(shard.row_R)


def test_with_self_loops_a_node_is_drawn_as_its_own_positive(tiny_store: Store) -> None:
    def drawn_itself(collate: LinkCollate) -> bool:
        batches = [collate(step, 0, 1)["row_R"] for step in range(10)]
        return any((rows[:10] == rows[10:20]).any() for rows in batches)

    assert drawn_itself(collate_of(tiny_store, self_loops=True))
    assert not drawn_itself(collate_of(tiny_store))


def test_without_pairs_only_anchors_are_read(tiny_store: Store) -> None:
    arrays = collate_of(tiny_store, with_pairs=False)(0, 0, 1)
    assert len(arrays["row_R"]) == 10 == arrays["num_anchors"]
    assert arrays["link_row_E"].size == 0


def test_it_travels_small_and_makes_the_same_batches_afterwards(tiny_store: Store) -> None:
    collate = collate_of(tiny_store)
    before = collate(1, 0, 2)
    parcel = pickle.dumps(collate)
    after = pickle.loads(parcel)(1, 0, 2)
    assert len(parcel) < 10_000
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name])


def test_another_step_and_another_seed_draw_other_masks(tiny_store: Store) -> None:
    collate = collate_of(tiny_store)
    labels = [tuple(collate(step, 0, 1)["label_T"]) for step in range(3)]
    assert len(set(labels)) == 3
