"""A cross-validation as a sweep."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from ray.util.state import list_tasks

from raybio.data.simulate_words import WordsConfig, default_words
from raybio.errors import ConfigError
from raybio.runtime.all_folds import Judgement, fold_space, judge_all, judgements, models_of, train_and_show
from raybio.runtime.launch import Arguments
from raybio.runtime.room import Room
from raybio.runtime.run_folder import RunFolder
from raybio.systems import SYSTEMS, relation_graphs
from raybio.systems.entity_relation_evaluation import graph_accuracy_of_sentences, judge_together
from tests.systems.conformance_cases import tiny_config


def config_of(**settings):
    return tiny_config("relation_graphs", **{"model": "cldr", "schedule.evaluate_every_steps": 3} | settings)


@pytest.mark.parametrize(
    "model, more, expected",
    [
        ("cldr", [], ("cldr", "clner")),
        ("joint", [], ("joint",)),
        ("clner", [], ("clner",)),
        ("cldr", ["model=clgs"], ("cldr", "clgs", "clner")),
        ("cldr", ["model=clgs, joint,cldr"], ("cldr", "clgs", "joint", "clner")),
    ],
)
def test_a_model_that_knows_tags_is_always_there(model, more, expected):
    assert models_of(config_of(model=model), more) == expected


@pytest.mark.parametrize("more, told", [("seed=1,2", "want model= alone"), ("model=clmr", "clmr")])
def test_other_comparisons_are_refused(more, told):
    with pytest.raises(ConfigError, match=told):
        models_of(config_of(), [more])


def test_every_model_is_trained_on_every_fold_to_the_end():
    space = fold_space(config_of(), ("cldr", "clner"), 3)
    expected = [{"data.fold": fold, "model": model} for fold in (1, 2, 3) for model in ("cldr", "clner")]
    assert space.grid() == expected
    assert (space.scheduler.kind, space.budget.max_steps, space.budget.grace_steps) == ("none", 6, 3)
    assert space.metric in ("val/log_likelihood",)


def test_without_evaluations_no_step_can_be_chosen():
    with pytest.raises(ConfigError, match="evaluate_every_steps above 0"):
        fold_space(config_of(**{"schedule.evaluate_every_steps": 0}), ("joint",), 3)


@pytest.mark.parametrize(
    "given, told",
    [
        ({"seeds": 3}, "leave --seeds and --workers out"),
        ({"workers": 2}, "leave --seeds and --workers out"),
        ({"runs": Path("elsewhere")}, "RAYBIO_SWEEPS changes that"),
        ({"settings": ("data.fold=3",)}, "trains every fold, and data.fold names one"),
    ],
)
def test_what_means_nothing_to_folds_is_refused_at_once(given, told):
    with pytest.raises(ConfigError, match=told):
        train_and_show("relation_graphs", Arguments(**given))


def test_systems_without_folds_do_not_offer_them():
    from raybio.config import fields
    from raybio.runtime.launch import FOLD

    assert [name for name, entry in SYSTEMS.items() if FOLD in {one.path for one in fields(entry.config)}] == [
        "relation_graphs"
    ]


@pytest.mark.parametrize(
    "models, expected",
    [
        (("cldr", "joint", "clner"), {"untuned": "cldr+clner", "cldr + clner": "cldr+clner", "joint": "joint+joint"}),
        (("clner",), {"untuned": "clner+clner", "clner": "clner+clner"}),
        (("clner", "clgs"), {"untuned": "clgs+clner", "clgs + clner": "clgs+clner"}),
    ],
)
def test_each_row_has_the_entities_of_its_own_model_and_is_judged_again_after_training(tmp_path, models, expected):
    exports = {(model, fold): tmp_path / f"{model}-{fold}" for model in models for fold in (1, 2)}
    for (model, fold), export in exports.items():
        export.mkdir()
        (export / "model.safetensors").write_text(f"{model} {fold}")
    folder = RunFolder(tmp_path, "folds")
    folder.path.mkdir()
    entries = judgements(folder, exports, models, 2)
    assert [(entry.row, entry.fold) for entry in entries] == [(row, fold) for row in expected for fold in (1, 2)]
    for entry in entries:
        pair = f"{entry.relations.name[:-2]}+{entry.entities.name[:-2]}"
        assert pair == expected[entry.row]
        assert entry.relations.name[-1] == entry.entities.name[-1] == str(entry.fold)
        assert entry.has_graphs == (entry.row != "untuned" and not pair.startswith("clner"))
        assert entry.known() is None
        entry.keep({"ner_f1": entry.fold / 10})
    assert [entry.known() for entry in entries] == [{"ner_f1": entry.fold / 10} for entry in entries]
    (exports[models[0], 2] / "model.safetensors").write_text("trained to the end")
    again = {(entry.row, entry.fold) for entry in entries if entry.known() is None}
    assert again and {fold for _, fold in again} == {2}


@pytest.mark.timeout(600)
def test_what_a_judgement_says_is_said_in_its_own_words_and_what_was_done_before_is_kept(ray_cluster, tmp_path):
    store = default_words(tmp_path, WordsConfig(num_sentences=60, num_drugs=6, num_effects=6))
    config = config_of(**{"model": "joint"})
    good = relation_graphs.build(config, store.path)
    export = good.export(tmp_path / "export", {"name": "x"})
    done = Judgement("joint", 1, export, export, tmp_path / "folds" / "joint-1.json", has_graphs=True)
    place = Room(1.0, 0.0, 1, "")
    judge_all([done], store.path, place)
    judged = judge_together(export, export, store.path).intervals()
    expected = {name: one["value"] for name, one in judged.items()}
    expected["graph_accuracy"] = graph_accuracy_of_sentences(export, store.path).mean()
    assert done.known() == pytest.approx(expected)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ConfigError, match="is no exported model of words"):
        others = [replace(done, path=tmp_path / "folds" / f"joint-{fold}.json") for fold in range(2, 8)]
        judge_all([replace(done, entities=tmp_path / "nothing"), *others], store.path, place)
    assert done.known()
    address = ray.get_runtime_context().gcs_address
    for _ in range(600):  # until all are told of, and none of them waits or works
        states = [task.state for task in list_tasks(address=address, filters=[("name", "=", "_scores_of")])]
        if set(states) == {"FINISHED", "FAILED"} and len(states) == 2 + len(others):
            break
        time.sleep(0.1)
    assert len(states) == 2 + len(others) and 1 <= states.count("FINISHED") < 1 + len(others), states
