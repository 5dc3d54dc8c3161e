"""Embed the proteins of a FASTA file with a trained model: resumable, by Ray Data, into one Parquet file."""

from pathlib import Path
from typing import Annotated

import typer

from raybio.errors import ConfigError
from raybio.runtime.job_options import fraction, positive
from raybio.runtime.launch import default_folder, run_app

app = typer.Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def embed(
    fasta: Annotated[Path, typer.Option("--input", help="FASTA file, plain or gzip")],
    out: Annotated[Path, typer.Option(help="Parquet file: key, embedding")],
    run: Annotated[str | None, typer.Option(help="name of a finished run")] = None,
    model: Annotated[Path | None, typer.Option(help="or a model folder, as export/ of a run")] = None,
    pooling: Annotated[str, typer.Option(help="for --model: cls or mean")] = "cls",
    runs: Annotated[Path | None, typer.Option(help="folder of runs; default: RAYBIO_RUNS or runs/")] = None,
    workers: Annotated[int, typer.Option(min=1, help="processes that embed")] = 1,
    cpus_per_worker: Annotated[
        float | None, typer.Option(parser=positive, metavar="FLOAT", help="logical CPUs of each")
    ] = None,
    strip_stop: Annotated[bool, typer.Option("--strip-stop", help="take a stop symbol at the end off")] = False,
    max_bad_share: Annotated[
        float, typer.Option(parser=fraction, metavar="FLOAT", help="largest share of records that may be set aside")
    ] = 0.1,
    rows_per_part: Annotated[int, typer.Option(min=1, help="proteins between two commits")] = 4096,
    verbose: Annotated[bool, typer.Option("--verbose", help="show Ray's own logs")] = False,
) -> None:
    """Embed the proteins of a FASTA file; the same command again goes on where it stopped."""
    from raybio.runtime.embed import Model, embed_fasta  # brings Ray's heavier parts; not needed for --help

    if (run is None) == (model is None):
        raise ConfigError("want either --run or --model")
    folder = default_folder("runs", "RAYBIO_RUNS") if runs is None else runs
    chosen = Model.of_run(folder, run) if run is not None else Model(str(model), pooling)
    summary = embed_fasta(
        chosen,
        fasta,
        out,
        rows_per_part=rows_per_part,
        workers=workers,
        cpus_per_worker=cpus_per_worker,
        strip_stop=strip_stop,
        max_bad_share=max_bad_share,
        verbose=verbose,
    )
    print(f"{out}: {summary.num_rows:,} proteins; {summary.num_parts_found} of {summary.num_parts} parts were there")
    for reason, facts in summary.quarantine.items():
        print(f"set aside: {reason}: {facts['count']:,}")


if __name__ == "__main__":
    run_app(app)
