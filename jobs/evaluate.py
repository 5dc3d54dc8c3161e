"""Evaluate trained models: ``python jobs/evaluate.py zero-shot --help``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from raybio.runtime.launch import run_app

app = typer.Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
app.callback()(lambda: None)  # keeps "zero-shot" a command of its own: other evaluations will stand beside it


@app.command()
def zero_shot(
    model: Annotated[list[str], typer.Option(help="model folder (such as export/ of a run) or hub id; repeatable")],
    data: Annotated[Path, typer.Option(help="folder with hallmarks_of_cancer/, pubmedqa/, bioasq_7b/")],
    out: Annotated[Path, typer.Option(help="folder of the report")],
    tasks: Annotated[str, typer.Option(help="data sets or single tasks, by comma")] = "hoc,pubmedqa,bioasq",
    seed: Annotated[int, typer.Option(help="of the intervals and tests")] = 0,
    max_length: Annotated[int, typer.Option(help="tokens of a text that are read")] = 512,
) -> None:
    """Rank documents for queries by cosine alone; beside it TF-IDF, BM25, chance and the published figures."""
    # Only now: these import torch and transformers, which takes seconds.
    from raybio.evaluation.zero_shot_report import report_data, report_markdown
    from raybio.systems.zero_shot import zero_shot as evaluate

    names = [name.strip() for name in tasks.split(",") if name.strip()]
    out.mkdir(parents=True, exist_ok=True)
    results = evaluate(model, names, data, seed=seed, max_length=max_length, say=lambda task: print(f"judging {task}"))
    settings = {"models": model, "data": str(data), "seed": seed, "max_length": max_length}
    (out / "report.json").write_text(json.dumps(report_data(results, settings), indent=2) + "\n")
    report = report_markdown(results, settings)
    (out / "report.md").write_text(report + "\n")
    print(report)
    print(f"report: {out / 'report.md'}, {out / 'report.json'}")


if __name__ == "__main__":
    run_app(app)
