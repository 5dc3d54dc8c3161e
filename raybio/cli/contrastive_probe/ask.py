"""The command ``ask``: the names nearest to free queries."""

from pathlib import Path
from typing import Annotated

import typer

from raybio.cli.contrastive_probe.options import POOLING_HELP, parse_pooling
from raybio.cli.options import model_option
from raybio.core.errors import ConfigError
from raybio.core.files import check_writable_folder
from raybio.runtime.run.folder import model_source


def ask(
    query: Annotated[
        list[str],
        typer.Argument(help='such as "Metformin might treat [Y]."; several are allowed'),
    ],
    model: Annotated[str, model_option("run, its export/, or any model folder or hub id")],
    names: Annotated[
        Path, typer.Option(help="text file of a name a line (.gz too), or folder of a benchmark")
    ],
    k: Annotated[int, typer.Option(min=1, help="names shown for each query")] = 10,
    pooling: Annotated[str | None, typer.Option(help=POOLING_HELP)] = None,
    index: Annotated[
        Path | None, typer.Option(help="folder that keeps the names' embeddings for later calls")
    ] = None,
) -> None:
    """Print the names nearest to each query with their Euclidean distances.

    Above 100,000 names the search is approximate.
    """
    chosen_pooling = parse_pooling(pooling)
    for text in query:
        if text.count("[Y]") != 1:
            raise ConfigError(f"query {text!r}: want [Y] once, where the answer belongs")
    if index is not None:
        check_writable_folder(index, "--index")
    source = model_source(model, "--model")
    from raybio.methods.contrastive_probe.name_search import search_names

    nearest = search_names(
        query, source, names, k=k, pooling=chosen_pooling, index_folder=index, log=print
    )
    for text, neighbors in zip(query, nearest, strict=True):
        print(f"\n{text}")
        for rank, neighbor in enumerate(neighbors, start=1):
            print(f"{rank:4}  {neighbor.distance:9.4f}  {neighbor.name}")
