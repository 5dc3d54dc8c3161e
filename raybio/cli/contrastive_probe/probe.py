"""The commands that probe: models and a benchmark in, a report, its figures and a sheet for experts out."""

import csv
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from raybio.core.config import BaseConfig, fields
from raybio.core.errors import ConfigError
from raybio.core.files import check_writable_folder
from raybio.methods.contrastive_probe.config import ProbeConfig

app = typer.Typer(
    help="Probe what encoders know.",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


def _help(config: type[BaseConfig]) -> dict[str, str]:
    return {field.path: f"{field.meaning} {field.range}".strip() for field in fields(config)}


Subset = Literal["full", "hard"]


DEFAULTS, HELP = ProbeConfig(), _help(ProbeConfig)


BENCHMARK_HELP = "folder of the benchmark: MedLAMA's files, or a source of BioLAMA"


Benchmark = Annotated[Path, typer.Option(help=BENCHMARK_HELP)]


LAYERS_HELP = (
    "how many layers of each finished model to use, by comma, such as 3,5,12; default: all. The paper rewires a model "
    "for each depth instead: train with --compare encoder.num_layers_kept=3,5,12. With several, queries are asked in "
    "another wording too: how far both agree chooses a layer without gold"
)


Match = Annotated[str, typer.Option(help=HELP["match"])]


POOLING_HELP = "cls (the paper) or mean: what of a text's states embeds it; default: what the model's folder says, else cls"


SHEET_HELP = "so many queries of the first model, at the deepest of its layers asked, for experts to judge; 0: none"


QUERIES_HELP = (
    "ask so many queries of each relation, drawn by chance, always the same ones; default: all"
)


@app.command()
def probe(
    model: Annotated[
        list[str],
        typer.Option(help="model folder (such as export/ of a run) or hub id; repeatable"),
    ],
    benchmark: Annotated[
        list[Path], typer.Option(help=f"{BENCHMARK_HELP}; repeatable, for BioLAMA's sources")
    ],
    out: Annotated[Path, typer.Option(help="folder of the report")],
    subset: Annotated[str, typer.Option(help="full, hard or both")] = "full",
    layers: Annotated[str, typer.Option(help=LAYERS_HELP)] = "",
    pooling: Annotated[str | None, typer.Option(help=POOLING_HELP)] = None,
    metric: Annotated[str, typer.Option(help=HELP["metric"])] = DEFAULTS.metric,
    candidates: Annotated[str, typer.Option(help=HELP["candidates"])] = DEFAULTS.candidates,
    exclude_head: Annotated[
        bool, typer.Option("--exclude-head", help=HELP["exclude_head"])
    ] = DEFAULTS.exclude_head,
    match: Match = DEFAULTS.match,
    queries_per_relation: Annotated[int | None, typer.Option(min=1, help=QUERIES_HELP)] = None,
    prompts: Annotated[
        str, typer.Option(help="wording of the queries: human, default or released")
    ] = "human",
    sheet: Annotated[int, typer.Option(min=0, help=SHEET_HELP)] = 0,
    seed: Annotated[
        int, typer.Option(min=0, help="of intervals, tests, queries shown and those of --sheet")
    ] = 0,
) -> None:
    """Rank a benchmark's names for its queries by embeddings alone; accuracies beside the published ones."""
    values = {
        "metric": metric,
        "candidates": candidates,
        "exclude_head": exclude_head,
        "match": match,
    }
    config = ProbeConfig.from_mapping(values)
    subsets = _subsets(subset)
    depths = _layers(layers)
    given = checked_pooling(pooling)
    if prompts not in ("human", "default", "released"):
        raise ConfigError(f"--prompts {prompts}: want human, default or released")
    check_writable_folder(out)
    # Only now: these import torch and transformers, which takes seconds.
    from raybio.methods.contrastive_probe.accuracy import chance_scores
    from raybio.methods.contrastive_probe.expert_sheet import check_unscored
    from raybio.methods.contrastive_probe.probe import cuts_of_benchmarks, own_pooling
    from raybio.methods.contrastive_probe.probe import probe as ask
    from raybio.methods.contrastive_probe.report import ProbedSet

    places = _places(benchmark, subsets)
    sheets = {name: out / f"sheet_{name}.csv" for name in places if sheet}
    for path in sheets.values():
        check_unscored(path)

    # Read all before anything is asked: what is missing is said at once.
    questions, reworded = _read(places, prompts, queries_per_relation), None
    by_name = _asked_by_name(questions.values()) if prompts != "default" else []
    if by_name:
        print(
            f"asked by their names, since prompts.csv has no words for them: {', '.join(by_name)}"
        )
    # BioLAMA's relations go by numbers, which are no words to ask in.
    if depths and len(depths) > 1 and not any(map(_is_biolama, benchmark)):
        reworded = _read(
            places, "human" if prompts == "default" else "default", queries_per_relation
        )
    cuts = [
        f"{name}: {cut}"
        for name, found in cuts_of_benchmarks(model, questions).items()
        for cut in found
    ]
    for cut in cuts:
        print(cut)
    answers = ask(
        model, questions, config, layers=depths, pooling=given, reworded=reworded, say=print
    )
    sets = [
        ProbedSet(name, asked, answers[name], config.match, chance_scores(asked, config))
        for name, asked in questions.items()
    ]
    settings = {"benchmark": ", ".join(map(str, benchmark)), "models": ", ".join(model), **values}
    settings |= {
        "pooling": ", ".join(given or own_pooling(one) for one in model),
        "prompts": prompts,
        "seed": seed,
    }
    settings |= {"asked by name": ", ".join(by_name)} if by_name else {}
    settings |= {"cut": "; ".join(cuts)} if cuts else {}
    settings |= (
        {} if queries_per_relation is None else {"queries per relation": queries_per_relation}
    )
    write_report(out, sets, settings, seed=seed)
    for name, path in sheets.items():
        # The first model's results come first, its deepest layer last of them.
        deepest = answers[name][len(depths or [None]) - 1]
        _write_sheet(path, questions[name], deepest.predicted_QK, num_queries=sheet, seed=seed)


@app.command()
def sheet(
    filled: Annotated[
        Path, typer.Option(help="the CSV file of probe --sheet, its scores filled in")
    ],
    benchmark: Benchmark,
    out: Annotated[Path, typer.Option(help="folder of the result")],
    subset: Annotated[
        str, typer.Option(help="full or hard: from which the sheet was written")
    ] = "full",
    match: Match = DEFAULTS.match,
) -> None:
    """What experts' scores say: the confusion matrix of scores and gold, and its picture."""
    only, *others = _subsets(subset)
    if others:
        raise ConfigError(
            f"--subset {subset}: want full or hard, the one from which the sheet was written"
        )
    check_writable_folder(out)
    config = ProbeConfig.from_mapping({"match": match})
    from raybio.methods.contrastive_probe.benchmark.biolama import read_benchmark
    from raybio.methods.contrastive_probe.expert_sheet import SCORES, read_sheet, sheet_markdown
    from raybio.methods.contrastive_probe.plots import plot_judgements

    judged = read_sheet(filled, read_benchmark(benchmark, only), match_cui=config.match == "cui")
    picture = plot_judgements(judged.count_S2, list(SCORES), out / "judgements.png")
    text = sheet_markdown(judged)
    (out / "judgements.md").write_text(text, encoding="utf-8")
    print(text)
    print(f"{out / 'judgements.md'}, {picture}")


def write_report(out: Path, sets: Any, settings: dict[str, Any], *, seed: int) -> None:
    """``report.md``, ``report.json``, a CSV file a table and the figures, in ``out``.

    Tables and figures that an earlier report there lists are removed: they may be of other models.

    Args:
        out: the folder.
        sets: ``ProbedSet``s of one benchmark.
        settings: what the numbers depend on.
        seed: of intervals, tests and sampled queries.
    """
    from raybio.methods.contrastive_probe.plots import plot_probe
    from raybio.methods.contrastive_probe.report import report_data, report_markdown, report_tables

    data = report_data(sets, settings, seed=seed)
    _remove_earlier(out)
    (out / "tables").mkdir(parents=True, exist_ok=True)
    (out / "report.md").write_text(report_markdown(data), encoding="utf-8")
    files = []
    for heading, table in report_tables(data).items():
        name = re.sub(r"\W+", "_", heading).strip("_").lower()
        files.append(out / "tables" / f"{name}.csv")
        with files[-1].open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(table)
    files += plot_probe(data, out / "plots")
    data["files"] = [path.relative_to(out).as_posix() for path in files]
    (out / "report.json").write_text(
        json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    print(
        f"report: {out / 'report.md'}, {out / 'report.json'}, {out / 'tables'}/, {out / 'plots'}/"
    )


def _remove_earlier(out: Path) -> None:
    try:
        listed = set(json.loads((out / "report.json").read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError):  # none, or of something else
        return
    for path in [*out.glob("tables/*.csv"), *out.glob("plots/*.png")]:
        if path.relative_to(out).as_posix() in listed:
            path.unlink()


def _write_sheet(path: Path, asked: Any, predicted_QK: Any, *, num_queries: int, seed: int) -> None:
    from raybio.methods.contrastive_probe.expert_sheet import write_sheet

    draw: dict[str, Any] = {
        "num_queries": num_queries,
        "seed": seed,
        "number_in_whole_Q": asked.number_in_whole_Q,
    }
    write_sheet(path, asked, asked.queries("[Y]"), predicted_QK, **draw)
    print(f"for experts: {path}")


def checked_pooling(text: str | None) -> Any:
    """The pooling of an option, None for the model's own.

    Raises:
        ConfigError: if it is neither cls nor mean.
    """
    if text not in (None, "cls", "mean"):
        raise ConfigError(f"--pooling {text}: want cls or mean")
    return text


def _read(
    places: dict[str, tuple[Path, Subset]], wording: Any, queries_per_relation: int | None
) -> dict[str, Any]:
    from raybio.methods.contrastive_probe.benchmark.biolama import read_benchmark

    whole = {name: read_benchmark(folder, part, wording) for name, (folder, part) in places.items()}
    if queries_per_relation is None:
        return whole
    return {name: asked.sample(queries_per_relation, seed=0) for name, asked in whole.items()}


def _asked_by_name(asked: Iterable[Any]) -> list[str]:
    """Relations that are asked by nothing but their names: neither the benchmark nor the paper has words for them."""
    from raybio.methods.contrastive_probe.benchmark.prompts import default_prompt
    from raybio.methods.contrastive_probe.published import paper_prompts

    found = (pair for one in asked for pair in zip(one.relations, one.prompts, strict=True))
    return sorted(
        {
            name
            for name, prompt in found
            if name not in paper_prompts() and prompt == default_prompt(name)
        }
    )


def _places(benchmarks: list[Path], subsets: tuple[Subset, ...]) -> dict[str, tuple[Path, Subset]]:
    """Name of a query set -> its folder, and which part of it."""
    places: dict[str, tuple[Path, Subset]] = {}
    for folder in benchmarks:
        for part in subsets:
            name = set_name(folder, part)
            if name in places:
                raise ConfigError(
                    f"--benchmark {folder}: {places[name][0]} has a set named {name} too, and reports go by these "
                    "names. Probe them one by one"
                )
            places[name] = folder, part
    return places


def set_name(benchmark: Path, subset: str) -> str:
    """What a report calls the queries: a source of BioLAMA goes by its name as the paper has it, which reports know."""
    if not _is_biolama(benchmark):
        return subset
    from raybio.methods.contrastive_probe.report import BIOLAMA

    name = benchmark.resolve().name
    return next((source for source in BIOLAMA if source.lower() == name.lower()), name)


def _subsets(text: str) -> tuple[Subset, ...]:
    if text == "both":
        return ("full", "hard")
    if text == "full":
        return ("full",)
    if text == "hard":
        return ("hard",)
    raise ConfigError(f"--subset {text}: want full, hard or both")


def _layers(text: str) -> list[int] | None:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(
            f"--layers {text}: want numbers of layers from 1 on, by comma, such as 3,5,12"
        )
    return sorted({int(part) for part in parts}) or None


def _is_biolama(benchmark: Path) -> bool:
    return (benchmark / "triples_processed").is_dir()
