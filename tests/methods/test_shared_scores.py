"""Scores of untrained models that runs share, on a tiny store of each method."""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from raybio.core.config import override
from raybio.core.errors import ConfigError, EvaluationStoppedError
from raybio.core.fields import fields
from raybio.core.final_report import FinalReport
from raybio.core.interfaces import System
from raybio.core.shared_scores import Identity, SharedScores
from raybio.encoders.export_files import EXPORT_FILES
from raybio.evaluation.evaluator import Evaluator, Untrained
from raybio.methods import METHODS
from raybio.runtime.run import shared_scores as module
from raybio.runtime.run.folder import SHARED_SCORES, RunFolder
from raybio.runtime.run.shared_scores import shared_scores
from raybio.store.store import Store
from raybio.training.collective import ProcessGroup, SingleProcess
from raybio.training.settings import TrainingConfig
from tests.methods.conformance_cases import CASES, tiny_config
from tests.training.workers import run_workers

OTHER_EVALUATION = {
    "sppt_protein": {"evaluation.metric": "cosine"},
    "sppt_mag": {"evaluation.rivals": False},
    "sppt_synthetic": {"graph.num_nodes": 42},
    "finetune": {"encoder.head": "mlp"},
    "biostransformers": {"text.max_characters": 20},
    "contrastive_probe": {"evaluation.metric": "cosine"},
    "mtb_pretrain": {"evaluation.num_pairs": 3},
    "relation_finetune": {"evaluation.num_neighbors": [3]},
    "relation_graphs": {"evaluation.num_pair_neighbors": [3]},
}
"""A setting of each method that changes what is evaluated, or how."""

OTHER_LENGTH = {
    "sppt_protein": {"input.max_length": 16},
    "sppt_mag": {"encoder.max_length": 16},
}
"""A setting of what an encoder reads, where rivals read its tokens."""

HEADS_DIFFER = {"relation_finetune"}
"""Methods whose initial encoder has a head that settings of the loss decide."""

# Links, retrieval and answers.
pytestmark = pytest.mark.first_tier("sppt_protein", "biostransformers", "contrastive_probe")


@pytest.fixture(scope="module", params=list(METHODS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def store(request: pytest.FixtureRequest, name: str) -> Store:
    return request.getfixturevalue(CASES[name].store)


def evaluator_of(system: System) -> Evaluator:
    assert system.final_evaluate is not None
    return system.final_evaluate.__self__  # type: ignore[attr-defined]


def shared_by(system: System, config: TrainingConfig, runs: Path, name: str) -> SharedScores:
    return shared_scores(system.name, system.data_digest, config, RunFolder(runs, name), "fp32")


def files_in(runs: Path) -> set[Path]:
    return {*(runs / SHARED_SCORES).glob("*.json")}


def untrained_of(system: System) -> list[Untrained]:
    return [*evaluator_of(system).untrained(system.model, SingleProcess())]


def trained(name: str, config: TrainingConfig, store: Store, seed: int) -> System:
    """Return a system whose weights have changed, as by training."""
    system = METHODS[name].build(config, store.path)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in system.model.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))
    return system


def plain(report: FinalReport) -> Any:
    """Return the report as ``outcome.json`` has it, with every digit, and the unit scores."""
    units = {
        f"{stage}/{split}/{measure}": np.float32(value_U).tolist()
        for stage, by_split in report.unit_scores.items()
        for split, scores in by_split.items()
        for measure, value_U in {"unit": scores.unit_U, **scores.value_by_measure}.items()
    }
    return json.dumps([report.to_json(), units], default=float)


def other_values(kind: str, value: Any) -> Iterator[Any]:
    """Yield values of a setting that are not its own; they may be out of its range."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value + 7)
    elif isinstance(value, float):
        yield from (value / 2, value + 0.25)
    else:
        yield from (choice for choice in kind.split(" | ") if choice != value)
        yield from (0.5, 3)


def with_other_training(config: TrainingConfig, ignored: frozenset[str]) -> TrainingConfig:
    """Return the configuration with another value of every ignored setting that has one."""
    for field in fields(type(config)):
        section = field.path.split(".")[0]
        if section not in ignored:
            continue
        value: Any = config.to_mapping()
        for part in field.path.split("."):
            value = value[part]
        for other in other_values(field.type, value):
            try:
                config = override(config, field.path, other)
                break
            except ConfigError:
                continue
    return config


def test_a_report_with_scores_of_another_run_equals_the_report_that_computes_them(
    name: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run differs in every setting that is left out of the identity."""
    first_config = tiny_config(name)
    first = trained(name, first_config, store, seed=1)
    ignored = evaluator_of(first).training_settings
    config = with_other_training(first_config, ignored)
    before, now = first_config.to_mapping(), config.to_mapping()
    changed = {section for section in before if before[section] != now[section]}
    assert {"optim", "schedule"} <= ignored
    # Fine-tuning has no settings of its loss.
    assert changed == {section for section in ignored if section in before}
    second = trained(name, config, store, seed=2)
    fresh = plain(second.final_evaluate(second.model, SingleProcess()))

    own = plain(first.final_evaluate(first.model, SingleProcess()))
    shared = shared_by(first, first_config, tmp_path, "first")
    assert plain(first.final_evaluate(first.model, SingleProcess(), shared)) == own
    shared = shared_by(second, config, tmp_path, "second")
    assert plain(second.final_evaluate(second.model, SingleProcess(), shared)) == fresh
    assert fresh != own
    # Another head of the initial encoder is another identity, although its scores are the same.
    num_files = len(files_in(tmp_path))
    assert num_files == len(untrained_of(first)) * (2 if name in HEADS_DIFFER else 1)

    def must_not_run(*_: object) -> Any:
        raise AssertionError("computed again")

    monkeypatch.setattr("raybio.evaluation.evaluator._scored", must_not_run)
    assert plain(second.final_evaluate(second.model, SingleProcess(), shared)) == fresh


def test_a_model_has_the_same_scores_whichever_models_were_scored_before(
    name: str, store: Store
) -> None:
    """Intervals too: all rows of a table have the same resamples."""
    system = trained(name, tiny_config(name), store, seed=1)
    report = system.final_evaluate(system.model, SingleProcess())
    evaluator = evaluator_of(system)
    models = {"initial": evaluator.initial_encoder(), "trained": system.model}
    for stage, model in models.items():
        alone = evaluator.score(model, SingleProcess(), stage).scores
        assert json.dumps(alone) == json.dumps(report.scores[stage]), stage


OTHER_ENCODER = {"seed": 1, "encoder.width": 16, "memory.max_tokens_per_micro_batch": 128}
"""Settings that rows without an encoder do not depend on."""

SHARES_RIVALS = {"sppt_protein", "sppt_mag", "biostransformers", "contrastive_probe"}
"""Methods whose rivals depend neither on the seed nor on the encoder."""


def test_runs_of_other_seeds_and_encoders_share_the_rows_that_depend_on_neither(
    name: str, store: Store, tmp_path: Path
) -> None:
    """The first run's rows are, digit by digit, those that the second one would compute."""
    configs = [tiny_config(name), tiny_config(name, **OTHER_ENCODER)]
    plan = configs[0].to_mapping().get("plan")
    if plan is not None:
        configs[1] = override(configs[1], "plan.global_batch_rows", plan["global_batch_rows"] - 2)
    systems = [METHODS[name].build(config, store.path) for config in configs]
    alone = [plain(system.final_evaluate(system.model, SingleProcess())) for system in systems]
    names = []
    for system, config, expected in zip(systems, configs, alone, strict=True):
        shared = shared_by(system, config, tmp_path, "run")
        assert plain(system.final_evaluate(system.model, SingleProcess(), shared)) == expected
        names.append([untrained.name for untrained in untrained_of(system)])
    assert names[0] == names[1] and len(set(names[0])) == len(names[0])
    is_shared = [untrained.reads is not None for untrained in untrained_of(systems[0])]
    assert any(is_shared) == (name in SHARES_RIVALS)
    assert len(files_in(tmp_path)) == 2 * len(names[0]) - sum(is_shared)


@pytest.mark.parametrize("name", ["sppt_mag"], indirect=True)
def test_of_a_stopped_evaluation_only_the_missing_rows_are_computed(
    name: str,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Killed in a row, then stopped after one."""
    caplog.set_level(logging.INFO, logger="raybio")
    config = tiny_config(name, **{"evaluation.test_graphs": 2, "evaluation.nodes_per_sample": 5})
    system = METHODS[name].build(config, store.path)
    shared = shared_by(system, config, tmp_path, "run")
    rows = [untrained.name for untrained in untrained_of(system)]
    assert rows[:4] == ["random", "degree", "common neighbors", "TF-IDF"]
    expected = plain(system.final_evaluate(system.model, SingleProcess()))
    computed: list[str] = []
    evaluator = type(evaluator_of(system))
    original = evaluator._score_ranking  # type: ignore[attr-defined]

    def rank(self: Any, rival: Any, *rest: object) -> Any:
        if rival.name == "TF-IDF" and "killed" not in computed:
            computed.append("killed")
            raise KeyboardInterrupt
        computed.append(rival.name)
        return original(self, rival, *rest)

    monkeypatch.setattr(evaluator, "_score_ranking", rank)
    with pytest.raises(KeyboardInterrupt):
        system.final_evaluate(system.model, SingleProcess(), shared)
    assert len(files_in(tmp_path)) == 3
    with pytest.raises(EvaluationStoppedError):
        system.final_evaluate(system.model, SingleProcess(), shared, lambda: "TF-IDF" in computed)
    assert len(files_in(tmp_path)) == 4
    caplog.clear()
    assert plain(system.final_evaluate(system.model, SingleProcess(), shared)) == expected
    taken = [f"final evaluation: {row} taken from an earlier evaluation" for row in rows[:4]]
    assert caplog.messages[:4] == taken
    # Every row once; random and initial are no rankings.
    ranked = [row for row in rows if row not in ("random", "initial")]
    assert computed == [*ranked[:2], "killed", *ranked[2:]]
    assert len(files_in(tmp_path)) == len(rows)


def files_of(
    system: System, config: TrainingConfig, runs: Path, precision: str = "fp32"
) -> dict[str, set[Path]]:
    """Return the files from which a run would read scores.

    "encoder" has those that depend on the initial encoder or the seed, "rivals" all others.
    """
    shared = shared_scores(
        system.name, system.data_digest, config, RunFolder(runs, "first"), precision
    )
    paths = []

    def request(identity: Identity) -> dict[str, Any]:
        paths.append(shared.path(identity))
        return {}

    shared.read = request  # type: ignore[method-assign]
    system.final_evaluate(system.model, SingleProcess(), shared)
    files: dict[str, set[Path]] = {"encoder": set(), "rivals": set()}
    for untrained, path in zip(untrained_of(system), paths, strict=True):
        files["encoder" if untrained.reads is None else "rivals"].add(path)
    return files


def test_what_the_scores_depend_on_gives_other_files(
    name: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(name)
    system = METHODS[name].build(config, store.path)
    first = files_of(system, config, tmp_path)
    assert files_of(system, config, tmp_path) == first
    assert sum(map(len, first.values())) == len(untrained_of(system))
    others = [
        files_of(replace(system, data_digest="another store"), config, tmp_path),
        files_of(system, config, tmp_path, precision="bf16"),
    ]

    def built(changes: dict[str, object]) -> dict[str, set[Path]]:
        other = tiny_config(name, **changes)
        return files_of(METHODS[name].build(other, store.path), other, tmp_path)

    others.append(built(OTHER_EVALUATION[name]))
    length = OTHER_LENGTH.get(name)
    if length is not None:
        # What an encoder reads counts, although its settings do not.
        others.append(built(length))
    # Raybio itself, as if a file of it were edited.
    with monkeypatch.context() as edited:
        edited.setattr(module, "_code_digest", lambda _: "edited")
        others.append(files_of(system, config, tmp_path))
    seen = first["encoder"] | first["rivals"]
    for files in others:
        found = files["encoder"] | files["rivals"]
        assert not found & seen
        seen |= found
    for path, value in OTHER_ENCODER.items():
        files = built({path: value})
        assert files["rivals"] == first["rivals"], path
        assert not files["encoder"] & seen, path
        seen |= files["encoder"]


def test_a_source_that_changes_in_place_gives_another_file(
    tiny_articles: Store, tmp_path: Path
) -> None:
    """A run's export/, trained for longer; and settings of a folder that no weight shows."""
    name = "biostransformers"
    scratch = METHODS[name].build(tiny_config(name), tiny_articles.path)
    source = scratch.export(tmp_path / "export", {})
    config = tiny_config(name, **{"encoder.source": str(source), "encoder.pooling": "mean"})

    def file() -> Path:
        files = files_of(METHODS[name].build(config, tiny_articles.path), config, tmp_path)
        (of_initial,) = files["encoder"]
        return of_initial

    first = file()
    assert file() == first
    settings = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(settings | {"layer_norm_eps": 0.5}))
    with_epsilon = file()
    (source / EXPORT_FILES).unlink()
    weights = load_file(source / "model.safetensors")
    largest = max(weights, key=lambda key: weights[key].numel())
    weights[largest].view(-1)[0] += 1e-3
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    assert len({first, with_epsilon, file()}) == 3


def test_a_setting_of_the_loss_that_scores_depend_on_is_part_of_the_identity(
    tiny_words: Store, tmp_path: Path
) -> None:
    """Graph accuracy and its loss are scores of relation graphs."""
    files: set[Path] = set()
    for reduction in ("mean", "sum"):
        config = tiny_config("relation_graphs", **{"objective.reduction": reduction})
        system = METHODS["relation_graphs"].build(config, tiny_words.path)
        files |= files_of(system, config, tmp_path)["encoder"]
    assert len(files) == 4


def evaluate_in_two_ways(rank: int, collective: ProcessGroup, folder: Path, store: str) -> None:
    """Write the report that this worker has in each of three evaluations by two workers."""
    config = tiny_config("sppt_protein")
    system = METHODS["sppt_protein"].build(config, store)
    # The third time, rank 1 does not see the file.
    for number, runs in enumerate(["a", "a", "a" if rank == 0 else "nowhere"]):
        shared = shared_by(system, config, folder / runs, "first")
        (folder / runs).mkdir(exist_ok=True)
        report = system.final_evaluate(system.model, collective, shared)
        (folder / f"{number}-{rank}.json").write_text(plain(report))
    # The request to stop reaches one of them.
    requests = iter([False, False, rank == 1])
    shared = shared_by(system, config, folder / "stopped", "first")
    (folder / "stopped").mkdir(exist_ok=True)
    with pytest.raises(EvaluationStoppedError):
        system.final_evaluate(system.model, collective, shared, lambda: next(requests))


@pytest.mark.nightly
def test_two_workers_read_the_scores_only_if_both_see_them_and_stop_together(
    tiny_store: Store, tmp_path: Path
) -> None:
    run_workers(partial(evaluate_in_two_ways, store=str(tiny_store.path)), 2, tmp_path)
    scores = []
    for path in sorted(tmp_path.glob("*-*.json")):
        reports = json.loads(path.read_text())
        # Only the first worker draws it.
        assert ("embedding_map" in reports[0]) == path.stem.endswith("-0")
        reports[0].pop("embedding_map", None)
        scores.append(json.dumps(reports))
    assert len(scores) == 6 and len(set(scores)) == 1
    system = METHODS["sppt_protein"].build(tiny_config("sppt_protein"), tiny_store.path)
    assert len(files_in(tmp_path / "a")) == len(untrained_of(system))
    assert len(files_in(tmp_path / "stopped")) == 2
    assert not (tmp_path / "nowhere" / SHARED_SCORES).exists()
