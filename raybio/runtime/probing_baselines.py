"""The command that asks a benchmark of language models themselves, without rewiring."""

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from raybio.config import fields
from raybio.errors import ConfigError
from raybio.evaluation.probe_config import DecodeConfig
from raybio.runtime.probing import POOLING_HELP, QUERIES_HELP, checked_pooling

METHODS = ("mask-average", "x-factr", "generative", "hybrid")
DECODE = DecodeConfig()
HELP = {field.path: f"{field.meaning} {field.range}".strip() for field in fields(DecodeConfig)}


def baselines(
    model: Annotated[list[str], typer.Option(help="model folder or hub id; repeatable")],
    benchmark: Annotated[Path, typer.Option(help="folder of the benchmark: MedLAMA's files, or a source of BioLAMA")],
    out: Annotated[
        Path | None, typer.Option(help="folder of the report; without it the report is printed and nothing written")
    ] = None,
    methods: Annotated[
        str, typer.Option(help=f"by comma, of {', '.join(METHODS)}; each model is asked by those that it can")
    ] = ",".join(METHODS[:3]),
    subset: Annotated[str, typer.Option(help="full or hard")] = "full",
    queries_per_relation: Annotated[int | None, typer.Option(min=1, help=QUERIES_HELP)] = None,
    restrict: Annotated[
        bool, typer.Option("--restrict", help="rank the answers of the query's relation, not all names")
    ] = False,
    rewired: Annotated[str | None, typer.Option(help="hybrid: the encoder, such as export/ of a run")] = None,
    pooling: Annotated[str | None, typer.Option(help=f"hybrid: {POOLING_HELP}")] = None,
    weight: Annotated[
        float, typer.Option(min=0, max=1, help="hybrid: what the masked language model counts among names of one token")
    ] = 0.5,
    decode: Annotated[str, typer.Option(help=f"x-factr: {HELP['decode']}")] = DECODE.decode,
    refine: Annotated[str, typer.Option(help=f"x-factr: {HELP['refine']}")] = DECODE.refine,
    beam: Annotated[int, typer.Option(help=f"x-factr: {HELP['beam']}")] = DECODE.beam,
    max_masks: Annotated[int, typer.Option(help=f"x-factr: {HELP['max_masks']}")] = DECODE.max_masks,
    max_iterations: Annotated[int, typer.Option(help=f"x-factr: {HELP['max_iterations']}")] = DECODE.max_iterations,
    rescore: Annotated[bool, typer.Option("--rescore", help=f"x-factr: {HELP['rescore']}")] = DECODE.rescore,
    seed: Annotated[int, typer.Option(help="of the intervals")] = 0,
) -> None:
    """Mask average, X-FACTR, written answers and hybrids; beside them the published figures of the paper's Table 3."""
    names = _methods(methods, rewired)
    if subset not in ("full", "hard"):
        raise ConfigError(f"--subset {subset}: want full or hard")
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is a file; want a folder, which may be there or not")
    given = {"decode": decode, "refine": refine, "beam": beam, "max_masks": max_masks}
    pooled = checked_pooling(pooling)
    config = DecodeConfig.from_mapping(given | {"max_iterations": max_iterations, "rescore": rescore})
    # Only now: these import transformers, which takes seconds.
    from raybio.evaluation.probe_baseline_report import report_data, report_markdown
    from raybio.systems.probe_baselines import Rewired, ask
    from raybio.systems.probe_baselines import baselines as answer

    asked = ask(benchmark, cast(Any, subset), queries_per_relation)
    encoder = None if rewired is None else Rewired(rewired, pooled, weight)
    results = answer(model, cast(Any, names), asked, decode=config, restrict=restrict, rewired=encoder, say=print)
    settings: dict[str, Any] = {"models": model, "benchmark": str(benchmark), "subset": subset}
    settings |= {"queries_per_relation": queries_per_relation, "restrict": restrict}
    if encoder:
        settings |= {"rewired": rewired, "weight": weight}
    if "x-factr" in names:
        settings["x-factr"] = config.to_mapping()
    data = report_data(results, asked.benchmark.relations, asked.examples(), settings, seed=seed)
    report = report_markdown(data)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "baselines.json").write_text(json.dumps(data, indent=2) + "\n")
        (out / "baselines.md").write_text(report)
        report += f"\nreport: {out / 'baselines.md'}, {out / 'baselines.json'}"
    print(report)


def _methods(text: str, rewired: str | None) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or not set(names) <= set(METHODS):
        raise ConfigError(f"--methods {text}: want some of {', '.join(METHODS)}, by comma")
    if ("hybrid" in names) != (rewired is not None):
        raise ConfigError(f"--methods {text}, --rewired {rewired}: hybrid wants --rewired, and nothing else does")
    return names
