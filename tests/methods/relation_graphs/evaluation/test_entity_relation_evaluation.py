"""Exported models of words, scored together."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from raybio.core.errors import ConfigError
from raybio.methods.relation_graphs import evaluate
from raybio.methods.relation_graphs import system as relation_graphs
from raybio.methods.relation_graphs.annotations.folds import read_fold
from raybio.methods.relation_graphs.config import CANDIDATES, FoldConfig, KnnConfig
from raybio.methods.relation_graphs.demo import SIMULATED_WORDS, WordsConfig
from raybio.methods.relation_graphs.encoders.character_bert.checkpoint import is_character_bert
from raybio.methods.relation_graphs.encoders.character_bert.model import save_character_bert
from raybio.methods.relation_graphs.encoders.word_model import WordModel
from raybio.methods.relation_graphs.evaluation import fold_scores
from raybio.methods.relation_graphs.evaluation.evaluate_export import (
    evaluate_exports,
    evaluate_exports_twice,
    validate_graphs_of_export,
)
from raybio.methods.relation_graphs.prepare import prepare_words
from raybio.methods.relation_graphs.store import WordStore
from raybio.store.store import open_store
from raybio.training.collective import SingleProcess
from raybio.training.loop import fit
from tests.encoders.tiny_text import save_tiny
from tests.methods.conformance_cases import tiny_config
from tests.methods.relation_graphs.encoders.character_bert.tiny_characters import (
    random_character_bert,
)
from tests.methods.relation_graphs.word_stores import store_of, write_sentences


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> WordStore:
    config = WordsConfig(num_sentences=60, num_drugs=6, num_effects=6)
    return SIMULATED_WORDS.prepare(tmp_path_factory.mktemp("words"), config)


def trained(store: WordStore, **settings) -> relation_graphs.System:
    short = {"schedule.max_steps": 40, "evaluation.rivals": False}
    config = tiny_config("relation_graphs", **short | settings)
    system = relation_graphs.build(config, store.path)
    list(fit(system, config))
    return system


def exported(store: WordStore, folder: Path, **settings) -> tuple[Path, dict]:
    """A model trained for a few steps, and its own final evaluation."""
    system = trained(store, **settings)
    return system.export(folder, {"name": "x"}), system.final_evaluate(
        system.model, SingleProcess()
    )


def exported_unevaluated(store: WordStore, folder: Path, **settings) -> Path:
    """Export a model of two steps, for what does not depend on how good it is."""
    return trained(store, **{"schedule.max_steps": 2} | settings).export(folder, {"name": "x"})


@pytest.fixture(scope="module")
def joint(store: WordStore, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    return exported(store, tmp_path_factory.mktemp("joint") / "export")


def share_with_true_graph(folder, store):
    return validate_graphs_of_export(folder, store.path).accuracy_S.mean()


def test_an_export_is_scored_as_its_run_was(store, joint):
    folder, final = joint
    scored = evaluate_exports(folder, folder, store.path)
    for name, interval in scored.intervals().items():
        assert interval == pytest.approx(final.scores["trained"]["test"][name], abs=1e-6), name
    untrained = evaluate_exports(folder, folder, store.path, is_untrained=True)
    for name, interval in untrained.intervals().items():
        assert interval == pytest.approx(final.scores["initial"]["test"][name], abs=1e-6), name
    assert validate_graphs_of_export(folder, store.path).accuracy_S.mean() == pytest.approx(
        final.details["graphs"]["trained"]["graph_accuracy"]
    )


def test_the_sentences_that_chose_the_step_of_the_weights_are_counted(store: WordStore) -> None:
    def remarks(metric: str | None, num_sentences: int | None) -> list[str]:
        settings = {
            "schedule.evaluate_every_steps": 2,
            "schedule.keep_best": metric,
            "evaluation.num_sentences_in_training": num_sentences,
        }
        config = tiny_config("relation_graphs", **settings)
        return list(relation_graphs.build(config, store.path).final_evaluate.__self__.remarks())

    num_dev = len(read_fold(store, tiny_config("relation_graphs").data).dev)
    assert num_dev > 2
    assert remarks("val/ner_f1", 2) == [
        f"the step of the weights was chosen on 2 of {num_dev} validation sentences "
        "(evaluation.num_sentences_in_training)"
    ]
    for metric, num_sentences in (
        (None, 2),
        ("val/ner_f1", None),
        ("val/ner_f1", num_dev),
        # It is computed on all validation sentences.
        ("val/graph_accuracy", 2),
    ):
        assert remarks(metric, num_sentences) == []


@pytest.mark.nightly
def test_each_model_brings_its_own_space(store, joint, tmp_path):
    folder, _ = joint
    other, _ = exported(store, tmp_path / "clner", model="clner", seed=3)
    both, alone = (
        evaluate_exports(folder, other, store.path),
        evaluate_exports(folder, folder, store.path),
    )
    assert both.knn.values["re_minus_f1"] == alone.knn.values["re_minus_f1"]
    assert (
        both.knn.values["ner_f1"] == evaluate_exports(other, other, store.path).knn.values["ner_f1"]
    )
    with pytest.raises(ConfigError, match="is a clner, which has no graphs"):
        validate_graphs_of_export(other, store.path)


@pytest.mark.parametrize("words", [["pain"], ["severe", "pain"]])
def test_sentences_of_one_word_have_no_related_pairs(words, tmp_path):
    sentences = [([f"effect{n}"], [("Adverse-Effect", 0, 1)], []) for n in range(20)]
    tested = [(words, [("Adverse-Effect", 0, len(words))], [])]
    files = [write_sentences(tmp_path / "train.json", sentences)]
    tests = [write_sentences(tmp_path / "test.json", tested)]
    store = prepare_words(tmp_path / "words", files, test=tests)
    settings = {"model": "clner", "evaluation.num_pair_neighbors": [1, 5]}
    config = tiny_config("relation_graphs", **settings)
    relation_graphs.check(config, store)
    system = relation_graphs.build(config, store.path)
    report = system.final_evaluate(system.model, SingleProcess())
    scores = report.scores["trained"]["test"]
    assert scores["re_minus_f1"]["value"] == scores["probe_f1"]["value"] == 0
    assert scores["ner_f1"]["value"] >= 0
    system.evaluate(system.model, SingleProcess())
    system.export(tmp_path / "export", {"name": "x"})


def test_entities_need_a_model_that_knows_tags(store, joint, tmp_path):
    other = exported_unevaluated(store, tmp_path / "cldr", model="cldr")
    with pytest.raises(ConfigError, match="model=cldr has no tag head; want clner or joint"):
        evaluate_exports(joint[0], other, store.path)


def test_a_model_of_another_store_may_know_the_test_sentences_and_is_refused(joint, tmp_path):
    other = SIMULATED_WORDS.prepare(
        tmp_path, WordsConfig(num_sentences=50, num_drugs=6, num_effects=6)
    )
    with pytest.raises(ConfigError, match="was trained on another store than"):
        evaluate_exports(joint[0], joint[0], other.path)


def test_numbers_of_neighbors_are_chosen_on_validation_sentences_alone(store, tmp_path):
    several = {"evaluation.num_pair_neighbors": [1, 3], "evaluation.num_tag_neighbors": [1, 5]}
    folder, final = exported(store, tmp_path / "export", **several)
    scored = evaluate_exports(folder, folder, store.path)
    assert scored.settings._asdict() == final.details["knn_settings"]["trained"]
    # Without any there is nothing to choose by, and test sentences are no substitute.
    alone = {"data.validation_share": 0} | several
    with pytest.raises(ConfigError, match="none is kept for validation"):
        relation_graphs.check(tiny_config("relation_graphs", **alone), store)


def rows_that_are_looked_at(monkeypatch) -> list[tuple[str, set[int], set[int]]]:
    """Record (function, reference rows, query rows) of each later search."""
    rows_by_gold, kept, calls = {}, [], []
    read_gold = fold_scores.read_gold

    def remembered(store, rows):
        kept.append(read_gold(store, rows))  # kept, so that no other gets its number
        rows_by_gold[id(kept[-1])] = set(rows.tolist())
        return kept[-1]

    def messages(name, search):
        def call(reference, queries, *rest):
            calls.append((name, rows_by_gold[id(reference.gold)], rows_by_gold[id(queries.gold)]))
            return search(reference, queries, *rest)

        return call

    monkeypatch.setattr(fold_scores, "read_gold", remembered)
    for module, name in (
        (fold_scores, "choose_settings"),
        (fold_scores, "score_sentences"),
        (evaluate, "predict_by_knn"),
    ):
        monkeypatch.setattr(module, name, messages(name, getattr(module, name)))
    return calls


def test_neighbors_are_chosen_by_validation_sentences_and_no_sentence_finds_itself(
    store, tmp_path, monkeypatch
):
    several = {
        "evaluation.num_pair_neighbors": [1, 3],
        "schedule.max_steps": 2,
        "schedule.evaluate_every_steps": 1,
    }
    fold = read_fold(store, FoldConfig())
    train, dev, test = (set(rows.tolist()) for rows in (fold.train, fold.dev, fold.test))
    in_run = rows_that_are_looked_at(monkeypatch)
    folder, _ = exported(store, tmp_path / "export", **several)
    on_the_way = [call for call in in_run if call[0] == "predict_by_knn"]
    assert on_the_way and all(call == ("predict_by_knn", train, dev) for call in on_the_way)
    chosen, on_dev, on_test = (
        ("choose_settings", train, dev),
        ("score_sentences", train, dev),
        ("score_sentences", train | dev, test),
    )
    assert [call for call in in_run if call[0] != "predict_by_knn"] == [chosen, on_dev, on_test] * 2
    in_run.clear()
    evaluate_exports(folder, folder, store.path)
    assert in_run == [chosen, on_test]


def test_an_export_of_evaluated_weights_has_the_numbers_of_neighbors_of_the_table(
    store, tmp_path, monkeypatch
):
    several = {"evaluation.num_pair_neighbors": [1, 3], "evaluation.num_tag_neighbors": [1, 5]}
    system = trained(store, **several, **{"schedule.max_steps": 2})
    calls = rows_that_are_looked_at(monkeypatch)

    def exported_numbers(name):
        content = (system.export(tmp_path / name, {}) / "word_predictor.json").read_text()
        return {key: value for key, value in json.loads(content).items() if key in table}

    table = system.final_evaluate(system.model, SingleProcess()).details["knn_settings"]["trained"]
    table = {key: value for key, value in table.items() if key.startswith("num_")}
    calls.clear()
    assert exported_numbers("evaluated") == table
    assert not calls
    with torch.no_grad():
        next(system.model.parameters()).mul_(2)
    assert exported_numbers("of_other_weights").keys() == table.keys()
    assert len(calls) == 1


@pytest.mark.nightly
def test_the_untrained_encoder_chooses_among_the_candidates_of_both_runs(store, tmp_path):
    """Its numbers of neighbors for tags are those of the run that predicts entities."""
    pairs = exported_unevaluated(store, tmp_path / "pairs", model="cldr")
    tags = exported_unevaluated(
        store, tmp_path / "tags", model="clner", **{"evaluation.num_tag_neighbors": [3]}
    )
    for is_untrained in (False, True):
        scored = evaluate_exports(pairs, tags, store.path, is_untrained=is_untrained)
        assert scored.settings.num_tag_neighbors == 3


def test_validation_sentences_that_a_model_was_trained_on_choose_nothing(store, tmp_path):
    several = {"evaluation.num_tag_neighbors": [1, 3]}
    whole = exported_unevaluated(store, tmp_path / "whole", model="cldr", **several)
    less = exported_unevaluated(
        store, tmp_path / "less", model="clner", **several, **{"data.validation_share": 0.05}
    )
    with pytest.raises(
        ConfigError, match=r"less was trained on \d+ of the \d+ validation sentences"
    ):
        evaluate_exports(whole, less, store.path)


def test_scores_with_chosen_and_with_fixed_settings(store, joint, tmp_path):
    folder, _ = joint
    chosen, fixed = evaluate_exports_twice(folder, folder, store.path)
    once = evaluate_exports(folder, folder, store.path)
    assert fixed.values == pytest.approx(once.values)
    assert fixed.settings == once.settings == KnnConfig().first_settings
    candidates = {f"evaluation.{name}": list(values) for name, values in CANDIDATES.items()}
    several, final = exported(store, tmp_path / "several", **candidates)
    chooses, nothing = evaluate_exports_twice(several, several, store.path)
    assert nothing is None
    # The same training: only the evaluation differs.
    assert chooses.settings == chosen.settings
    assert chooses.values == pytest.approx(chosen.values)
    assert chooses.settings._asdict() == final.details["knn_settings"]["trained"]


def test_fixed_numbers_of_neighbors_are_scored_with_a_chosen_weight_of_the_probe(store, tmp_path):
    weights = [0.01, 4.0, 50.0]
    folder, final = exported(
        store, tmp_path / "weights", **{"evaluation.probe_positive_weights": weights}
    )
    chosen, fixed = evaluate_exports_twice(folder, folder, store.path)
    assert chosen.settings.num_pair_neighbors in CANDIDATES["num_pair_neighbors"]
    assert chosen.settings.probe_positive_weight in CANDIDATES["probe_positive_weights"]
    assert fixed.settings._replace(probe_positive_weight=1.0) == KnnConfig().first_settings
    assert fixed.settings.probe_positive_weight in weights
    assert fixed.settings._asdict() == final.details["knn_settings"]["trained"]
    assert fixed.values == pytest.approx(evaluate_exports(folder, folder, store.path).values)


@pytest.mark.nightly
def test_models_that_know_validation_sentences_choose_nothing_by_them(store, joint, tmp_path):
    last = {"data.train_on_validation": True, "schedule.evaluate_every_steps": 0}
    folder = exported_unevaluated(store, tmp_path / "last", **last)
    scores, nothing = evaluate_exports_twice(folder, folder, store.path)
    assert nothing is None
    assert scores.settings == KnnConfig().first_settings
    less = exported_unevaluated(store, tmp_path / "less", **{"data.validation_share": 0.05})
    with pytest.raises(ConfigError, match=r"less was trained on \d+ of the \d+ validation"):
        evaluate_exports_twice(joint[0], less, store.path)


def test_an_untuned_encoder_states_tags_by_its_words_as_they_are(store, joint):
    pair_WD, tag_WD = WordModel.load(joint[0], store, "cpu").untrained().embed(np.arange(5))
    assert torch.equal(pair_WD, tag_WD)


def test_false_graphs_may_be_all_that_there_are(store, joint):
    few, more = (
        validate_graphs_of_export(joint[0], store.path, num_negatives=num) for num in (1, 1000)
    )
    assert more.accuracy_S.mean() < few.accuracy_S.mean()
    # One false graph each, or many.
    assert few.chance_S == pytest.approx(0.5)
    assert 0 < more.chance_S.min() < more.chance_S.mean() < 0.5


@pytest.mark.nightly
@pytest.mark.parametrize("model", ["cldr", "clgs", "clner"])
def test_each_model_alone_goes_through_training_export_and_judging(store, tmp_path, model):
    folder, final = exported(store, tmp_path / "export", model=model, **{"schedule.max_steps": 6})
    has_graphs = model != "clner"
    assert ("graph_accuracy" in final.details["graphs"]["trained"]) == has_graphs
    if has_graphs:
        assert validate_graphs_of_export(folder, store.path).accuracy_S.mean() == pytest.approx(
            final.details["graphs"]["trained"]["graph_accuracy"]
        )


def test_models_of_different_folds_are_refused(store, joint, tmp_path):
    other = exported_unevaluated(store, tmp_path / "export", **{"data.fold": 2})
    with pytest.raises(ConfigError, match="was trained on fold 1 and .* on fold 2"):
        evaluate_exports(joint[0], other, store.path)


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_a_folder_that_is_no_export_is_refused(store, tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match="has no .*; want the export/ of a run of relation_graphs"
    ):
        WordModel.load(folder, open_store(store.path, WordStore))


def test_features_are_computed_once_and_are_those_of_the_untrained_encoder(store, joint):
    folder, _ = joint
    found = sorted(store.path.glob("derived/features-*.npy"))
    times = {path: path.stat().st_mtime_ns for path in found}
    config = tiny_config("relation_graphs", **{"schedule.max_steps": 40})
    system = relation_graphs.build(config, store.path)
    path = system.collate.features.path
    assert times[path] == path.stat().st_mtime_ns
    rows = read_fold(store, config.data).test[:3]
    word_WD, _ = WordModel.load(folder, store).untrained().embed(rows)
    num_words_R = np.array([len(store.sentence(row)) for row in rows.tolist()])
    word_W = np.concatenate([np.arange(num) for num in num_words_R])
    stored = system.collate.features.of(np.repeat(rows, num_words_R), word_W)
    np.testing.assert_allclose(stored, word_WD.cpu().numpy(), atol=1e-5)


@pytest.mark.parametrize("damage", ["bit", "cut", "no record", "another version"])
def test_features_that_are_not_what_was_written_are_computed_again(tmp_path, caplog, damage):
    entities = [("Adverse-Effect", 0, 1), ("Drug", 2, 3)]
    sentences = [(["a", "b", letter], entities, [(0, 1)]) for letter in "cdefghijkl"]
    store = store_of(tmp_path, sentences)
    save_tiny(tmp_path / "tiny")
    config = tiny_config("relation_graphs", **{"encoder.source": str(tmp_path / "tiny")})

    def features():
        return relation_graphs.build(config, store.path).collate.features

    rows = np.arange(3)
    words = np.zeros(3, int)
    path = features().path
    whole = path.read_bytes()
    expected = features().of(rows, words).copy()
    assert not caplog.messages
    content = bytearray(whole)
    content[-1] ^= 128  # the sign of the last number
    if damage == "no record":
        path.with_suffix(".json").unlink()
    if damage == "another version":
        record = path.with_suffix(".json")
        record.write_text(record.read_text().replace('"version": 1', '"version": 0'))
    if damage == "cut":
        path.unlink()
        path.write_bytes(whole[:-4])
    else:
        path.write_bytes(content)
    np.testing.assert_array_equal(features().of(rows, words), expected)
    assert path.read_bytes() == whole
    message = f"{path}: damaged, not what was written; it is computed again"
    assert (message in caplog.messages) == (damage in ("bit", "cut"))
    assert ("the features are computed again" in caplog.text) == (damage == "another version")


def test_encoders_that_differ_in_dropout_or_adapters_share_their_features(tmp_path):
    # The tiny encoder reads letters, and few of them.
    entities = [("Adverse-Effect", 0, 1), ("Drug", 2, 3)]
    sentences = [(["a", "b", letter], entities, [(0, 1)]) for letter in "cdefghijkl"]
    store = store_of(tmp_path, sentences)
    save_tiny(tmp_path / "tiny")

    def features_of(**settings):
        source = {"encoder.source": str(tmp_path / "tiny"), "encoder.dropout": 0.1}
        config = tiny_config("relation_graphs", **source | settings)
        return relation_graphs.build(config, store.path).collate.features

    first = features_of()
    others = [
        features_of(**{"encoder.dropout": 0.3}),
        features_of(**{"encoder.lora.rank": 2}),
        features_of(**{"encoder.lora.rank": 2, "encoder.lora.dropout": 0.5, "seed": 1}),
    ]
    assert {other.path for other in others} == {first.path}
    assert len({features.recorded_name for features in (first, *others)}) == 4
    assert features_of(**{"encoder.num_layers_kept": 1}).path != first.path


def test_validation_sentences_that_train_leave_nothing_to_choose_by(store):
    with pytest.raises(ConfigError, match="no sentence is left to choose by"):
        tiny_config(
            "relation_graphs",
            **{"data.train_on_validation": True, "evaluation.num_pair_neighbors": [1, 5]},
        )


def test_character_bert_is_trained_exported_and_scored_like_any_other(store, tmp_path):
    sizes = {
        "num_layers": 2,
        "width": 16,
        "ffn_width": 32,
        "max_tokens": 64,
        "filters": [[1, 8], [3, 8]],
    }
    save_character_bert(random_character_bert(seed=1, **sizes), tmp_path / "characters")
    source = {"encoder.source": str(tmp_path / "characters"), "encoder.num_frozen_layers": 1}
    folder, final = exported(store, tmp_path / "export", **source, **{"schedule.max_steps": 6})
    assert is_character_bert(str(folder))
    for name, interval in evaluate_exports(folder, folder, store.path).intervals().items():
        assert interval == pytest.approx(final.scores["trained"]["test"][name], abs=1e-6), name
    assert validate_graphs_of_export(folder, store.path).accuracy_S.mean() == pytest.approx(
        final.details["graphs"]["trained"]["graph_accuracy"]
    )


def test_layers_from_scratch_are_not_frozen(store):
    config = tiny_config(
        "relation_graphs", **{"encoder.num_frozen_layers": 1, "encoder.num_layers": 2}
    )
    with pytest.raises(
        ConfigError,
        match="num_frozen_layers is 1, and layers from scratch would stay random",
    ):
        relation_graphs.check(config, store)


def test_a_step_has_as_many_sentences_as_in_the_paper(store):
    for model, rows in {"cldr": 8, "clgs": 8, "clner": 16}.items():
        config = tiny_config("relation_graphs", **{"model": model, "plan.global_batch_rows": None})
        assert relation_graphs.build(config, store.path).collate.batch_rows == rows


def test_graphs_of_sentences_without_relations_are_refused(tmp_path):
    related = (["da", "v", "ea"], [("Drug", 0, 1), ("AE", 2, 3)], [(1, 0)])
    plain = (["da", "v", "w"], [("Drug", 0, 1)], [])
    files = {
        name: write_sentences(tmp_path / f"{name}.json", [one] * 2)
        for name, one in {"yes": related, "no": plain, "test": related}.items()
    }
    config = tiny_config("relation_graphs", **{"model": "cldr", "schedule.evaluate_every_steps": 1})
    untaught = prepare_words(
        tmp_path / "a", [files["no"]], dev=[files["yes"]], test=[files["test"]]
    )
    with pytest.raises(
        ConfigError, match="none of the 2 training sentences of fold 1 has a relation"
    ):
        relation_graphs.check(config, untaught)
    relation_graphs.check(tiny_config("relation_graphs", model="clner"), untaught)
    unasked = prepare_words(tmp_path / "b", [files["yes"]], dev=[files["no"]], test=[files["test"]])
    with pytest.raises(
        ConfigError, match="none of the 2 validation sentences of fold 1.*evaluate_every_steps=0"
    ):
        relation_graphs.check(config, unasked)
