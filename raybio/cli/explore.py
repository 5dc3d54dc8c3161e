"""A map of embeddings as one HTML page."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from raybio.cli import options as shared
from raybio.cli.stores import local_copy
from raybio.core.errors import ConfigError
from raybio.core.files import check_writable_file

app = typer.Typer(add_completion=False)


@app.command()
def explore(
    source: Annotated[
        str,
        shared.model_argument(
            "run or model folder, which embeds; or a Parquet file of raybio embed, or its folder"
        ),
    ],
    out: Annotated[Path, typer.Option(help="the page, an .html file")] = Path("map.html"),
    store: Annotated[
        shared.LocationType | None,
        shared.location_option(
            "prepared store: what is embedded, groups and links; default: the run's"
        ),
    ] = None,
    inputs: Annotated[
        shared.LocationType | None,
        shared.location_option(
            "FASTA, texts or a table, as for raybio embed: what is embedded, or was embedded, "
            "instead of the store's rows",
            "--input",
        ),
    ] = None,
    labels: Annotated[
        shared.LocationType | None,
        shared.location_option(
            "table (.tsv, .csv, .jsonl, .parquet) with a column id; its other columns color points"
        ),
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(help="of a store's rows, such as abstract; default: the first"),
    ] = None,
    pooling: shared.PoolingOption = None,
    precision: shared.PrecisionOption = "fp32",
    strip_stop: shared.StripStop = False,
    max_bad_share: shared.MaxBadShare = 0.1,
    max_points: Annotated[
        int, typer.Option(min=4, help="of more embeddings a uniform sample is shown")
    ] = 5000,
) -> None:
    """Write a map of embeddings as one HTML page: zoom, search, colors, nearest neighbors, links.

    The page is one file that needs no network.

    Example: raybio explore embeddings/ --input proteins.fasta --out map.html
    """
    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out {out}: want a file that ends in .html")
    check_writable_file(out)
    input_file = None if inputs is None else local_copy(inputs, "--input")
    label_file = None if labels is None else local_copy(labels, "--labels")
    # Imported here: torch takes seconds to import.
    from raybio.methods.sppt.proteins.formats.fasta import read_fasta
    from raybio.methods.sppt.proteins.formats.id_rule import IdRule, choose_form
    from raybio.runtime.explore.explore import explore as write_map

    with shared.encoders_in(precision):
        write_map(
            source,
            out,
            store=store,
            inputs=input_file,
            labels=label_file,
            field=field,
            pooling=pooling,
            strip_stop=strip_stop,
            max_bad_share=max_bad_share,
            max_points=max_points,
            # The page does not show stop symbols, whether they were stripped or not.
            read_fasta=partial(read_fasta, strip_stop=True),
            choose_form=lambda ids, proteins: choose_form(ids, proteins, IdRule()).rule,
            say=print,
        )
    print(f"{out}: open it in a browser")
