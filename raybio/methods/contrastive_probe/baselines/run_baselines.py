"""Evaluate baselines on the benchmark of a folder, and report them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from raybio.encoders.sources import weights_of_models
from raybio.methods.contrastive_probe.accuracy import chance_scores, evaluate_predictions
from raybio.methods.contrastive_probe.baselines.evaluate import (
    RewiredEncoder,
    evaluate_baselines,
    methods_by_model,
)
from raybio.methods.contrastive_probe.baselines.queries import read_baseline_queries
from raybio.methods.contrastive_probe.baselines.report import (
    report_data,
    report_markdown,
    write_report,
)
from raybio.methods.contrastive_probe.benchmark.biolama import query_set_name
from raybio.methods.contrastive_probe.config import (
    BaselineMethod,
    DecodeConfig,
    ProbeConfig,
    Subset,
)
from raybio.methods.contrastive_probe.probe import truncation_remarks
from raybio.methods.contrastive_probe.rivals import predict_by_rivals


def report_baselines(
    models: Sequence[str],
    methods: Sequence[BaselineMethod],
    folder: Path,
    out: Path | None,
    *,
    subset: Subset = "full",
    queries_per_relation: int | None = None,
    decode: DecodeConfig,
    restrict: bool = False,
    rewired: RewiredEncoder | None = None,
    seed: int = 0,
    log: Callable[[str], None] = lambda _: None,
) -> None:
    """Evaluate models with the methods that they support; print the report and write it to ``out``.

    Args:
        models: folders or hub ids.
        methods: names of the methods.
        folder: the benchmark, MedLAMA's files or a source of BioLAMA.
        out: folder of the report; None: it is only printed.
        subset: "full" or "hard".
        queries_per_relation: size of the sample of queries; None: all.
        decode: how X-FACTR fills masks.
        restrict: candidates are the answers of the query's relation, not all names.
        rewired: encoder of "hybrid".
        seed: of the intervals.
        log: called with progress messages and the report.

    Raises:
        ConfigError: as ``evaluate_baselines``.
        DataError: if the folder holds no benchmark.
    """
    unsupported = []
    for model, supported in methods_by_model(models, methods).items():
        if len(supported) < len(methods):
            unsupported.append(f"{model}: {', '.join(sorted(set(methods) - set(supported)))}")
    for line in unsupported:
        log(f"skipped, not supported by the model: {line}")
    queries = read_baseline_queries(folder, subset, queries_per_relation)
    query_set = query_set_name(folder, subset)
    truncated: list[str] = []
    if rewired is not None:
        remarks = truncation_remarks([rewired.source], {query_set: queries.benchmark})
        truncated = [remark for model_remarks in remarks.values() for remark in model_remarks]
        for remark in truncated:
            log(f"{rewired.source}: {remark}")
    results = evaluate_baselines(
        models, methods, queries, decode=decode, restrict=restrict, rewired=rewired, log=log
    )
    sources = [*models, *([] if rewired is None else [rewired.source])]
    settings: dict[str, Any] = {
        "models": list(models),
        "weights": weights_of_models({source: source for source in sources}),
        "methods": list(methods),
        "skipped": unsupported,
        "benchmark": str(folder),
        "subset": subset,
        "queries_per_relation": queries_per_relation,
        "restrict": restrict,
        "seed": seed,
    }
    if rewired is not None:
        settings["rewired"] = rewired.source
        settings["pooling"] = rewired.pooling
        settings["weight"] = rewired.weight
        if truncated:
            settings["truncated"] = "; ".join(truncated)
    if "x-factr" in methods:
        settings["x-factr"] = decode.to_mapping()
    candidates = ProbeConfig(candidates="relation" if restrict else "all")
    predictions = predict_by_rivals(queries.benchmark, candidates)
    data = report_data(
        results,
        queries.benchmark,
        queries.examples(),
        settings,
        chance=chance_scores(queries.benchmark, candidates),
        rivals={
            name: evaluate_predictions(queries.benchmark, predicted_QK, candidates.match)
            for name, predicted_QK in predictions.items()
        },
        query_set=query_set,
        seed=seed,
    )
    markdown = report_markdown(data)
    log(markdown)
    if out is not None:
        write_report(out, data, markdown)
        log(f"report: {out / 'baselines.md'}, {out / 'baselines.json'}, {out / 'plots'}/")
