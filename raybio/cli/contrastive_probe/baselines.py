"""The command that asks a benchmark of language models themselves, without rewiring."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from raybio.cli.contrastive_probe.probe import POOLING_HELP, QUERIES_HELP, checked_pooling, set_name
from raybio.cli.options import fraction
from raybio.core.config import fields
from raybio.core.errors import ConfigError
from raybio.core.files import check_writable_folder
from raybio.methods.contrastive_probe.config import DecodeConfig, ProbeConfig

METHODS = ("mask-average", "x-factr", "generative", "hybrid")


# No option has a default of its own: one that is given and does nothing is refused.
HELP = {
    field.path: f"x-factr: {field.meaning} {field.range}".strip() + f"; default: {field.default}"
    for field in fields(DecodeConfig)
}


WEIGHT_HELP = "hybrid: what the masked language model counts among names of one token; default: 0.5"


def baselines(
    model: Annotated[list[str], typer.Option(help="model folder or hub id; repeatable")],
    benchmark: Annotated[
        Path, typer.Option(help="folder of the benchmark: MedLAMA's files, or a source of BioLAMA")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="folder of the report; without it the report is printed and nothing written"
        ),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help=f"by comma, of {', '.join(METHODS)}; each model is asked by those that it can"
        ),
    ] = ",".join(METHODS[:3]),
    subset: Annotated[str, typer.Option(help="full or hard")] = "full",
    queries_per_relation: Annotated[int | None, typer.Option(min=1, help=QUERIES_HELP)] = None,
    restrict: Annotated[
        bool,
        typer.Option("--restrict", help="rank the answers of the query's relation, not all names"),
    ] = False,
    rewired: Annotated[
        str | None, typer.Option(help="hybrid: the encoder, such as export/ of a run")
    ] = None,
    pooling: Annotated[str | None, typer.Option(help=f"hybrid: {POOLING_HELP}")] = None,
    weight: Annotated[
        float | None, typer.Option(parser=fraction, metavar="FLOAT", help=WEIGHT_HELP)
    ] = None,
    decode: Annotated[str | None, typer.Option(help=HELP["decode"])] = None,
    refine: Annotated[str | None, typer.Option(help=HELP["refine"])] = None,
    beam: Annotated[int | None, typer.Option(help=HELP["beam"])] = None,
    max_masks: Annotated[int | None, typer.Option(help=HELP["max_masks"])] = None,
    max_iterations: Annotated[int | None, typer.Option(help=HELP["max_iterations"])] = None,
    rescore: Annotated[bool | None, typer.Option("--rescore", help=HELP["rescore"])] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the intervals")] = 0,
) -> None:
    """Mask average, X-FACTR, written answers and hybrids; beside them the paper's own figures."""
    names = _methods(methods, rewired)
    if subset not in ("full", "hard"):
        raise ConfigError(f"--subset {subset}: want full or hard")
    if out is not None:
        check_writable_folder(out)
    pooled = checked_pooling(pooling)
    values = {"decode": decode, "refine": refine, "beam": beam, "max_masks": max_masks}
    values |= {"max_iterations": max_iterations, "rescore": rescore}
    _refuse_idle(names, ["x-factr"], values)
    _refuse_idle(names, ["hybrid"], {"weight": weight, "pooling": pooling})
    _refuse_idle(names, ["mask-average", "hybrid"], {"restrict": restrict or None})
    config = DecodeConfig.from_mapping(
        {name: value for name, value in values.items() if value is not None}
    )
    # Only now: these import transformers, which takes seconds.
    from raybio.methods.contrastive_probe.accuracy import chance_scores
    from raybio.methods.contrastive_probe.baselines.evaluate import Rewired, ask, methods_by_model
    from raybio.methods.contrastive_probe.baselines.evaluate import baselines as answer
    from raybio.methods.contrastive_probe.baselines.report import report_data, report_markdown
    from raybio.methods.contrastive_probe.probe import cuts_of_benchmarks

    able = methods_by_model(model, cast(Any, names)).items()
    left_out = [
        f"{one}: {', '.join(sorted(set(names) - set(its)))}"
        for one, its in able
        if len(its) < len(names)
    ]
    print(
        *(f"cannot be asked by every method: {line} left out\n" for line in left_out),
        sep="",
        end="",
    )
    asked = ask(benchmark, cast(Any, subset), queries_per_relation)
    encoder = (
        None if rewired is None else Rewired(rewired, pooled, 0.5 if weight is None else weight)
    )
    query_set = set_name(benchmark, subset)
    cuts = (
        []
        if rewired is None
        else sum(cuts_of_benchmarks([rewired], {query_set: asked.benchmark}).values(), [])
    )
    for cut in cuts:
        print(f"{rewired}: {cut}")
    results = answer(
        model, cast(Any, names), asked, decode=config, restrict=restrict, rewired=encoder, say=print
    )
    settings: dict[str, Any] = {
        "models": model,
        "methods": names,
        "left out": left_out,
        "benchmark": str(benchmark),
    }
    settings |= {
        "subset": subset,
        "queries_per_relation": queries_per_relation,
        "restrict": restrict,
        "seed": seed,
    }
    if encoder:
        settings |= {"rewired": rewired, "pooling": pooled, "weight": encoder.weight}
        settings |= {"cut": "; ".join(cuts)} if cuts else {}
    if "x-factr" in names:
        settings["x-factr"] = config.to_mapping()
    ranked = ProbeConfig(candidates="relation" if restrict else "all")
    data = report_data(
        results,
        asked.benchmark,
        asked.examples(),
        settings,
        chance=chance_scores(asked.benchmark, ranked),
        query_set=query_set,
        seed=seed,
    )
    _hand_over(out, report_markdown(data), data)


def _methods(text: str, rewired: str | None) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or not set(names) <= set(METHODS):
        raise ConfigError(f"--methods {text}: want some of {', '.join(METHODS)}, by comma")
    if "hybrid" in names and rewired is None:
        raise ConfigError(f"--methods {text}: hybrid wants --rewired, the encoder that is mixed in")
    if "hybrid" not in names and rewired is not None:
        raise ConfigError(
            f"--rewired {rewired}: only --methods hybrid mixes an encoder in; got --methods {text}"
        )
    return list(dict.fromkeys(names))


def _hand_over(out: Path | None, report: str, data: Mapping[str, Any]) -> None:
    if out is not None:
        from raybio.methods.contrastive_probe.baselines.report import lengths_by_label
        from raybio.methods.contrastive_probe.plots import plot_lengths

        out.mkdir(parents=True, exist_ok=True)
        (out / "baselines.json").write_text(json.dumps(data, indent=2) + "\n")
        (out / "baselines.md").write_text(report)
        for k, bins_by_label in lengths_by_label(data).items():
            plot_lengths(bins_by_label, out / "plots" / f"lengths_acc{k}.png", f"acc@{k}")
        report += f"\nreport: {out / 'baselines.md'}, {out / 'baselines.json'}, {out / 'plots'}/"
    print(report)


def _refuse_idle(
    methods: Collection[str], wanted: Collection[str], values: Mapping[str, Any]
) -> None:
    """Refuse options that none of the methods reads."""
    given = [f"--{name.replace('_', '-')}" for name, value in values.items() if value is not None]
    if given and not set(methods) & set(wanted):
        raise ConfigError(
            f"{', '.join(given)}: for {' or '.join(wanted)} alone, and --methods is {','.join(methods)}. Leave out "
            "what does nothing, or add the method."
        )
