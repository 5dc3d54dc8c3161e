"""A cross-validation: a sweep whose trials are folds and models, and then all of them judged together.

sweeps/NAME/
    trials/…            one training of each model on each fold; export/ is the model of its best step
    last/MODEL-1/       with --last-training: another one, on the validation sentences as well; a run's folder
    folds/MODEL-1.json  scores of a fold's test sentences
    folds.md, .json     mean ± deviation over the folds
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from raybio.core.config import override, value_at
from raybio.core.errors import ClusterError, ConfigError
from raybio.core.markdown import markdown_table
from raybio.core.records import write_record
from raybio.core.search_space import Budget, Distribution, Scheduler, Search, SearchSpace
from raybio.experiments.fold_evaluation import TAGS_OF, Judgement, judgements
from raybio.experiments.last_training import LastTraining, last_config
from raybio.methods.relation_graphs.fold_report import PUBLISHED, fold_table
from raybio.methods.relation_graphs.store import WordStore
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.notices import WarningPrinter
from raybio.runtime.run.request import FOLD, Arguments, default_folder, settle
from raybio.runtime.run.tasks import Share, work_off
from raybio.store.store import open_store
from raybio.training.settings import TrainingConfig

if TYPE_CHECKING:
    from raybio.runtime.tune.driver import SweepResult


MODEL = "model"


METRIC = "val/log_likelihood"


AFTER_LAST = ", last training"
"""What rows of last trainings are called, behind their models."""


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
        method="relation_graphs",
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
            raise ConfigError(
                f"--compare {text}: with --all-folds want model= alone; start again with other settings"
            )
        models += [
            value_at(override(config, MODEL, one.strip()), MODEL) for one in values.split(",")
        ]
    return tuple(dict.fromkeys([*models, *(TAGS_OF[model] for model in models)]))


def train_and_show(method: str, arguments: Arguments) -> None:
    """Carry out ``--all-folds``, and print the table.

    Raises:
        RaybioError: as ``train_all_folds``.
        ConfigError: for arguments that are wrong, or that mean nothing here.
    """
    if arguments.seeds > 1 or (arguments.workers or 1) > 1:
        raise ConfigError(
            "--all-folds: a fold is a trial of one worker and one seed; leave --seeds and --workers out"
        )
    if arguments.runs is not None:
        raise ConfigError(
            "--all-folds: is a sweep and goes to sweeps/; RAYBIO_SWEEPS changes that, and not --runs"
        )
    if any(text.partition("=")[0].strip() == FOLD for text in arguments.settings):
        raise ConfigError(
            f"--all-folds trains every fold, and {FOLD} names one; leave one of them out"
        )
    sweeps = default_folder("sweeps", "RAYBIO_SWEEPS")
    begun = RunFolder(sweeps, arguments.name).read_identity() if arguments.name else None
    if begun and arguments.store is None and arguments.config is None:
        raise ConfigError(
            f"--name {arguments.name}: is a cross-validation of {begun['store']}; to go on with it, give --store and "
            "the same settings again"
        )
    settled = settle(method, arguments, "folds")
    models = models_of(settled["config"], arguments.compare)
    swept = train_all_folds(
        settled["config"],
        models,
        store=settled["store"],
        name=arguments.name or "-".join([settled["name"], *models]),
        sweeps=sweeps,
        tracking=settled["tracking"],
        share=Share(
            settled["cpus_per_worker"], 0 if arguments.device == "cpu" else None, arguments.verbose
        ),
        has_last_training=arguments.has_last_training,
    )
    folder = swept.folder.path
    print((folder / "folds.md").read_text(encoding="utf-8"))
    print(f"table, and where each model is: {folder / 'folds.md'}; each fold: {folder / 'folds'}")
    print(
        f"MLflow: run {swept.mlflow_run_id}, mlflow ui --backend-store-uri {swept.uri.split('@')[-1]}"
    )


def train_all_folds(
    config: TrainingConfig,
    models: Sequence[str],
    *,
    store: Path,
    name: str,
    sweeps: Path,
    tracking: str | None = None,
    share: Share,
    has_last_training: bool,
) -> "SweepResult":
    """Train and judge; what has ended is not done again.

    Raises:
        RaybioError: as ``sweep``.
        ClusterError: if a trial did not come to its end.
    """
    # Only now: this imports Ray and MLflow, which takes seconds.
    from raybio.runtime.tune.driver import SweepRequest, sweep
    from raybio.runtime.tune.trial import FINISHED

    # What is looked at is the loss alone: judging comes at the end.
    config = override(config, "evaluation.num_sentences_in_training", "0")
    sentences = open_store(store, WordStore)
    num_folds = sentences.num_folds
    request = SweepRequest(
        fold_space(config, models, num_folds), config, store, name, sweeps, tracking=tracking
    )
    swept = sweep(
        replace(
            request, cpus_per_worker=share.cpus, gpus_per_worker=share.gpus, verbose=share.verbose
        )
    )
    failed = [
        f"{json.dumps(trial.settings)}: {trial.error}"
        for trial in swept.trials
        if trial.status != FINISHED
    ]
    if failed:
        raise ClusterError(
            f"{swept.folder.path}: {len(failed)} of {len(swept.trials)} trials did not come to their end, such as "
            f"{failed[0]}. The same command tries again those that failed for want of a machine; others want another "
            "--name"
        )
    return _judged(swept, Path(store).absolute(), sentences, share, has_last_training)


def _judged(
    swept: "SweepResult", store: Path, sentences: WordStore, share: Share, has_last_training: bool
) -> "SweepResult":
    """Judge what was trained, train again what is to be, and write the tables."""
    # Only now: this imports MLflow, which takes seconds.
    from raybio.runtime.tracking.tracker import add_artifacts

    folder, models = swept.folder, swept.spec.space.space[MODEL].values
    trials = {(trial.settings[MODEL], trial.settings[FOLD]): trial for trial in swept.trials}
    exports = {key: folder.path / "trials" / trial.name / "export" for key, trial in trials.items()}
    folders = _folders(folder, exports, "")
    entries = judgements(folder, store, exports, models)
    work_off(entries, share)
    if has_last_training:
        last = last_trainings(swept, store, entries)
        _train_last(list(last.values()), share)
        exports = {key: one.folder.export for key, one in last.items()}
        folders += _folders(folder, exports, AFTER_LAST)
        again = judgements(folder, store, exports, models, after=AFTER_LAST, is_untuned_too=False)
        work_off(again, share)
        entries += again
    # Only now: this imports torch and transformers, which takes seconds.
    from raybio.methods.relation_graphs.evaluate import chance_of_fold

    export_by_fold = {fold: export for (_, fold), export in exports.items()}
    chance = {
        fold: chance_of_fold(export_by_fold[fold], sentences) for fold in sorted(export_by_fold)
    }
    scores: dict[str, dict[int, dict[str, float]]] = {"chance": chance}
    for entry in entries:
        if found := entry.known():
            scores.setdefault(entry.row, {})[entry.fold] = found.scores
    is_ade = sentences.entity_types == ("Adverse-Effect", "Drug") and sentences.num_folds == 10
    table = fold_table(scores, tuple(PUBLISHED) if is_ade else ())
    data = {
        model: {str(fold): one for fold, one in by_fold.items()}
        for model, by_fold in scores.items()
    }
    write_record(folder.path / "folds.json", "cross-validation", {"scores": data})
    where = markdown_table(["model", "fold", "folder"], folders)
    (folder.path / "folds.md").write_text(f"{table}\n\n{where}\n", encoding="utf-8")
    add_artifacts(folder, [folder.path / "folds.md", folder.path / "folds.json"])
    return swept


def _train_last(trainings: Sequence[LastTraining], share: Share) -> None:
    """Train what is not trained yet, and print what the trainings warn of, also if one of them fails."""
    warnings = WarningPrinter()
    for one in trainings:
        warnings.follow(one.folder.notices)
    try:
        work_off(trainings, share)
    finally:
        for one in trainings:
            warnings.show(one.folder.notices, one.folder.name)


def last_trainings(
    swept: "SweepResult", store: Path, judged: Sequence[Judgement]
) -> dict[tuple[str, int], LastTraining]:
    """(model, fold) -> its last training, for the steps and with the numbers of neighbours that were best."""
    rule_by_export: dict[Path, dict[str, float]] = {}
    for one in judged:
        found = one.known()
        if found and not one.is_untuned:
            rule_by_export |= {one.relations: found.rule, one.entities: found.rule}
    trainings = {}
    for trial in swept.trials:
        model, fold = trial.settings[MODEL], trial.settings[FOLD]
        trained = RunFolder(swept.folder.path / "trials", trial.name)
        rule = rule_by_export[trained.export]
        assert trial.best_step is not None  # it came to its end
        config = last_config(swept.spec.config(trial.settings), trial.best_step, rule)
        trainings[model, fold] = LastTraining(
            swept.spec.space.method,
            config,
            trained.precision or swept.spec.precision_of(config),
            store,
            RunFolder(swept.folder.path / "last", f"{model}-{fold}"),
            swept.uri,
            swept.mlflow_run_id,
        )
        trainings[model, fold].open()
    return trainings


def _folders(
    folder: RunFolder, exports: Mapping[tuple[str, int], Path], after: str
) -> list[list[str]]:
    """Which trial is which: they are named after their settings."""
    rows = [
        [model + after, str(fold), path.relative_to(folder.path).as_posix()]
        for (model, fold), path in exports.items()
    ]
    return sorted(rows, key=lambda row: (row[0], int(row[1])))
