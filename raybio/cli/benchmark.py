"""Benchmark models on all tasks of a suite."""

from pathlib import Path
from typing import Annotated

import typer

from raybio.benchmark.rivals import check_models
from raybio.benchmark.suite import read_suite
from raybio.cli.options import PoolingOption, PrecisionOption, Verbose, model_argument
from raybio.core.errors import ConfigError
from raybio.core.files import check_writable_folder
from raybio.core.text import count_of

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def benchmark(
    out: Annotated[Path, typer.Option(help="folder of the report; the same folder resumes")],
    model: Annotated[
        list[str] | None,
        model_argument(
            "runs, exports, model folders or hub ids, or rivals by name: random, tfidf, bm25, "
            "characters, kmers, degree, common-neighbors"
        ),
    ] = None,
    after: Annotated[
        Path | None,
        typer.Option(
            help="folder of a run: it and the encoder that it began from come first; their paired "
            "differences say what training gained, and what it forgot"
        ),
    ] = None,
    suite: Annotated[
        str, typer.Option(help="demo, biomedical, texts or proteins; or a YAML file of tasks")
    ] = "demo",
    data: Annotated[
        Path | None,
        typer.Option(help="folder of public data, which {data} stands for in a suite"),
    ] = None,
    pooling: PoolingOption = None,
    precision: PrecisionOption = "fp32",
    seed: Annotated[int, typer.Option(min=0, help="seed of the intervals and tests")] = 0,
    card: Annotated[
        bool, typer.Option("--card", help="print the table of each model for its card (Markdown)")
    ] = False,
    no_ray: Annotated[
        bool, typer.Option("--no-ray", help="evaluate in this process, one task after the other")
    ] = False,
    tracking_uri: Annotated[
        str | None,
        typer.Option(help="MLflow tracking URI; default: sqlite, mlflow.db next to the report"),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Evaluate encoders and rivals on many tasks, and write one report.

    report.html is one file for a browser or phone, report.json has a schema, results.csv is a
    table. Results and embeddings are kept in the folder: the same command again computes only what
    is missing.

    Example: raybio benchmark runs/first tfidf random --suite demo --out report/
    """
    if not model and after is None:
        raise ConfigError("got no model; want some, or --after RUN")
    check_writable_folder(out)
    check_models(model or ())
    # This imports the modules of the tasks, and so torch, after checking the file of the suite.
    tasks = read_suite(suite, data)
    # Imported here: torch takes seconds to import.
    from raybio.benchmark.models import read_models
    from raybio.benchmark.report import card_table, changes, difference_text, interval_text
    from raybio.benchmark.run import run_benchmark
    from raybio.runtime.tracking.tracker import tracking_uri as absolute_uri

    home = out.absolute()
    run = None if after is None else str(after)
    models = read_models(model or (), home, pooling, run, precision)
    report = run_benchmark(
        models,
        tasks,
        home,
        seed=seed,
        with_ray=not no_ray,
        tracking=absolute_uri(tracking_uri, home),
        verbose=verbose,
        with_before=after is not None,
    )
    for each in report.models:
        mean = "no mean over common tasks"
        if each.num_common_tasks:
            mean = f"mean of {count_of(each.num_common_tasks, 'task')} {interval_text(each)}"
        print(f"{each.name}: {mean}")
        if card:
            print(card_table(report, each.name))
    for task in report.tasks:
        if "" in task.skipped:
            print(f"{task.name}: did not run: {task.skipped['']}")
    for change in changes(report):
        print(f"{change.task.name}: {change.word}, {difference_text(change.test)}")
    names = ("report.html", "report.json", "results.csv")
    print(f"report: {', '.join(str(out / name) for name in names)}")
