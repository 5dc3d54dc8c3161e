"""The commands ``probe`` and ``sheet``: a report and expert sheets of models on a benchmark."""

from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from raybio.cli.contrastive_probe.options import (
    BENCHMARK_HELP,
    QUERIES_HELP,
    TextPooling,
)
from raybio.cli.options import (
    LocationType,
    PrecisionOption,
    encoders_in,
    location_option,
    model_option,
)
from raybio.cli.settings import meanings, with_settings
from raybio.cli.stores import local_copy
from raybio.core.errors import ConfigError
from raybio.core.files import check_writable_folder
from raybio.methods.contrastive_probe.config import Match, ProbeConfig, Prompts, Subset
from raybio.runtime.model_paths import model_source

LAYERS_HELP = (
    "numbers of layers of each finished model to use, comma-separated, such as 3,5,12; default: "
    "all. The paper rewires a model for each depth instead: train with "
    "--compare encoder.num_layers_kept=3,5,12. With several, the agreement with a second wording "
    "of the queries selects a layer without gold"
)
SHEET_HELP = (
    "queries in a sheet for experts, with the predictions of the first model at its deepest layer; "
    "0: no sheet"
)


@with_settings(ProbeConfig)
def probe(
    model: Annotated[
        list[str],
        model_option("run, its export/, or any model folder or hub id; repeatable"),
    ],
    benchmark: Annotated[
        list[LocationType],
        location_option(f"{BENCHMARK_HELP}; repeatable, for BioLAMA's sources"),
    ],
    out: Annotated[Path, typer.Option(help="folder of the report")],
    *,
    subset: Annotated[Literal[Subset, "both"], typer.Option(help="set of queries")] = "full",
    layers: Annotated[str, typer.Option(help=LAYERS_HELP)] = "",
    pooling: TextPooling = None,
    config: ProbeConfig,
    queries_per_relation: Annotated[int | None, typer.Option(min=1, help=QUERIES_HELP)] = None,
    prompts: Annotated[Prompts, typer.Option(help="wording of the queries")] = "human",
    sheet: Annotated[int, typer.Option(min=0, help=SHEET_HELP)] = 0,
    seed: Annotated[
        int, typer.Option(min=0, help="seed of intervals, tests, shown queries and --sheet")
    ] = 0,
    precision: PrecisionOption = "fp32",
) -> None:
    """Rank a benchmark's names for its queries by embeddings; report the accuracies.

    Example: raybio evaluate probe --model runs/rewired --benchmark MEDLAMA --out report/
    """
    depths = _parse_layers(layers)
    check_writable_folder(out)
    models = [model_source(name, "--model") for name in model]
    folders = [local_copy(each, "--benchmark") for each in benchmark]
    from raybio.methods.contrastive_probe.run_probe import write_probe_report

    with encoders_in(precision):
        write_probe_report(
            models,
            folders,
            out,
            config,
            subsets=get_args(Subset) if subset == "both" else (subset,),
            layers=depths,
            pooling=pooling,
            prompts=prompts,
            queries_per_relation=queries_per_relation,
            num_sheet_queries=sheet,
            seed=seed,
            log=print,
        )


def sheet(
    filled: Annotated[
        LocationType, location_option("the CSV file of probe --sheet, with scores filled in")
    ],
    benchmark: Annotated[LocationType, location_option(BENCHMARK_HELP)],
    out: Annotated[Path, typer.Option(help="folder of the result")],
    subset: Annotated[
        Subset, typer.Option(help="set of queries from which the sheet was written")
    ] = "full",
    match: Annotated[Match, typer.Option(help=meanings(ProbeConfig)["match"])] = "name",
) -> None:
    """Compare experts' scores with gold: the confusion matrix and its plot.

    Example: raybio evaluate sheet --filled report/sheet_full.csv --benchmark MEDLAMA --out scores/
    """
    check_writable_folder(out)
    scores = local_copy(filled, "--filled")
    folder = local_copy(benchmark, "--benchmark")
    from raybio.methods.contrastive_probe.expert_sheet import write_expert_scores

    print(write_expert_scores(scores, folder, subset, out, match=match))
    print(f"{out / 'scores.md'}, {out / 'scores.png'}")


def _parse_layers(text: str) -> list[int] | None:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(
            f"--layers {text}: want numbers of layers, 1 or more, comma-separated, such as 3,5,12"
        )
    return sorted({int(part) for part in parts}) or None
