"""A cross-validation: a sweep whose trials are folds and models, and then all of them judged together.

sweeps/NAME/
    trials/…            one training of each model on each fold; export/ is the model of its best step
    folds/MODEL-1.json  scores of a fold's test sentences
    folds.md, .json     mean ± deviation over the folds
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from raybio.config import override, value_at
from raybio.data.store import open_store, sha256_of
from raybio.data.word_store import WordStore
from raybio.errors import ClusterError, ConfigError, RaybioError
from raybio.evaluation.fold_report import PUBLISHED, fold_table
from raybio.markdown import markdown_table
from raybio.runtime.cluster import cluster_nodes, started
from raybio.runtime.launch import FOLD, Arguments, default_folder, settle
from raybio.runtime.room import Room, room
from raybio.runtime.run_folder import RunFolder, read_json, write_json
from raybio.search_space import Budget, Distribution, Scheduler, Search, SearchSpace
from raybio.training.settings import TrainingConfig

if TYPE_CHECKING:
    from raybio.runtime.sweeps.sweep import Swept

MODEL = "model"
MAX_RETRIES = 3
"""Of a judgement whose machine is lost."""

METRIC = "val/log_likelihood"
UNTUNED = "untuned"
TAGS_OF = {"cldr": "clner", "clgs": "clner", "clner": "clner", "joint": "joint"}
"""Model of relations -> the one whose space tells the entities of its row."""


def fold_space(config: TrainingConfig, models: Sequence[str], num_folds: int) -> SearchSpace:
    """The sweep that trains each model on each fold, and keeps the step that is best on its validation sentences.

    Raises:
        ConfigError: if the schedule has no evaluations to choose a step by.
    """
    schedule = config.schedule
    if not schedule.evaluate_every_steps:
        raise ConfigError(
            "--all-folds keeps each fold's best step on its validation sentences; want schedule.evaluate_every_steps "
            "above 0. For runs that train on these too: --compare data.fold=1,2,3 without --all-folds"
        )
    return SearchSpace(
        system="relation_graphs",
        metric=METRIC,
        mode="max",
        budget=Budget(
            num_trials=len(models) * num_folds,
            max_steps=schedule.max_steps,
            grace_steps=min(schedule.evaluate_every_steps, schedule.max_steps),
            max_concurrent_trials=None,
        ),
        scheduler=Scheduler(kind="none"),
        search=Search(kind="grid"),
        space={
            FOLD: Distribution("choice", tuple(range(1, num_folds + 1))),
            MODEL: Distribution("choice", tuple(models)),
        },
    )


def models_of(config: TrainingConfig, more: Sequence[str]) -> tuple[str, ...]:
    """What is trained: the configuration's model, those of ``--compare``, and CLNER beside those that know no tags.

    Raises:
        ConfigError: for a comparison of anything but models, or an unknown model.
    """
    models = [value_at(config, MODEL)]
    for text in more:
        path, _, values = text.partition("=")
        if path.strip() != MODEL:
            raise ConfigError(f"--compare {text}: with --all-folds want model= alone; start again with other settings")
        models += [value_at(override(config, MODEL, one.strip()), MODEL) for one in values.split(",")]
    return tuple(dict.fromkeys([*models, *(TAGS_OF[model] for model in models)]))


def train_and_show(system: str, arguments: Arguments) -> None:
    """Carry out ``--all-folds``, and print the table.

    Raises:
        RaybioError: as ``train_all_folds``.
        ConfigError: for arguments that are wrong, or that mean nothing here.
    """
    if arguments.seeds > 1 or (arguments.workers or 1) > 1:
        raise ConfigError("--all-folds: a fold is a trial of one worker and one seed; leave --seeds and --workers out")
    if arguments.runs is not None:
        raise ConfigError("--all-folds: is a sweep and goes to sweeps/; RAYBIO_SWEEPS changes that, and not --runs")
    if any(text.partition("=")[0].strip() == FOLD for text in arguments.settings):
        raise ConfigError(f"--all-folds trains every fold, and {FOLD} names one; leave one of them out")
    sweeps = default_folder("sweeps", "RAYBIO_SWEEPS")
    settled = settle(system, arguments, "folds")
    models = models_of(settled["config"], arguments.compare)
    swept = train_all_folds(
        settled["config"],
        models,
        store=settled["store"],
        name=arguments.name or "-".join([settled["name"], *models]),
        sweeps=sweeps,
        tracking=settled["tracking"],
        cpus_per_worker=settled["cpus_per_worker"],
        gpus_per_worker=0 if arguments.device == "cpu" else None,
        verbose=arguments.verbose,
    )
    folder = swept.folder.path
    print((folder / "folds.md").read_text(encoding="utf-8"))
    print(f"table: {folder / 'folds.md'}, each fold: {folder / 'folds'}, models: {folder / 'trials'}/*/export")
    print(f"MLflow: run {swept.mlflow_run_id}, mlflow ui --backend-store-uri {swept.uri.split('@')[-1]}")


def train_all_folds(
    config: TrainingConfig,
    models: Sequence[str],
    *,
    store: Path,
    name: str,
    sweeps: Path,
    tracking: str | None = None,
    cpus_per_worker: float | None = None,
    gpus_per_worker: float | None = None,
    verbose: bool = False,
) -> "Swept":
    """Train and judge; what has ended is not done again.

    Raises:
        RaybioError: as ``sweep``.
        ClusterError: if a trial did not come to its end.
    """
    # Only now: this imports Ray and MLflow, which takes seconds.
    from raybio.runtime.sweeps.sweep import SweepRequest, sweep
    from raybio.runtime.sweeps.trial import FINISHED
    from raybio.runtime.track import add_artifacts

    # What is looked at is the loss alone: judging comes at the end.
    config = override(config, "evaluation.num_sentences_in_training", "0")
    sentences = open_store(store, WordStore)
    num_folds = sentences.num_folds
    request = SweepRequest(fold_space(config, models, num_folds), config, store, name, sweeps, tracking=tracking)
    swept = sweep(replace(request, cpus_per_worker=cpus_per_worker, gpus_per_worker=gpus_per_worker, verbose=verbose))
    failed = [f"{json.dumps(trial.settings)}: {trial.error}" for trial in swept.trials if trial.status != FINISHED]
    if failed:
        raise ClusterError(
            f"{swept.folder.path}: {len(failed)} of {len(swept.trials)} trials did not come to their end, such as "
            f"{failed[0]}. The same command tries again those that failed for want of a machine; others want another "
            "--name"
        )
    exports = {
        (trial.settings[MODEL], trial.settings[FOLD]): swept.folder.path / "trials" / trial.name / "export"
        for trial in swept.trials
    }
    entries = judgements(swept.folder, exports, models, num_folds)
    missing = [entry for entry in entries if entry.known() is None]
    if missing:
        with started(threads=None, verbose=verbose):
            asked = {"cpus_per_worker": cpus_per_worker, "gpus_per_worker": gpus_per_worker}
            place = room(cluster_nodes(), workers=1, at_most=len(missing), least_cpus=1.0, **asked)
            judge_all(missing, Path(store).absolute(), place)
    scores: dict[str, dict[int, dict[str, float]]] = {}
    for entry in entries:
        scores.setdefault(entry.row, {})[entry.fold] = entry.known() or {}
    is_ade = sentences.entity_types == ("Adverse-Effect", "Drug") and num_folds == 10
    table = fold_table(scores, tuple(PUBLISHED) if is_ade else ())
    write_json(
        swept.folder.path / "folds.json",
        {model: {str(fold): one for fold, one in by_fold.items()} for model, by_fold in scores.items()},
    )
    (swept.folder.path / "folds.md").write_text(f"{table}\n\n{_folders(swept.folder, exports)}\n", encoding="utf-8")
    add_artifacts(swept.folder, [swept.folder.path / "folds.md", swept.folder.path / "folds.json"])
    return swept


@dataclass(frozen=True)
class Judgement:
    """Which models are judged together on a fold's test sentences, and where their scores are kept.

    Attributes:
        row: of the table.
        fold: from 1.
        relations: export of the model whose space tells the relations.
        entities: export of the one that tells the entities.
        path: of the scores.
        has_graphs: whether the first one tells true graphs from false ones.
    """

    row: str
    fold: int
    relations: Path
    entities: Path
    path: Path
    has_graphs: bool

    def known(self) -> dict[str, float] | None:
        """The scores; None if there are none, or the models have been trained again since."""
        kept = read_json(self.path) or {}
        return kept["scores"] if kept.get("models") == self._digests() else None

    def keep(self, scores: Mapping[str, float]) -> None:
        """Write them."""
        self.path.parent.mkdir(exist_ok=True)
        write_json(self.path, {"models": self._digests(), "scores": dict(scores)})

    def _digests(self) -> list[str]:
        return [_digest(self.relations), _digest(self.entities)]


def judgements(
    folder: RunFolder, exports: Mapping[tuple[str, int], Path], models: Sequence[str], num_folds: int
) -> list[Judgement]:
    """Every row on every fold: each model's relations with the entities of the one that knows tags for it."""
    related = [model for model in models if model != "clner"] or ["clner"]
    rows = {UNTUNED: related[0]} | {_row_name(model): model for model in related}
    return [
        Judgement(
            row,
            fold,
            exports[model, fold],
            exports[TAGS_OF[model], fold],
            folder.path / "folds" / f"{row.replace(' + ', '-')}-{fold}.json",
            has_graphs=row != UNTUNED and model != "clner",
        )
        for row, model in rows.items()
        for fold in range(1, num_folds + 1)
    ]


def judge_all(missing: Sequence[Judgement], store: Path, place: Room) -> None:
    """Judge as many at a time as have room on the connected cluster, and keep the scores of each when it is done.

    Raises:
        RaybioError: what a judgement raises; those that were done before are kept, the others are cancelled.
    """
    import ray

    task = ray.remote(_scores_of).options(
        num_cpus=place.cpus_per_worker, num_gpus=place.gpus_per_worker, max_retries=MAX_RETRIES
    )
    device = "cuda" if place.gpus_per_worker else "cpu"
    pending = {task.remote(entry, store, device): entry for entry in missing}
    try:
        while pending:
            (done,), _ = ray.wait(list(pending))
            entry = pending.pop(done)
            entry.keep(ray.get(done))
            told = len(missing) - len(pending)
            print(f"judged {entry.row}, fold {entry.fold}: {told} of {len(missing)}", flush=True)
    except ray.exceptions.RayTaskError as error:
        # Told where it was raised; here its own words are enough.
        raise (error.cause if isinstance(error.cause, RaybioError) else error) from None
    finally:
        for left in pending:  # a cluster that others use too would go on with them
            ray.cancel(left)


def _folders(folder: RunFolder, exports: Mapping[tuple[str, int], Path]) -> str:
    """Which trial is which: they are named after their settings."""
    rows = [[model, str(fold), path.relative_to(folder.path).as_posix()] for (model, fold), path in exports.items()]
    return markdown_table(["model", "fold", "folder"], sorted(rows, key=lambda row: (row[0], int(row[1]))))


def _row_name(model: str) -> str:
    return model if TAGS_OF[model] == model else f"{model} + {TAGS_OF[model]}"


def _digest(export: Path) -> str:
    return hashlib.sha256(
        "".join(sha256_of(path) for path in sorted(export.glob("*.safetensors"))).encode()
    ).hexdigest()


def _scores_of(entry: Judgement, store: Path, device: str) -> dict[str, float]:
    # Only now: these import torch and transformers, which takes seconds.
    from raybio.systems.entity_relation_evaluation import graph_accuracy_of_sentences, judge_together

    is_untuned = entry.row == UNTUNED
    judged = judge_together(entry.relations, entry.entities, store, is_untrained=is_untuned, device=device)
    found = {name: interval["value"] for name, interval in judged.intervals().items()}
    if entry.has_graphs:
        found["graph_accuracy"] = float(graph_accuracy_of_sentences(entry.relations, store, device).mean())
    return found
