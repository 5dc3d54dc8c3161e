"""Recurring pairs, couples and blanked batches, against loops over the tiny documents."""

import json
import mmap
import pickle
import shutil
from collections import defaultdict
from dataclasses import asdict, replace

import numpy as np
import pytest

from raybio.core.errors import DataError, StoreError
from raybio.core.randomness import shuffled_epochs
from raybio.methods.mtb_mccl.documents import collate as documents_collate
from raybio.methods.mtb_mccl.documents.collate import DocumentReader
from raybio.methods.mtb_mccl.documents.markers import Markers
from raybio.methods.mtb_mccl.documents.prepare import prepare_documents
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mtb import recurring_pairs as entity_pairs
from raybio.methods.mtb_mccl.mtb.collate import BlankCollate, is_in_sorted
from raybio.methods.mtb_mccl.mtb.config import (
    BlankConfig,
    DocumentPairPlanConfig,
    EntityPairConfig,
    PairCountConfig,
)
from raybio.methods.mtb_mccl.mtb.plan import DocumentPairPlan, oriented_pairs
from raybio.methods.mtb_mccl.mtb.queries import pair_queries
from raybio.methods.mtb_mccl.mtb.recurring_pairs import (
    count_in_process,
    documents_with,
    pair_blocks,
    recurring_pairs,
    save_recurring_pairs,
)
from raybio.store import prefetch
from raybio.store.store import open_store

MARKERS = Markers(
    prefix_ids=(1,), suffix_ids=(2,), opening_id=3, closing_id=4, blank_id=5, mask_id=6
)
ORDINARY = np.arange(10, 1000)


def read(text: str):
    """A token a word, by a hash of its letters."""
    starts = [0, *(place + 1 for place, letter in enumerate(text) if letter == " ")]
    ends = [*(place for place, letter in enumerate(text) if letter == " "), len(text)]
    ids = [10 + sum(map(ord, text[a:b])) % 900 for a, b in zip(starts, ends, strict=True)]
    return np.array(ids), np.array(starts), np.array(ends)


def documents_by_pair(store: DocumentStore) -> dict[tuple[int, int], list[int]]:
    found = defaultdict(list)
    for row in store.split_rows("train").tolist():
        key_E = store.keys(row).tolist()
        for pair in {
            tuple(sorted((key_E[h], key_E[t])))
            for h, t in zip(*map(list, store.candidates(row)), strict=True)
        }:
            found[pair].append(row)
    return found


@pytest.mark.parametrize("num_sorted", [0, 1, 2, 1000])
@pytest.mark.parametrize("highest", [1, 50, 2**62])
def test_binary_search_finds_what_isin_finds(num_sorted, highest):
    rng = np.random.default_rng(num_sorted)
    ascending = np.sort(rng.integers(0, highest, num_sorted))
    other = rng.integers(0, highest, 500)
    value = np.concatenate(
        [ascending, ascending - 1, ascending + 1, other, [-1, 0, highest, 2**63 - 1]]
    )
    assert np.array_equal(is_in_sorted(value, ascending), np.isin(value, ascending))
    assert is_in_sorted(value[:0], ascending).shape == (0,)


@pytest.mark.parametrize("most", [1, 20, 1000])
def test_a_block_has_few_pairs_however_many_entities_its_documents_have(
    tiny_documents, monkeypatch, most
):
    monkeypatch.setattr(entity_pairs, "BLOCK_OCCURRENCES", most)
    store = tiny_documents
    sizes = [len(store.types(row)) for row in store.split_rows("train").tolist()]
    most_of_one = max(size * (size + 1) // 2 for size in sizes)
    blocks = list(pair_blocks(store, np.ones(len(store.entity_keys), dtype=bool)))
    assert max(map(len, blocks)) < most + most_of_one
    assert sum(map(len, blocks)) == sum(len(rows) for rows in documents_by_pair(store).values())
    assert (len(blocks) > 1) == (most < 1000)


@pytest.mark.parametrize(
    ("at_once", "of_block"), [(1 << 26, 1 << 22), (10, 1 << 22), (10, 1), (1 << 26, 20)]
)
def test_recurring_pairs_are_those_that_loops_find_in_one_part_or_many(
    tiny_documents, monkeypatch, at_once, of_block
):
    monkeypatch.setattr(entity_pairs, "OCCURRENCES_AT_ONCE", at_once)
    monkeypatch.setattr(entity_pairs, "BLOCK_OCCURRENCES", of_block)
    store, rows = tiny_documents, tiny_documents.split_rows("train")
    found = recurring_pairs(store, EntityPairConfig(min_documents=2, num_pairs=10_000))
    expected = {pair: rows for pair, rows in documents_by_pair(store).items() if len(rows) >= 2}
    assert {
        tuple(keys): found.documents(k).tolist() for k, keys in enumerate(found.key_K2.tolist())
    } == expected
    in_documents = defaultdict(int)
    for row in rows.tolist():
        for key in set(store.keys(row).tolist()):
            in_documents[key] += 1
    score_K = [
        len(expected[tuple(k)]) / (in_documents[k[0]] * in_documents[k[1]])
        for k in found.key_K2.tolist()
    ]
    assert score_K == sorted(score_K, reverse=True)


def test_documents_of_entities_are_counted_once_for_all_parts(tiny_documents, monkeypatch):
    calls = []

    def counted(store):
        calls.append(store)
        return documents_with(store)

    monkeypatch.setattr(entity_pairs, "OCCURRENCES_AT_ONCE", 10)
    monkeypatch.setattr(entity_pairs, "documents_with", counted)
    recurring_pairs(tiny_documents, EntityPairConfig(min_documents=2, num_pairs=10))
    assert len(calls) == 1


def test_rows_of_the_training_documents_are_not_listed_for_each_pair(tiny_documents, monkeypatch):
    """With 30 million documents, each list took 240 MB."""
    names = []
    split_rows = DocumentStore.split_rows
    monkeypatch.setattr(
        DocumentStore,
        "split_rows",
        lambda store, name: names.append(name) or split_rows(store, name),
    )
    pairs = recurring_pairs(tiny_documents, PairCountConfig(min_documents=2))
    assert len(names) < len(pairs)


def test_the_best_are_kept_and_too_rare_ones_are_an_error(tiny_documents):
    store = tiny_documents
    whole = recurring_pairs(store, EntityPairConfig(min_documents=2, num_pairs=10_000))
    some = recurring_pairs(store, EntityPairConfig(min_documents=2, num_pairs=5))
    assert some.key_K2.tolist() == whole.key_K2[:5].tolist()
    with pytest.raises(
        DataError, match=r"occurs in 500 of 24 documents.*Lower pairs.min_documents"
    ):
        recurring_pairs(store, EntityPairConfig(min_documents=500))


def test_two_entities_of_one_name_are_no_pair_and_count_once(tmp_path):
    """DocRED knows entities by their names, and a document may have two of one name."""
    documents = [
        {
            "title": f"document {number}",
            "sents": [["Ann", "met", "Ann", "in", "Bern"]],
            "vertexSet": [
                [{"name": name, "sent_id": 0, "pos": [place, place + 1], "type": kind}]
                for name, place, kind in (("Ann", 0, "PER"), ("Ann", 2, "PER"), ("Bern", 4, "LOC"))
            ],
            "labels": [{"h": 0, "t": 2, "r": "P1", "evidence": []}],
        }
        for number in range(3)
    ]
    (tmp_path / "train.json").write_text(json.dumps(documents))
    store = prepare_documents(tmp_path / "store", [tmp_path / "train.json"])
    found = recurring_pairs(store, EntityPairConfig(min_documents=2))
    names = [[store.entity_keys[key].as_py() for key in keys] for keys in found.key_K2.tolist()]
    assert [sorted(pair) for pair in names] == [["LOC:~bern", "PER:~ann"]]
    assert found.count_K.tolist() == [3]
    assert found.documents(0).tolist() == [0, 1, 2]
    drawn = collate(store, blank_rate=0.0)(0, 0, 1)
    # Ann and Bern each way round, and Ann with the other Ann: once in each document.
    assert set(np.diff(drawn["pair_indptr_R1"]).tolist()) == {3}
    assert len(set(drawn["id_N"][:3].tolist())) == 3
    assert drawn["id_N"][:3].tolist() == drawn["id_N"][3:6].tolist()


def test_pairs_that_were_saved_are_counted_no_more(tmp_path, tiny_documents, monkeypatch):
    shutil.copytree(tiny_documents.path, tmp_path / "store")
    store = open_store(tmp_path / "store", DocumentStore)
    config = EntityPairConfig(min_documents=2, num_pairs=7, held_out_share=0.2)
    counted = recurring_pairs(store, config)
    save_recurring_pairs(store, PairCountConfig(min_documents=2, num_pairs=7), count_in_process)
    assert open_store(store.path, DocumentStore).digest == tiny_documents.digest
    with monkeypatch.context() as patch:
        patch.setattr(entity_pairs, "pair_blocks", None)
        saved = recurring_pairs(store, config)
    for name, value in asdict(counted).items():
        np.testing.assert_array_equal(asdict(saved)[name], value)
    assert len(recurring_pairs(store, EntityPairConfig(min_documents=2, num_pairs=6))) == 6
    (path,) = store.path.glob("derived/recurring_pairs-*.npz")
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(
        StoreError, match=r"recurring_pairs-.*cannot be read .* delete it, or count again"
    ):
        recurring_pairs(store, config)


def plan(store: DocumentStore, **changes) -> DocumentPairPlan:
    pairs = EntityPairConfig(**{"min_documents": 2, "held_out_share": 0.3, **changes})
    return DocumentPairPlan(
        store, pairs, DocumentPairPlanConfig(global_batch_rows=8, max_pairs_per_document=5), seed=3
    )


def test_the_two_documents_of_a_pair_differ(tiny_documents):
    pairs = EntityPairConfig(min_documents=2)
    config = DocumentPairPlanConfig(global_batch_rows=2, max_pairs_per_document=5)
    own = DocumentPairPlan(tiny_documents, pairs, config, seed=3)
    assert {len(own.rows(step)) for step in range(200)} == {2}


def test_each_pair_shares_a_pair_that_is_not_held_out_and_each_pair_comes_once_an_epoch(
    tiny_documents,
):
    own = plan(tiny_documents)
    keys = [
        {tuple(sorted(map(int, pair))) for pair in own.recurring.key_K2[numbers].tolist()}
        for numbers in (own.trained, own.held_out)
    ]
    assert keys[1] and not keys[0] & keys[1]
    shared = documents_by_pair(tiny_documents)
    for step in range(10):
        rows = set(own.rows(step).tolist())
        assert any(len(rows & set(shared[pair])) >= 2 for pair in keys[0])
        assert own.rows(step).tolist() == plan(tiny_documents).rows(step).tolist()


def test_runs_of_all_seeds_hold_out_the_same_pairs_and_draw_other_documents(tiny_documents):
    first = plan(tiny_documents)
    other = replace(first, seed=4)
    assert len(first.held_out)
    np.testing.assert_array_equal(first.held_out, other.held_out)
    np.testing.assert_array_equal(first.trained, other.trained)
    assert any(first.rows(step).tolist() != other.rows(step).tolist() for step in range(4))


def test_a_pair_in_many_documents_is_shown_by_other_ones_in_each_epoch(tiny_documents):
    own = plan(tiny_documents)
    own = replace(own, config=own.config.model_copy(update={"global_batch_rows": 2}))
    num_pairs = len(own.trained)
    shown = defaultdict(set)
    for step in range(8 * num_pairs):
        (pair,) = shuffled_epochs(step, 1, num_rows=num_pairs, seed=3, name="couples").tolist()
        shown[pair].add(frozenset(own.rows(step).tolist()))
    often = [pair for pair in shown if own.recurring.count_K[own.trained[pair]] > 3]
    assert often and all(len(shown[pair]) > 1 for pair in often)


def collate(store: DocumentStore, **blanks) -> BlankCollate:
    reader = DocumentReader(store, read, MARKERS, max_tokens=500)
    return BlankCollate(reader, plan(store), BlankConfig(**blanks), ORDINARY, seed=3)


def test_a_collate_that_has_worked_travels_with_no_array_that_another_process_can_make(
    tiny_documents,
):
    own = replace(collate(tiny_documents), seed=11)  # of no other test
    own.plan.recurring  # noqa: B018
    before = len(pickle.dumps(own))
    arrays = own(2, 0, 1)
    travelled = pickle.dumps(own)
    assert len(travelled) == before
    for name, array in pickle.loads(travelled)(2, 0, 1).items():
        np.testing.assert_array_equal(array, arrays[name])


def test_both_readings_are_alike_and_workers_share_the_pairs(tiny_documents):
    whole = collate(tiny_documents)(2, 0, 1)
    half = len(whole["indptr_R1"]) // 2
    bound = whole["indptr_R1"][half]
    assert (whole["token_T"][:bound] == whole["token_T"][bound:]).all()
    assert (whole["label_T"][:bound] >= 0).any() and (whole["label_T"][bound:] == -100).all()
    parts = [collate(tiny_documents)(2, rank, 2) for rank in range(2)]
    shared = np.concatenate([part["id_N"] for part in parts])
    assert sorted(shared.tolist()) == sorted(whole["id_N"].tolist())


def test_pages_of_the_documents_of_a_step_are_requested_before_they_are_read(
    tiny_documents, monkeypatch
):
    requested = set()

    def request(page: int, length: int, advice: int) -> None:
        assert advice == mmap.MADV_WILLNEED
        requested.update(range(page, page + length))

    monkeypatch.setattr(prefetch, "memory_bytes", lambda: 1)
    monkeypatch.setattr(prefetch, "_madvise", request)
    text = tiny_documents.texts
    _, offsets, content = text.buffers()
    offset_N1 = np.frombuffer(offsets, np.int64)
    rows_read = []

    def read_text(store: DocumentStore, row: int) -> str:
        assert content.address + offset_N1[row] in requested
        assert content.address + offset_N1[row + 1] - 1 in requested
        rows_read.append(row)
        return text[row].as_py().decode()

    monkeypatch.setattr(DocumentStore, "text", read_text)
    documents_collate._tokens.cache_clear()
    own = collate(tiny_documents)
    own(2, 0, 1)
    assert set(rows_read) == set(own.plan.rows(2).tolist())
    for row in own.plan.rows(2).tolist():
        for (part, column), array in tiny_documents._arrays.items():
            first, end = tiny_documents._arrays[part, ""][row : row + 2].tolist()
            if column and first < end:
                assert array.ctypes.data + array.itemsize * first in requested
                assert array.ctypes.data + array.itemsize * end - 1 in requested


def test_held_out_pairs_are_never_compared_and_recurring_ones_come_first(tiny_documents):
    own = collate(tiny_documents)
    size = len(tiny_documents.entity_keys)
    held_out = {tuple(pair) for pair in own.plan.recurring.key_K2[own.plan.held_out].tolist()}
    trained = {tuple(pair) for pair in own.plan.recurring.key_K2[own.plan.trained].tolist()}
    for step in range(6):
        arrays = own(step, 0, 1)
        pairs = [tuple(sorted(divmod(number, size))) for number in arrays["id_N"].tolist()]
        assert not held_out & set(pairs)
        for row, first, last in zip(
            own.plan.rows(step).tolist(),
            *(arrays["pair_indptr_R1"][a:b].tolist() for a, b in ((0, -1), (1, None))),
            strict=False,
        ):
            here = documents_here(tiny_documents, row)
            assert len(set(pairs[first:last]) & trained) == min(len(here & trained), 5)


def documents_here(store: DocumentStore, row: int) -> set[tuple[int, int]]:
    key_E = store.keys(row).tolist()
    return {
        tuple(sorted((key_E[h], key_E[t])))
        for h, t in zip(*map(list, store.candidates(row)), strict=True)
    }


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 0.0), (1.0, 1.0), (0.5, 0.5)])
def test_as_many_entities_are_blanked_as_the_rate_says_and_in_all_of_their_mentions(
    tiny_documents, rate, expected
):
    blanked, total = 0, 0
    for step in range(12):
        own = collate(tiny_documents, blank_rate=rate, mask_rate=0.0)
        for row in own.plan.rows(step).tolist():
            is_blank_E = own._is_blank(step, row)
            blanked, total = blanked + int(is_blank_E.sum()), total + len(is_blank_E)
            mention_C, entity_C = tiny_documents.links(row)
            marked = own.reader.marked(row, is_blank_E)
            for mention, entity in zip(mention_C.tolist(), entity_C.tolist(), strict=True):
                is_blank = marked.id_S[marked.position_M[mention] + 1] == MARKERS.blank_id
                assert is_blank or not is_blank_E[entity]
    assert abs(blanked / total - expected) < 0.1


def test_pairs_have_one_order_in_all_documents(tiny_documents):
    seen = {}
    for row in tiny_documents.split_rows("train").tolist():
        key_E = tiny_documents.keys(row)
        for head, tail in zip(*oriented_pairs(tiny_documents, row), strict=True):
            pair = frozenset((int(key_E[head]), int(key_E[tail])))
            assert seen.setdefault(pair, int(key_E[head])) == int(key_E[head])


def test_query_documents_are_not_searched(tiny_documents):
    pairs = recurring_pairs(tiny_documents, EntityPairConfig(min_documents=2))
    query_rows = pair_queries(pairs, np.arange(len(pairs)), seed=0)
    shared = documents_by_pair(tiny_documents)
    assert len(query_rows.row_Q) > 3
    for row, keys in zip(query_rows.row_Q.tolist(), query_rows.key_Q2.tolist(), strict=True):
        assert row in shared[tuple(keys)]
        assert set(shared[tuple(keys)]) & set(query_rows.row_S.tolist()) - {row}
