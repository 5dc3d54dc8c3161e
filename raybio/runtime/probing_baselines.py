"""The command that asks a benchmark of language models themselves, without rewiring."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from raybio.config import fields
from raybio.errors import ConfigError
from raybio.evaluation.mask_prediction import DecodeConfig

METHODS = ("mask-average", "x-factr", "generative")
DECODE = DecodeConfig()
HELP = {field.path: f"{field.meaning} {field.range}".strip() for field in fields(DecodeConfig)}


def baselines(
    model: Annotated[list[str], typer.Option(help="model folder or hub id; repeatable")],
    benchmark: Annotated[Path, typer.Option(help="folder of the benchmark: MedLAMA's files, or a source of BioLAMA")],
    out: Annotated[Path, typer.Option(help="folder of the report")],
    methods: Annotated[
        str, typer.Option(help=f"by comma, of {', '.join(METHODS)}; each model is asked by those that it can")
    ] = ",".join(METHODS),
    subset: Annotated[str, typer.Option(help="full or hard")] = "full",
    limit: Annotated[int | None, typer.Option(min=1, help="ask the first so many queries of each relation")] = None,
    restrict: Annotated[
        bool, typer.Option("--restrict", help="mask average: among the answers of the query's relation, not all names")
    ] = False,
    decode: Annotated[str, typer.Option(help=f"x-factr: {HELP['decode']}")] = DECODE.decode,
    refine: Annotated[str, typer.Option(help=f"x-factr: {HELP['refine']}")] = DECODE.refine,
    beam: Annotated[int, typer.Option(help=f"x-factr: {HELP['beam']}")] = DECODE.beam,
    max_masks: Annotated[int, typer.Option(help=f"x-factr: {HELP['max_masks']}")] = DECODE.max_masks,
    max_iterations: Annotated[int, typer.Option(help=f"x-factr: {HELP['max_iterations']}")] = DECODE.max_iterations,
    rescore: Annotated[bool, typer.Option("--rescore", help=f"x-factr: {HELP['rescore']}")] = DECODE.rescore,
    seed: Annotated[int, typer.Option(help="of the intervals")] = 0,
) -> None:
    """Mask average, X-FACTR and written answers; beside them the published figures of the paper's Table 3."""
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names or not set(names) <= set(METHODS):
        raise ConfigError(f"--methods {methods}: want some of {', '.join(METHODS)}, by comma")
    if subset not in ("full", "hard"):
        raise ConfigError(f"--subset {subset}: want full or hard")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is a file; want a folder, which may be there or not")
    given = {"decode": decode, "refine": refine, "beam": beam, "max_masks": max_masks}
    config = DecodeConfig.from_mapping(given | {"max_iterations": max_iterations, "rescore": rescore})
    # Only now: these import transformers, which takes seconds.
    from raybio.evaluation.probe_baseline_report import report_data, report_markdown
    from raybio.systems.probe_baselines import ask
    from raybio.systems.probe_baselines import baselines as answer

    asked = ask(benchmark, subset, limit)  # type: ignore[arg-type]
    results = answer(model, names, asked, decode=config, restrict=restrict, say=print)  # type: ignore[arg-type]
    settings: dict[str, Any] = {
        "models": model,
        "benchmark": str(benchmark),
        "subset": subset,
        "limit": limit,
        "restrict": restrict,
    }
    if "x-factr" in names:
        settings["x-factr"] = config.to_mapping()
    data = report_data(results, asked.benchmark.relations, settings, seed=seed)
    report = report_markdown(data)
    out.mkdir(parents=True, exist_ok=True)
    (out / "baselines.json").write_text(json.dumps(data, indent=2) + "\n")
    (out / "baselines.md").write_text(report)
    print(report)
    print(f"report: {out / 'baselines.md'}, {out / 'baselines.json'}")
