"""Options, file patterns and table output of all commands of ``raybio prepare``."""

import glob
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.markup import escape
from rich.table import Table

from raybio.cli.console import stdout_console
from raybio.cli.options import LocationType, location_option, sources_option
from raybio.core.errors import ConfigError, StorageError
from raybio.core.location import BucketPath, Location, is_uri, location
from raybio.store.manifest import MANIFEST, WITHOUT_LINK

if TYPE_CHECKING:
    from raybio.store.store import Store

S = TypeVar("S", bound="Store")

Out = Annotated[LocationType, location_option("folder of the store")]
Force = Annotated[bool, typer.Option("--force", help="replace an existing store")]
Input = Annotated[list[str], sources_option("files or patterns; quote patterns", "--input")]

NO_VALIDATION = (
    "[yellow]no article is kept for validation[/]: training evaluates on such articles and will "
    "refuse this store. Prepare it again with a larger --validation-share, or train with "
    "--set schedule.evaluate_every_steps=0"
)

NO_HELD_OUT = (
    "[yellow]no link is held out[/]: tables will have no held-out links. Prepare the store again "
    "with more links, or with a larger --heldout-share"
)

FEW_HELD_OUT = 30
"""Scores of fewer held-out links have wide intervals, and say little."""

BESIDE_DOWNLOADS = (".md5", ".part", ".sha256")
"""Endings of what ``raybio prepare download`` writes next to a file; patterns leave them out."""


def matching(patterns: Sequence[str], option: str = "--input") -> list[Path]:
    """Return the matching files, in order of patterns and by name within a pattern.

    A file that matches several patterns is listed with the last of them.

    Matching objects in a bucket are fetched into the cache.

    Raises:
        ConfigError: for a pattern without a file.
        StorageError: for a bucket that is missing, refuses or does not answer.
    """
    files: dict[Path, None] = {}
    for pattern in patterns:
        source = location(pattern, option) if is_uri(pattern) else pattern
        if isinstance(source, BucketPath):
            from raybio.store.remote_sources import fetch_input_files

            for file in fetch_input_files(source, option):
                files.pop(file, None)
                files[file] = None
            continue
        pattern = str(source)
        names = sorted(glob.glob(pattern, recursive=True))
        if not pattern.endswith(BESIDE_DOWNLOADS):
            names = [name for name in names if not name.endswith(BESIDE_DOWNLOADS)]
        # The file's name itself looks like a pattern.
        if not names and os.path.exists(pattern):
            names = [pattern]
        if not names:
            hint = ""
            if glob.has_magic(pattern):
                hint = ". Quote a pattern, so that the shell leaves it alone"
            raise ConfigError(f"{option} {pattern}: no such file{hint}")
        for name in names:
            files.pop(Path(name), None)
            files[Path(name)] = None
    return list(files)


def local_copy(source: Location, option: str, only: Sequence[str] = ()) -> Path:
    """Return a local file or folder; one in a bucket is fetched into the cache.

    Args:
        source: the file or folder.
        option: the option that gave it, for errors.
        only: for a folder in a bucket, prefixes of the names of the files to fetch; empty: all.

    Raises:
        ConfigError: for a path in a bucket without an object.
        StorageError: for a bucket that is missing, refuses or does not answer.
    """
    if isinstance(source, Path):
        return source
    from raybio.store.remote_sources import fetch_input_file

    return fetch_input_file(source, option, only)


def check_store(store: Location) -> None:
    """Fetch a store from a bucket, so that an unusable one is refused before a model is read.

    Raises:
        RaybioError: as ``open_store``.
    """
    if isinstance(store, BucketPath):
        from raybio.store.store import open_store

        open_store(store)


def check_out(out: Location, *, force: bool) -> None:
    """Refuse a path at which no store can be written, before source files are read.

    Raises:
        ConfigError: for a whole bucket, or a ``RAYBIO_CACHE_SIZE`` that is not a size.
        StorageError: for a bucket that is missing or refuses.
        StoreError: if a store exists already, and ``force`` is not set; or if something else lies
            there.
    """
    if isinstance(out, BucketPath):
        from raybio.store.remote_store import check_target

        check_target(out, force=force)
        return
    from raybio.store.writer import Draft

    Draft(out, force=force)


def prepare_store(out: Location, prepare: Callable[..., S], *, force: bool) -> S:
    """Prepare a store in a local folder; for a bucket, upload it and keep it as a copy.

    Args:
        out: where the store belongs.
        prepare: prepares the store in the given folder; ``force=True`` replaces an existing one.
        force: replace an existing store.

    Raises:
        RaybioError: as ``prepare``, and if it cannot be uploaded.
    """
    if isinstance(out, Path):
        return prepare(out, force=force)
    from raybio.cli import prepared_store
    from raybio.store.bucket_cache import working_folder
    from raybio.store.remote_store import keep_as_copy, upload_store
    from raybio.store.store import open_store

    name = f"{out.name}-{hashlib.sha256(str(out).encode()).hexdigest()[:16]}"
    busy = f"{out}: another process is preparing this store. Wait for it."
    with working_folder(name, busy) as work:
        folder = work / out.name
        described = prepared_store.description(prepare)
        store = prepared_store.open_if_prepared(work, folder, prepare, described)
        if store is None:
            # Existing files may be damaged, or made from other inputs.
            shutil.rmtree(folder, ignore_errors=True)
            store = prepare(folder)
            prepared_store.record(work, described)
        else:
            print(f"{out}: prepared by an earlier command whose upload failed", flush=True)
        try:
            digest = upload_store(store.path, out, force=force)
        except StorageError as error:
            if described is None:
                raise
            raise type(error)(
                f"{error}. The prepared store is kept in {folder}: the same command uploads the "
                "rest of it"
            ) from None
        keep_as_copy(store.path, digest)
    return open_store(out, type(store), digest=digest)


class NewStore:
    """A store that a command writes: checks its path, prepares it, and shows it as a table.

    Args:
        out: where the store belongs.
        force: replace an existing store.

    Raises:
        RaybioError: as ``check_out``.
    """

    def __init__(self, out: Location, *, force: bool) -> None:
        """Start the clock, and refuse ``out`` before source files are read."""
        self.out = out
        self.force = force
        self._started = time.perf_counter()
        check_out(out, force=force)

    def write(self, prepare: Callable[..., S], **arguments: Any) -> S:
        """Return the store that ``prepare`` writes, and show it.

        Args:
            prepare: as for ``prepare_store``.
            arguments: more arguments of ``prepare``, by name.

        Raises:
            RaybioError: as ``prepare_store``.
        """
        store = prepare_store(self.out, partial(prepare, **arguments), force=self.force)
        show_store(store, self._started)
        return store


LINKS = {"links": "links for training", "heldout_links": "held-out links, for evaluation"}

COUNTS = {
    "proteins": {
        "rows": "proteins with a link",
        WITHOUT_LINK: "proteins without a link, left out",
        "groups": "species",
        **LINKS,
    },
    "linked texts": {
        "rows": "articles with a link",
        WITHOUT_LINK: "articles without a link, left out",
        **LINKS,
    },
    "articles": {"rows": "articles"},
    "documents": {"rows": "documents"},
    "sentences": {"rows": "sentences"},
    "topics": {"rows": "sentences"},
    "words": {"rows": "sentences"},
}
"""Kind of a store -> counts in its manifest -> their names in the table of a store."""

LEAKAGE = {
    "with_twin": "held-out links with a twin in training: relatives of both ends are linked",
    "c1": "held-out links, both ends seen in training (C1)",
    "c2": "held-out links, one end seen (C2)",
    "c3": "held-out links, no end seen (C3)",
    "validation_titles_in_training": "validation titles that are in training too",
    "dev_documents_in_training": "dev documents whose text is in training too",
    "dev_documents_in_test": "dev documents whose text is in test too",
    "dev_relations_in_training": "dev relations of entities that are related in training",
    "test_documents_in_training": "test documents whose text is in training too",
    "test_relations_in_training": "test relations of entities that are related in training",
    "dev_sentences_in_training": "dev sentences that are in training too",
    "dev_sentences_in_test": "dev sentences that are in test too",
    "test_sentences_in_training": "test sentences that are in training too",
    "full_queries_in_sentences": "full queries, head and an answer in one sentence",
    "hard_queries_in_sentences": "hard queries, head and an answer in one sentence",
}
"""Entries of a manifest's leakage -> their names in the table of a store."""


def show_store(store: "Store", started: float) -> None:
    """Print the counts of a store and the skipped records.

    Args:
        store: the prepared store.
        started: ``time.perf_counter()`` when its preparation began.
    """
    from raybio.store.quarantine import SkippedRecord

    seconds = time.perf_counter() - started
    manifest = store.manifest
    more_counts = {
        name: value for name, value in manifest.items() if name.endswith(("_citations", "_records"))
    }
    counts = manifest["counts"] | more_counts
    table = Table("what", "count", title=f"{escape(str(store.location))} ({seconds:.1f} s)")
    names = COUNTS.get(store.kind, {})
    for name in sorted(counts, key=lambda name: name != "rows"):
        table.add_row(names.get(name, name.replace("_", " ")), f"{counts[name]:,}")
    if manifest.get(WITHOUT_LINK):
        table.add_row(names[WITHOUT_LINK], f"{manifest[WITHOUT_LINK]:,}")
    for name, count in manifest.get("leakage", {}).items():
        if name in LEAKAGE:
            table.add_row(LEAKAGE[name], f"{count:,}")
    if "training_until" in manifest:
        table.add_row("newest training links", manifest["training_until"])
    for reason, facts in manifest["quarantine"].items():
        table.add_row(f"[yellow]skipped:[/] {reason}", f"{facts['count']:,}")
    console = stdout_console()
    console.print(table)
    console.print(f"content digest: {store.content_digest}", highlight=False, soft_wrap=True)
    for line in manifest.get("read_as", []):
        console.print(f"read: {line}", soft_wrap=True, markup=False, highlight=False)
    for reason, facts in manifest["quarantine"].items():
        if facts["examples"]:
            example = SkippedRecord(**facts["examples"][0])
            line = f"skipped: {reason}: {example}"
            if facts["count"] > 1:
                line = f"skipped: {reason}: first {example}, more in {store.location}/{MANIFEST}"
            console.print(line, soft_wrap=True, markup=False, highlight=False)
    is_without_validation = manifest["counts"].get("validation_articles") == 0
    if is_without_validation and manifest["parameters"]["validation_share"]:
        console.print(NO_VALIDATION, soft_wrap=True, highlight=False)
    for line in _advice_on_held_out(manifest):
        console.print(line, soft_wrap=True, highlight=False)
    for broken in manifest.get("broken_files", []):
        line = f"broken: {broken['file']}: {broken['reason']}"
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def _advice_on_held_out(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield what to change if the held-out links of a store are few, or can be looked up."""
    num_links = manifest["counts"].get("heldout_links")
    parameters = manifest["parameters"]
    if num_links is None or not parameters["heldout_share"]:
        return
    if num_links == 0:
        yield NO_HELD_OUT
    elif num_links < FEW_HELD_OUT:
        links = "1 link is" if num_links == 1 else f"{num_links} links are"
        yield (
            f"[yellow]only {links} held out[/]: their scores will say little. Prepare the store "
            "again with more links, or with a larger --heldout-share"
        )
    num_twins = manifest.get("leakage", {}).get("with_twin", 0)
    # Of texts, relatives are copies, and no option separates them.
    if 2 * num_twins > num_links and parameters.get("held_out") in ("random", "proteins"):
        yield (
            f"[yellow]{num_twins:,} of {num_links:,} held-out links have a twin in training[/]: a "
            "look-up among relatives finds them. To hold out whole clusters of relatives, prepare "
            "the store again with --held-out homology"
        )
