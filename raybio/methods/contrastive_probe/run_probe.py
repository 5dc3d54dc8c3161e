"""Probe models on the benchmarks of folders; write the report and the sheets for experts."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from raybio.core.errors import ConfigError
from raybio.encoders.config import Pooling
from raybio.encoders.sources import weights_of_models
from raybio.methods.contrastive_probe.accuracy import chance_scores, evaluate_predictions
from raybio.methods.contrastive_probe.benchmark.biolama import (
    check_subset,
    is_biolama,
    query_set_name,
    read_benchmark,
)
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark
from raybio.methods.contrastive_probe.benchmark.prompts import default_prompt
from raybio.methods.contrastive_probe.config import ProbeConfig, Prompts, Subset
from raybio.methods.contrastive_probe.expert_sheet import check_unscored, write_sheet
from raybio.methods.contrastive_probe.probe import (
    ProbeResult,
    probe_models,
    truncation_remarks,
)
from raybio.methods.contrastive_probe.published import paper_prompts
from raybio.methods.contrastive_probe.report import QuerySetResults
from raybio.methods.contrastive_probe.report_files import write_report
from raybio.methods.contrastive_probe.rivals import predict_by_rivals
from raybio.methods.contrastive_probe.text_embedder import default_pooling
from raybio.training.precision import current_embedding_precision

_Sources = dict[str, tuple[Path, Subset]]
"""Name of a query set -> its folder and subset."""


def write_probe_report(
    models: Sequence[str],
    folders: Sequence[Path],
    out: Path,
    config: ProbeConfig,
    *,
    subsets: Sequence[Subset] = ("full",),
    layers: Sequence[int] | None = None,
    pooling: Pooling | None = None,
    prompts: Prompts = "human",
    queries_per_relation: int | None = None,
    num_sheet_queries: int = 0,
    seed: int = 0,
    log: Callable[[str], None] = lambda _: None,
) -> None:
    """Probe models on benchmarks; write the report and the sheets for experts.

    With several layers of MedLAMA, a second wording of the queries gives the agreement by which a
    layer is selected without gold. Models embed in the surrounding ``embedding_precision``.

    Args:
        models: folders or hub ids.
        folders: benchmarks, MedLAMA's files or sources of BioLAMA.
        out: folder of the report.
        config: candidates, distance and match.
        subsets: "full", "hard" or both.
        layers: numbers of layers used; None: all.
        pooling: None: the default of each model.
        prompts: wording of the queries.
        queries_per_relation: size of the sample of queries; None: all.
        num_sheet_queries: queries in each sheet for experts; 0: no sheet.
        seed: of intervals, tests, shown queries and sheets.
        log: called with progress messages.

    Raises:
        ConfigError: if two query sets have one name, or a model cannot be probed.
        DataError: if a benchmark cannot be read or has no hard set, or a sheet with scores would be
            overwritten.
    """
    sources = _sources(folders, subsets)
    sheets = {name: out / f"sheet_{name}.csv" for name in sources if num_sheet_queries}
    for path in sheets.values():
        check_unscored(path)

    # All files are read before the first model is loaded, so that errors come at once.
    benchmarks = _read_all(sources, prompts, queries_per_relation)
    unprompted = _unprompted_relations(benchmarks.values()) if prompts != "default" else []
    if unprompted:
        log(f"relations without a prompt, queried by their names: {', '.join(unprompted)}")
    reworded = None
    # Relations of BioLAMA are named by numbers, so their default prompts have no meaning.
    if layers and len(layers) > 1 and not any(map(is_biolama, folders)):
        other_prompts: Prompts = "human" if prompts == "default" else "default"
        reworded = _read_all(sources, other_prompts, queries_per_relation)
        if all(reworded[name].prompts == own.prompts for name, own in benchmarks.items()):
            reworded = None
    truncated = _truncated(models, benchmarks)
    for remark in truncated:
        log(remark)

    results = probe_models(
        models, benchmarks, config, layers=layers, pooling=pooling, reworded=reworded, log=log
    )
    sets = [
        _scored(name, benchmark, results[name], config, log)
        for name, benchmark in benchmarks.items()
    ]
    settings: dict[str, Any] = {
        "benchmark": ", ".join(map(str, folders)),
        "models": ", ".join(models),
        "weights": weights_of_models({model: model for model in models}),
        **config.to_mapping(),
        "pooling": ", ".join(pooling or default_pooling(model) for model in models),
        "prompts": prompts,
        "precision": current_embedding_precision().name,
        "seed": seed,
    }
    if unprompted:
        settings["relations without a prompt"] = ", ".join(unprompted)
    if truncated:
        settings["truncated"] = "; ".join(truncated)
    if queries_per_relation is not None:
        settings["queries per relation"] = queries_per_relation
    write_report(out, sets, settings, seed=seed)
    log(f"report: {out / 'report.md'}, {out / 'report.json'}, {out / 'tables'}/, {out / 'plots'}/")
    for name, path in sheets.items():
        # The results of the first model come first, its deepest layer last.
        predicted_QK = results[name][len(layers or [None]) - 1].predicted_QK
        assert predicted_QK is not None
        write_sheet(path, benchmarks[name], predicted_QK, num_queries=num_sheet_queries, seed=seed)
        log(f"for experts: {path}")


def _sources(folders: Sequence[Path], subsets: Sequence[Subset]) -> _Sources:
    sources: _Sources = {}
    for folder in folders:
        for subset in subsets:
            check_subset(folder, subset)
            name = query_set_name(folder, subset)
            if name in sources:
                raise ConfigError(
                    f"--benchmark {folder}: {sources[name][0]} has a set named {name} too, and the "
                    "report distinguishes sets by name. Probe them one by one"
                )
            sources[name] = (folder, subset)
    return sources


def _read_all(
    sources: _Sources, prompts: Prompts, queries_per_relation: int | None
) -> dict[str, ProbeBenchmark]:
    benchmarks = {
        name: read_benchmark(folder, subset, prompts) for name, (folder, subset) in sources.items()
    }
    if queries_per_relation is None:
        return benchmarks
    return {
        name: benchmark.sample(queries_per_relation, seed=0)
        for name, benchmark in benchmarks.items()
    }


def _scored(
    name: str,
    benchmark: ProbeBenchmark,
    results: list[ProbeResult],
    config: ProbeConfig,
    log: Callable[[str], None],
) -> QuerySetResults:
    """Return the results of a query set next to chance and to rivals that need no encoder."""
    chance = chance_scores(benchmark, config)
    log(f"rivals that need no encoder, {name}")
    rivals = [
        ProbeResult(rival, None, evaluate_predictions(benchmark, predicted_QK, config.match))
        for rival, predicted_QK in predict_by_rivals(benchmark, config).items()
    ]
    return QuerySetResults(name, benchmark, results, config.match, chance, rivals)


def _truncated(models: Sequence[str], benchmarks: dict[str, ProbeBenchmark]) -> list[str]:
    """Return a remark for each model and query set with truncated texts."""
    truncated = []
    for model, remarks in truncation_remarks(models, benchmarks).items():
        truncated += [f"{model}: {remark}" for remark in remarks]
    return truncated


def _unprompted_relations(benchmarks: Iterable[ProbeBenchmark]) -> list[str]:
    """Return the relations for which neither the benchmark nor the paper has a prompt."""
    relations = set()
    for benchmark in benchmarks:
        for relation, prompt in zip(benchmark.relations, benchmark.prompts, strict=True):
            if relation not in paper_prompts() and prompt == default_prompt(relation):
                relations.add(relation)
    return sorted(relations)
