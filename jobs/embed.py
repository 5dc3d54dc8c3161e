"""Embed proteins (FASTA) or texts with a trained model into one Parquet file; resumable."""

from pathlib import Path
from typing import Annotated

import typer

from raybio.cli import options as shared
from raybio.cli.app import run_app
from raybio.cli.options import fraction, positive
from raybio.core.errors import ConfigError
from raybio.runtime.run.folder import model_folder
from raybio.runtime.run.options import default_folder

app = typer.Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def embed(
    source: Annotated[
        Path,
        typer.Option(
            "--input",
            help="FASTA file, or texts: one a line, or ID<TAB>TEXT (.gz too)",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Parquet file: key, embedding")],
    run: Annotated[str | None, typer.Option(help="name of a finished run")] = None,
    model: Annotated[
        Path | None, typer.Option(help="model folder, such as export/ of a run, instead of --run")
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(help="cls or mean, for a --model folder that does not record its pooling"),
    ] = None,
    runs: shared.Runs = None,
    workers: Annotated[int, typer.Option(min=1, help="number of processes")] = 1,
    cpus_per_worker: Annotated[
        float | None,
        typer.Option(parser=positive, metavar="FLOAT", help="logical CPUs of each process"),
    ] = None,
    strip_stop: Annotated[
        bool, typer.Option("--strip-stop", help="remove a stop symbol at a protein's end")
    ] = False,
    max_bad_share: Annotated[
        float,
        typer.Option(parser=fraction, metavar="FLOAT", help="maximum fraction of invalid records"),
    ] = 0.1,
    rows_per_part: Annotated[
        int, typer.Option(min=1, help="inputs of a part, which is committed as a whole")
    ] = 4096,
    verbose: shared.Verbose = False,
) -> None:
    """Embed the proteins or texts of a file; the same command resumes."""
    if (run is None) == (model is None):
        raise ConfigError("want either --run or --model")
    if pooling not in (None, "cls", "mean"):
        raise ConfigError(f"--pooling: got {pooling!r}, want cls or mean")
    if run is not None and pooling is not None:
        raise ConfigError(
            "--pooling is for --model; the model of a run records its pooling. Leave it out"
        )
    from raybio.runtime.embed import embed_file, model_of_folder, model_of_run

    if run is not None:
        chosen = model_of_run(default_folder("runs", "RAYBIO_RUNS") if runs is None else runs, run)
    else:
        chosen = model_of_folder(model_folder(str(model), "--model"), pooling)  # type: ignore[arg-type]
    print(chosen)
    summary = embed_file(
        chosen,
        source,
        out,
        rows_per_part=rows_per_part,
        workers=workers,
        cpus_per_worker=cpus_per_worker,
        strip_stop=strip_stop,
        max_bad_share=max_bad_share,
        verbose=verbose,
        say=print,
    )
    parts = f"{summary.num_parts_found} of {summary.num_parts} parts were embedded before"
    print(f"{out}: {summary.num_rows:,} {chosen.reads}; {parts}")
    if summary.cut:
        print(summary.cut)
    for reason, facts in summary.quarantine.items():
        print(f"skipped: {reason}: {facts['count']:,}")


if __name__ == "__main__":
    run_app(app)
