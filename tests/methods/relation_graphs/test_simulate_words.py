import numpy as np

from raybio.methods.relation_graphs.annotations.tags import gold_pairs, tags_of
from raybio.methods.relation_graphs.demo import SIMULATED_WORDS, WordsConfig, write_words
from raybio.methods.relation_graphs.formats import read_folds, read_spert
from raybio.store.quarantine import Quarantine

SMALL = WordsConfig(num_sentences=30, num_folds=3, num_drugs=10, num_effects=10)


def named(store, row):
    """(type, name) of each entity of a sentence."""
    words = [store.words[word] for word in store.sentence(row)]
    return [
        (kind, " ".join(words[start:end]))
        for start, end, kind in zip(*store.entities(row), strict=True)
    ]


def facts_of(store, rows):
    """(drug, effect) of every relation of some sentences."""
    return [
        (named(store, row)[tail], named(store, row)[head])
        for row in rows
        for head, tail, _ in zip(*store.relations(row), strict=True)
    ]


def test_the_embedded_corpus_has_the_types_and_directions_of_ade_and_folds_that_partition_it(
    tmp_path,
):
    store = SIMULATED_WORDS.prepare(tmp_path)
    assert (store.num_rows, store.num_folds, store.manifest["quarantine"]) == (600, 5, {})
    assert store.entity_types == ("Adverse-Effect", "Drug")
    assert store.relation_names == ("NA", "Adverse-Effect")
    tests = np.concatenate([store.fold_rows(fold, "test") for fold in range(1, 6)])
    assert sorted(tests.tolist()) == list(range(600))
    for row in range(store.num_rows):
        _, _, kind_E = store.entities(row)
        head_P, tail_P, _ = store.relations(row)
        assert len(head_P)
        assert (kind_E[head_P] == 0).all()
        assert (kind_E[tail_P] == 1).all()
        assert (store.sentence(row) < len(store.words)).all()
    assert set(np.concatenate([tags_of(store, row) for row in range(600)]).tolist()) == {
        0,
        1,
        2,
        3,
        4,
    }
    assert SIMULATED_WORDS.prepare(tmp_path) is store


def test_naming_a_drug_and_an_effect_together_does_not_make_them_related(tmp_path):
    store = SIMULATED_WORDS.prepare(tmp_path)
    num_pairs = num_gold = 0
    for row in range(store.num_rows):
        kinds = [kind for kind, _ in named(store, row)]
        num_pairs += kinds.count(0) * kinds.count(1)
        num_gold += len(gold_pairs(store, row)[0])
    assert 0.2 < num_gold / num_pairs < 0.5


def test_names_come_again_in_the_test_set_and_pairs_mostly_do_not(tmp_path):
    store = SIMULATED_WORDS.prepare(tmp_path)
    for fold in range(1, 6):
        train, test = store.fold_rows(fold, "train"), store.fold_rows(fold, "test")
        known = {entity for row in train for entity in named(store, row)}
        assert all(entity in known for row in test for entity in named(store, row))
        messages = set(facts_of(store, train))
        new = [fact not in messages for fact in facts_of(store, test)]
        assert np.mean(new) > 0.65


def test_equal_settings_give_equal_bytes_and_another_seed_another_corpus(tmp_path):
    first, same = write_words(tmp_path / "a", SMALL), write_words(tmp_path / "b", SMALL)
    other = write_words(tmp_path / "c", SMALL.model_copy(update={"seed": 1}))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in same]
    assert first[0].read_bytes() != other[0].read_bytes()
    quarantine = Quarantine()
    assert len(read_spert(first[0], quarantine)) == 30
    assert not quarantine.count_by_reason
    assert [len(fold.test) for fold in read_folds(first[1])] == [10, 10, 10]


def test_the_smallest_world_there_may_be_has_names_enough_for_any_sentence(tmp_path):
    smallest = {
        "num_drugs": 6,
        "num_effects": 6,
        "aside_rate": 1.0,
        "clause_rate": 1.0,
        "num_sentences": 200,
    }
    sentences, _ = write_words(tmp_path, WordsConfig(**smallest))
    assert len(read_spert(sentences, Quarantine())) == 200
