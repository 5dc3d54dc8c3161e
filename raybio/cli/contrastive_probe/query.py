"""The command ``ask``: the names nearest to free queries."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raybio.cli.contrastive_probe.options import TextPooling
from raybio.cli.options import FREE_TEXT, LocationType, location_option, model_option
from raybio.cli.stores import local_copy
from raybio.core.errors import ConfigError, StoreError
from raybio.core.files import check_writable_folder
from raybio.runtime.model_paths import model_source
from raybio.store.manifest import MANIFEST

if TYPE_CHECKING:
    import numpy as np

    from raybio.methods.contrastive_probe.name_search import NearestName
    from raybio.methods.contrastive_probe.text_embedder import TextEmbedder


def ask(
    query: Annotated[
        list[str],
        FREE_TEXT,
        typer.Argument(help='such as "Metformin might treat [Y]."; several are allowed'),
    ],
    model: Annotated[str, model_option("run, its export/, or any model folder or hub id")],
    names: Annotated[
        LocationType,
        location_option("text file of a name a line (.gz too), or folder of a benchmark"),
    ],
    k: Annotated[int, typer.Option(min=1, help="names shown for each query")] = 10,
    pooling: TextPooling = None,
    index: Annotated[
        Path | None,
        typer.Option(
            help="folder that keeps the names' embeddings for later calls, as a search index"
        ),
    ] = None,
) -> None:
    """Print the names nearest to each query with their Euclidean distances.

    With --index, the search is approximate above 100,000 names.

    Example: raybio evaluate ask --model runs/rewired --names names.txt
    "Metformin might treat [Y]."
    """
    for text in query:
        if text.count("[Y]") != 1:
            raise ConfigError(f"query {text!r}: want [Y] once, where the answer belongs")
    if index is not None:
        check_writable_folder(index, "--index")
    source = model_source(model, "--model")
    names_read = local_copy(names, "--names")
    from raybio.methods.contrastive_probe.name_search import (
        embed_names,
        embed_queries,
        nearest_names,
        read_searched_names,
        truncation_remarks,
    )
    from raybio.methods.contrastive_probe.text_embedder import load_embedder

    searched = read_searched_names(names_read)
    embed = load_embedder(source, pooling)
    query_QD = embed_queries(embed, query)
    for remark in truncation_remarks(source, searched, query):
        print(remark)
    if index is not None:
        nearest = search_saved(embed, searched, query_QD, k, index)
    else:
        print(f"embedding {len(searched):,} names, {embed.encoder.pooling} pooling")
        nearest = nearest_names(searched, query_QD, embed_names(embed, searched), k)
    for text, neighbors in zip(query, nearest, strict=True):
        print(f"\n{text}")
        for rank, neighbor in enumerate(neighbors, start=1):
            print(f"{rank:4}  {neighbor.distance:9.4f}  {neighbor.name}")


def search_saved(
    embed: "TextEmbedder",
    names: Sequence[str],
    query_QD: "np.ndarray",
    k: int,
    folder: Path,
) -> "list[list[NearestName]]":
    """Return the nearest names of each query in a saved index, which is built if it is missing.

    Raises:
        ConfigError: if faiss is not installed, or there is only one name.
        StoreError: if the index is damaged, or has another model, pooling or other names.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from raybio.methods.contrastive_probe.name_search import (
        embed_names,
        fingerprints,
        ordered_names,
    )
    from raybio.runtime.search.build import build_index
    from raybio.runtime.search.faiss_package import load_faiss
    from raybio.runtime.search.index import open_index

    load_faiss()
    folder = folder.expanduser()
    if len(names) < 2:
        raise ConfigError("--index: got 1 name, want at least 2; leave it out")
    wanted = fingerprints(embed, names)
    if not (folder / MANIFEST).is_file():
        print(f"embedding {len(names):,} names, {embed.encoder.pooling} pooling")
        name_CD = embed_names(embed, names)
        vectors = pa.FixedSizeListArray.from_arrays(name_CD.reshape(-1), name_CD.shape[1])
        keys = [str(number) for number in range(len(names))]
        with tempfile.TemporaryDirectory(prefix="raybio-") as temporary:
            path = Path(temporary) / "names.parquet"
            pq.write_table(pa.table({"key": keys, "embedding": vectors}), path)
            build_index(path, folder, metric="euclidean", computed_from=wanted, say=print)
    index = open_index(folder)
    stored = index.store.facts.get("computed_from", {})
    differing = [name for name, value in wanted.items() if stored.get(name) != value]
    if differing:
        raise StoreError(
            f"{folder}: holds vectors that differ from the given ones in: {', '.join(differing)}. "
            "Choose another folder, or remove this one"
        )
    neighbors = index.search(query_QD, k)
    return [
        ordered_names(names, np.array(keys_K, dtype=np.int64), score_K)
        for keys_K, score_K in zip(neighbors.keys, neighbors.scores, strict=True)
    ]
