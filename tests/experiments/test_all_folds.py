"""A cross-validation as a sweep."""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import ray
import yaml
from ray.util.state import list_tasks

from raybio.core import digest
from raybio.core.config import override_all
from raybio.core.digest import file_digest, weights_digest
from raybio.core.errors import CheckpointError, ConfigError, OtherVersionsError, StoreError
from raybio.core.records import read_record
from raybio.experiments import cross_validation as all_folds
from raybio.experiments.cross_validation import cross_validate, fold_space, models_of
from raybio.experiments.fold_evaluation import FoldEvaluation, FoldScores, fold_evaluations
from raybio.experiments.last_training import LastTraining, last_config
from raybio.experiments.untrained_folds import UntrainedEvaluation, untrained_evaluations
from raybio.methods import METHODS
from raybio.methods.relation_graphs import system as relation_graphs
from raybio.methods.relation_graphs.annotations.folds import read_fold
from raybio.methods.relation_graphs.config import FoldConfig
from raybio.methods.relation_graphs.demo import SIMULATED_WORDS, WordsConfig
from raybio.methods.relation_graphs.encoders.word_model import WordModel
from raybio.methods.relation_graphs.evaluation.evaluate_export import (
    evaluate_exports_twice,
    validate_graphs_of_export,
)
from raybio.methods.relation_graphs.prepare import prepare_words
from raybio.methods.relation_graphs.store import WordStore
from raybio.runtime.cluster.resources import TrialResources
from raybio.runtime.run import open_run, preemption, task_worker
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsLog
from raybio.runtime.run.notices import report_start
from raybio.runtime.run.options import RunOptions
from raybio.runtime.run.spec import Compute, RunSpec
from raybio.runtime.run.tasks import run_tasks_here
from raybio.runtime.spool import mirror, relay, spool
from raybio.runtime.spool.relay import _Link
from raybio.runtime.tune.driver import SweepResult
from raybio.runtime.tune.leaderboard import TrialRecord
from raybio.runtime.tune.trial import SweepSpec, Trial
from raybio.store.bucket import BucketFolder
from raybio.store.store import open_store
from raybio.training.checkpoint import list_checkpoints, step_of_checkpoint
from raybio.training.collective import SingleProcess
from raybio.training.loop import fit
from tests.methods.conformance_cases import tiny_config
from tests.methods.relation_graphs.word_stores import write_sentences
from tests.paths import ROOT
from tests.runtime.run.test_damaged_runs import flip_a_byte
from tests.runtime.spool.bucket_job import first_steps
from tests.runtime.spool.test_bucket_trials import Actor

JOBS = ROOT / "jobs"


def list_work():
    """Tasks of ``run_tasks_here``, those of other tests on this cluster too."""
    address = ray.get_runtime_context().gcs_address
    return list_tasks(address=address, filters=[("name", "=", "_work")], limit=10_000)


def config_of(**settings):
    return tiny_config(
        "relation_graphs", **{"model": "cldr", "schedule.evaluate_every_steps": 3} | settings
    )


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


@pytest.mark.parametrize(
    "more, message", [("seed=1,2", "want model= only"), ("model=clmr", "clmr")]
)
def test_other_comparisons_are_refused(more, message):
    with pytest.raises(ConfigError, match=message):
        models_of(config_of(), [more])


def test_every_model_is_trained_on_every_fold_to_the_end(tiny_words):
    space = fold_space(config_of(), ("cldr", "clner"), tiny_words)
    folds = range(1, tiny_words.num_folds + 1)
    expected = [
        {"data.fold": fold, "model": model} for fold in folds for model in ("cldr", "clner")
    ]
    assert space.grid() == expected
    assert (space.scheduler.kind, space.budget.max_steps, space.budget.grace_steps) == (
        "none",
        6,
        3,
    )
    assert space.metric in ("val/log_likelihood",)


def test_with_seeds_every_model_is_trained_with_each_on_every_fold(tiny_words):
    space = fold_space(config_of(seed=4), ("cldr", "clner"), tiny_words, 3)
    assert len(space.grid()) == space.budget.num_trials == 2 * tiny_words.num_folds * 3
    assert {settings["seed"] for settings in space.grid()} == {4, 5, 6}
    assert "seed" not in fold_space(config_of(), ("joint",), tiny_words).space


def test_seeds_of_a_fold_are_averaged_in_the_table_and_lie_in_files_of_their_own(
    tiny_words, tmp_path, monkeypatch
):
    run = RunSpec(
        method="relation_graphs",
        config=config_of(),
        store=tiny_words.path,
        name="cv",
        runs=tmp_path,
    )
    spec = SweepSpec(space=fold_space(run.config, ("joint",), tiny_words, 2), run=run)
    trials = []
    for settings in spec.space.grid():
        folder = spec.folder(Trial(settings))
        folder.export.mkdir(parents=True)
        (folder.export / "model.safetensors").write_text(folder.name)
        (folder.export / "words.json").write_text("{}")
        report_start(folder.notices, 0, 5.0)
        MetricsLog(folder.metrics).append(6, {"epoch": 20.0})
        trials.append(TrialRecord(folder.name, settings, "", "finished", best_step=6))
    swept = SweepResult(run.folder, spec, [], trials, None, "")

    def evaluate(tasks, *_, **__):
        for task in tasks:
            if isinstance(task, FoldEvaluation):
                seed = int(task.path.stem[-1])
                task.keep(FoldScores({"ner_f1": (task.fold + seed) / 10}, {}, None))

    monkeypatch.setattr(all_folds, "run_tasks", evaluate)
    monkeypatch.setattr("raybio.runtime.tracking.tracker.add_artifacts", lambda *_: None)
    all_folds._evaluate_together(swept, run, tiny_words, has_last_training=False)
    content = read_record(run.folder.path / "folds.json", "cross-validation")
    folds = range(1, tiny_words.num_folds + 1)
    expected = {str(fold): {"ner_f1": pytest.approx((fold + 0.5) / 10)} for fold in folds}
    assert content["scores"]["joint"] == expected and content["num_seeds"] == 2
    files = {path.name for path in (run.folder.path / "folds").iterdir()}
    assert files == {f"joint-{fold}-{seed}.json" for fold in folds for seed in (0, 1)}
    lines = (run.folder.path / "folds.md").read_text().splitlines()
    assert any(line.startswith(f"cost: {len(trials)} runs, ") for line in lines)
    folders = lines[-2 * len(folds) :]
    assert folders[0].startswith("| joint | 1 | 0 |") and folders[1].startswith("| joint | 1 | 1 |")


def test_epochs_are_the_steps_of_each_model(tiny_words):
    """A step of CLGS is a graph a sentence, one of CLDR a graph a pair: their batches differ."""
    epochs = {
        "schedule.max_epochs": 3,
        "schedule.evaluate_every_epochs": 1,
        "plan.global_batch_rows": None,
    }
    config = config_of(**epochs)
    models = ("cldr", "clgs", "clner")
    space = fold_space(config, models, tiny_words)
    spec = SweepSpec(
        space=space,
        run=RunSpec(
            method="relation_graphs", config=config, store=tiny_words.path, name="f", runs=Path()
        ),
    )
    for settings in space.grid():
        model = settings["model"]
        own = override_all(config, {"model": model, "data.fold": 1})
        expected = METHODS["relation_graphs"].in_steps(own, tiny_words).schedule
        schedule = spec.config(settings).schedule
        assert schedule.max_steps == expected.max_steps
        assert schedule.evaluate_every_steps == expected.evaluate_every_steps
        assert schedule.max_epochs is None
    steps = {spec.config(settings).schedule.max_steps for settings in space.grid()}
    assert len(steps) > 1 and space.budget.max_steps == max(steps)


def test_without_evaluations_no_step_can_be_chosen(tiny_words):
    with pytest.raises(ConfigError, match="evaluate_every_steps above 0"):
        fold_space(config_of(**{"schedule.evaluate_every_steps": 0}), ("joint",), tiny_words)


@pytest.mark.parametrize("name", ["keep_best", "early_stopping_metric"])
def test_another_metric_to_choose_the_step_by_is_refused(name, tiny_words):
    with pytest.raises(
        ConfigError, match=f"schedule.{name} is val/ner_f1, but .* want val/log_likelihood or null"
    ):
        fold_space(config_of(**{f"schedule.{name}": "val/ner_f1"}), ("joint",), tiny_words)
    fold_space(config_of(**{f"schedule.{name}": all_folds.METRIC}), ("joint",), tiny_words)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"options": RunOptions(compute=Compute(workers=2))}, "leave --workers out"),
        (
            {"options": RunOptions(settings=("data.fold=3",))},
            "trains every fold, and data.fold names one",
        ),
    ],
)
def test_what_means_nothing_to_folds_is_refused_at_once(given, message):
    with pytest.raises(ConfigError, match=message):
        cross_validate(
            "relation_graphs",
            given.pop("options", RunOptions()),
            **{"compared": (), "seeds": 1, "has_last_training": False} | given,
        )


def test_a_dry_run_of_all_folds_lists_the_trainings_and_their_time_and_writes_nothing(
    tiny_words, tmp_path, monkeypatch, capsys
):
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump(config_of().to_mapping()))
    monkeypatch.chdir(tmp_path)
    given = RunOptions(store=tiny_words.path, config=config, name="cv")
    cross_validate(
        "relation_graphs", given, compared=(), seeds=1, has_last_training=True, is_dry_run=True
    )
    lines = capsys.readouterr().out.splitlines()
    num_trials = 2 * tiny_words.num_folds
    trials = [line.strip() for line in lines if "data.fold=" in line]
    assert trials[:2] == ["1  data.fold=1, model=cldr", "2  data.fold=1, model=clner"]
    assert len(trials) == num_trials
    assert f"{num_trials} trials of 6 steps at most" in lines
    assert f"is similar to {num_trials} of them" in lines[-2]
    assert lines[-1].startswith("then --last-training trains each model again")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize("device, gpus", [("auto", None), ("cpu", 0), ("gpu", 1)])
def test_trials_of_folds_have_the_device_that_is_given(
    device, gpus, tiny_words, tmp_path, monkeypatch
):
    begun = []

    def train(run, models, num_seeds, *, has_last_training):
        begun.append(run.compute.gpus_per_worker)
        raise ConfigError("nothing is trained here")

    monkeypatch.setattr(all_folds, "train_all_folds", train)
    given = RunOptions(
        store=tiny_words.path, runs=tmp_path / "sweeps", compute=Compute(device=device)
    )
    with pytest.raises(ConfigError, match="nothing is trained here"):
        cross_validate("relation_graphs", given, compared=(), seeds=1, has_last_training=False)
    assert begun == [gpus]


def test_systems_without_folds_do_not_offer_them():
    from raybio.core.fields import fields
    from raybio.runtime.run.options import FOLD

    assert [
        name
        for name, entry in METHODS.items()
        if FOLD in {one.path for one in fields(entry.config)}
    ] == ["relation_graphs"]


def scores_of(entry: FoldEvaluation) -> FoldScores:
    return FoldScores({"ner_f1": entry.fold / 10}, {"num_tag_neighbors": 7}, None)


@pytest.mark.parametrize(
    "models, expected",
    [
        (
            ("cldr", "joint", "clner"),
            {"cldr + clner": "cldr+clner", "joint": "joint+joint"},
        ),
        (("clner",), {"clner": "clner+clner"}),
        (("clner", "clgs"), {"clgs + clner": "clgs+clner"}),
        (("joint", "clner"), {"joint": "joint+joint", "clner": "clner+clner"}),
    ],
)
def test_each_row_has_the_entities_of_its_own_model_and_is_scored_again_after_training(
    tmp_path, monkeypatch, models, expected
):
    read = []

    def counted(path, *args):
        read.append(path)
        return file_digest(path, *args)

    monkeypatch.setattr(digest, "file_digest", counted)
    exports = {
        (model, fold, 0): tmp_path / f"{model}-{fold}" for model in models for fold in (1, 2)
    }
    for (model, fold, _), export in exports.items():
        export.mkdir()
        (export / "model.safetensors").write_text(f"{model} {fold}")
        (export / "words.json").write_text("{}")
    folder = RunFolder(tmp_path, "folds")
    folder.path.mkdir()
    entries = fold_evaluations(folder, None, tmp_path, exports, models)
    assert [(entry.row, entry.fold) for entry in entries] == [
        (row, fold) for row in expected for fold in (1, 2)
    ]
    for entry in entries:
        pair = f"{entry.relations.name[:-2]}+{entry.entities.name[:-2]}"
        assert pair == expected[entry.row]
        assert entry.relations.name[-1] == entry.entities.name[-1] == str(entry.fold)
        assert entry.has_graphs == (not pair.startswith("clner"))
        assert not entry.is_done
    assert read == []
    for entry in entries:
        entry.keep(scores_of(entry))
    assert [entry.known() for entry in entries] == [scores_of(entry) for entry in entries]
    assert len(read) == len(set(read)) > 0
    assert len({entry.path for entry in entries}) == len(entries)
    last = fold_evaluations(folder, None, tmp_path, exports, models, suffix=", last training")
    assert [one.row for one in last] == [f"{one.row}, last training" for one in entries]
    assert not {one.path for one in last} & {one.path for one in entries}
    (exports[models[0], 2, 0] / "model.safetensors").write_text("trained to the end")
    again = {(entry.row, entry.fold) for entry in entries if not entry.is_done}
    assert again and {fold for _, fold in again} == {2}
    (exports[models[0], 1, 0] / "words.json").write_text("scored otherwise")
    assert {entry.fold for entry in entries if not entry.is_done} == {1, 2}


def test_a_row_is_unfinished_if_either_of_its_models_is_on_any_fold(tiny_words, tmp_path):
    models = ("cldr", "joint", "clner")
    run = RunSpec(
        method="relation_graphs", config=config_of(), store=Path("store"), name="cv", runs=tmp_path
    )
    space = fold_space(config_of(), models, tiny_words)
    spec = SweepSpec(space=space, run=run, checks_store=False)
    trials, exports = [], {}
    for settings in space.grid():
        folder = spec.folder(Trial(settings))
        folder.make()
        # The paper trains for at most 20 epochs; only CLNER is short, on the last fold.
        is_short = settings["model"] == "clner" and settings["data.fold"] == tiny_words.num_folds
        MetricsLog(folder.metrics).append(6, {"epoch": 5.0 if is_short else 20.0})
        trials.append(TrialRecord(folder.name, settings, "", "finished", best_step=6))
        exports[settings["model"], settings["data.fold"], 0] = folder.export
    evaluations = fold_evaluations(spec.run.folder, None, tmp_path, exports, models)
    swept = SweepResult(spec.run.folder, spec, [], trials, None, "")
    reason = "5 of 20 published epochs"
    assert all_folds._unfinished_rows(swept, evaluations) == {
        "cldr + clner": reason,
        "cldr + clner, last training": reason,
    }


def test_scores_of_rivals_are_shared_by_sweeps_over_one_encoder(tiny_words, tmp_path):
    config = config_of(**{"encoder.num_layers": 1})

    def evaluations(name: str, **settings) -> list[UntrainedEvaluation]:
        of_sweep = override_all(config, settings)
        folder = RunFolder(tmp_path, name)
        folder.make()
        return untrained_evaluations(folder, tiny_words, of_sweep, [1, 2])

    first, second = evaluations("one")
    assert not first.is_done
    assert first.known() is None
    first.keep(first.work(TrialResources(1.0, 0.0, 1, "")))
    rows = first.known()
    assert list(rows) == ["look-up", "character 2-4-grams", "untuned", "untuned, fixed settings"]
    own = override_all(config, {"data.fold": 1, "evaluation.rivals": True})
    evaluator = relation_graphs.build(own, tiny_words.path).final_evaluate.__self__
    untrained = evaluator.untrained(evaluator.initial_encoder(), SingleProcess())
    table = dict(row for part in untrained for row in part.rows())
    names = {"untuned": "initial - chosen settings", "untuned, fixed settings": "initial"}
    for row, scores in rows.items():
        of_run = table[names.get(row, row)].scores["test"]
        assert scores == pytest.approx({name: one["value"] for name, one in of_run.items()})
    # Another model, schedule and rate have the same rivals, another fold or encoder has others.
    same, _ = evaluations("two", **{"model": "clgs", "schedule.max_steps": 2})
    assert same.is_done and same.known() == rows
    assert not second.is_done
    assert not evaluations("three", seed=1)[0].is_done
    assert not evaluations("four", **{"evaluation.both_orders": True})[0].is_done
    # A sweep keeps its copy: its table stays as it is when the shared scores are removed.
    shutil.rmtree(first.shared.folder)
    assert evaluations("one")[0].known() == rows
    assert evaluations("two")[0].known() == rows
    assert not evaluations("five")[0].is_done


def last_training(tmp_path, name="cldr-1", runs=None, bucket=None, **settings):
    """Of a model on fold 1, for 5 steps; its folder is made."""
    store = SIMULATED_WORDS.prepare(
        tmp_path, WordsConfig(num_sentences=60, num_drugs=6, num_effects=6)
    )
    rule = {"num_pair_neighbors": 3, "num_tag_neighbors": 9, "probe_positive_weight": 4.0}
    config = last_config(config_of(**{"schedule.checkpoint_every_steps": 2} | settings), 5, rule)
    run = RunSpec(
        method="relation_graphs",
        config=config,
        store=store.path,
        name=name,
        runs=runs or tmp_path,
        bucket=bucket,
        tracking="sqlite:///none.db",
        precision="fp32",
    )
    training = LastTraining(run)
    training.open(store.digest)
    return training


def test_a_last_training_has_nothing_left_to_choose(tmp_path):
    choices = {
        "evaluation.num_pair_neighbors": (1, 3),
        "schedule.early_stopping_metric": "val/log_likelihood",
    }
    config = last_training(tmp_path, **choices).run.config
    assert config.data.train_on_validation
    assert (config.schedule.max_steps, config.schedule.evaluate_every_steps) == (5, 0)
    assert config.evaluation.first_settings == (3, 9, 4.0)
    assert not config.evaluation.has_choice


def test_a_last_training_has_the_epochs_of_the_best_step(tiny_words, tmp_path):
    run = RunSpec(
        method="relation_graphs",
        config=config_of(model="joint", precision="fp32", **{"data.validation_share": 0.25}),
        store=tiny_words.path,
        name="cv",
        runs=tmp_path,
        tracking="sqlite:///none.db",
    )
    spec = SweepSpec(space=fold_space(run.config, ("joint",), tiny_words), run=run)
    trials, exports = [], {}
    for settings in spec.space.grid():
        folder = spec.folder(Trial(settings))
        folder.export.mkdir(parents=True)
        (folder.export / "model.safetensors").write_text(folder.name)
        (folder.export / "words.json").write_text("{}")
        trials.append(TrialRecord(folder.name, settings, "", "finished", best_step=60))
        exports["joint", settings["data.fold"], 0] = folder.export
    swept = SweepResult(run.folder, spec, [], trials, None, "sqlite:///none.db")
    evaluations = fold_evaluations(run.folder, None, tiny_words.path, exports, ("joint",))
    rule = {"num_pair_neighbors": 3, "num_tag_neighbors": 9, "probe_positive_weight": 4.0}
    for evaluation in evaluations:
        evaluation.keep(FoldScores({}, rule, None))
    last = all_folds.last_trainings(swept, evaluations, tiny_words)
    assert len(last) == len(trials) > 0
    for trial in trials:
        before = spec.config(trial.settings)
        after = last["joint", trial.settings["data.fold"], 0].run.config
        epochs = [
            config.schedule.max_steps / relation_graphs.steps_per_epoch(config, tiny_words)
            for config in (override_all(before, {"schedule.max_steps": 60}), after)
        ]
        assert after.schedule.max_steps > 60
        assert epochs[1] == pytest.approx(epochs[0], rel=0.01)


@pytest.fixture
def outside_ray(monkeypatch):
    """Of a training that is no Ray task, no node is taken away."""
    monkeypatch.setattr(preemption, "notice_of_this_node", lambda: lambda: False)


def test_a_last_training_learns_from_all_sentences_and_keeps_its_last_weights_after_a_stop(
    tmp_path, outside_ray
):
    place = TrialResources(1.0, 0.0, 1, "")
    whole, stopped = last_training(tmp_path), last_training(tmp_path, "stopped")
    assert not whole.is_done
    whole.work(place)
    assert whole.is_done
    system = relation_graphs.build(whole.run.config, whole.run.store)
    store = open_store(whole.run.store, WordStore)
    both = {
        row for split in ("train", "dev") for row in getattr(read_fold(store, FoldConfig()), split)
    }
    assert set(system.collate.rows.tolist()) == both
    for _ in fit(system, whole.run.config):
        pass
    digest = weights_digest(system.model.state_dict().items())
    assert read_record(whole.folder.outcome, "outcome")["weights_sha256"] == digest
    assert WordModel.load(whole.folder.export, store).config == whole.run.config

    stopped.folder.stop.touch()
    stopped.work(place)
    assert not stopped.is_done
    assert read_record(stopped.folder.outcome, "outcome")["step"] < 5
    stopped.folder.stop.unlink()
    stopped.work(place)
    assert stopped.is_done
    assert read_record(stopped.folder.outcome, "outcome")["weights_sha256"] == digest


def test_a_last_training_by_other_versions_is_reported_and_refused_by_strict(
    tmp_path, monkeypatch, capsys
):
    training = last_training(tmp_path)
    (training.folder.checkpoints / "step-00000002").mkdir(parents=True)
    others = open_run.arithmetic_versions() | {"torch": "9.0"}
    monkeypatch.setattr(open_run, "arithmetic_versions", lambda: others)
    digest = training.folder.data_digest
    strict = LastTraining(replace(training.run, is_strict=True))
    with pytest.raises(OtherVersionsError, match=r"cldr-1 was trained by: torch: .* -> 9\.0"):
        strict.open(digest)
    training.open(digest)
    assert "-> 9.0" in capsys.readouterr().out


def test_a_last_training_does_not_start_from_a_damaged_store(tmp_path, outside_ray):
    training = last_training(tmp_path)
    store = open_store(training.run.store)
    name, _ = max(store.manifest["files"].items(), key=lambda file: file[1]["bytes"])
    flip_a_byte(store.path / name)
    with pytest.raises(StoreError, match=f"{name}: sha256 is"):
        training.work(TrialResources(1.0, 0.0, 1, ""))
    assert not training.is_done


def test_a_last_training_saves_its_steps_when_its_node_will_be_taken_away(tmp_path, monkeypatch):
    monkeypatch.setattr(preemption, "notice_of_this_node", lambda: lambda: True)
    every = {"schedule.checkpoint_every_steps": 1_000, "schedule.keep_checkpoints": 9}
    training = last_training(tmp_path, **every)
    training.work(TrialResources(1.0, 0.0, 1, ""))
    saved = {step_of_checkpoint(path) for path in list_checkpoints(training.folder.checkpoints)}
    assert saved >= {1, 2, 3, 4, 5}


def test_a_last_training_in_a_bucket_resumes_with_an_empty_disk(
    tmp_path, bucket, monkeypatch, outside_ray
):
    monkeypatch.setattr(_Link, "_ask", lambda self, call: call())
    monkeypatch.setattr(mirror, "MIRROR_SECONDS", 0.05)
    monkeypatch.setattr(relay, "POLL_SECONDS", 0.02)
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "disk"))
    place = TrialResources(1.0, 0.0, 1, "")
    whole = last_training(tmp_path)
    whole.work(place)

    class KilledError(Exception):
        """The process ends here."""

    train = task_worker.train_single_process

    def train_until_a_checkpoint_is_there(*arguments, **options):
        for report in train(*arguments, **options):
            if report.step == 3:
                objects = BucketFolder(bucket)
                while not any("/manifest.json" in info.name for info in objects.list()):
                    time.sleep(0.02)
                raise KilledError
            yield report

    def start():
        sweep = RunFolder(spool.spool_of(bucket), "mine")
        with spool.held(sweep, bucket) as held:
            own = last_training(tmp_path, runs=sweep.path / "last", bucket=bucket / "mine" / "last")
            own = replace(
                own,
                lease=held.key,
                relay=Actor(sweep.path / "last", sweep.path),
                start=own.folder.begin_start(),
            )
            own.work(place)
        return own

    with monkeypatch.context() as patch:
        patch.setattr(task_worker, "train_single_process", train_until_a_checkpoint_is_there)
        with pytest.raises(KilledError):
            start()
    shutil.rmtree(tmp_path / "disk")
    resumed = start()
    assert resumed.is_done
    assert first_steps(resumed.folder.notices.read_bytes()) == [0, 2]
    digests = [
        read_record(each.folder.outcome, "outcome")["weights_sha256"] for each in (whole, resumed)
    ]
    assert digests[0] == digests[1]
    kept = json.loads(BucketFolder(resumed.run.bucket).read("cldr-1/outcome.json"))
    assert kept["weights_sha256"] == digests[0]
    # The evaluation fetches it from there.
    assert BucketFolder(resumed.run.bucket).info("cldr-1/export/model.safetensors") is not None


def test_a_damaged_checkpoint_of_a_last_training_is_warned_about_once(
    tmp_path, monkeypatch, capsys, outside_ray
):
    place = TrialResources(1.0, 0.0, 1, "")

    def run_in_this_process(tasks, compute, verbose):
        for task in tasks:
            task.work(place)

    # The driver's part and the training are real; only Ray is not between them.
    monkeypatch.setattr(all_folds, "run_tasks", run_in_this_process)
    stopped = last_training(tmp_path)
    stopped.work(place)
    stopped.folder.outcome.unlink()
    newest = stopped.folder.newest_checkpoint
    flip_a_byte(newest / "model.safetensors")
    capsys.readouterr()
    all_folds._train_last([stopped], stopped.run)
    assert stopped.is_done
    assert f"damaged checkpoint skipped ({newest}" in stopped.folder.notices.read_text()
    assert (
        capsys.readouterr().out.count(f"cldr-1 | warning: damaged checkpoint skipped ({newest}")
        == 1
    )
    all_folds._train_last([stopped], stopped.run)
    assert "warning" not in capsys.readouterr().out


def test_the_folder_of_another_last_training_is_refused(tmp_path):
    begun = last_training(tmp_path)
    (begun.folder.checkpoints / "step-00000002").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="seed"):
        last_training(tmp_path, seed=5)


def test_a_last_training_alone_is_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, JOBS / "relation_graphs.py", "--last-training"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 2 and "--last-training: follows --all-folds" in done.stderr


def first_fold(folder: Path, store: WordStore, export: Path) -> FoldEvaluation:
    """Return the evaluation of an exported joint model on the first fold."""
    return FoldEvaluation(
        sweep=RunFolder(folder, "sweep"),
        bucket=None,
        encoder=None,
        store=store.path,
        data_digest=store.digest,
        row="joint",
        fold=1,
        relations=export,
        entities=export,
        path=folder / "folds" / "joint-1.json",
        has_graphs=True,
    )


def test_a_fold_whose_test_sentences_have_no_graph_has_its_other_scores(tmp_path):
    entities = [("Adverse-Effect", 0, 1), ("Drug", 2, 3)]
    sentences = [([f"effect{n}", "of", f"drug{n}"], entities, [(0, 1)]) for n in range(20)]
    # No relation, so no graph.
    sentences.append((["nothing", "was", "given"], [("Drug", 2, 3)], []))
    files = [write_sentences(tmp_path / "sentences.json", sentences)]
    ids = [str(number) for number in range(len(sentences))]
    folds = {"split_1": {"train set": ids[:-1], "test set": ids[-1:]}}
    (tmp_path / "folds.json").write_text(json.dumps(folds))
    store = prepare_words(tmp_path / "words", files, splits=tmp_path / "folds.json")
    system = relation_graphs.build(config_of(model="joint"), store.path)
    export = system.export(tmp_path / "export", {"name": "x"})
    evaluation = first_fold(tmp_path, store, export)
    found = evaluation.work(TrialResources(1.0, 0.0, 1, ""))
    assert "graph_accuracy" not in found.scores and "ner_f1" in found.scores


@pytest.mark.nightly
def test_scores_are_reported_in_its_own_words_and_what_was_done_before_is_kept(
    ray_cluster, tmp_path
):
    store = SIMULATED_WORDS.prepare(
        tmp_path, WordsConfig(num_sentences=60, num_drugs=6, num_effects=6)
    )
    config = config_of(**{"model": "joint"})
    good = relation_graphs.build(config, store.path)
    export = good.export(tmp_path / "export", {"name": "x"})
    done = first_fold(tmp_path, store, export)
    place = TrialResources(1.0, 0.0, 1, "")
    run_tasks_here([done], place)
    chosen, fixed = evaluate_exports_twice(export, export, store.path)
    expected = dict(chosen.values)
    expected["graph_accuracy"] = validate_graphs_of_export(export, store.path).accuracy_S.mean()
    found = done.known()
    assert found and found.scores == pytest.approx(expected)
    assert found.rule == chosen.settings._asdict()
    assert fixed and found.fixed_scores == pytest.approx(fixed.values)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(StoreError, match=r"nothing/.*: cannot be read"):
        replace(done, entities=tmp_path / "nothing").known()
    earlier = {task.task_id for task in list_work()}
    with pytest.raises(
        ConfigError, match="has no .*; want the export/ of a run of relation_graphs"
    ):
        others = [
            replace(done, path=tmp_path / "folds" / f"joint-{fold}.json") for fold in range(2, 8)
        ]
        run_tasks_here([replace(done, entities=tmp_path / "nothing"), *others], place)
    assert done.is_done
    for _ in range(3_000):  # until all are told of, and none of them waits or works
        states = [task.state for task in list_work() if task.task_id not in earlier]
        if set(states) <= {"FINISHED", "FAILED"} and len(states) == 1 + len(others):
            break
        time.sleep(0.1)
    assert len(states) == 1 + len(others) and states.count("FINISHED") < len(others), states


def test_a_machine_without_the_sweeps_folder_fetches_the_exports_from_its_bucket(
    tmp_path, bucket, monkeypatch
):
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    store = SIMULATED_WORDS.prepare(
        tmp_path, WordsConfig(num_sentences=60, num_drugs=6, num_effects=6)
    )
    sweep = RunFolder(tmp_path / "sweeps", "mine")
    export = sweep.path / "trials" / "trial-1" / "export"
    relation_graphs.build(config_of(**{"model": "joint"}), store.path).export(export, {"name": "x"})
    here = FoldEvaluation(
        sweep=sweep,
        bucket=None,
        encoder=None,
        store=store.path,
        data_digest=store.digest,
        row="joint",
        fold=1,
        relations=export,
        entities=export,
        path=tmp_path / "joint-1.json",
        has_graphs=False,
    )
    reserved = TrialResources(1.0, 0.0, 1, "")
    expected = here.work(reserved)
    in_bucket = BucketFolder(bucket / "sweeps" / "mine")
    for path in export.rglob("*"):
        if path.is_file():
            in_bucket.upload(path, path.relative_to(sweep.path).as_posix())
    shutil.rmtree(sweep.path)
    there = replace(here, bucket=in_bucket.path)
    assert there.work(reserved) == expected
