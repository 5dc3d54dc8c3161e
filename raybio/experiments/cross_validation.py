"""A cross-validation: a sweep whose trials are folds and models, then evaluated together.

sweeps/NAME/
    trials/…            one training of each model on each fold; export/ has its best step
    last/MODEL-1/       with --last-training: a run on the validation sentences as well
    folds/MODEL-1.json  scores of a fold's test sentences; with --seeds MODEL-1-SEED.json
    folds.md, .json     mean ± deviation over the folds, intervals and differences
sweeps/.untrained/      scores of rivals and of the encoder before training, for all of them

Of a sweep in a bucket, ``sweeps`` is the driver's copy (``runtime/spool``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raybio.core.config import override, value_at
from raybio.core.errors import ConfigError
from raybio.core.files import replace_text
from raybio.core.location import absolute
from raybio.core.markdown import markdown_table
from raybio.core.records import write_record
from raybio.core.search_space import SEED, Budget, Distribution, Scheduler, Search, SearchSpace
from raybio.experiments.fold_evaluation import (
    TAGGER_OF,
    FoldEvaluation,
    ModelOfFold,
    fold_evaluations,
)
from raybio.experiments.last_training import LastTraining, last_config, num_last_steps
from raybio.experiments.untrained_folds import UntrainedEvaluation, untrained_evaluations
from raybio.methods import METHODS
from raybio.methods.relation_graphs.annotations.folds import read_fold
from raybio.methods.relation_graphs.config import Config, FoldConfig
from raybio.methods.relation_graphs.evaluation.fold_report import (
    FIXED,
    PUBLISHED,
    fold_differences,
    fold_table,
    mean_scores,
)
from raybio.methods.relation_graphs.store import WordStore
from raybio.runtime.compare.cost import cost_in_words, describe_sweep, describe_sweep_time
from raybio.runtime.compare.unfinished import unfinished_trial
from raybio.runtime.run.cost import cost_of
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.notices import WarningPrinter
from raybio.runtime.run.options import (
    FOLD,
    RunOptions,
    check_writable,
    resolve,
    runs_folder,
    sweeps_folder,
)
from raybio.runtime.run.spec import Compute, RunSpec
from raybio.runtime.run.tasks import run_tasks
from raybio.runtime.spool.spool import announce_copy, held, publish
from raybio.runtime.tune.leaderboard import TrialRecord
from raybio.runtime.tune.trial import SweepSpec
from raybio.store.store import open_store
from raybio.training.settings import TrainingConfig

if TYPE_CHECKING:
    from raybio.runtime.tune.driver import SweepResult


MODEL = "model"
METRIC = "val/log_likelihood"
AFTER_LAST = ", last training"
"""Suffix of the rows of last trainings."""

ScoresByFold = dict[int, dict[str, float]]
"""fold -> name of a score -> value"""


def fold_space(
    config: TrainingConfig, models: Sequence[str], store: WordStore, num_seeds: int = 1
) -> SearchSpace:
    """Return the sweep that trains each model on each fold of a store, with each seed.

    Each training keeps the step that is best on the fold's validation sentences. Epochs of the
    schedule are counted for each model, since their batches differ.

    Raises:
        ConfigError: if the schedule has no evaluations to choose a step by, or chooses it by
            another metric.
    """
    schedule = config.schedule
    for name, metric in (
        ("keep_best", schedule.keep_best),
        ("early_stopping_metric", schedule.early_stopping_metric),
    ):
        if metric not in (None, METRIC):
            raise ConfigError(
                f"schedule.{name} is {metric}, but --all-folds computes only {METRIC} during "
                f"training and keeps the best step by it; want {METRIC} or null"
            )
    if not schedule.evaluate_every_steps:
        raise ConfigError(
            "--all-folds keeps each fold's best step on its validation sentences; want "
            "schedule.evaluate_every_steps above 0. For runs that train on these too: "
            "--compare data.fold=1,2,3 without --all-folds"
        )
    num_folds = store.num_folds
    seeds = tuple(range(config.seed, config.seed + num_seeds))
    method = METHODS["relation_graphs"]
    schedules = {
        model: method.in_steps(override(config, MODEL, model), store).schedule for model in models
    }
    max_steps = max(of_model.max_steps for of_model in schedules.values())
    grace_steps = min(of_model.evaluate_every_steps for of_model in schedules.values())
    tied = {
        model: {
            "schedule.max_steps": of_model.max_steps,
            "schedule.evaluate_every_steps": of_model.evaluate_every_steps,
        }
        for model, of_model in schedules.items()
    }
    return SearchSpace(
        method=method.name,
        metric=METRIC,
        mode="max",
        budget=Budget(
            num_trials=len(models) * num_folds * num_seeds,
            max_steps=max_steps,
            grace_steps=min(grace_steps, max_steps),
            max_concurrent_trials=None,
        ),
        scheduler=Scheduler(kind="none"),
        search=Search(kind="grid"),
        space={
            FOLD: Distribution("choice", tuple(range(1, num_folds + 1))),
            MODEL: Distribution("choice", tuple(models)),
            **({SEED: Distribution("choice", seeds)} if num_seeds > 1 else {}),
        },
        tied={MODEL: tied} if schedule.has_epochs else {},
    )


def models_of(config: TrainingConfig, more: Sequence[str]) -> tuple[str, ...]:
    """Return the models that are trained.

    These are the configuration's model, those of ``--compare``, and the tagger of each.

    Raises:
        ConfigError: for a comparison of other settings, or an unknown model.
    """
    models = [value_at(config, MODEL)]
    for text in more:
        path, _, values = text.partition("=")
        if path.strip() != MODEL:
            raise ConfigError(
                f"--compare {text}: with --all-folds want model= only; start again with other "
                "settings"
            )
        for value in values.split(","):
            changed = override(config, MODEL, value.strip())
            models.append(value_at(changed, MODEL))
    taggers = [TAGGER_OF[model] for model in models]
    return tuple(dict.fromkeys([*models, *taggers]))


def cross_validate(
    method: str,
    options: RunOptions,
    *,
    compared: Sequence[str],
    seeds: int,
    has_last_training: bool,
    is_dry_run: bool = False,
) -> None:
    """Train every fold, evaluate the models together, and print the table.

    Args:
        method: key in ``METHODS``.
        options: options of the training job.
        compared: other models, as ``--compare`` takes them.
        seeds: number of seeds that each fold is trained with.
        has_last_training: whether each model is trained again on validation sentences too.
        is_dry_run: print the trainings and their time, and train nothing.

    Raises:
        RaybioError: as ``train_all_folds``.
        ConfigError: for options that are wrong, or have no meaning here.
    """
    if options.compute.num_workers > 1:
        raise ConfigError("--all-folds: a fold is a trial of one worker; leave --workers out")
    if any(text.partition("=")[0].strip() == FOLD for text in options.settings):
        raise ConfigError(
            f"--all-folds trains every fold, and {FOLD} names one; leave one of them out"
        )
    # A cross-validation is a sweep: --runs names the folder of sweeps.
    sweeps, bucket = sweeps_folder(options.runs, options.name)
    if not is_dry_run:
        check_writable(sweeps, bucket)
    options = replace(options, runs=None)
    identity = RunFolder(sweeps, options.name).read_identity() if options.name else None
    if identity and options.store is None and options.config is None:
        raise ConfigError(
            f"--name {options.name}: is a cross-validation of {identity['store']}; to resume it, "
            "give --store and the same settings again"
        )
    run = resolve(method, options, name_prefix=f"{METHODS[method].first_name}-folds")
    models = models_of(run.config, compared)
    compute = Compute(
        cpus_per_worker=run.compute.cpus_per_worker,
        gpus_per_worker=run.compute.gpus_of_trial,
    )
    name = options.name or "-".join([run.name, *models, *([f"{seeds}seeds"] * (seeds > 1))])
    announce_copy("sweeps", sweeps, bucket)
    run = replace(run, name=name, runs=sweeps, bucket=bucket, compute=compute, explicit=frozenset())
    if is_dry_run:
        runs, _ = runs_folder(None)
        print("\n".join(describe_sweep(fold_sweep(run, models, seeds), runs)))
        if has_last_training:
            print("then --last-training trains each model again; its time is not included")
        return
    swept = train_all_folds(run, models, seeds, has_last_training=has_last_training)
    folder = swept.folder.path
    print((folder / "folds.md").read_text(encoding="utf-8"))
    print(f"table, and folder of each model: {folder / 'folds.md'}; each fold: {folder / 'folds'}")
    print(f"MLflow: {swept.mlflow_line}")


def fold_sweep(run: RunSpec, models: Sequence[str], num_seeds: int) -> SweepSpec:
    """Return the sweep of ``train_all_folds``; it compares losses, and models are evaluated later.

    Raises:
        ConfigError: as ``fold_space``.
    """
    config = override(run.config, "evaluation.num_sentences_in_training", "0")
    space = fold_space(config, models, open_store(run.store, WordStore), num_seeds)
    return SweepSpec(space=space, run=replace(run, config=config))


def train_all_folds(
    run: RunSpec, models: Sequence[str], num_seeds: int = 1, *, has_last_training: bool
) -> "SweepResult":
    """Train and evaluate each model on each fold; what has ended is not repeated.

    Args:
        run: the sweep as a run: base configuration, store, name, folder of sweeps and compute.
        models: models that are trained.
        num_seeds: seeds that each is trained with on each fold.
        has_last_training: whether each model is trained again on validation sentences too.

    Raises:
        RaybioError: as ``sweep``.
        ClusterError: if a trial did not reach its end.
    """
    from raybio.runtime.tune.driver import sweep

    spec = fold_sweep(run, models, num_seeds)
    runs, _ = runs_folder(None)
    for line in describe_sweep_time(spec, runs):
        print(line, flush=True)
    swept = sweep(spec)
    swept.check_finished()
    return _evaluate_together(swept, run, open_store(run.store, WordStore), has_last_training)


def _evaluate_together(
    swept: "SweepResult", run: RunSpec, sentences: WordStore, has_last_training: bool
) -> "SweepResult":
    """Evaluate the models, train the last ones, and write the tables."""
    folder = swept.folder
    models = swept.spec.space.space[MODEL].values
    store = absolute(run.store)
    exports = {}
    for trial in swept.trials:
        exports[_key(swept, trial)] = swept.folder_of(trial).export
    rows = _folder_rows(folder, exports, "")
    folds = sorted({fold for _, fold, _ in exports})
    untrained = untrained_evaluations(folder, sentences, swept.spec.run.config, folds)
    bucket = None if run.bucket is None else run.bucket / folder.name
    evaluations = fold_evaluations(folder, bucket, store, exports, models)
    run_tasks([*untrained, *evaluations], run.compute, verbose=run.verbose)
    unfinished = _unfinished_rows(swept, evaluations)
    trained = [swept.folder_of(trial) for trial in swept.trials]
    if has_last_training:
        last = _run_last_trainings(swept, evaluations, run, sentences)
        exports = {key: training.folder.export for key, training in last.items()}
        rows += _folder_rows(folder, exports, AFTER_LAST)
        trained += [training.folder for training in last.values()]
        again = fold_evaluations(folder, bucket, store, exports, models, suffix=AFTER_LAST)
        run_tasks(again, run.compute, verbose=run.verbose)
        evaluations += again
    cost = cost_in_words(map(cost_of, trained))
    _write_tables(folder, untrained, evaluations, sentences, rows, unfinished, cost)
    if run.bucket is not None:
        publish(folder, run.bucket)
    return swept


def _key(swept: "SweepResult", trial: TrialRecord) -> ModelOfFold:
    seed = trial.settings.get(SEED, swept.spec.run.config.seed)
    return trial.settings[MODEL], trial.settings[FOLD], seed


def _unfinished_rows(swept: "SweepResult", evaluations: Sequence[FoldEvaluation]) -> dict[str, str]:
    """Return row -> why its training is not finished on the first fold where this is so.

    A last training has the epochs of the training before it: both are finished or neither is.
    """
    reason_by_export = {}
    for trial in swept.trials:
        reason = unfinished_trial(swept.spec, trial)
        if reason is not None:
            reason_by_export[swept.folder_of(trial).export] = reason
    reason_by_row: dict[str, str] = {}
    for evaluation in evaluations:
        for export in (evaluation.relations, evaluation.entities):
            if export in reason_by_export:
                for row in (evaluation.row, evaluation.row + AFTER_LAST):
                    reason_by_row.setdefault(row, reason_by_export[export])
    return reason_by_row


def _write_tables(
    folder: RunFolder,
    untrained: Sequence[UntrainedEvaluation],
    evaluations: Sequence[FoldEvaluation],
    sentences: WordStore,
    folder_rows: Sequence[list[str]],
    unfinished: Mapping[str, str],
    cost: str,
) -> None:
    """Write ``folds.md`` and ``folds.json``, and add them to the MLflow run."""
    from raybio.runtime.tracking.tracker import add_artifacts

    spert_overlaps = untrained[0].config.evaluation.spert_overlaps
    scores = {"chance": _chance_by_fold(sentences, spert_overlaps=spert_overlaps)}
    evaluated, num_seeds = _scores_by_row(untrained, evaluations)
    scores |= evaluated
    is_ade = sentences.entity_types == ("Adverse-Effect", "Drug") and sentences.num_folds == 10
    unfinished = {row: reason for row, reason in unfinished.items() if row in scores}
    table = fold_table(scores, tuple(PUBLISHED) if is_ade else (), unfinished, num_seeds)
    data = {}
    for row, by_fold in scores.items():
        data[row] = {str(fold): own for fold, own in by_fold.items()}
    content = {
        "scores": data,
        "num_seeds": num_seeds,
        "differences": _difference_records(scores),
        "unfinished": unfinished,
    }
    write_record(folder.path / "folds.json", "cross-validation", content)
    folders = markdown_table(["model", "fold", "seed", "folder"], folder_rows)
    lines = [table]
    if cost:
        lines.append(f"cost: {cost}, without the evaluation of the folds")
    replace_text(folder.path / "folds.md", "\n\n".join([*lines, folders]) + "\n")
    add_artifacts(folder, [folder.path / "folds.md", folder.path / "folds.json"])


def _chance_by_fold(sentences: WordStore, *, spert_overlaps: bool) -> ScoresByFold:
    """Return the scores of chance on each fold's test sentences."""
    from raybio.methods.relation_graphs.evaluation.sentence_scores import chance_scores

    chance = {}
    for fold in range(1, sentences.num_folds + 1):
        rows = read_fold(sentences, FoldConfig(fold=fold))
        chance[fold] = chance_scores(sentences, rows, "test", spert_overlaps=spert_overlaps)
    return chance


def _scores_by_row(
    untrained: Sequence[UntrainedEvaluation], evaluations: Sequence[FoldEvaluation]
) -> tuple[dict[str, ScoresByFold], int]:
    """Return row -> scores (means over seeds), and the largest number of seeds of a row and fold.

    Rows without training come first.
    """
    scores: dict[str, ScoresByFold] = {}
    for kept in untrained:
        for row, row_scores in (kept.known() or {}).items():
            scores.setdefault(row, {})[kept.config.data.fold] = row_scores
    seed_scores: dict[tuple[str, int], list[dict[str, float]]] = {}
    for evaluation in evaluations:
        known = evaluation.known()
        if known is None:
            continue
        seed_scores.setdefault((evaluation.row, evaluation.fold), []).append(known.scores)
        if known.fixed_scores is not None:
            fixed = seed_scores.setdefault((evaluation.row + FIXED, evaluation.fold), [])
            fixed.append(known.fixed_scores)
    for (row, fold), seeds in seed_scores.items():
        scores.setdefault(row, {})[fold] = mean_scores(seeds)
    return scores, max((len(seeds) for seeds in seed_scores.values()), default=1)


def _difference_records(scores: Mapping[str, ScoresByFold]) -> list[dict[str, Any]]:
    """Return the differences between rows as they stand in ``folds.json``."""
    records = []
    for one, two, measure, difference, p_holm in fold_differences(scores):
        pair = {"one": one, "two": two, "measure": measure, "p_holm": p_holm}
        records.append(pair | difference._asdict())
    return records


def _run_last_trainings(
    swept: "SweepResult",
    evaluations: Sequence[FoldEvaluation],
    run: RunSpec,
    sentences: WordStore,
) -> dict[ModelOfFold, LastTraining]:
    """Return the last trainings when they are done; the driver holds the sweep meanwhile.

    Raises:
        RaybioError: as any training; of a sweep in a bucket, also if another driver holds it.
    """
    if run.bucket is None:
        last = last_trainings(swept, evaluations, sentences)
        _train_last(list(last.values()), run)
        return last
    from raybio.runtime.cluster.connection import started
    from raybio.runtime.spool.relay import start_relay  # imports Ray

    # ``held`` makes the driver's copy equal to the bucket, and scores of folds are new.
    publish(swept.folder, run.bucket)
    with held(swept.folder, run.bucket) as spool, started(threads=None, verbose=run.verbose):
        last = last_trainings(swept, evaluations, sentences)

        def train() -> None:
            # A separate function, so that no handle of the relay outlives Ray.
            relay = start_relay(swept.folder.path / "last", swept.folder.path)
            trainings = [
                replace(each, lease=spool.key, relay=relay, start=each.folder.begin_start())
                for each in last.values()
            ]
            _train_last(trainings, run)

        train()
    return last


def _train_last(trainings: Sequence[LastTraining], run: RunSpec) -> None:
    """Run the trainings that are not done, and print their warnings even if one of them fails."""
    warnings = WarningPrinter()
    for training in trainings:
        warnings.follow(training.folder.notices)
    try:
        run_tasks(trainings, run.compute, verbose=run.verbose)
    finally:
        for training in trainings:
            warnings.show(training.folder.notices, training.folder.name)


def last_trainings(
    swept: "SweepResult", evaluations: Sequence[FoldEvaluation], sentences: WordStore
) -> dict[ModelOfFold, LastTraining]:
    """Return the last training of each model, with the best epochs and vote settings."""
    sweeps = swept.spec.run.bucket
    bucket = None if sweeps is None else sweeps / swept.folder.name / "last"
    rule_by_export: dict[Path, dict[str, float]] = {}
    for evaluation in evaluations:
        known = evaluation.known()
        if known is not None:
            rule_by_export[evaluation.relations] = known.rule
            rule_by_export[evaluation.entities] = known.rule
    trainings = {}
    for trial in swept.trials:
        key = _key(swept, trial)
        trained = swept.folder_of(trial)
        assert trial.best_step is not None  # the trial reached its end
        trial_config = swept.spec.config(trial.settings)
        assert isinstance(trial_config, Config)
        num_steps = num_last_steps(trial.best_step, read_fold(sentences, trial_config.data))
        config = last_config(trial_config, num_steps, rule_by_export[trained.export])
        run = replace(
            swept.spec.run,
            config=config,
            name="-".join(map(str, key if SEED in trial.settings else key[:2])),
            runs=swept.folder.path / "last",
            bucket=bucket,
            tracking=swept.uri,
            precision=trained.precision or swept.spec.precision_of(config),
            parent_run_id=swept.mlflow_run_id,
        )
        trainings[key] = LastTraining(run)
        trainings[key].open(trained.data_digest)
    return trainings


def _folder_rows(
    folder: RunFolder, exports: Mapping[ModelOfFold, Path], suffix: str
) -> list[list[str]]:
    """Return model, fold, seed and folder of each export; trials are named after their settings."""
    rows = []
    for (model, fold, seed), path in sorted(exports.items()):
        export = path.relative_to(folder.path).as_posix()
        rows.append([model + suffix, str(fold), str(seed), export])
    return rows
