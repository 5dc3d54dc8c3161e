"""The command ``baselines``: language models queried without rewiring."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from raybio.cli.contrastive_probe.options import (
    BENCHMARK_HELP,
    POOLING_HELP,
    QUERIES_HELP,
)
from raybio.cli.options import (
    LocationType,
    fraction,
    location_option,
    model_option,
)
from raybio.cli.settings import meanings, settings_of
from raybio.cli.stores import local_copy
from raybio.core.errors import ConfigError
from raybio.core.files import check_writable_folder
from raybio.encoders.config import Pooling
from raybio.methods.contrastive_probe.config import (
    BASELINE_METHODS,
    BaselineMethod,
    Decode,
    DecodeConfig,
    Refine,
    Subset,
)
from raybio.runtime.model_paths import model_source

DEFAULTS = DecodeConfig()

# These options have no default value, so that options without effect can be refused.
HELP = {
    name: f"x-factr: {meaning}; default: {getattr(DEFAULTS, name)}"
    for name, meaning in meanings(DecodeConfig).items()
}

DEFAULT_WEIGHT = 0.5
WEIGHT_HELP = (
    f"hybrid: weight of the masked language model at names of one token; default: {DEFAULT_WEIGHT}"
)


def baselines(
    model: Annotated[list[str], model_option("run, model folder or hub id; repeatable")],
    benchmark: Annotated[LocationType, location_option(BENCHMARK_HELP)],
    out: Annotated[
        Path | None, typer.Option(help="folder of the report; default: it is only printed")
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help=f"comma-separated, of {', '.join(BASELINE_METHODS)}; "
            "each model is evaluated with those that it supports"
        ),
    ] = "mask-average,x-factr,generative",
    subset: Annotated[Subset, typer.Option(help="set of queries")] = "full",
    queries_per_relation: Annotated[int | None, typer.Option(min=1, help=QUERIES_HELP)] = None,
    restrict: Annotated[
        bool,
        typer.Option("--restrict", help="rank the answers of the query's relation, not all names"),
    ] = False,
    rewired: Annotated[
        str | None, model_option("hybrid: the encoder, such as export/ of a run")
    ] = None,
    pooling: Annotated[Pooling | None, typer.Option(help=f"hybrid: {POOLING_HELP}")] = None,
    weight: Annotated[
        float | None, typer.Option(parser=fraction, metavar="FLOAT", help=WEIGHT_HELP)
    ] = None,
    decode: Annotated[Decode | None, typer.Option(help=HELP["decode"])] = None,
    refine: Annotated[Refine | None, typer.Option(help=HELP["refine"])] = None,
    beam: Annotated[int | None, typer.Option(help=HELP["beam"])] = None,
    max_masks: Annotated[int | None, typer.Option(help=HELP["max_masks"])] = None,
    max_iterations: Annotated[int | None, typer.Option(help=HELP["max_iterations"])] = None,
    rescore: Annotated[bool | None, typer.Option("--rescore", help=HELP["rescore"])] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of the intervals")] = 0,
) -> None:
    """Evaluate mask average, X-FACTR, generated answers and hybrids, next to published figures.

    Example: raybio evaluate baselines --model MASKED_LM --methods mask-average
    --benchmark MEDLAMA --out report/
    """
    names = _parse_methods(methods, rewired)
    if out is not None:
        check_writable_folder(out)
    decode_values = {
        "decode": decode,
        "refine": refine,
        "beam": beam,
        "max_masks": max_masks,
        "max_iterations": max_iterations,
        "rescore": rescore,
    }
    _refuse_unused(names, ["x-factr"], decode_values)
    _refuse_unused(names, ["hybrid"], {"weight": weight, "pooling": pooling})
    _refuse_unused(names, ["mask-average", "hybrid"], {"restrict": restrict or None})
    given = {name: value for name, value in decode_values.items() if value is not None}
    config = settings_of(DecodeConfig, given)
    models = [model_source(one, "--model") for one in model]
    rewired_source = None if rewired is None else model_source(rewired, "--rewired")
    folder = local_copy(benchmark, "--benchmark")
    from raybio.methods.contrastive_probe.baselines.evaluate import RewiredEncoder
    from raybio.methods.contrastive_probe.baselines.run_baselines import report_baselines

    encoder = None
    if rewired_source is not None:
        chosen_weight = DEFAULT_WEIGHT if weight is None else weight
        encoder = RewiredEncoder(rewired_source, pooling, chosen_weight)
    report_baselines(
        models,
        names,
        folder,
        out,
        subset=subset,
        queries_per_relation=queries_per_relation,
        decode=config,
        restrict=restrict,
        rewired=encoder,
        seed=seed,
        log=print,
    )


def _parse_methods(text: str, rewired: str | None) -> list[BaselineMethod]:
    given = [name.strip() for name in text.split(",") if name.strip()]
    if not given or not set(given) <= set(BASELINE_METHODS):
        raise ConfigError(
            f"--methods {text}: want some of {', '.join(BASELINE_METHODS)}, comma-separated"
        )
    if "hybrid" in given and rewired is None:
        raise ConfigError(f"--methods {text}: hybrid wants --rewired, the encoder to combine with")
    if "hybrid" not in given and rewired is not None:
        raise ConfigError(
            f"--rewired {rewired}: only --methods hybrid uses an encoder; got --methods {text}"
        )
    names = [name for name in BASELINE_METHODS if name in given]
    return sorted(names, key=given.index)


def _refuse_unused(
    methods: Collection[str], users: Collection[str], values: Mapping[str, Any]
) -> None:
    """Refuse options that none of the methods uses."""
    given = [f"--{name.replace('_', '-')}" for name, value in values.items() if value is not None]
    if given and not set(methods) & set(users):
        raise ConfigError(
            f"{', '.join(given)}: only for {' or '.join(users)}, and --methods is "
            f"{','.join(methods)}. Remove the option, or add the method."
        )
