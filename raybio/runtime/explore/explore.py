"""A map of embeddings as one HTML page: ``raybio explore``."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raybio.core.errors import ConfigError, named_by
from raybio.core.files import RUN
from raybio.core.location import BucketPath, Location, is_uri, location
from raybio.core.records import read_record
from raybio.core.text import skipped_lines
from raybio.encoders.config import Pooling
from raybio.encoders.sources import CONFIG, MODULES
from raybio.evaluation.projection import embedding_map
from raybio.runtime.embed_inputs import inputs_of, open_input_store
from raybio.runtime.explore.details import (
    ChooseForm,
    ReadFasta,
    ids_of_store,
    labels_of_table,
    rows_of_store,
    texts_of_file,
    texts_of_store,
)
from raybio.runtime.explore.page import write_page
from raybio.runtime.explore.points import (
    Points,
    keys_of_file,
    points_of_file,
    points_of_model,
)
from raybio.runtime.model_folders import model_of_folder
from raybio.runtime.model_paths import local_model
from raybio.store.bucket import BucketFolder
from raybio.store.data_sets import PARQUET
from raybio.store.quarantine import Quarantine
from raybio.store.remote_model import fetch_bucket_model
from raybio.store.remote_sources import fetch_input_file
from raybio.store.store import Store
from raybio.training.precision import current_embedding_precision

MAX_TEXT = 300
"""Maximum number of characters of a protein or text on the page."""

MAX_LINKS = 50
"""Maximum number of links per point on the page; hubs have more."""


def explore(
    source: str,
    out: Path,
    *,
    store: Location | None = None,
    inputs: Path | None = None,
    labels: Path | None = None,
    field: str | None = None,
    pooling: Pooling | None = None,
    strip_stop: bool = False,
    max_bad_share: float = 0.1,
    max_points: int = 5000,
    read_fasta: ReadFasta,
    choose_form: ChooseForm,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Write a page with a map of embeddings.

    A model embeds in the surrounding ``embedding_precision``.

    Args:
        source: a Parquet file of ``raybio embed``, or its folder of them; or a run or model, which
            embeds; each may be in a bucket.
        out: the page.
        store: a prepared store with the inputs and the groups and links of rows; None: the store of
            the run unless there are ``inputs``, or no store.
        inputs: FASTA, texts or a table with the inputs, instead of the store.
        labels: a table of ids and labels, which color points.
        field: field of a store's rows; None: the first.
        pooling: pooling for a model that does not state it.
        strip_stop: remove one ``*`` at the end of a protein that is embedded.
        max_bad_share: maximum fraction of invalid records.
        max_points: maximum number of points; of more rows, a fixed uniform sample is shown.
        read_fasta: reads FASTA.
        choose_form: makes ids of embeddings and of a store comparable.
        say: called with remarks, one line each.

    Raises:
        ConfigError: if there are neither embeddings nor a model, or nothing to embed.
        DataError: if a file is missing, damaged or has none of the ids.
        StorageError: if something in a bucket cannot be fetched.
        StoreError: if the store is missing or damaged.
    """
    address = location(source, "RUN") if is_uri(source) else Path(source).expanduser()
    has_embeddings = _has_embeddings(address)
    if isinstance(address, Path):
        run = folder = address
        if not has_embeddings:
            folder = Path(local_model(source, "RUN"))
    elif has_embeddings:
        run = folder = fetch_input_file(address, "RUN")
    else:
        folder = fetch_bucket_model(address, "RUN")[1]
        # The record of a run lies next to the copy of its model.
        run = folder.parent
    if store is None and inputs is None and not has_embeddings:
        store = _store_of_run(run)
    opened = None
    if store is not None:
        opened, field = open_input_store(store, field)
    elif field is not None:
        raise ConfigError(f"--field {field}: is for a store; give --store, or leave it out")
    id_N = None
    if has_embeddings:
        if pooling is not None or strip_stop or current_embedding_precision().name != "fp32":
            raise ConfigError(
                f"{source}: holds embeddings; leave out --pooling, --precision and --strip-stop"
            )
        keys = keys_of_file(folder)
        if opened is not None:
            # Refuses other ids before neighbors are searched.
            assert field is not None
            id_N = ids_of_store(opened, field)
            rows_of_store(opened, id_N, keys, choose_form)
        points = points_of_file(folder, keys, max_points)
    else:
        model = model_of_folder(folder, pooling)
        embedded = inputs or (None if opened is None else opened.path)
        if embedded is None:
            raise ConfigError(f"{source}: want what to embed: give --input or --store")
        quarantine = Quarantine(max_bad_share)
        field_of_store = field if inputs is None else None
        chosen = inputs_of(embedded, model, field=field_of_store, strip_stop=strip_stop)
        points = points_of_model(model, chosen, quarantine, max_points)
        for line in skipped_lines(quarantine.summary()):
            say(line)
    data = _data(points, opened, field, id_N, inputs, labels, read_fasta, choose_form, say)
    data["title"] = Path(source).name
    data["about"] = _about(points, opened)
    write_page(out, data)
    for line in data["about"][:2]:
        say(line)


def _has_embeddings(address: Location) -> bool:
    """Return whether a path is a Parquet file or a folder of them, and not a run or model.

    Raises:
        ConfigError: for a folder whose files belong neither to embeddings nor to a run or model.
        StorageError: if a bucket is missing or refuses.
    """
    if address.name.lower().endswith(PARQUET):
        return True
    if isinstance(address, BucketPath):
        with named_by("RUN"):
            names, _ = BucketFolder(address, is_patient=False).children()
    else:
        names = {path.name for path in address.iterdir()} if address.is_dir() else set()
    # A run or model takes precedence: users keep embeddings in its folder.
    if names & {RUN, CONFIG, MODULES}:
        return False
    has_parquet = any(name.lower().endswith(PARQUET) for name in names)
    if names and not has_parquet:
        raise ConfigError(
            f"{address}: has no embeddings (no {PARQUET} file) and no run or model (no {RUN}, "
            f"{CONFIG} or {MODULES}); want what raybio embed wrote, or a run or model folder"
        )
    return has_parquet


def _store_of_run(run: Path) -> Location | None:
    """Return the store that a run was trained on; None for the folder of a model."""
    identity = read_record(run.expanduser() / RUN, "run")
    return None if identity is None else location(identity["store"], "store")


def _data(
    points: Points,
    store: Store | None,
    field: str | None,
    id_N: pa.Array | None,
    inputs: Path | None,
    labels: Path | None,
    read_fasta: ReadFasta,
    choose_form: ChooseForm,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Return the data of the page; items are the points, and neighbors that are not on the map.

    ``id_N`` has the ids of the store, if they have been read.
    """
    texts = points.texts
    colorings: dict[str, list[str]] = {}
    keys_by_kind: dict[str, list[list[str]]] = {}
    keys = [*points.keys, *points.other_keys]
    # Links name rows by the ids of the store.
    linked_names = keys
    if texts is None and inputs is not None:
        texts = texts_of_file(inputs, points.keys, read_fasta)
    if store is not None:
        assert field is not None
        if id_N is None:
            id_N = ids_of_store(store, field)
        row_K = rows_of_store(store, id_N, keys, choose_form)
        linked_names = [
            key if row < 0 else id_N[row].as_py()
            for key, row in zip(keys, row_K.tolist(), strict=True)
        ]
        row_S = row_K[: len(points.keys)]
        texts = texts or texts_of_store(store, field, row_S)
        is_known_S = row_S >= 0
        groups = store.groups_of(row_S[is_known_S])
        if groups is not None:
            colorings["group"] = _spread(groups, is_known_S, "")
        for kind, linked in store.links_of(row_S[is_known_S]).items():
            keys_by_kind[kind] = _spread(linked, is_known_S, [])
    if labels is not None:
        labels_by_name = labels_of_table(labels, points.keys)
        num_labeled = sum(map(any, zip(*labels_by_name.values(), strict=True)))
        if num_labeled < len(points.keys):
            num_without = len(points.keys) - num_labeled
            say(f"{labels}: {num_without:,} of {len(points.keys):,} points have no label")
        colorings |= labels_by_name
    item_by_key: dict[str, int] = {}
    for item, name in enumerate(linked_names):
        item_by_key.setdefault(name, item)
    links = []
    for kind, linked_S in keys_by_kind.items():
        items_S = []
        for linked_keys in linked_S:
            for key in linked_keys[:MAX_LINKS]:
                if item_by_key.setdefault(key, len(keys)) == len(keys):
                    keys.append(key)
            items_S.append([item_by_key[key] for key in linked_keys[:MAX_LINKS]])
        counts = [len(linked_keys) for linked_keys in linked_S]
        links.append({"kind": kind, "items": items_S, "counts": counts})
    projection = embedding_map(
        points.unit_SD, np.random.default_rng(0), max_rows=len(points.unit_SD)
    )
    return {
        "keys": keys,
        "positions": np.round(projection.position_S2.astype(float), 3).tolist(),
        "texts": None if texts is None else [text[:MAX_TEXT] for text in texts],
        "lengths": None if texts is None else [len(text) for text in texts],
        "neighbors": points.neighbor_row_SK.tolist(),
        "cosines": np.round(points.cosine_SK.astype(float), 5).tolist(),
        "colorings": [_coloring(name, values) for name, values in colorings.items()],
        "links": links,
    }


def _spread(values: Sequence[Any], is_known_S: np.ndarray, missing: Any) -> list[Any]:
    """Return the values of known points at their positions, and ``missing`` elsewhere."""
    iterator = iter(values)
    return [next(iterator) if is_known else missing for is_known in is_known_S.tolist()]


def _coloring(name: str, values: Sequence[str]) -> dict[str, Any]:
    """Return classes, the most frequent first, and the class of each point; -1 for none."""
    classes, number_S, count = np.unique(
        np.asarray(values, dtype=object), return_inverse=True, return_counts=True
    )
    order = np.argsort(-count, kind="stable")
    order = order[classes[order] != ""]
    rank = np.full(len(classes), -1)
    rank[order] = np.arange(len(order))
    return {"name": name, "classes": classes[order].tolist(), "values": rank[number_S].tolist()}


def _about(points: Points, store: Store | None) -> list[str]:
    """Return how the map was made, in sentences."""
    num_points, width = points.unit_SD.shape
    shown = f"The map shows all {num_points:,} embeddings."
    if num_points < points.num_rows:
        shown = (
            f"The map shows {num_points:,} of {points.num_rows:,} embeddings: a uniform sample, "
            "always the same one (--max-points)."
        )
    among = f"all {points.num_candidates:,} embeddings"
    if points.num_candidates < points.num_rows:
        among = (
            f"the {num_points:,} on the map. For neighbors among all, give a file of raybio embed"
        )
    lines = [
        shown,
        f"Nearest neighbors have the largest cosines in all {width:,} dimensions (exact), among "
        f"{among}.",
        "Positions are t-SNE: neighborhoods have a meaning; distances between far points and sizes "
        "of clusters have none.",
    ]
    if store is not None:
        lines.append(f"Groups and links are those of the store {store.location}.")
    return lines
