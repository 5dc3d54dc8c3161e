"""What every system must do, on a tiny store, whatever its method."""

import json
import math
import shutil
import signal
from collections import Counter
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import raybio
from raybio.core.config import BaseConfig, value_at
from raybio.core.digest import weights_digest
from raybio.core.errors import ConfigError
from raybio.core.fields import fields
from raybio.core.final_report import FinalReport, SplitScores
from raybio.core.interfaces import Collective, System
from raybio.core.search_space_file import load_search_space
from raybio.encoders.checkpoints import check_source
from raybio.evaluation.evaluator import Evaluator
from raybio.ops.embedding_geometry import EFFECTIVE_RANK, MEAN_COSINE
from raybio.runtime.compare.table import ResultTable
from raybio.runtime.run import run_loop
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.notices import read_starts
from raybio.runtime.run.options import RunOptions, resolve
from raybio.runtime.run.spec import Compute, RunSpec
from raybio.store.store import Store
from raybio.training.checkpoint import CheckpointStore
from raybio.training.collective import SingleProcess
from raybio.training.grad_cache import compute_gradients
from raybio.training.gradient_sum import GradientSum
from raybio.training.loop import Report, fit
from raybio.training.micro_batches import reads_packed
from raybio.training.precision import Precision
from raybio.training.settings import TrainingConfig
from raybio.training.step import TrainStep
from tests import golden
from tests.device_operations import DeviceOperations
from tests.methods.conformance_cases import CASES, METHODS, SHIPPED, tiny_config
from tests.methods.killed_training import train_and_be_killed
from tests.paths import ROOT
from tests.training.workers import forkserver, run_workers
from tests.whole_runs import cut, flip_a_byte, open_run, train_here

CONTRASTIVE_LOSSES = {
    "biostransformers": ["ranking"],
    "contrastive_probe": ["cloze"],
    "mtb_pretrain": ["relation", "self"],
    "relation_finetune": ["supcon"],
    "relation_graphs": ["graph", "tag"],
    "sppt_protein": ["spml"],
    "sppt_info_nce": ["info_nce"],
    "sppt_mag": ["spml"],
    "sppt_synthetic": ["spml"],
}
"""Terms of the loss whose value for equal embeddings says how many candidates there are."""

CLASSIFIERS = {"finetune": ["task"]}
"""Terms of the loss whose chance level is the loss of the best constant prediction."""

RIVALS = {
    "sppt_protein": ["degree", "common neighbors", "3-mers", "look-up", "composition"],
    "sppt_info_nce": ["degree", "common neighbors", "3-mers", "look-up", "composition"],
    "sppt_mag": ["degree", "common neighbors", "TF-IDF", "look-up"],
    "sppt_synthetic": ["character 2-4-grams"],
    "finetune": [
        f"{model} on {features}"
        for features in ("1-3-mers", "frozen encoder")
        for model in ("ridge", "kNN")
    ],
    "biostransformers": ["frequent terms", "TF-IDF", "BM25", "nearest articles"],
    "contrastive_probe": ["character 2-4-grams", "oracle prior"],
    "mtb_pretrain": ["entity types", "TF-IDF"],
    "relation_finetune": ["softmax on frozen encoder", "ridge on TF-IDF"],
    "relation_graphs": ["look-up", "character 2-4-grams", "initial - chosen settings"],
}
"""Rows of ``Evaluator.rivals``."""

CPU = torch.device("cpu")

WITH_ENCODER = {"finetune", "relation_finetune", "relation_graphs"}
"""Methods with a rival that reads the initial encoder, whose weights the seed draws."""


@pytest.fixture(scope="module", params=list(METHODS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def store(request: pytest.FixtureRequest, name: str) -> Store:
    return request.getfixturevalue(CASES[name].store)


def gradients(
    system: System, collective: Collective, step: int, **memory: object
) -> dict[str, torch.Tensor]:
    batch = system.batch_type.from_arrays(system.collate(step, collective.rank, collective.world))
    settings = {"max_tokens": 256, "gradient_caching": False} | memory
    system.model.double().train()  # so that only a wrong formula, and no rounding, can be seen
    compute_gradients(
        system,
        batch,
        collective,
        precision=Precision("fp32", "cpu"),
        seed_of=lambda number: number,
        gradients=GradientSum(system.model.parameters(), collective),
        **settings,
    )
    return {
        key: parameter.grad.clone()
        for key, parameter in system.model.named_parameters()
        if parameter.grad is not None
    }


def assert_equal_gradients(
    ours: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]
) -> None:
    assert ours.keys() == expected.keys()
    for key, gradient in expected.items():
        torch.testing.assert_close(
            ours[key], gradient, rtol=1e-5, atol=1e-9, msg=lambda text, key=key: f"{key}: {text}"
        )


def test_every_system_is_put_to_the_test() -> None:
    assert CASES.keys() == METHODS.keys()


def test_the_configuration_survives_a_round_trip(name: str) -> None:
    for config in (METHODS[name].config(), METHODS[name].demo):
        assert METHODS[name].config.from_mapping(config.to_mapping()) == config
        assert isinstance(config, BaseConfig)


def test_epochs_are_the_steps_of_the_system_and_training_ends_there(
    name: str, store: Store, tmp_path: Path
) -> None:
    """The driver counts them without the model, the loop with it."""
    epochs = {"schedule.max_epochs": 1.5, "optim.schedule": "constant"}
    config = tiny_config(name, **epochs)
    system = METHODS[name].build(config, store.path)
    in_steps = METHODS[name].in_steps(config, store).schedule
    assert in_steps.max_steps == math.ceil(1.5 * system.steps_per_epoch - 1e-6)
    every = METHODS[name].in_steps(
        tiny_config(name, **{"schedule.evaluate_every_epochs": 0.5}), store
    )
    assert every.schedule.evaluate_every_steps == max(1, round(0.5 * system.steps_per_epoch))
    first = next(iter(fit(system, config)))
    assert first.step == 1
    *_, last = fit(system, config) if in_steps.max_steps < 40 else [None]
    assert last is None or (last.step, last.reason) == (in_steps.max_steps, "finished")


def test_a_source_that_is_not_there_is_refused_before_anything_is_loaded(
    name: str, store: Store
) -> None:
    METHODS[name].check(tiny_config(name), store)
    with pytest.raises(ConfigError, match="encoder.source './nowhere': no such folder"):
        METHODS[name].check(tiny_config(name, **{"encoder.source": "./nowhere"}), store)


@pytest.mark.nightly
def test_it_overfits_a_tiny_store(name: str, store: Store) -> None:
    config = tiny_config(name, **CASES[name].overfit)
    system = METHODS[name].build(config, store.path)
    reports = list(fit(system, config))
    losses = [report.metrics["loss"] for report in reports if "loss" in report.metrics]
    # One step's loss depends on its batch.
    assert np.mean(losses[-20:]) < 0.65 * losses[0]
    split, score = CASES[name].learned
    scored = {who: row[split][score]["value"] for who, row in final_scores(system).items()}
    assert scored["trained"] > max(0.9, 1.5 * scored["initial"]), scored


def test_an_evaluation_and_an_export_leave_the_training_alone(
    name: str, store: Store, tmp_path: Path
) -> None:
    system = METHODS[name].build(tiny_config(name), store.path)
    trained = dict(system.model.named_parameters())
    for step in (0.1, 0.2):  # what is remembered of a better evaluation stays where it is
        system.evaluate(system.model, SingleProcess())
        with torch.no_grad():
            for weight in trained.values():
                weight.add_(step)
    before = {key: weight.detach().clone() for key, weight in trained.items()}
    system.evaluate(system.model, SingleProcess())
    system.export(tmp_path / "export", {})
    assert all(torch.equal(weight, before[key]) for key, weight in system.model.named_parameters())


def test_an_export_whose_weights_are_damaged_is_refused(
    name: str, store: Store, tmp_path: Path
) -> None:
    system = METHODS[name].build(tiny_config(name), store.path)
    export = tmp_path / "export"
    system.export(export, {})
    weights = sorted(export.rglob("*.safetensors"))
    assert weights
    check_source(str(export), "main")
    for path in weights:
        content = path.read_bytes()
        flip_a_byte(path)
        model = raybio.load(export)
        for read in (model.load_weights, lambda: check_source(str(export), "main")):
            with pytest.raises(ConfigError, match=f"{path.name}: sha256 is .* damaged or changed"):
                read()
        path.unlink()
        with pytest.raises(ConfigError, match=f"{path.name}: there is no such file"):
            check_source(str(export), "main")
        path.write_bytes(content)
    raybio.load(export).load_weights()


@pytest.fixture(scope="module")
def final(name: str, store: Store) -> FinalReport:
    """The final evaluation of a model that was not trained."""
    system = METHODS[name].build(tiny_config(name), store.path)
    return system.final_evaluate(system.model, SingleProcess())


def test_the_units_of_the_final_evaluation_have_its_scores(name: str, final: FinalReport) -> None:
    measures = METHODS[name].table.measures.keys()
    assert final.unit_scores["trained"].keys() == final.scores["trained"].keys()
    # "samples" are of models only; a rival may have one direction of the trained model's two.
    assert final.unit_scores.keys() == final.scores.keys() - {"chance"}
    for stage, units_by_split in final.unit_scores.items():
        assert units_by_split.keys() == final.scores[stage].keys(), stage
    for stage, units_by_split in final.unit_scores.items():
        for split, units in units_by_split.items():
            scores = final.scores[stage][split]
            assert units.value_by_measure.keys() == scores.keys() >= measures
            of_trained = final.unit_scores["trained"][split].unit_U
            assert units.unit_U.tolist() == of_trained.tolist()
            assert len(set(units.unit_U.tolist())) == len(units.unit_U) > 1
            for measure in units.value_by_measure:
                where = (stage, split, measure)
                counts = units.counts(measure)
                assert counts.num_units == len(units.unit_U), where
                assert counts.value == pytest.approx(scores[measure]["value"]), where


def test_a_sweep_over_it_is_shipped_and_decides_by_a_metric_that_it_logs(
    name: str, store: Store
) -> None:
    configs = {key: entry.config for key, entry in METHODS.items()}
    files = [
        *(ROOT / "search_spaces").glob("*.yaml"),
        ROOT / "tests/example_method/search_space.yaml",
    ]
    spaces = [load_search_space(path, configs) for path in sorted(files)]
    spaces = [space for space in spaces if space.method == name]
    assert spaces
    system = METHODS[name].build(tiny_config(name), store.path)
    logged = system.evaluate(system.model, SingleProcess())
    assert {space.metric for space in spaces} <= logged.keys()
    for space in spaces:  # on the built-in corpus too
        demo = METHODS[name].demo
        for path, distribution in space.space.items():
            if len(distribution.values) > 1 and distribution.applies(
                {other: value_at(demo, other) for other in distribution.when}
            ):
                assert value_at(demo, path) in distribution, path
    assert set(METHODS[name].step_metrics) & logged.keys()


def final_scores(system: System) -> dict[str, Any]:
    return system.final_evaluate(system.model, SingleProcess()).scores


def evaluator_of(name: str, store: str | Path, **settings: object) -> Evaluator:
    evaluate = METHODS[name].build(tiny_config(name, **settings), store).final_evaluate
    return evaluate.__self__


def values_of(scores: SplitScores) -> dict[tuple[str, str], float]:
    return {
        (split, measure): score["value"]
        for split, of_split in scores.items()
        for measure, score in of_split.items()
    }


@pytest.mark.first_tier(*(METHODS.keys() - {"relation_graphs"}))
def test_a_run_has_the_rows_of_its_rivals_and_they_depend_on_no_seed(
    name: str, store: Store
) -> None:
    rows = dict(evaluator_of(name, store.path).rivals(CPU, SingleProcess()))
    assert list(rows) == RIVALS[name]
    other = {"optim.peak_lr": 0.5} if name in WITH_ENCODER else {"seed": 7}
    for rival, row in evaluator_of(name, store.path, **other).rivals(CPU, SingleProcess()):
        if name == "sppt_synthetic":  # whose intervals are drawn by the run's seed
            assert values_of(row.scores) == values_of(rows[rival].scores), rival
        else:
            assert row.scores == rows[rival].scores, rival
    for row in rows.values():
        for of_split in row.scores.values():
            for score in of_split.values():
                assert score["low"] <= score["value"] <= score["high"], (rival, score)
    setting = "evaluation.rivals"
    if any(field.path == setting for field in fields(METHODS[name].config)):
        without = evaluator_of(name, store.path, **{setting: False})
        assert list(without.rivals(CPU, SingleProcess())) == []


def check_rivals(rank: int, collective: Collective, folder: Path, name: str, store: str) -> None:
    evaluator = evaluator_of(name, store)
    shared = dict(evaluator.rivals(CPU, collective))
    for rival, alone in evaluator.rivals(CPU, SingleProcess()):
        for split, of_split in alone.scores.items():
            for measure, score in of_split.items():
                assert shared[rival].scores[split][measure] == score, (rank, rival, split)
        assert shared[rival].details == alone.details, (rank, rival)


@pytest.mark.nightly
# The rivals of sppt_info_nce are those of sppt_protein.
@pytest.mark.parametrize("method", [method for method in RIVALS if method != "sppt_info_nce"])
def test_every_worker_computes_the_rivals_of_one(
    method: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store = request.getfixturevalue(CASES[method].store)
    run_workers(partial(check_rivals, name=method, store=str(store.path)), 2, tmp_path)


def test_gradient_caching_gives_the_gradient_of_the_plain_step_with_dropout_on(
    name: str, store: Store
) -> None:
    config = tiny_config(name, **{"encoder.dropout": 0.2})
    system = METHODS[name].build(config, store.path)
    plain = gradients(system, SingleProcess(), 1)
    system.model.zero_grad(set_to_none=True)
    cached = gradients(system, SingleProcess(), 1, gradient_caching=True)
    assert_equal_gradients(cached, plain)


def test_the_size_of_micro_batches_does_not_change_the_gradient(name: str, store: Store) -> None:
    system = METHODS[name].build(tiny_config(name), store.path)
    small = gradients(system, SingleProcess(), 2, max_tokens=80)
    system.model.zero_grad(set_to_none=True)
    assert_equal_gradients(small, gradients(system, SingleProcess(), 2, max_tokens=100_000))


def uneven_rows(name: str) -> int:
    """Rows of a step that two workers cannot share evenly; MTB's are couples, of which some overlap."""
    return 12 if name == "mtb_pretrain" else 11


def save_gradients(rank: int, collective: Collective, folder: Path, name: str, store: str) -> None:
    system = METHODS[name].build(
        tiny_config(name, **{"plan.global_batch_rows": uneven_rows(name)}), store
    )
    found = gradients(system, collective, 3, gradient_caching=True, max_tokens=100)
    save_file(found, folder / f"{rank}.safetensors")
    alone = device_reads(name, store, SingleProcess())
    among_two = device_reads(name, store, collective)
    assert among_two <= alone, (among_two, alone)


def device_reads(name: str, store: str, collective: Collective) -> Counter[str]:
    """Count what makes the host wait for a GPU in a run of two steps."""
    config = tiny_config(name, **{"memory.packing": True, "schedule.max_steps": 2})
    system = METHODS[name].build(config, store)
    with DeviceOperations() as operations:
        list(fit(system, config, collective=collective))
    return operations.synchronizing


@pytest.mark.first_tier("sppt_protein", "mtb_pretrain")
def test_two_workers_give_the_gradient_of_one_with_the_whole_batch_and_wait_for_no_gpu_more_often(
    name: str, store: Store, tmp_path: Path
) -> None:
    system = METHODS[name].build(
        tiny_config(name, **{"plan.global_batch_rows": uneven_rows(name)}), store.path
    )
    alone = gradients(system, SingleProcess(), 3)
    run_workers(partial(save_gradients, name=name, store=str(store.path)), 2, tmp_path)
    for rank in range(2):
        assert_equal_gradients(load_file(tmp_path / f"{rank}.safetensors"), alone)


def save_gradients_of_few(
    rank: int, collective: Collective, folder: Path, name: str, store: str
) -> None:
    system = METHODS[name].build(tiny_config(name, **{"plan.global_batch_rows": 2}), store)
    save_file(gradients(system, collective, 3), folder / f"{rank}.safetensors")


@pytest.mark.first_tier("biostransformers")
def test_a_worker_without_rows_has_the_gradient_of_one_with_the_whole_batch(
    name: str, store: Store, tmp_path: Path
) -> None:
    system = METHODS[name].build(tiny_config(name, **{"plan.global_batch_rows": 2}), store.path)
    alone = gradients(system, SingleProcess(), 3)
    run_workers(partial(save_gradients_of_few, name=name, store=str(store.path)), 3, tmp_path)
    for rank in range(3):
        assert_equal_gradients(load_file(tmp_path / f"{rank}.safetensors"), alone)


class Ended(NamedTuple):
    """What a run leaves behind.

    Attributes:
        best: digest of the best weights, which the model has at the end.
        newest: digest of the weights of the newest checkpoint.
        reports: all reports.
    """

    best: str
    newest: str
    reports: list[Report]


def walk(name: str, config: TrainingConfig, store: Path, folder: Path) -> Ended:
    """Train into ``folder``, from the newest checkpoint there."""
    system = METHODS[name].build(config, store)
    checkpoints = CheckpointStore(folder)
    reports = list(fit(system, config, checkpoints=checkpoints))
    newest = checkpoints.latest()
    assert newest is not None
    digest = weights_digest(newest.model_tensors().items())
    return Ended(weights_digest(system.model.state_dict().items()), digest, reports)


@pytest.fixture(scope="module")
def resumed(name: str, store: Store) -> TrainingConfig:
    """Six steps with an evaluation every two, given in epochs; the best weights are kept.

    Runs are resumed with the default precision: bf16 on machines that have it.
    """
    settings = {"encoder.dropout": 0.1, "precision": "auto"}
    steps_per_epoch = METHODS[name].build(tiny_config(name, **settings), store.path).steps_per_epoch
    return tiny_config(
        name,
        **settings,
        **{
            "schedule.max_epochs": 6 / steps_per_epoch,
            "schedule.evaluate_every_epochs": 2 / steps_per_epoch,
            "schedule.keep_best": METHODS[name].step_metrics[0],
        },
    )


@pytest.fixture(scope="module")
def unbroken(
    name: str, store: Store, resumed: TrainingConfig, tmp_path_factory: pytest.TempPathFactory
) -> Ended:
    return walk(name, resumed, store.path, tmp_path_factory.mktemp("unbroken"))


@pytest.mark.first_tier("sppt_protein")
def test_a_killed_run_given_again_ends_with_bit_identical_best_and_last_weights(
    name: str, store: Store, resumed: TrainingConfig, unbroken: Ended, tmp_path: Path
) -> None:
    """The schedule is in epochs, and the best weights are kept."""
    killed_at = 5  # after a step that no checkpoint holds
    process = forkserver().Process(
        target=train_and_be_killed,
        args=(name, resumed, store.path, tmp_path, killed_at, torch.get_num_threads()),
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert_resumes(name, resumed, store, tmp_path, unbroken, killed_at)


@pytest.mark.first_tier("sppt_protein")
@pytest.mark.parametrize("left_at", [1, 2])
def test_a_run_left_at_any_step_and_given_again_ends_with_bit_identical_weights(
    name: str,
    store: Store,
    resumed: TrainingConfig,
    unbroken: Ended,
    tmp_path: Path,
    left_at: int,
) -> None:
    """Left as a killed process leaves it, without closing anything, before or at a checkpoint."""
    system = METHODS[name].build(resumed, store.path)
    checkpoints = CheckpointStore(tmp_path)
    for report in fit(system, resumed, checkpoints=checkpoints):
        if report.step == left_at:
            break
    checkpoints.wait()
    assert_resumes(name, resumed, store, tmp_path, unbroken, left_at)


def assert_resumes(
    name: str, config: TrainingConfig, store: Store, folder: Path, unbroken: Ended, left_at: int
) -> None:
    """Check that the run in a folder ends as the unbroken one, without the steps it has saved."""
    again = walk(name, config, store.path, folder)
    assert (again.best, again.newest) == (unbroken.best, unbroken.newest)
    last, expected = again.reports[-1], unbroken.reports[-1]
    assert (last.step, last.reason, last.best_step) == (6, "finished", expected.best_step)
    metrics = {report.step: _but_rates(report) for report in unbroken.reports}
    assert metrics.keys() == set(range(7))
    for report in again.reports:
        # Steps that a checkpoint holds are not taken again.
        assert report.step == 0 or report.step > left_at // 2 * 2 - 2
        assert _but_rates(report) == metrics[report.step]


@pytest.mark.first_tier("sppt_protein", "contrastive_probe")
@pytest.mark.parametrize("method", SHIPPED)
def test_a_run_whose_record_or_newest_checkpoint_was_damaged_ends_with_the_weights_of_the_unbroken_run(
    method: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that gives the run's name alone continues it."""
    # The stop file is looked at after every step.
    monkeypatch.setattr(run_loop, "STOP_POLL_SECONDS", 0.0)
    spec = RunSpec(
        method=method,
        config=tiny_config(method),
        store=request.getfixturevalue(CASES[method].store).path,
        name="unbroken",
        runs=tmp_path / "runs",
        compute=Compute(threads_per_worker=torch.get_num_threads(), device="cpu"),
    )
    open_run(spec)
    unbroken = train_here(spec)
    damaged = replace(spec, name="damaged")
    folder = RunFolder(damaged.runs, damaged.name)
    open_run(damaged)
    assert train_here(damaged, stop_at=2)["step"] == 3
    half = Path(shutil.copytree(folder.path, tmp_path / "half"))
    newest = folder.newest_checkpoint
    damages = {
        (folder.identity, cut(5)): 3,
        **{(path, flip_a_byte): 2 for path in newest.iterdir()},
    }
    for (path, damage), first_step in damages.items():
        shutil.rmtree(folder.path)
        shutil.copytree(half, folder.path)
        damage(path)
        again = resolve(method, RunOptions(name=damaged.name, runs=damaged.runs))
        assert (again.config, again.store) == (damaged.config, damaged.store), path
        open_run(again)
        outcome = train_here(again)
        assert read_starts(folder.notices)[-1]["first_step"] == first_step, path
        assert outcome["weights_sha256"] == unbroken["weights_sha256"], path


def _but_rates(report: Report) -> dict[str, str]:
    """Return the metrics that are no speed; as text, since NaN equals itself there."""
    return {name: repr(value) for name, value in report.metrics.items() if "second" not in name}


@pytest.mark.first_tier(*(METHODS.keys() - {"relation_graphs"}))
def test_a_constant_encoder_scores_what_ties_give_and_random_vectors_are_near_chance(
    name: str, store: Store
) -> None:
    system = METHODS[name].build(tiny_config(name), store.path)
    with torch.no_grad():
        for parameter in system.model.parameters():
            parameter.zero_()
    scored = final_scores(system)
    split, score, value = CASES[name].constant
    assert scored["trained"][split][score]["value"] == pytest.approx(value(store), rel=1e-6)
    if "random" in scored:
        assert scored["random"][split][score]["value"] == pytest.approx(value(store), rel=0.5)


@pytest.mark.parametrize("world", [2, 3, 5])
def test_the_workers_of_a_step_share_its_sequences(name: str, store: Store, world: int) -> None:
    system = METHODS[name].build(tiny_config(name), store.path)

    def sequences(rank: int, world: int) -> list[bytes]:
        arrays = system.collate(1, rank, world)
        tokens = np.split(arrays["token_T"], arrays["indptr_R1"][1:-1])
        return [text.tobytes() for text in tokens if len(text)]

    shared = [sequences(rank, world) for rank in range(world)]
    assert sorted(sum(shared, [])) == sorted(sequences(0, 1))


def test_equal_embeddings_have_the_loss_that_is_logged_as_chance(name: str, store: Store) -> None:
    changes = {"objective.kind": "supcon"} if name == "relation_finetune" else {}
    system = METHODS[name].build(tiny_config(name, **changes), store.path)
    batch = system.batch_type.from_arrays(system.collate(1, 0, 1))
    # Zero vectors have equal cosines with everything, also with what else the loss compares them with. The graph losses
    # of SPPT depend on the similarity itself, and compare the embeddings with each other alone.
    make = torch.ones if "spml" in CONTRASTIVE_LOSSES.get(name, ()) else torch.zeros
    embedding_RD = make(batch.num_embeddings, system.model.width)
    terms = system.objective.embedding_loss(embedding_RD, batch, SingleProcess()).terms
    chances = {key: float(value) for key, value in terms.items() if key.endswith("_chance")}
    for loss in CLASSIFIERS.get(name, ()):
        # A classifier that does not predict the shares of the labels has another loss.
        assert chances.pop(f"{loss}_chance") > 0
    assert chances.keys() == {f"{loss}_chance" for loss in CONTRASTIVE_LOSSES.get(name, ())}
    for key, chance in chances.items():
        assert chance > 0
        assert chance == pytest.approx(float(terms[key.replace("_chance", "_loss")]), rel=1e-5)


def test_evaluations_and_the_final_report_hold_the_spread_of_the_embeddings(
    name: str, store: Store, final: FinalReport
) -> None:
    system = METHODS[name].build(tiny_config(name), store.path)
    logged = system.evaluate(system.model, SingleProcess())
    assert -1 <= logged[MEAN_COSINE] <= 1 + 1e-9
    assert 1 <= logged[EFFECTIVE_RANK] <= system.model.width
    assert final.spread.keys() == {"initial", "trained"}
    assert all(one.keys() == {MEAN_COSINE, EFFECTIVE_RANK} for one in final.spread.values())


def test_the_final_table_has_a_chance_row_whatever_the_encoder(
    name: str, final: FinalReport
) -> None:
    scores = final.scores
    assert next(iter(scores)) == "chance"
    assert scores["chance"].keys() == scores["trained"].keys()
    for split, of_split in scores["chance"].items():
        assert of_split.keys() >= METHODS[name].table.measures.keys(), split
        assert all(
            score.keys() == {"value"} and 0 <= score["value"] <= 1 for score in of_split.values()
        )
    of_random = scores.get("random", {}).get("train", {})
    for measure in METHODS[name].table.measures if of_random else ():
        # One draw of vectors. Held-out links and the first few candidates of a tiny store are too few to be compared.
        assert of_random[measure]["value"] == pytest.approx(
            scores["chance"]["train"][measure]["value"], rel=0.2
        ), measure
    table = ResultTable(scores, METHODS[name].table)
    header, body = table.cells(table.splits[0])
    assert body[0][0] == "chance"
    assert not any("[" in cell for cell in body[0])
    assert f"; chance: {METHODS[name].table.chance}" in table.legend


def test_the_defaults_that_help_shows_are_those_that_training_has(name: str) -> None:
    config = METHODS[name].config()
    shown = {field.path: field.default for field in fields(type(config))}
    own = {path: reduce(getattr, path.split("."), config) for path in shown}
    own |= {path: list(value) for path, value in own.items() if isinstance(value, tuple)}
    assert shown == {path: "null" if value is None else str(value) for path, value in own.items()}


@pytest.mark.slow
@pytest.mark.first_tier("sppt_protein", "contrastive_probe")
@pytest.mark.parametrize("method", SHIPPED)
def test_the_demo_gives_the_recorded_weights_losses_and_scores(method: str, tmp_path: Path) -> None:
    record = json.loads(golden.DEMOS.read_text())
    expected = record["demos"][method]
    got = golden.train_demo(method, tmp_path)
    if record["build"] == golden.build_of_torch():
        assert list(golden.differences(expected, got)) == []
    else:
        # Another kind of CPU has other last digits.
        assert got["losses"] == pytest.approx(expected["losses"], rel=0.05)
        assert got["scores"].keys() == expected["scores"].keys()


def test_a_golden_record_notices_a_changed_number_and_a_missing_score() -> None:
    record = {"losses": [1.0, float("nan")], "scores": {"lrap": 0.5}}
    assert list(golden.differences(record, {**record, "losses": [1.0, float("nan")]})) == []
    assert len(list(golden.differences(record, {**record, "losses": [1.0 + 1e-8, 0.0]}))) == 2
    assert list(golden.differences(record, {**record, "scores": {}})) == [
        "/scores/lrap: only in the record"
    ]


def test_packing_does_not_change_the_gradient(name: str, store: Store) -> None:
    system = METHODS[name].build(tiny_config(name), store.path)
    system.model.packing = False
    padded = gradients(system, SingleProcess(), 2)
    for memory in ({}, {"gradient_caching": True, "max_tokens": 150}):
        system.model.zero_grad(set_to_none=True)
        system.model.packing = True
        packed = gradients(system, SingleProcess(), 2, **memory)
        assert packed.keys() == padded.keys()
        for key, gradient in padded.items():
            # Equal to rounding: ESM's rotary positions and SPMM's features are float32.
            torch.testing.assert_close(packed[key], gradient, rtol=1e-5, atol=1e-9, msg=key)
    assert reads_packed(system.model, torch.device("cpu"))


def test_a_packed_step_does_not_make_the_host_wait_for_a_gpu(name: str, store: Store) -> None:
    """Reading the metrics is the only read."""
    for memory in ({}, {"memory.max_tokens_per_micro_batch": 300, "memory.gradient_caching": True}):
        config = tiny_config(name, **{"memory.packing": True} | memory)
        system = METHODS[name].build(config, store.path)
        step = TrainStep(system, config, SingleProcess(), Precision("fp32", "cpu"))
        batches = [
            system.batch_type.from_arrays(system.collate(number, 0, 1)) for number in range(2)
        ]
        step(0, batches[0])
        with DeviceOperations() as operations:
            launched = step.launch(1, batches[1])
        assert not operations.synchronizing
        with DeviceOperations() as operations:
            launched.read()
        assert operations.synchronizing == {"tolist": 1}
