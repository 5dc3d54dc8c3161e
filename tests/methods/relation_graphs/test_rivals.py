"""Rivals of word encoders against loops."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from raybio.core.final_report import CHARACTERS
from raybio.methods.relation_graphs.annotations.folds import read_fold
from raybio.methods.relation_graphs.annotations.tags import tags_of
from raybio.methods.relation_graphs.classifiers.look_up import LookUp
from raybio.methods.relation_graphs.config import CANDIDATES, FoldConfig
from raybio.methods.relation_graphs.demo import SIMULATED_WORDS, WordsConfig
from raybio.methods.relation_graphs.encoders.character_vectors import CharacterVectors
from raybio.methods.relation_graphs.evaluate import EntityRelationEvaluator
from raybio.methods.relation_graphs.prepare import prepare_words
from raybio.methods.relation_graphs.rivals import CHOSEN, LOOK_UP
from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.relation_graphs.system import build, check
from raybio.training.collective import SingleProcess
from tests import word_oracles
from tests.methods.conformance_cases import tiny_config
from tests.methods.relation_graphs.word_stores import store_of, write_sentences

NAME = "relation_graphs"
DRUG_CAUSES = [("Drug", 0, 1), ("Adverse-Effect", 2, 3)]
SENTENCES = [
    (["aspirin", "causes", "rash"], DRUG_CAUSES, [(1, 0)]),
    (["Aspirin", "causes", "pain"], DRUG_CAUSES, [(1, 0)]),
    (["aspirin", "for", "rash"], DRUG_CAUSES, []),
    (["ibuprofen", "for", "pain"], DRUG_CAUSES, []),
    (["ibuprofen", "gave", "rash"], DRUG_CAUSES, [(1, 0)]),
    (["rash", "is", "rash"], [], []),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> WordStore:
    config = WordsConfig(num_sentences=60, num_drugs=6, num_effects=6)
    return SIMULATED_WORDS.prepare(tmp_path_factory.mktemp("words"), config)


def entity_pairs(words, tags) -> list[tuple[int, int, tuple, tuple]]:
    """Return (last word, last word, types and words between, types and others between) of pairs."""
    found = word_oracles.chunks(tags, [0, len(words)])
    pairs = []
    for one in range(len(found)):
        for other in range(one + 1, len(found)):
            (_, end, kind), (start, last, other_kind) = found[one], found[other]
            kinds = (kind, other_kind)
            between = (kinds, tuple(words[end:start]))
            pairs.append((end - 1, last - 1, between, (kinds, other > one + 1)))
    return pairs


def slow_look_up(store: WordStore, train, rows) -> tuple[list[int], list[tuple[int, int, int]]]:
    def words_of(row: int) -> list[str]:
        return [store.words[word].lower() for word in store.sentence(row).tolist()]

    def first_of_the_most(counts: Counter) -> int:
        return min(counts, key=lambda label: (-counts[label], label))

    tags: dict[str, Counter] = {}
    labels: dict[tuple, Counter] = {}
    for row in train:
        gold_tags = tags_of(store, row).tolist()
        for word, tag in zip(words_of(row), gold_tags, strict=True):
            tags.setdefault(word, Counter())[tag] += 1
        starts, ends, _ = store.entities(row)
        last = [end - 1 for end in ends.tolist()]
        related = {
            frozenset((last[head], last[tail])): label
            for head, tail, label in zip(
                *(part.tolist() for part in store.relations(row)), strict=True
            )
        }
        for one, other, *keys in entity_pairs(words_of(row), gold_tags):
            for key in keys:
                labels.setdefault(key, Counter())[related.get(frozenset((one, other)), 0)] += 1
    every_tag, pairs = [], []
    for row in rows:
        own = [first_of_the_most(tags[w]) if w in tags else 0 for w in words_of(row)]
        for one, other, between, types in entity_pairs(words_of(row), own):
            counts = labels.get(between) or labels.get(types) or Counter([0])
            if first_of_the_most(counts):
                start = len(every_tag)
                pairs.append((start + one, start + other, first_of_the_most(counts)))
        every_tag += own
    return every_tag, pairs


def test_words_and_pairs_are_looked_up_as_by_the_loop(store: WordStore) -> None:
    fold = read_fold(store, FoldConfig())
    for train, rows in ((fold.train, fold.dev), (fold.train_and_dev, fold.test)):
        tag_W, related = LookUp.of(store, train).predict(rows)
        tags, pairs = slow_look_up(store, train.tolist(), rows.tolist())
        assert tag_W.tolist() == tags
        assert list(zip(*(part.tolist() for part in related), strict=True)) == pairs
        assert pairs


def test_a_look_up_reads_the_words_between_and_else_the_types(tmp_path: Path) -> None:
    store = store_of(tmp_path, SENTENCES)
    look_up = LookUp.of(store, np.arange(len(SENTENCES)))

    def predicted(row: int, *forms: str) -> tuple[list[int], int]:
        """Predict for a sentence of other words: those of the store stay what they are."""
        number = {form.lower(): look_up.form_V[at] for at, form in enumerate(store.words)}
        tag_W, related = look_up.predict(np.array([row]))
        assert all(form in number for form in forms)
        return tag_W.tolist(), len(related.label_P)

    drug, effect = 3, 1  # types in alphabetical order: Adverse-Effect, Drug
    assert predicted(0, "aspirin") == ([drug, 0, effect], 1)
    assert predicted(1, "aspirin") == ([drug, 0, effect], 1)  # "Aspirin" is the same form
    assert predicted(2) == ([drug, 0, effect], 0)  # "for" never relates
    # No training sentence has "of" between an effect and another one, nor the types of both.
    assert predicted(len(SENTENCES))[1] == 0
    # "rash" is an effect in 3 of 5 occurrences.
    assert predicted(5)[0] == [effect, 0, effect]


def test_unseen_words_are_no_entities_and_nothing_is_related(tmp_path: Path) -> None:
    store = store_of(tmp_path, SENTENCES)
    nothing = LookUp.of(store, np.zeros(0, np.int64))
    tag_W, related = nothing.predict(np.arange(len(SENTENCES)))
    assert not tag_W.any()
    assert len(related.label_P) == 0
    plain = LookUp.of(store, np.array([5]))
    assert not plain.predict(np.arange(len(SENTENCES)))[0].any()


def test_vectors_of_few_words_are_their_tfidf_in_the_span_of_training_next_to_neighbors(
    tmp_path: Path,
) -> None:
    store = store_of(tmp_path, SENTENCES)
    train = np.arange(2)
    found_WD, tag_WD = CharacterVectors(store, train).embed(np.array([3, 0]))
    assert found_WD is tag_WD
    trained = {store.words[word] for row in train for word in store.sentence(row).tolist()}
    vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    trained_UF = vectorizer.fit_transform(sorted(trained)).toarray()
    span_FF = np.linalg.pinv(trained_UF) @ trained_UF
    expected = []
    for sentence in (["ibuprofen", "for", "pain"], ["aspirin", "causes", "rash"]):
        own = vectorizer.transform(sentence).toarray() @ span_FF
        for at in range(3):
            before = 0.5 * own[at - 1] if at else 0 * own[0]
            behind = 0.5 * own[at + 1] if at < 2 else 0 * own[0]
            expected.append(np.concatenate([own[at], before, behind]))
    cosines = np.array(expected) @ np.array(expected).T
    # Any basis of the span will do, so that products are compared.
    np.testing.assert_allclose((found_WD @ found_WD.T).numpy(), cosines, atol=1e-6)


def test_directions_of_many_words_keep_most_of_their_products(tmp_path: Path) -> None:
    store = SIMULATED_WORDS.prepare(tmp_path, WordsConfig(num_sentences=200))
    rows = np.arange(200)
    vectors = CharacterVectors(store, rows)
    word_WD, _ = vectors.embed(rows)
    assert len(store.words) > 64
    assert word_WD.shape[1] == 3 * 64
    again, _ = CharacterVectors(store, rows).embed(rows)
    assert (word_WD == again).all()
    vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    whole_VF = vectorizer.fit_transform(store.words).toarray()
    own_WD = word_WD[:, :64].numpy()
    exact = np.linalg.svd(whole_VF, compute_uv=False)
    words = np.concatenate([store.sentence(row) for row in rows])
    _, first_U = np.unique(words, return_index=True)
    kept = (own_WD[first_U] ** 2).sum()
    assert kept == pytest.approx((exact[:64] ** 2).sum(), rel=0.02)


def evaluator_of(store: WordStore, **settings) -> EntityRelationEvaluator:
    return build(tiny_config(NAME, **settings), store.path).final_evaluate.__self__


@pytest.mark.nightly
def test_rivals_choose_on_validation_and_the_initial_row_as_the_trained_one(
    store: WordStore,
) -> None:
    rows = dict(evaluator_of(store).rivals("cpu", SingleProcess()))
    assert list(rows) == [LOOK_UP, CHARACTERS, CHOSEN]
    assert all(row.scores.keys() == {"dev", "test"} for row in rows.values())
    # Folds of one store have other sentences under the same positions.
    fold = evaluator_of(store).fold
    for row in rows.values():
        assert row.unit_scores["dev"].unit_U.tolist() == fold.dev.tolist()
        assert row.unit_scores["test"].unit_U.tolist() == fold.test.tolist()
    # A run with the same candidates has these scores in its row "initial".
    candidates = {f"evaluation.{name}": list(values) for name, values in CANDIDATES.items()}
    chooses = evaluator_of(store, **candidates)
    assert list(dict(chooses.rivals("cpu", SingleProcess()))) == [LOOK_UP, CHARACTERS]
    initial = chooses.score(chooses.initial_encoder().eval(), SingleProcess(), "initial")
    assert initial.scores == rows[CHOSEN].scores
    assert initial.details["knn_settings"] == rows[CHOSEN].details["knn_settings"]


def test_the_row_with_chosen_settings_stays_where_only_the_weight_of_the_probe_is_chosen(
    store: WordStore,
) -> None:
    chooses = evaluator_of(store, **{"evaluation.probe_positive_weights": [1.0, 4.0]})
    assert list(dict(chooses.rivals("cpu", SingleProcess()))) == [LOOK_UP, CHARACTERS, CHOSEN]


def test_without_validation_sentences_nothing_is_chosen(store: WordStore) -> None:
    alone = evaluator_of(store, **{"data.validation_share": 0})
    rows = dict(alone.rivals("cpu", SingleProcess()))
    assert list(rows) == [LOOK_UP, CHARACTERS]
    settings = rows[CHARACTERS].details["knn_settings"]
    assert settings == alone.config.evaluation.first_settings._asdict()


def test_sentences_without_any_relation_end_in_a_table_of_entities(tmp_path: Path) -> None:
    sentences = [(words, entities, []) for words, entities, _ in SENTENCES]
    files = [write_sentences(tmp_path / "train.json", sentences)]
    test = [write_sentences(tmp_path / "test.json", sentences[:3])]
    entities_only = prepare_words(tmp_path / "words", files, test=test)
    config = tiny_config(NAME, model="clner", **{"data.validation_share": 0.4})
    check(config, entities_only)
    system = build(config, entities_only.path)
    report = system.final_evaluate(system.model, SingleProcess())
    assert report.scores["chance"]["test"]["ner_f1"]["value"] > 0
    assert report.scores["chance"]["test"]["re_f1"]["value"] == 0
