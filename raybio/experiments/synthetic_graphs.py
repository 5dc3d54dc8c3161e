"""The synthetic experiments of SPPT: a sweep over graphs, noise, draws and λ, table and figures.

sweeps/NAME/
    trials/…                 one training each; export/ is its model
    graphs.md, .json         AUROC of character n-grams, of the encoder before training, and of
                             models without and with the graph loss (Table 1); homophily
    noise.png                AUROC over the noise of a graph (Figure 3), if several are trained
    map-GRAPH.png            the nodes of draw 0 in the embedding space, with their links and
                             surface, without and with the graph loss
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from raybio.core.config import name_digits, override_all, value_at
from raybio.core.errors import ConfigError
from raybio.core.fields import fields
from raybio.core.files import replace_text
from raybio.core.records import write_record
from raybio.core.search_space import Budget, Distribution, Scheduler, Search, SearchSpace
from raybio.methods.sppt.synthetic.config import Config
from raybio.methods.sppt.synthetic.evaluate import classify_letters, describe
from raybio.methods.sppt.synthetic.graphs import synthetic_graph
from raybio.methods.sppt.synthetic.report import GraphScores, graph_table
from raybio.methods.sppt.synthetic.store import TopicStore
from raybio.methods.sppt.synthetic.system import (
    embedded_nodes,
    paper_recipe,
    published_settings,
)
from raybio.runtime.compare.cost import cost_in_words, describe_sweep, describe_sweep_time
from raybio.runtime.compare.unfinished import unfinished_trial
from raybio.runtime.run.cost import cost_of
from raybio.runtime.run.options import (
    RunOptions,
    check_writable,
    resolve,
    runs_folder,
    sweeps_folder,
)
from raybio.runtime.run.spec import Compute, RunSpec
from raybio.runtime.spool.spool import announce_copy, publish
from raybio.runtime.tune.trial import SweepSpec
from raybio.store.store import open_store
from raybio.training.settings import TrainingConfig

if TYPE_CHECKING:
    from raybio.runtime.tune.driver import SweepResult


KIND = "graph.kind"
REPEAT = "graph.repeat"
NOISE = "graph.noise"
WEIGHT = "objective.lambda_spml"
METRIC = "nodes/auroc"
PATHS = [field.path for field in fields(Config)]


class Experiments(NamedTuple):
    """All combinations of these are trained, each with and without the graph loss.

    Attributes:
        kinds: kinds of graphs.
        repeats: draws of each graph.
        noise: probabilities that an unlinked pair of nodes is linked.
    """

    kinds: tuple[str, ...]
    repeats: int
    noise: tuple[float, ...]


def experiment_space(config_by_kind: Mapping[str, Config], experiments: Experiments) -> SearchSpace:
    """Return the sweep of the experiments; settings that differ by graph are tied to the graph.

    Raises:
        ConfigError: for λ = 0, with which there is nothing to compare.
    """
    weight = config_by_kind[experiments.kinds[0]].objective.lambda_spml
    if not weight:
        raise ConfigError(f"{WEIGHT}: got 0, which is trained in any case; want a number above 0")
    values = {
        kind: {path: value_at(config, path) for path in PATHS}
        for kind, config in config_by_kind.items()
    }
    differ = [path for path in PATHS if len({repr(chosen[path]) for chosen in values.values()}) > 1]
    steps = max(config.schedule.max_steps for config in config_by_kind.values())
    space = {
        KIND: Distribution("choice", experiments.kinds),
        REPEAT: Distribution("choice", tuple(range(experiments.repeats))),
        NOISE: Distribution("choice", experiments.noise),
        WEIGHT: Distribution("choice", (0.0, weight)),
    }
    num_trials = len(experiments.kinds) * experiments.repeats * len(experiments.noise) * 2
    return SearchSpace(
        method="sppt_synthetic",
        metric=METRIC,
        mode="max",
        budget=Budget(
            num_trials=num_trials,
            max_steps=steps,
            grace_steps=steps,
            max_concurrent_trials=None,
        ),
        scheduler=Scheduler(kind="none"),
        search=Search(kind="grid"),
        space=space,
        tied={KIND: {kind: {path: own[path] for path in differ} for kind, own in values.items()}}
        if differ
        else {},
    )


def run_experiments(
    options: RunOptions, experiments: Experiments, *, is_dry_run: bool = False
) -> None:
    """Run the experiments as one sweep, and print their table.

    Args:
        options: options of the command line; ``compute`` is that of a trial.
        experiments: graphs, draws and noise.
        is_dry_run: print the trials and their time, and train nothing.

    Raises:
        RaybioError: as ``sweep``.
        ConfigError: for wrong options.
        ClusterError: if a trial did not reach its end.
    """
    compute = options.compute
    if compute.device != "auto" and compute.gpus_per_worker is not None:
        raise ConfigError(
            f"--device {compute.device} and --gpus-per-worker: both state a trial's GPUs; leave "
            "one out"
        )
    # Before anything is made: a bucket that cannot be used is refused.
    sweeps, bucket = sweeps_folder(options.runs, options.name)
    if not is_dry_run:
        check_writable(sweeps, bucket)
    config_by_kind, run = _resolve_kinds(options, experiments)
    space = experiment_space(config_by_kind, experiments)
    store = open_store(run.store, TopicStore)
    # Too few sentences or too much noise is reported before anything is trained.
    for settings in _draws(experiments):
        config = override_all(config_by_kind[settings[KIND]], settings)
        nodes = synthetic_graph(store, config.graph)
        if settings[REPEAT] == 0:
            print(_describe_graph(settings, describe(nodes)))
    announce_copy("sweeps", sweeps, bucket)
    run = replace(
        run,
        config=config_by_kind[experiments.kinds[0]],
        name=options.name or f"{run.name}-{_digest(experiments, config_by_kind)}",
        runs=sweeps,
        bucket=bucket,
        compute=Compute(
            cpus_per_worker=run.compute.cpus_per_worker,
            gpus_per_worker=run.compute.gpus_of_trial,
        ),
        explicit=frozenset(),
    )
    spec = SweepSpec(space=space, run=run)
    runs, _ = runs_folder(None)
    if is_dry_run:
        print("\n".join(describe_sweep(spec, runs)))
        return
    for line in describe_sweep_time(spec, runs):
        print(line, flush=True)
    from raybio.runtime.tracking.tracker import add_artifacts
    from raybio.runtime.tune.driver import sweep

    swept = sweep(spec)
    swept.check_finished()
    files = report(swept, config_by_kind, store, experiments)
    if bucket is not None:
        publish(swept.folder, bucket)
    add_artifacts(swept.folder, files)
    print(files[0].read_text(encoding="utf-8"))
    for path in files:
        print(path)
    print(f"MLflow: {swept.mlflow_line}")


def _digest(experiments: Experiments, config_by_kind: Mapping[str, Config]) -> str:
    """Return a four-digit hash of all experiments.

    The resolved name of the run covers the settings of the first graph only.
    """
    configs = [name_digits(config) for config in config_by_kind.values()]
    text = repr((tuple(experiments), configs))
    return hashlib.sha256(text.encode()).hexdigest()[:4]


def _resolve_kinds(
    options: RunOptions, experiments: Experiments
) -> tuple[dict[str, Config], RunSpec]:
    """Return the configuration of each kind of graph, and the run of the first one.

    With a store, the given settings override the paper's settings for the graph. Only the last
    weights are evaluated: choosing a step by the evaluated nodes would be biased.
    """
    config_by_kind: dict[str, Config] = {}
    runs = []
    for kind in experiments.kinds:
        # The embedded sentences have settings of their own.
        published = None if options.store is None else partial(_published, kind)
        run = resolve("sppt_synthetic", replace(options, runs=None, published=published))
        runs.append(run)
        assert isinstance(run.config, Config)
        config_by_kind[kind] = override_all(
            run.config, {"schedule.evaluate_every_steps": run.config.schedule.max_steps}
        )
    return config_by_kind, runs[0]


def _published(kind: Any, given: TrainingConfig | None) -> Mapping[str, object]:
    return published_settings(kind, given if isinstance(given, Config) else None)


def report(
    swept: "SweepResult",
    config_by_kind: Mapping[str, Config],
    store: TopicStore,
    experiments: Experiments,
) -> list[Path]:
    """Write table and figures into the sweep's folder, and return their paths, the table first."""
    from raybio.methods.sppt.synthetic.plots import plot_noise

    folder = swept.folder.path
    results = _TrialResults.of(swept)
    weight = config_by_kind[experiments.kinds[0]].objective.lambda_spml
    scores = []
    for kind in experiments.kinds:
        for noise in experiments.noise:
            keys = [TrialKey(kind, draw, noise, weight) for draw in range(experiments.repeats)]
            scores.append(_graph_scores(results, keys, store, config_by_kind[kind]))
    content = {"graphs": [graph_scores._asdict() for graph_scores in scores]}
    write_record(folder / "graphs.json", "synthetic graphs", content)
    table = graph_table(scores, weight)
    cost = cost_in_words(cost_of(swept.folder_of(trial)) for trial in swept.trials)
    if cost:
        table += f"\n\ncost: {cost}"
    replace_text(folder / "graphs.md", table + "\n")
    files = [folder / "graphs.md", folder / "graphs.json"]
    if len(experiments.noise) > 1:
        files.append(plot_noise(scores, folder / "noise.png"))
    for kind in experiments.kinds:
        key = TrialKey(kind, 0, experiments.noise[0], weight)
        files.append(_draw_map(results, key, store, config_by_kind[kind], folder))
    return files


class TrialKey(NamedTuple):
    """Settings by which the trials differ.

    Attributes:
        kind: the graph.
        draw: number of the draw.
        noise: probability that an unlinked pair of nodes is linked.
        weight: λ; 0 for the language model alone.
    """

    kind: str
    draw: int
    noise: float
    weight: float

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "TrialKey":
        """Return the key of a trial with these settings."""
        return cls(
            kind=str(settings[KIND]),
            draw=int(settings[REPEAT]),
            noise=float(settings[NOISE]),
            weight=float(settings[WEIGHT]),
        )

    @property
    def alone(self) -> "TrialKey":
        """The key of the same graph without the graph loss."""
        return self._replace(weight=0.0)


class _TrialResults(NamedTuple):
    """Results of the trials.

    Attributes:
        auroc: after training.
        initial: AUROC before training; None where it was not evaluated.
        unfinished: why the training is not finished; None: it is.
        export: folder of the model.
    """

    auroc: dict[TrialKey, float]
    initial: dict[TrialKey, float | None]
    unfinished: dict[TrialKey, str | None]
    export: dict[TrialKey, Path]

    @classmethod
    def of(cls, swept: "SweepResult") -> "_TrialResults":
        results = cls({}, {}, {}, {})
        for trial in swept.trials:
            key = TrialKey.of(trial.settings)
            results.auroc[key] = trial.values[-1][1]
            results.initial[key] = trial.initial
            results.unfinished[key] = unfinished_trial(swept.spec, trial, paper_recipe(key.kind))
            results.export[key] = swept.folder_of(trial).export
        return results


def _graph_scores(
    results: _TrialResults, keys: Sequence[TrialKey], store: TopicStore, config: Config
) -> GraphScores:
    """Return the results on one graph.

    Args:
        results: of all trials.
        keys: the trials with the graph loss, one a draw.
        store: sentences of the nodes.
        config: settings of the graph's kind.
    """
    graphs = [synthetic_graph(store, _config_of(key, config).graph) for key in keys]
    initial = [results.initial[key] for key in keys]
    reasons = [results.unfinished[key] for key in [*(key.alone for key in keys), *keys]]
    return GraphScores(
        kind=keys[0].kind,
        noise=keys[0].noise,
        homophily=[describe(graph)["homophily"] for graph in graphs],
        letters=[float(classify_letters(graph, config).auroc_N.mean()) for graph in graphs],
        initial=[auroc for auroc in initial if auroc is not None],
        alone=[results.auroc[key.alone] for key in keys],
        with_graph=[results.auroc[key] for key in keys],
        unfinished=next(filter(None, reasons), None),
    )


def _draw_map(
    results: _TrialResults, key: TrialKey, store: TopicStore, config: Config, folder: Path
) -> Path:
    """Write the figure of a graph in the embedding spaces without and with the graph loss."""
    from raybio.evaluation.figures import save_figure
    from raybio.methods.sppt.synthetic.plots import draw_nodes

    panels = {}
    for title, trial in (("language model alone", key.alone), (f"λ = {key.weight:g}", key)):
        nodes, embedding_ND = embedded_nodes(results.export[trial], store, _config_of(key, config))
        panels[title] = embedding_ND
    return save_figure(draw_nodes(panels, nodes, key.kind), folder / f"map-{key.kind}.png")


def _config_of(key: TrialKey, config: Config) -> Config:
    """Return the settings of a trial's graph."""
    return override_all(config, {KIND: key.kind, REPEAT: key.draw, NOISE: key.noise})


def _draws(experiments: Experiments) -> Sequence[dict[str, Any]]:
    return [
        {KIND: kind, REPEAT: draw, NOISE: noise}
        for kind in experiments.kinds
        for draw in range(experiments.repeats)
        for noise in experiments.noise
    ]


def _describe_graph(settings: Mapping[str, Any], facts: Mapping[str, float]) -> str:
    noise = f", noise {settings[NOISE]:g}" if settings[NOISE] else ""
    sizes = ", ".join(f"{facts[name]} {name}" for name in ("nodes", "links", "classes"))
    share = f"{100 * facts['homophily']:.0f} %"
    return f"{settings[KIND]}{noise}: {sizes}; neighbors predict the class of {share} of the nodes"


def numbers(text: str, option: str) -> tuple[float, ...]:
    """Return comma-separated numbers from 0 to 1, each once and ascending.

    Raises:
        ConfigError: for anything else, with the option.
    """
    try:
        values = {float(part) for part in text.split(",")}
    except ValueError:
        raise ConfigError(
            f"{option}: got {text!r}, want comma-separated numbers, such as 0,0.05,0.1"
        ) from None
    if not all(0 <= value <= 1 for value in values):
        raise ConfigError(f"{option}: got {text!r}, want numbers from 0 to 1")
    return tuple(sorted(values))
