"""The command that asks an encoder in words of the user's: which of some names are nearest to a query?"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from raybio.cli.contrastive_probe.probe import POOLING_HELP, checked_pooling
from raybio.core.errors import ConfigError
from raybio.core.files import check_writable_folder

if TYPE_CHECKING:
    from raybio.methods.contrastive_probe.probe import TextEmbedder
    from raybio.ops.faiss_index import VectorIndex


def ask(
    query: Annotated[
        list[str],
        typer.Argument(help='such as "Metformin might treat [Y]."; several are asked at once'),
    ],
    model: Annotated[str, typer.Option(help="model folder (such as export/ of a run) or hub id")],
    names: Annotated[
        Path, typer.Option(help="text file of a name a line (.gz too), or folder of a benchmark")
    ],
    k: Annotated[int, typer.Option(min=1, help="names shown of each query")] = 10,
    pooling: Annotated[str | None, typer.Option(help=POOLING_HELP)] = None,
    index: Annotated[
        Path | None, typer.Option(help="folder that keeps the names' embeddings for later calls")
    ] = None,
) -> None:
    """The names nearest to each query and their Euclidean distances; of over 100,000 not always the very nearest."""
    given = checked_pooling(pooling)
    for one in query:
        if one.count("[Y]") != 1:
            raise ConfigError(f"query {one!r}: want [Y] once, where the answer belongs")
    if index is not None:
        check_writable_folder(index, "--index")
    # Only now: these import torch and transformers, which takes seconds.
    from raybio.methods.contrastive_probe.benchmark.biolama import read_benchmark
    from raybio.methods.contrastive_probe.config import QUERY_TOKENS
    from raybio.methods.contrastive_probe.probe import load_embedder, mask_token
    from raybio.methods.contrastive_probe.sentences import read_names

    known = list(read_benchmark(names).names) if names.is_dir() else read_names(names)
    embed = load_embedder(model, given)
    mask = mask_token(embed.encoder)
    for one in query:
        if mask in one:
            raise ConfigError(
                f"query {one!r}: has {mask} beside [Y]; want [Y] alone, where the answer belongs"
            )
    asked = [one.replace("[Y]", mask) for one in query]
    found = _index(embed, known, index)
    query_QD = embed(asked, QUERY_TOKENS).cpu().numpy()
    for one, query_D, nearest_K in zip(query, query_QD, found.search(query_QD, k), strict=True):
        print(f"\n{one}")
        name_K = np.sort(nearest_K[nearest_K >= 0])
        distance_K = np.linalg.norm(found.vector_CD[name_K] - query_D, axis=1)
        for place, nearest in enumerate(distance_K.argsort(kind="stable"), start=1):
            print(f"{place:4}  {distance_K[nearest]:9.4f}  {known[name_K[nearest]]}")


def _index(embed: "TextEmbedder", names: list[str], folder: Path | None) -> "VectorIndex":
    """The index of the names by this encoder: that of the folder if there is one, else a new one, kept there."""
    from raybio.core.digest import weights_digest
    from raybio.methods.contrastive_probe.config import NAME_TOKENS
    from raybio.ops.faiss_index import VectorIndex

    encoder = embed.encoder
    of = {
        "model": f"{weights_digest(encoder.model.state_dict().items())}, {embed.tokenizer_fingerprint}",
        "pooling": encoder.pooling,
        "names": hashlib.sha256("\n".join(names).encode()).hexdigest(),
    }
    if folder is not None and (folder / "index.json").exists():
        return VectorIndex.open(folder, fingerprints=of)
    print(f"embedding {len(names):,} names, {encoder.pooling} pooling")
    built = VectorIndex(embed(names, NAME_TOKENS).cpu().numpy())
    if folder is not None:
        built.save(folder, fingerprints=of)
        print(f"kept for the next call: {folder}")
    return built
