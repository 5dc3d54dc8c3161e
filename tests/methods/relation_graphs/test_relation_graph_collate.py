"""Steps of CLDR, CLGS and CLNER: which sentences, and what is drawn for them."""

import gzip
import json
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from raybio.core.batch import deal
from raybio.core.errors import ConfigError
from raybio.methods.relation_graphs.annotations.folds import read_fold
from raybio.methods.relation_graphs.annotations.tags import tags_of
from raybio.methods.relation_graphs.batches import RelationGraphBatch, WordBatch
from raybio.methods.relation_graphs.collate import RelationGraphCollate
from raybio.methods.relation_graphs.config import FoldConfig, GraphsConfig, SamplesConfig
from raybio.methods.relation_graphs.demo import SIMULATED_WORDS, WordsConfig, write_words
from raybio.methods.relation_graphs.encoders.node_features import NodeFeatures
from raybio.methods.relation_graphs.encoders.word_reader import WordReader, WordTokens
from raybio.methods.relation_graphs.prepare import prepare_words
from raybio.methods.relation_graphs.store import WordStore
from tests.paths import SHARED_DATA

WIDTH = 5
ADE = SHARED_DATA / "ade"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> WordStore:
    return SIMULATED_WORDS.prepare(tmp_path_factory.mktemp("words"), WordsConfig(num_sentences=60))


def reader_of(store: WordStore, max_tokens: int = 64, first_only: bool = False) -> WordReader:
    """Word v is v % 3 + 1 tokens: v * 10, v * 10 + 1, ..."""
    pieces = [
        [10 + word * 10 + piece for piece in range(word % 3 + 1)]
        for word in range(len(store.words))
    ]
    pointers = np.cumsum([0, *map(len, pieces)])
    return WordReader(
        store,
        WordTokens(np.concatenate(pieces), pointers, (1,), (2,), first_only, "words"),
        max_tokens,
    )


def collate_of(
    store: WordStore, folder: Path, kind="pairs", samples=True, batch_rows=7
) -> RelationGraphCollate:
    path = folder / "features.npy"
    np.save(
        path, np.random.default_rng(0).normal(size=(len(store.word_T), WIDTH)).astype(np.float32)
    )
    return RelationGraphCollate(
        reader_of(store),
        read_fold(store, FoldConfig()).train,
        batch_rows,
        3,
        kind=kind,
        graphs=GraphsConfig(num_negatives=4),
        features=NodeFeatures(path, store.indptr_N1, "features") if kind else None,
        samples=SamplesConfig(num_samples=12, num_positives=4) if samples else None,
    )


@pytest.mark.parametrize("first_only", [False, True])
def test_tokens_know_their_words(store, first_only):
    rows = [4, 0]
    arrays = reader_of(store, first_only=first_only).arrays(rows)
    token, word = arrays["token_T"].tolist(), arrays["word_T"].tolist()
    start = 0
    for number, row in enumerate(rows):
        stop = arrays["indptr_R1"][number + 1]
        expected_tokens, expected_words = [1], [0]
        for place, one in enumerate(store.sentence(row).tolist(), start=1):
            expected_tokens += [10 + one * 10 + piece for piece in range(one % 3 + 1)]
            expected_words += [place, *([-1 if first_only else place] * (one % 3))]
        assert token[start:stop] == [*expected_tokens, 2]
        assert word[start:stop] == [*expected_words, -1]
        start = stop
    assert arrays["word_indptr_R1"].tolist() == [
        0,
        *np.cumsum([len(store.sentence(row)) + 1 for row in rows]),
    ]


def test_a_sentence_that_is_not_read_to_its_end_is_refused(store):
    sizes = [
        sum(word % 3 + 1 for word in store.sentence(row)) + 2
        for row in range(len(store.indptr_N1) - 1)
    ]
    longest = max(sizes)
    assert (
        len(reader_of(store, max_tokens=longest).arrays([sizes.index(longest)])["token_T"])
        == longest
    )
    messages = (
        f"{sizes.count(longest)} of 60 sentences have more than the {longest - 1} tokens that .*, "
        "sentence .* "
    )
    with pytest.raises(
        ConfigError, match=f"{messages}{longest}; want encoder.max_length of at least that"
    ):
        reader_of(store, max_tokens=longest - 1)


def test_a_rectangle_numbers_the_words_of_its_own_sentences_through(store):
    batch = WordBatch.from_arrays(reader_of(store).arrays([3, 1, 2]))
    padded = batch.pad(torch.tensor([2, 0]), 0)
    sizes = [len(store.sentence(row)) + 1 for row in (2, 3)]
    assert padded.num_words == sum(sizes)
    assert sorted(set(padded.word_RL[0].tolist()) - {-1}) == list(range(sizes[0]))
    assert sorted(set(padded.word_RL[1].tolist()) - {-1}) == list(range(sizes[0], sum(sizes)))
    assert bool(((padded.word_RL >= 0) <= padded.mask_RL).all())
    rows = batch.embedding_rows(torch.tensor([2, 0]))
    starts = np.cumsum([0, *(len(store.sentence(row)) + 1 for row in (3, 1))])
    assert rows.tolist() == [*range(starts[2], starts[2] + sizes[0]), *range(sizes[1])]


def test_nodes_are_words_of_their_sentences_and_have_their_features(store, tmp_path):
    collate = collate_of(store, tmp_path)
    batch = RelationGraphBatch.from_arrays(collate(0, 0, 1))
    rows = collate.rows  # which of them: by the words' features
    num_distinct = len(set(batch.word_N.tolist()))
    assert num_distinct < len(batch.word_N)
    assert batch.feature_UF.shape == (num_distinct, WIDTH)
    features = np.load(tmp_path / "features.npy")
    place_by_feature = {tuple(one): place for place, one in enumerate(features.tolist())}
    sentence_of_node = batch.sentence_A[batch.anchor_G].repeat_interleave(
        batch.node_indptr_G1.diff()
    )
    for number in range(len(batch.word_N)):
        place = place_by_feature[tuple(batch.feature_UF[batch.feature_N[number]].tolist())]
        sentence = int(sentence_of_node[number])
        start, stop = (
            batch.word_indptr_R1[sentence].item(),
            batch.word_indptr_R1[sentence + 1].item(),
        )
        assert start < batch.word_N[number] < stop  # not word 0, which is none
        row = int(np.searchsorted(store.indptr_N1, place, side="right")) - 1
        assert row in rows
        assert place - store.indptr_N1[row] == batch.word_N[number] - start - 1
    assert torch.equal(batch.node_indptr_G1, torch.arange(len(batch.anchor_G) + 1) * 2)
    assert torch.equal(batch.head_E.sort()[0], torch.arange(len(batch.word_N)))


@pytest.mark.parametrize("kind", ["pairs", "whole", None])
@pytest.mark.parametrize(("world", "batch_rows"), [(2, 7), (3, 7), (3, 200)])
def test_workers_share_a_step_and_draw_the_same(store, tmp_path, kind, world, batch_rows):
    collate = collate_of(store, tmp_path, kind, batch_rows=batch_rows)
    whole, parts = collate(5, 0, 1), [collate(5, rank, world) for rank in range(world)]
    pointers = whole["word_indptr_R1"]
    worker = deal(np.diff(pointers), world)
    sentence_of_word = np.repeat(np.arange(len(worker)), np.diff(pointers))
    # Words of the whole step, in the order in which they are gathered from the workers.
    gathered = np.argsort(worker[sentence_of_word], kind="stable")
    for rank, part in enumerate(parts):
        own = np.flatnonzero(worker[sentence_of_word] == rank)
        for name in ("tag_W", "sample_tag_WK"):
            np.testing.assert_array_equal(part[name], whole[name][own])
        sample, expected = part["sample_WK"], whole["sample_WK"][own]
        np.testing.assert_array_equal(
            np.where(sample < 0, sample, gathered[sample]), np.where(expected < 0, -1, expected)
        )
        is_own = np.isin(whole["word_N"], own)
        np.testing.assert_array_equal(own[part["word_N"]], whole["word_N"][is_own])
        np.testing.assert_array_equal(
            part["feature_UF"][part["feature_N"]],
            whole["feature_UF"][whole["feature_N"][is_own]],
        )


def test_a_worker_draws_only_for_its_own_words(store, tmp_path):
    collate = collate_of(store, tmp_path, batch_rows=2000)
    tracemalloc.start()
    arrays = collate(0, 0, 200)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    num_words = collate.reader.word_pointers(collate.rows)[-1] / len(collate.rows) * 2000
    assert len(arrays["tag_W"]) < num_words / 150
    # The samples of all words would take this for each, and the keys for a draw a hundred times it.
    assert peak < num_words * 8 * 12 * 4


def test_a_worker_without_sentences_has_an_empty_batch(store, tmp_path):
    batch = RelationGraphBatch.from_arrays(collate_of(store, tmp_path, batch_rows=1)(0, 0, 2))
    other = RelationGraphBatch.from_arrays(collate_of(store, tmp_path, batch_rows=1)(0, 1, 2))
    assert {batch.num_rows, other.num_rows} == {0, 1}
    empty = batch if batch.num_rows == 0 else other
    assert empty.num_embeddings == 0 and empty.sample_WK.shape == (0, 12)


def test_samples_are_words_of_the_tag_that_they_say(store, tmp_path):
    collate = collate_of(store, tmp_path, kind=None)
    arrays = collate.arrays(np.array([2, 9, 5]), 11)
    tags = np.concatenate([[-1, *tags_of(store, row)] for row in (2, 9, 5)])
    np.testing.assert_array_equal(arrays["tag_W"], tags)
    sample, sample_tag = arrays["sample_WK"], arrays["sample_tag_WK"]
    np.testing.assert_array_equal(sample_tag[sample >= 0], tags[sample[sample >= 0]])
    assert (sample_tag[sample < 0] == -1).all()
    assert (sample[tags < 0] == -1).all() and (tags[sample[sample >= 0]] >= 0).all()
    assert (sample_tag == tags[:, None])[tags >= 0].sum(1).max() == 4


def test_negatives_are_fresh_at_every_step_and_the_same_for_the_same_step(store, tmp_path):
    collate = collate_of(store, tmp_path, batch_rows=60)  # more than an epoch: sentences come again
    first, again, later = collate(0, 0, 1), collate(0, 0, 1), collate(1, 0, 1)
    np.testing.assert_array_equal(first["word_N"], again["word_N"])
    assert first["word_N"].tolist() != later["word_N"].tolist()


def test_validation_sentences_are_those_that_the_authors_draw_from_the_folds_own_order(tmp_path):
    sentences, _ = write_words(tmp_path, WordsConfig(num_sentences=60))
    ids = [str(number) for number in np.random.default_rng(5).permutation(60)]
    folds = {"split_1": {"train set": ids[10:], "test set": ids[:10]}}
    (tmp_path / "folds.json").write_text(json.dumps(folds))
    shuffled = prepare_words(tmp_path / "store", [sentences], splits=tmp_path / "folds.json")
    random.seed(42)
    chosen = [ids[10:][place] for place in random.sample(range(50), 5)]
    fold = read_fold(shuffled, FoldConfig())
    assert [shuffled.orig_ids[row] for row in fold.dev] == sorted(chosen, key=int)
    assert sorted([*fold.dev, *fold.train]) == sorted(map(int, ids[10:]))
    assert [shuffled.orig_ids[row] for row in fold.test] == sorted(ids[:10], key=int)


@pytest.mark.skipif(not ADE.is_dir(), reason="the ADE corpus is not there")
def test_validation_sentences_of_ade_are_the_authors(tmp_path):
    ade = prepare_words(
        tmp_path / "ade", [ADE / "ade_full_spert.json.gz"], splits=ADE / "cv_splits.json.gz"
    )
    train = json.loads(gzip.decompress((ADE / "cv_splits.json.gz").read_bytes()))["split_3"][
        "train set"
    ]
    random.seed(42)
    chosen = {train[place] for place in random.sample(range(len(train)), int(0.1 * len(train)))}
    assert {ade.orig_ids[row] for row in read_fold(ade, FoldConfig(fold=3)).dev} == chosen


def test_the_last_run_trains_on_validation_sentences_too(store):
    fold = read_fold(store, FoldConfig(train_on_validation=True))
    assert fold.train.tolist() == sorted(store.fold_rows(1, "train").tolist())
    assert len(fold.dev)


def test_a_fold_that_is_not_there_is_refused(store):
    with pytest.raises(ConfigError, match="got fold 9, want one of 1 to 5"):
        read_fold(store, FoldConfig(fold=9))
