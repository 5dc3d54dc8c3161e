import json
import pickle
import shutil
from collections import Counter

import numpy as np
import pytest
from typer.testing import CliRunner

from raybio.cli import prepare
from raybio.core.errors import ConfigError, DataError, StoreError
from raybio.methods.relation_graphs.annotations.tags import gold_pairs, tag_names, tags_of
from raybio.methods.relation_graphs.formats import NO_ENTITY, REPEATED_ID
from raybio.methods.relation_graphs.prepare import (
    prepare_words,
    statistics_of_words,
    word_statistics_markdown,
)
from raybio.methods.relation_graphs.store import WordStore, draw_validation
from raybio.store.json import stream_records
from raybio.store.store import open_store
from tests.methods.relation_graphs.spert_files import ADVERSE_EFFECT, folds, sentence, write
from tests.oracles import bio_tags
from tests.paths import SHARED_DATA

ADE = SHARED_DATA / "ade"
real = pytest.mark.skipif(not ADE.exists(), reason="../shared/data/ade is not there")
SENTENCES = [
    sentence("Aspirin gave fatal pain", "Adverse-Effect:2:4 Drug:0:1", "0:1", orig_id=10),
    sentence("a B a", orig_id=11),
    # A drug within an effect, and both end with one word.
    sentence(
        "the acute zinc poisoning by a",
        "Adverse-Effect:1:4 Drug:2:3 Zeta:3:4",
        "0:1 0:2 0:1",
        orig_id=12,
    ),
    sentence("aspirin and A", "Drug:0:1 Drug:2:3", orig_id=13),
]
FOLDS = folds(("13 10 11", "12"), ("12 11", "13 10"))


def prepared(folder, sentences=SENTENCES, sides=FOLDS, name="store", **options):
    folder.mkdir(exist_ok=True)
    path = write(folder / "sentences.json.gz", sentences)
    return prepare_words(
        folder / name, [path], splits=write(folder / "folds.json", sides), **options
    )


def test_drawn_validation_sentences_are_no_training_sentences():
    train, dev = draw_validation(np.arange(40), 0.1)
    assert len(dev) == 4
    assert sorted([*train, *dev]) == list(range(40))


def listed(arrays):
    assert all(array.dtype == np.int64 for array in arrays)
    return list(zip(*(array.tolist() for array in arrays), strict=True))


def test_a_store_gives_back_what_the_files_hold(tmp_path):
    store = prepared(tmp_path)
    assert (store.num_rows, store.orig_ids) == (4, ("10", "11", "12", "13"))
    assert store.entity_types == (ADVERSE_EFFECT, "Drug", "Zeta")
    assert store.relation_names == ("NA", ADVERSE_EFFECT)
    assert store.words[:4] == ("a", "A", "Aspirin", "B")
    assert [[store.words[word] for word in store.sentence(row)] for row in range(4)] == [
        one["tokens"] for one in SENTENCES
    ]
    assert (store.indptr_N1.tolist(), store.indptr_N1.dtype) == ([0, 4, 7, 13, 16], np.int64)
    assert not store.word_T.flags.writeable
    assert listed(store.entities(0)) == [(2, 4, 0), (0, 1, 1)]
    assert listed(store.entities(2)) == [(1, 4, 0), (2, 3, 1), (3, 4, 2)]
    assert listed(store.relations(2)) == [(0, 1, 1), (0, 2, 1), (0, 1, 1)]
    assert (
        listed(store.entities(1)) == listed(store.relations(1)) == listed(store.relations(3)) == []
    )
    assert list(store.count_by_word.items())[:4] == [
        ("a", 4),
        ("aspirin", 2),
        ("acute", 1),
        ("and", 1),
    ]
    assert open_store(tmp_path / "store", WordStore, verify=True) is store
    assert pickle.loads(pickle.dumps(store)) is store
    assert store.manifest["counts"] == {
        "rows": 4,
        "tokens": 16,
        "words": 14,
        "entities": 7,
        "Adverse-Effect_entities": 2,
        "Drug_entities": 4,
        "Zeta_entities": 1,
        "relations": 4,
        "sentences_with_overlapping_entities": 1,
        "relations_within_a_word": 1,
        "folds": 2,
        "sentences_in_no_fold": 0,
    }


def test_rows_of_a_fold_are_in_the_order_of_its_file_and_a_fold_that_is_not_there_is_refused(
    tmp_path,
):
    store = prepared(tmp_path, sides=folds(("13 10", "12"), ("12 11", "13 10")))
    rows = {
        (fold, split): store.fold_rows(fold, split)
        for fold in (1, 2)
        for split in ("train", "dev", "test")
    }
    assert {key: found.tolist() for key, found in rows.items()} == {
        (1, "train"): [3, 0],
        (1, "dev"): [],
        (1, "test"): [2],
        (2, "train"): [2, 1],
        (2, "dev"): [],
        (2, "test"): [3, 0],
    }
    assert {found.dtype for found in rows.values()} == {np.dtype(np.int64)}
    assert store.num_folds == 2
    for fold in (0, 3, -1):
        with pytest.raises(ConfigError, match=f"got fold {fold}, want one of 1 to 2"):
            store.fold_rows(fold, "train")
    with pytest.raises(ConfigError, match="split 'valid' is none of train, dev, test"):
        store.fold_rows(1, "valid")


def test_words_for_a_tokenizer_are_counted_in_training_sentences_alone(tmp_path):
    store = prepared(tmp_path, sides=folds(("10", "12")))
    with pytest.raises(ConfigError, match="got fold 2, want 1, the only one there is"):
        store.fold_rows(2, "train")
    assert store.count_by_word == {"aspirin": 1, "fatal": 1, "gave": 1, "pain": 1}
    assert store.manifest["counts"]["sentences_in_no_fold"] == 2


def test_tags_are_those_of_the_last_entity_of_each_word_and_pairs_go_from_tail_to_head(tmp_path):
    store = prepared(tmp_path)
    names = tag_names(store.entity_types)
    assert names == (
        "O",
        "B-Adverse-Effect",
        "I-Adverse-Effect",
        "B-Drug",
        "I-Drug",
        "B-Zeta",
        "I-Zeta",
    )
    assert tags_of(store, 2).tolist() == [0, 1, 3, 5, 0, 0]
    assert tags_of(store, 1).tolist() == [0, 0, 0]
    assert listed(gold_pairs(store, 0)) == [(0, 3, 1)]
    assert listed(gold_pairs(store, 2)) == [(2, 3, 1), (3, 3, 1)]
    assert listed(gold_pairs(store, 1)) == []


def test_tags_of_random_entities_are_those_of_the_oracle(tmp_path):
    rng = np.random.default_rng(0)
    sentences = []
    for number in range(200):
        num_words = int(rng.integers(1, 9))
        spans = np.sort(rng.integers(0, num_words + 1, (int(rng.integers(0, 5)), 2)), axis=1)
        entities = " ".join(
            f"{rng.choice(['X', 'Y'])}:{start}:{end}" for start, end in spans if start < end
        )
        sentences.append(sentence("w " * num_words, entities, orig_id=number))
    store = prepared(tmp_path, sentences, folds((" ".join(map(str, range(199))), "199")))
    names = tag_names(store.entity_types)
    for row, one in enumerate(sentences):
        expected = bio_tags(
            len(one["tokens"]), [tuple(entity.values()) for entity in one["entities"]]
        )
        assert [names[tag] for tag in tags_of(store, row)] == expected


def test_the_same_files_give_the_same_bytes_and_their_digests_stand_in_the_manifest(tmp_path):
    first, second = prepared(tmp_path / "a"), prepared(tmp_path / "b")
    for name in [*first.manifest["files"], "manifest.json"]:
        assert (first.path / name).read_bytes() == (second.path / name).read_bytes()
    assert {name: facts["name"] for name, facts in first.manifest["sources"].items()} == {
        "sentences": "sentences.json.gz",
        "splits": "folds.json",
    }
    assert first.manifest["parameters"] == {"max_bad_share": 0.1}
    other = prepared(tmp_path / "c", sides=folds(("10", "12")))
    assert (
        other.manifest["sources"]["splits"]["sha256"]
        != first.manifest["sources"]["splits"]["sha256"]
    )
    with pytest.raises(StoreError, match="a store exists already"):
        prepared(tmp_path / "a")
    assert prepared(tmp_path / "a", force=True).digest == second.digest


def test_files_of_their_own_make_one_fold_and_their_ids_may_be_equal(tmp_path):
    paths = {
        "train": write(tmp_path / "train.json", SENTENCES[:2]),
        "dev": write(tmp_path / "dev.json", SENTENCES[2:3]),
        "test": write(tmp_path / "test.json", [{**SENTENCES[3], "orig_id": 10}]),
    }
    store = prepare_words(
        tmp_path / "store", [paths["train"]], dev=[paths["dev"]], test=[paths["test"]]
    )
    assert store.num_folds == 1
    assert [store.fold_rows(1, split).tolist() for split in ("train", "dev", "test")] == [
        [0, 1],
        [2],
        [3],
    ]
    assert store.orig_ids == ("10", "11", "12", "10")
    assert {*store.manifest["sources"]} == {"train", "dev", "test"}
    assert "zinc" not in store.count_by_word
    without = prepare_words(tmp_path / "without", [paths["train"]], test=[paths["test"]])
    assert [without.fold_rows(1, split).tolist() for split in ("train", "dev", "test")] == [
        [0, 1],
        [],
        [2],
    ]


def test_sentences_of_one_id_are_all_kept_where_no_fold_names_them(tmp_path):
    sentences = [{**one, "orig_id": 5} for one in SENTENCES]
    test = write(tmp_path / "test.json", SENTENCES[:1])
    store = prepare_words(
        tmp_path / "store", [write(tmp_path / "train.json", sentences)], test=[test]
    )
    assert store.orig_ids == ("5", "5", "5", "5", "10")
    assert not store.manifest["quarantine"]


def test_test_sentences_are_drawn_by_their_words_and_the_seed_alone(tmp_path):
    # Equal words under two ids, and under an id of another file.
    numbered = [sentence(f"w{number} gave pain", orig_id=number) for number in range(100)]
    doubled = [*numbered, *({**one, "orig_id": one["orig_id"] + 100} for one in numbered)]
    path = write(tmp_path / "a.json", doubled)

    def test_words(folder, path, share=0.2, seed=0):
        store = prepare_words(tmp_path / folder, [path], test_share=share, seed=seed)
        assert store.num_folds == 1
        rows = {split: store.fold_rows(1, split) for split in ("train", "dev", "test")}
        assert len(rows["dev"]) == 0
        assert sorted(np.concatenate([*rows.values()]).tolist()) == list(range(store.num_rows))
        words = {
            split: Counter(store.words[store.sentence(row)[0]] for row in rows[split])
            for split in ("train", "test")
        }
        assert not set(words["train"]) & set(words["test"])
        return store, words["test"]

    store, drawn = test_words("store", path)
    assert set(drawn.values()) == {2}
    assert 10 <= len(drawn) <= 30
    assert store.manifest["parameters"] == {"max_bad_share": 0.1, "test_share": 0.2, "seed": 0}
    backwards = write(tmp_path / "b.json", doubled[::-1])
    assert test_words("backwards", backwards)[1] == drawn
    assert set(test_words("more", path, share=0.5)[1]) > set(drawn)
    assert test_words("other", path, seed=1)[1] != drawn


def test_what_does_not_go_together_is_refused(tmp_path):
    path, other = write(tmp_path / "a.json", SENTENCES), write(tmp_path / "b.json", SENTENCES)
    sides = write(tmp_path / "folds.json", FOLDS)
    store = tmp_path / "store"
    with pytest.raises(
        ConfigError, match="got nothing to test on, want --splits .* or --test-share"
    ):
        prepare_words(store, [path], dev=[other])
    with pytest.raises(ConfigError, match=r"--splits .*folds.json and --test .*b.json: got both"):
        prepare_words(store, [path], splits=sides, test=[other])
    with pytest.raises(ConfigError, match=r"--test-share 0.2 and --splits .*folds.json: got both"):
        prepare_words(store, [path], splits=sides, test_share=0.2)
    with pytest.raises(ConfigError, match=r"--test-share 0.2 and --test .*b.json: got both"):
        prepare_words(store, [path], test=[other], test_share=0.2)
    with pytest.raises(ConfigError, match="--test-share 1: want a number above 0 and below 1"):
        prepare_words(store, [path], test_share=1.0)
    with pytest.raises(DataError, match="--test-share 1e-09 of 4 sentences drew 0 of them"):
        prepare_words(store, [path], test_share=1e-9)
    with pytest.raises(ConfigError, match=r"a.json: is given twice"):
        prepare_words(store, [path], test=[tmp_path / "." / "a.json"])
    with pytest.raises(DataError, match="absent: does not exist"):
        prepare_words(store, [path], splits=tmp_path / "absent")
    bad = write(tmp_path / "c.json", [{}])
    with pytest.raises(DataError, match="1 of 5 sentence records are bad"):
        prepare_words(store, [path], test=[bad])
    with pytest.raises(DataError, match="the files of --test have no sound sentence"):
        prepare_words(store, [path], test=[bad], max_bad_share=0.5)
    assert not store.exists()


def test_a_fold_that_names_what_is_not_there_is_refused_with_what_was_set_aside(tmp_path):
    with pytest.raises(
        DataError, match="split_2: 2 of its ids have no sentence, the first '99'; give the --input"
    ):
        prepared(tmp_path, sides=folds(("10", "11"), ("99 10", "98")))
    bad = [*SENTENCES, *(sentence("fine", orig_id=number) for number in range(30, 50))]
    bad += [sentence("x y", "Drug:0:1", "0:4", orig_id=20), sentence("again", orig_id=13)]
    store = prepared(tmp_path, bad, FOLDS)
    assert {reason: facts["count"] for reason, facts in store.manifest["quarantine"].items()} == {
        NO_ENTITY: 1,
        REPEATED_ID: 1,
    }
    assert store.manifest["quarantine"][NO_ENTITY]["examples"][0]["line"] == 25
    with pytest.raises(
        DataError,
        match=f"1 of its ids have no sentence, the first '20'. Skipped: {NO_ENTITY}: 1, "
        "first .*Repair",
    ):
        prepared(tmp_path, bad, folds(("10", "20")), name="other")


def test_folds_of_another_corpus_are_refused_though_their_ids_are_there(tmp_path):
    many = [*SENTENCES, *(sentence("fine", orig_id=number) for number in range(30, 90))]
    with pytest.raises(
        DataError, match="folds.json: only 4 of 64 sentences are in a fold, want a tenth at least"
    ):
        prepared(tmp_path, many, FOLDS)


def test_statistics_count_folds_and_tags(tmp_path):
    data = statistics_of_words(prepared(tmp_path), batch_sentences=8)
    assert data["folds"][1] == {
        "train": {"sentences": 2, "relations": 3, "entities": 3},
        "dev": {"sentences": 0, "relations": 0, "entities": 0},
        "test": {"sentences": 2, "relations": 1, "entities": 4},
    }
    assert list(data["num_by_tag"].items())[:4] == [
        ("O", 8),
        ("B-Adverse-Effect", 2),
        ("I-Adverse-Effect", 1),
        ("B-Drug", 4),
    ]
    assert sum(data["num_by_tag"].values()) == 16
    assert data["mean_by_tag"]["B-Drug"] == 8 * 4 / 4
    shown = word_statistics_markdown(json.loads(json.dumps(data)))
    assert "| fold | train sentences | train relations | train entities | test sentences |" in shown
    assert "| 2 | 2 | 3 | 3 | 2 | 1 | 4 |" in shown
    assert "| B-Drug | 8.0 |" in shown
    assert "dev" not in shown


def test_the_commands_prepare_and_count(tmp_path):
    path, sides = write(tmp_path / "a.json", SENTENCES), write(tmp_path / "folds.json", FOLDS)
    store = tmp_path / "store"
    command = ["spert", "--input", str(path), "--splits", str(sides), "--out", str(store)]
    result = CliRunner().invoke(prepare.app, command, catch_exceptions=False)
    assert result.exit_code == 0
    assert open_store(store, WordStore, verify=True).num_folds == 2
    result = CliRunner().invoke(
        prepare.app, ["word-statistics", "--store", str(store)], catch_exceptions=False
    )
    assert "| 1 | 3 | 1 | 4 | 1 | 3 | 3 |" in result.output
    assert "in a batch of 16 sentences" in result.output
    with pytest.raises(ConfigError, match="--dev no: no such file"):
        CliRunner().invoke(
            prepare.app, [*command, "--dev", "no", "--force"], catch_exceptions=False
        )
    shutil.rmtree(store)
    parts = [
        "spert",
        "--input",
        str(path),
        "--test",
        str(write(tmp_path / "b.json", SENTENCES)),
        "--out",
        str(store),
    ]
    assert CliRunner().invoke(prepare.app, parts, catch_exceptions=False).exit_code == 0
    assert open_store(store, WordStore).fold_rows(1, "test").tolist() == [4, 5, 6, 7]
    # A draw.
    drawn = ["spert", "--input", str(path), "--test-share", "0.5", "--out", str(tmp_path / "drawn")]
    result = CliRunner().invoke(prepare.app, drawn, catch_exceptions=False)
    num_test = len(open_store(tmp_path / "drawn", WordStore).fold_rows(1, "test"))
    assert f"of --input, {num_test} sentences are test and {4 - num_test} are" in result.output


@pytest.fixture(scope="module")
def ade(tmp_path_factory):
    files = [ADE / "ade_full_spert.json.gz"]
    return prepare_words(
        tmp_path_factory.mktemp("ade") / "store", files, splits=ADE / "cv_splits.json.gz"
    )


@real
def test_ade_has_the_counts_of_the_released_files(ade):
    expected = {
        "rows": 4272,
        "tokens": 90_714,
        "entities": 10_839,
        "Drug_entities": 5063,
        "Adverse-Effect_entities": 5776,
        "relations": 6821,
        "sentences_with_overlapping_entities": 119,
        "relations_within_a_word": 5,
        "folds": 10,
        "words": 8487,
        "sentences_in_no_fold": 0,
    }
    assert (ade.manifest["counts"], ade.manifest["quarantine"]) == (expected, {})
    assert ade.entity_types == (ADVERSE_EFFECT, "Drug")
    assert ade.orig_ids == tuple(map(str, range(4272)))
    pairs = [listed(gold_pairs(ade, row)) for row in range(ade.num_rows)]
    assert sum(map(len, pairs)) == 6821
    assert sum(first == second for one in pairs for first, second, _ in one) == 5
    assert sum(first < second for one in pairs for first, second, _ in one) == 3021
    length_N = np.diff(ade.indptr_N1)
    assert (int((length_N * (length_N - 1) // 2).sum()), length_N.max()) == (1_152_202, 97)
    tests = np.concatenate([ade.fold_rows(fold, "test") for fold in range(1, 11)])
    assert sorted(tests.tolist()) == list(range(4272))


@real
def test_ades_folds_have_the_counts_of_the_papers_table_1(ade):
    table = [
        (6155, 9769, 666, 1070),
        (6097, 9713, 724, 1126),
        (6133, 9748, 688, 1091),
        (6164, 9771, 657, 1068),
        (6173, 9785, 648, 1054),
        (6089, 9713, 732, 1126),
        (6155, 9768, 666, 1071),
        (6117, 9754, 704, 1085),
        (6133, 9760, 688, 1079),
        (6173, 9770, 648, 1069),
    ]
    data = statistics_of_words(ade)
    found = [
        tuple(
            fold[split][what] for split in ("train", "test") for what in ("relations", "entities")
        )
        for fold in data["folds"]
    ]
    assert found == table
    assert [fold["test"]["sentences"] for fold in data["folds"]] == [427] * 9 + [429]


@real
def test_ades_tags_are_counted_as_in_the_papers_table_6_but_for_one_word(ade):
    """The paper has 1,062 I-Drug and 7,054 I-Adverse-Effect: a word of a nested entity."""
    data = statistics_of_words(ade)
    assert data["num_by_tag"] == {
        "O": 71_858,
        "B-Adverse-Effect": 5701,
        "I-Adverse-Effect": 7053,
        "B-Drug": 5039,
        "I-Drug": 1063,
    }
    rounded = {tag: round(mean) for tag, mean in data["mean_by_tag"].items()}
    # The paper's Table 5 has 268 for O.
    assert rounded == {
        "O": 269,
        "B-Adverse-Effect": 21,
        "I-Adverse-Effect": 26,
        "B-Drug": 19,
        "I-Drug": 4,
    }


@real
def test_ade_comes_back_from_the_store_as_it_was_written(ade):
    names, tags = tag_names(ade.entity_types), Counter()
    for row, (_, one) in enumerate(stream_records(ADE / "ade_full_spert.json.gz")):
        assert [ade.words[word] for word in ade.sentence(row)] == one["tokens"]
        entities = [
            (ade.entity_types[kind], start, end) for start, end, kind in listed(ade.entities(row))
        ]
        assert entities == [
            (entity["type"], entity["start"], entity["end"]) for entity in one["entities"]
        ]
        relations = [
            (ade.relation_names[label], head, tail)
            for head, tail, label in listed(ade.relations(row))
        ]
        assert relations == [tuple(relation.values()) for relation in one["relations"]]
        found = [names[tag] for tag in tags_of(ade, row)]
        assert found == bio_tags(len(found), entities)
        tags.update(found)
    assert tags.total() == 90_714
