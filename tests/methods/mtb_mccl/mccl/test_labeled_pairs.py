"""Labeled pairs: which keep their label, which classes they have, which documents make a step."""

import numpy as np
import pytest

from raybio.benchmark.tasks.relation_probe import RelationProbeTask
from raybio.core.errors import ConfigError
from raybio.encoders.tokenization import BYTES_PER_TOKEN
from raybio.methods.mtb_mccl.documents.collate import DocumentReader
from raybio.methods.mtb_mccl.documents.prepare import prepare_documents
from raybio.methods.mtb_mccl.mccl.collate import RelationCollate
from raybio.methods.mtb_mccl.mccl.config import DocumentPlanConfig
from raybio.methods.mtb_mccl.mccl.labeled_pairs import LabeledPairs
from tests.methods.mtb_mccl.documents.test_prepare import DEV, TRAIN, pubtator
from tests.methods.mtb_mccl.mtb.test_recurring_pairs import MARKERS, read


def test_all_pairs_have_the_classes_of_the_store(tiny_documents):
    whole = LabeledPairs(tiny_documents, "train", 1.0, seed=0)
    assert whole.num_pairs == sum(
        len(tiny_documents.candidates(row)[0]) for row in whole.rows.tolist()
    )
    num_labels = 0
    for row in whole.rows.tolist():
        gold = {
            frozenset((h, t)): label
            for h, t, label in zip(*tiny_documents.relations(row), strict=True)
        }
        head_K, tail_K = whole.pairs(row)
        for pair, label_C in zip(
            zip(head_K.tolist(), tail_K.tolist(), strict=True), whole.labels(row), strict=True
        ):
            expected = gold.get(frozenset(pair), 0)
            assert np.flatnonzero(label_C).tolist() == [expected]
            num_labels += expected > 0
    assert (
        num_labels == sum(len(tiny_documents.relations(row)[0]) for row in whole.rows.tolist()) > 20
    )


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5])
def test_a_fraction_keeps_exactly_so_many_pairs_of_the_whole_split_by_the_seed(
    tiny_documents, fraction
):
    whole = LabeledPairs(tiny_documents, "train", 1.0, seed=0)
    some, same, other = (
        LabeledPairs(tiny_documents, "train", fraction, seed) for seed in (0, 0, 1)
    )
    assert some.num_pairs == max(round(fraction * whole.num_pairs), 1)
    sets = [
        {(row, *pair) for row in one.rows.tolist() for pair in zip(*one.pairs(row), strict=True)}
        for one in (some, same, other)
    ]
    assert sets[0] == sets[1] != sets[2]
    assert len(sets[0]) == some.num_pairs
    assert all(len(some.pairs(row)[0]) for row in some.rows.tolist())


def test_relations_of_types_that_training_never_relates_are_there_to_be_missed(tmp_path):
    train, dev = pubtator(tmp_path / "train", *TRAIN), pubtator(tmp_path / "dev", *DEV)
    store = prepare_documents(tmp_path / "two", [train], [dev], max_bad_share=0.5)
    outside = [
        (split, LabeledPairs(store, split, 1.0, seed=0).outside_F4.tolist())
        for split in ("train", "dev")
    ]
    assert (
        sum(len(facts) for _, facts in outside)
        == store.manifest["counts"]["relations_outside_candidates"]
        == 1
    )
    ((row, head, tail, label),) = next(facts for _, facts in outside if facts)
    assert (head, tail) not in set(zip(*map(np.ndarray.tolist, store.candidates(row)), strict=True))
    known = {
        tuple(sorted(ends)): kind
        for *ends, kind in zip(*map(np.ndarray.tolist, store.relations(row)), strict=True)
    }
    assert known[head, tail] == label
    assert not len(LabeledPairs(store, "dev", 0.5, seed=0).outside_F4)


def test_training_that_is_coarse_learns_only_whether_a_pair_has_a_relation(tiny_documents):
    reader = DocumentReader(tiny_documents, read, MARKERS, max_tokens=500)
    labeled, plan = (
        LabeledPairs(tiny_documents, "train", 1.0, seed=0),
        DocumentPlanConfig(global_batch_rows=8),
    )
    fine, coarse = (
        RelationCollate(reader, labeled, plan, 5, is_coarse)(0, 0, 1) for is_coarse in (False, True)
    )
    has_relation_P = [bool(label_C[1:].any()) for label_C in fine.pop("label_PC")]
    assert set(has_relation_P) == {False, True}
    label_PC = coarse.pop("label_PC")
    assert label_PC.tolist() == [[not has, has] for has in has_relation_P]
    assert coarse["pair_G"].tolist() == list(range(len(label_PC)))
    assert coarse.pop("class_G").tolist() == has_relation_P
    del fine["class_G"]
    for name, array in fine.items():
        np.testing.assert_array_equal(coarse[name], array)


def test_an_epoch_has_each_document_with_a_label_once_and_no_step_has_one_twice(tiny_documents):
    reader = DocumentReader(tiny_documents, read, MARKERS, max_tokens=500)
    labeled = LabeledPairs(tiny_documents, "train", 0.2, seed=0)
    num_rows = len(labeled.rows)
    collate = RelationCollate(reader, labeled, DocumentPlanConfig(global_batch_rows=2), seed=5)
    assert collate.steps_per_epoch == num_rows / 2
    pairs = [len(collate(step, 0, 1)["head_P"]) for step in range(num_rows)]  # two epochs
    assert sum(pairs) == 2 * labeled.num_pairs
    big = RelationCollate(reader, labeled, DocumentPlanConfig(global_batch_rows=100), seed=5)
    assert len(big(0, 0, 1)["indptr_R1"]) - 1 == num_rows
    labels = np.concatenate([big(0, rank, 3)["label_PC"] for rank in range(3)])
    np.testing.assert_array_equal(labels.sum(0), big(0, 0, 1)["label_PC"].sum(0))


def test_a_split_without_documents_has_no_pairs_and_is_refused_by_name(tmp_path):
    store = prepare_documents(tmp_path / "one", [pubtator(tmp_path / "train", *TRAIN)])
    empty = LabeledPairs(store, "test", 1.0, seed=0)
    assert (len(empty.rows), empty.num_pairs) == (0, 0)
    with pytest.raises(ConfigError, match="has no test pair; want test documents"):
        empty.check()
    assert "has no dev documents" in RelationProbeTask(name="own", store=store.path).check()


def test_documents_are_dealt_by_their_text_and_markers_as_far_as_they_are_read(
    tiny_documents,
) -> None:
    row_R = np.array([3, 0, 3])
    num_mentions_R = np.array([len(tiny_documents.mentions(row)[0]) for row in row_R])
    bytes_R = np.array([len(tiny_documents.text(row).encode()) for row in row_R])
    whole = DocumentReader(tiny_documents, read, MARKERS, max_tokens=500)
    markers = 2 * num_mentions_R * BYTES_PER_TOKEN
    np.testing.assert_array_equal(whole.lengths(row_R), bytes_R + markers)
    assert markers.min() > 0
    short = DocumentReader(tiny_documents, read, MARKERS, max_tokens=10)
    np.testing.assert_array_equal(short.lengths(row_R), [10 * BYTES_PER_TOKEN] * 3)
