"""Build an index of embeddings, and find nearest neighbors in it."""

import itertools
import sys
from pathlib import Path
from typing import Annotated

import typer

from raybio.cli.options import (
    FREE_TEXT,
    LocationType,
    MaxBadShare,
    PoolingOption,
    StripStop,
    fraction,
    location_option,
    model_option,
    path_or_uri,
    writable_file,
)
from raybio.cli.stores import local_copy
from raybio.core.distance import Distance
from raybio.core.errors import ConfigError
from raybio.core.files import check_not_input, replaced_file
from raybio.core.terminal import stream_of_data
from raybio.core.text import skipped_lines
from raybio.runtime.model_paths import local_model

app = typer.Typer(help=__doc__, add_completion=False, no_args_is_help=True)


@app.command()
def index(
    embeddings: Annotated[
        LocationType,
        location_option("Parquet file of raybio embed, or its folder: columns key, embedding"),
    ],
    out: Annotated[Path, typer.Option(help="folder of the index")],
    metric: Annotated[Distance, typer.Option(help="distance of the vectors")] = "cosine",
    recall: Annotated[
        float,
        typer.Option(
            parser=fraction,
            metavar="FLOAT",
            help="wanted recall at 10, on held-out queries, of an index that is not exact",
        ),
    ] = 0.95,
    force: Annotated[bool, typer.Option("--force", help="replace an index that is there")] = False,
) -> None:
    """Build an index of embeddings: exact up to 100,000, above that inverted lists (IVF).

    Example: raybio search index --embeddings embeddings.parquet --out index/
    """
    file = local_copy(embeddings, "--embeddings")
    # Imported here: torch takes seconds to import.
    from raybio.runtime.search.build import build_index

    build_index(
        file,
        out,
        metric=metric,
        recall=recall,
        force=force,
        say=lambda line: print(f"{out}: {line}"),
    )


@app.command()
def query(
    folder: Annotated[
        LocationType,
        typer.Argument(parser=path_or_uri, metavar="INDEX|URI", help="folder of the index"),
    ],
    source: Annotated[
        LocationType | None,
        location_option(
            "Parquet file of raybio embed; or what the model reads: FASTA, texts or a table",
            "--input",
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        FREE_TEXT,
        typer.Option(help="a text or protein to search for; repeatable"),
    ] = None,
    model: Annotated[
        str | None,
        model_option("run, model folder or hub id that made the embeddings; not for embeddings"),
    ] = None,
    pooling: PoolingOption = None,
    strip_stop: StripStop = False,
    k: Annotated[int, typer.Option("--k", min=1, help="neighbors of each query")] = 10,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=writable_file,
            help="table: .tsv, .jsonl or .parquet; default: printed as TSV",
        ),
    ] = None,
    max_bad_share: MaxBadShare = 0.1,
) -> None:
    """Find the nearest neighbors of embeddings, proteins or texts.

    Example: raybio search query index/ --text MKTAYIAKQR --model runs/first
    """
    if (source is None) == (not text):
        raise ConfigError("want either --input or --text")
    if text and model is None:
        raise ConfigError("--text has to be embedded; give the model of the index as --model")
    if out is not None and out.suffix.lower() not in (".tsv", ".jsonl", ".parquet"):
        raise ConfigError(f"--out {out}: want a file that ends in .tsv, .jsonl or .parquet")
    chosen = None if model is None else local_model(model, "--model")
    input_file = None if source is None else local_copy(source, "--input")
    if out is not None and input_file is not None:
        check_not_input(out, [input_file])
    index_folder = local_copy(folder, "INDEX")
    from raybio.runtime.search.index_store import open_index_store

    store = open_index_store(index_folder)
    # Imported here: torch takes seconds to import, and is not needed to refuse a wrong folder.
    from raybio.runtime.search.build import K, describe_index
    from raybio.runtime.search.index import EmbeddingIndex
    from raybio.runtime.search.queries import Queries, neighbor_rows, neighbor_schema
    from raybio.store.data_sets import TSV
    from raybio.store.table_rows import write_rows, write_text_rows

    queries = Queries(
        store,
        input_file,
        text or [],
        chosen,
        pooling,
        max_bad_share,
        strip_stop=strip_stop,
    )
    opened = EmbeddingIndex(store)
    rows = neighbor_rows(opened, queries, k)
    # Compute the first rows before the header, which is not printed if queries cannot be embedded.
    first_rows = next(filter(None, rows), [])
    # Remarks go to stderr, since the table may go to a pipe.
    print(f"{folder}: {describe_index(store)}", file=sys.stderr)
    if k > K and store.facts["lists"]:
        print(f"recall was measured for {K} neighbors; it is lower for {k}", file=sys.stderr)
    schema = neighbor_schema(opened.metric)
    rows = itertools.chain([first_rows], rows)
    if out is None:
        write_text_rows(stream_of_data(sys.stdout), TSV, schema, rows)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(out) as partial:
            num_rows = write_rows(partial, out.suffix.lower(), schema, rows)
        print(f"{out}: {num_rows:,} neighbors")
    for line in skipped_lines(queries.quarantine.summary()):
        print(line, file=sys.stderr)
