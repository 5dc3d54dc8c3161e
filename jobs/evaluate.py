"""Evaluate trained models: ``python jobs/evaluate.py zero-shot --help``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from raybio.evaluation.zero_shot_names import DATA_SETS, task_names
from raybio.folders import demand_folder
from raybio.runtime.command_line import run_app

TASKS = "; ".join(f"{name}: {', '.join(one.tasks)}" for name, one in DATA_SETS.items())

app = typer.Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
app.callback()(lambda: None)  # keeps "zero-shot" a command of its own: other evaluations will stand beside it


@app.command()
def zero_shot(
    model: Annotated[list[str], typer.Option(help="model folder (such as export/ of a run) or hub id; repeatable")],
    data: Annotated[Path, typer.Option(help="folder with hallmarks_of_cancer/, pubmedqa/, bioasq_7b/")],
    out: Annotated[Path, typer.Option(help="folder of the report")],
    tasks: Annotated[str, typer.Option(help=f"data sets or single tasks, by comma ({TASKS})")] = ",".join(DATA_SETS),
    hoc_pmids: Annotated[
        Path | None, typer.Option(help="file with one PMID a line: ask hoc tasks over these abstracts alone as well")
    ] = None,
    seed: Annotated[int, typer.Option(help="of the intervals and tests")] = 0,
    max_length: Annotated[int, typer.Option(help="tokens of a text that are read")] = 512,
) -> None:
    """Rank documents for queries by cosine alone; beside it TF-IDF, BM25, chance and the published figures."""
    names = task_names([name.strip() for name in tasks.split(",") if name.strip()])
    demand_folder(out)
    # Only now: these import torch and transformers, which takes seconds.
    from raybio.evaluation.zero_shot_report import report_data, report_markdown
    from raybio.systems.zero_shot import zero_shot as evaluate

    results = evaluate(
        model,
        names,
        data,
        seed=seed,
        max_length=max_length,
        hoc_pmids=hoc_pmids,
        say=lambda task: print(f"judging {task}"),
    )
    settings = {"models": model, "data": str(data), "seed": seed, "max_length": max_length}
    if hoc_pmids is not None:
        settings["hoc_pmids"] = str(hoc_pmids)
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(json.dumps(report_data(results, settings), indent=2) + "\n")
    report = report_markdown(results, settings)
    (out / "report.md").write_text(report + "\n")
    print(report)
    print(f"report: {out / 'report.md'}, {out / 'report.json'}")


if __name__ == "__main__":
    run_app(app)
