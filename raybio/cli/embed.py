"""Embed proteins, texts, words or pairs of entities into Parquet files; resumable."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raybio.cli import options as shared
from raybio.cli.options import positive
from raybio.cli.stores import local_copy
from raybio.core.errors import ConfigError
from raybio.core.location import BucketPath, Location
from raybio.core.text import skipped_lines
from raybio.encoders.config import Pooling
from raybio.runtime.embed_output import NumberType, Unit, check_output_path
from raybio.runtime.model_paths import local_model
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.options import runs_folder

if TYPE_CHECKING:
    from raybio.training.embedding_model import InputEmbedder

app = typer.Typer(help=__doc__, add_completion=False)


@app.command()
def embed(
    source: Annotated[
        shared.LocationType,
        shared.location_option(
            "FASTA; or texts: one a line, or ID<TAB>TEXT; or a table (.tsv, .csv, .jsonl, "
            ".parquet) with a column sequence or text (.gz too); or a prepared store; "
            "sentences for relation_graphs; PubTator, BioC or DocRED's JSON for mtb_pretrain and "
            "relation_finetune",
            "--input",
        ),
    ],
    out: Annotated[
        shared.LocationType,
        shared.location_option(
            "Parquet file: key, ..., embedding; or, without a suffix, a folder with a file a part"
        ),
    ],
    run: Annotated[str | None, typer.Option(help="name of a finished run")] = None,
    model: Annotated[
        shared.LocationType | None,
        shared.location_option(
            "model folder, such as export/ of a run, or a hub id, instead of --run"
        ),
    ] = None,
    pooling: shared.PoolingOption = None,
    runs: shared.Runs = None,
    workers: Annotated[int, typer.Option(min=1, help="number of processes")] = 1,
    cpus_per_worker: Annotated[
        float | None,
        typer.Option(parser=positive, metavar="FLOAT", help="logical CPUs of each process"),
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(help="of a store's rows, such as abstract; default: the first"),
    ] = None,
    strip_stop: shared.StripStop = False,
    max_bad_share: shared.MaxBadShare = 0.1,
    rows_per_part: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="inputs of a part, which is committed as a whole; default: 4096, and 256 if an "
            "input has many rows",
        ),
    ] = None,
    per: Annotated[
        Unit, typer.Option(help="rows of the output; token: the last hidden states, not pooled")
    ] = "input",
    dtype: Annotated[NumberType, typer.Option(help="number type of the output")] = "float32",
    precision: shared.PrecisionOption = "fp32",
    verbose: shared.Verbose = False,
) -> None:
    """Embed the proteins or texts of a file, or words or pairs of entities in them.

    The same command resumes.

    Example: raybio embed --run first --input proteins.fasta --out embeddings.parquet
    """
    if (run is None) == (model is None):
        raise ConfigError("want either --run or --model")
    if run is not None and pooling is not None:
        raise ConfigError(
            "--pooling is for --model; the model of a run records its pooling. Leave it out"
        )
    check_output_path(out)
    if isinstance(source, Path) and not source.exists():
        raise ConfigError(f"--input {source}: no such file or folder")
    # Imported here: torch and transformers take seconds to import.
    from raybio.runtime.embed import embed_file
    from raybio.runtime.embed_actors import EmbeddingFormat

    here = local_copy(source, "--input")
    if run is not None:
        chosen, bucket = _embedder_of_run(run, runs)
    else:
        assert model is not None
        chosen, bucket = _embedder_of_model(model, pooling)
    print(chosen)
    summary = embed_file(
        chosen,
        here,
        out,
        model_in_bucket=bucket,
        rows_per_part=rows_per_part,
        workers=workers,
        cpus_per_worker=cpus_per_worker,
        field=field,
        strip_stop=strip_stop,
        max_bad_share=max_bad_share,
        form=EmbeddingFormat(dtype, precision, per),
        verbose=verbose,
        say=partial(print, flush=True),
    )
    parts = f"{summary.num_parts_found} of {summary.num_parts} parts were embedded before"
    noun = "tokens" if per == "token" else chosen.row_noun
    print(f"{out}: {summary.num_rows:,} {noun}; {parts}")
    if summary.cut:
        print(summary.cut)
    for line in skipped_lines(summary.quarantine):
        print(line)


def _embedder_of_run(run: str, runs: Location | None) -> "tuple[InputEmbedder, BucketPath | None]":
    """Return the model of a run, and its folder if it is in a bucket."""
    from raybio.runtime.model_folders import embedder_of_folder, model_of_run
    from raybio.store.remote_model import fetch_bucket_model

    folder, runs_in_bucket = runs_folder(runs)
    if runs_in_bucket is None:
        return model_of_run(folder, run), None
    bucket, fetched = fetch_bucket_model(
        runs_in_bucket / RunFolder(folder, run, "--run").name, "--run"
    )
    return embedder_of_folder(fetched, None), bucket


def _embedder_of_model(
    model: Location, pooling: Pooling | None
) -> "tuple[InputEmbedder, BucketPath | None]":
    """Return the model in a folder, and the folder if it is in a bucket."""
    from raybio.runtime.model_folders import embedder_of_folder
    from raybio.store.remote_model import fetch_bucket_model

    if not isinstance(model, BucketPath):
        return embedder_of_folder(local_model(str(model), "--model"), pooling), None
    bucket, fetched = fetch_bucket_model(model, "--model")
    return embedder_of_folder(fetched, pooling), bucket
