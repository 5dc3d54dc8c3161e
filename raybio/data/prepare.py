"""Preparing a graph of proteins or texts: readers -> quarantine -> distinct links -> held-out links -> store."""

import hashlib
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field

from raybio.config import BaseConfig
from raybio.data.assemble import Commit, Corpus, G, Spool, assemble
from raybio.data.linked_text_store import LinkedTextStore, commit_linked_texts
from raybio.data.protein_store import ProteinStore, commit_proteins
from raybio.data.quarantine import Quarantine
from raybio.data.residues import DEFAULT_MAX_LENGTH
from raybio.data.store import canonical_json, sha256_of
from raybio.data.store_writer import Draft
from raybio.errors import DataError


class LinkedTextConfig(BaseConfig):
    """How raw files become a store of linked texts; all of it stands in the store's manifest."""

    heldout_share: float = Field(0.05, ge=0, lt=1, description="share of each group's links kept out of training")
    seed: int = Field(0, ge=0, description="which links are held out")
    max_bad_share: float = Field(0.1, ge=0, le=1, description="share of bad records beyond which the input is refused")


class PrepareConfig(LinkedTextConfig):
    """How raw files become a store of proteins; all of it stands in the store's manifest."""

    strip_stop: bool = Field(False, description="remove a '*' at the end of a sequence")
    max_length: int = Field(DEFAULT_MAX_LENGTH, ge=1, description="longer sequences are set aside, in letters")


class Source(Protocol):
    """Raw files in some layout."""

    @property
    def files(self) -> dict[str, list[Path]]:
        """The files read, under the name of each input."""
        ...


class ProteinSource(Source, Protocol):
    """Files of proteins and their links."""

    def read(self, spool: Spool, quarantine: Quarantine, *, strip_stop: bool, max_length: int) -> Corpus:
        """Read everything: sequences into the spool, the rest into the corpus."""
        ...


class TextSource(Source, Protocol):
    """Files of texts and their links."""

    def read(self, spool: Spool, quarantine: Quarantine) -> Corpus:
        """Read everything: texts into the spool, the rest into the corpus."""
        ...


def prepare_proteins(
    out: str | Path, source: ProteinSource, config: PrepareConfig | None = None, *, force: bool = False
) -> ProteinStore:
    """Prepare a store of protein sequences and their links.

    Args:
        out: folder of the store.
        source: ``tables.Tables`` or ``interactomes.TreeOfLife``.
        config: settings; their defaults if None.
        force: replace a store that is there already.

    Returns:
        The store, open. The same files and settings give the same bytes.

    Raises:
        DataError: if the input is missing, torn, changed while it was read, has too many bad records or no links.
        StoreError: if the store cannot be written.
    """
    config = config or PrepareConfig()
    read = partial(source.read, strip_stop=config.strip_stop, max_length=config.max_length)
    return _prepare(Draft(out, force=force), source, read, commit_proteins, config)


def prepare_linked_texts(
    out: str | Path, source: TextSource, config: LinkedTextConfig | None = None, *, force: bool = False
) -> LinkedTextStore:
    """Prepare a store of texts and their links; as ``prepare_proteins``.

    Args:
        out: folder of the store.
        source: ``linked_tables.LinkedTables``, ``ogb_mag.OgbMag`` or ``cane.Cane``.
        config: settings; their defaults if None.
        force: replace a store that is there already.
    """
    return _prepare(Draft(out, force=force), source, source.read, commit_linked_texts, config or LinkedTextConfig())


def _prepare(
    new: Draft,
    source: Source,
    read: Callable[[Spool, Quarantine], Corpus],
    commit: Commit[G],
    config: LinkedTextConfig | PrepareConfig,
) -> G:
    quarantine = Quarantine(config.max_bad_share)
    for files in source.files.values():
        demand_files(files)
    with new as draft, Spool(draft.folder / "spool") as spool:
        before = _states(source)
        sources = {name: describe_files(files) for name, files in source.files.items()}
        corpus = read(spool, quarantine)
        for file, state in _states(source).items():
            if before.get(file) != state:
                raise DataError(f"{file}: changed while it was being read. Prepare again when nothing writes to it.")
        provenance = {"sources": sources, "parameters": config.to_mapping(), "quarantine": quarantine.summary()}
        return assemble(
            corpus,
            spool,
            draft,
            commit=commit,
            heldout_share=config.heldout_share,
            seed=config.seed,
            provenance=provenance,
        )


def demand_files(files: Iterable[Path]) -> None:
    """Refuse an input that is not there, before anything is read.

    Raises:
        DataError: naming the first one that is missing.
    """
    for file in files:
        if not os.path.isfile(file):
            what = "does not exist"
            if os.path.isdir(file):
                what = f"is a folder; give its files, such as '{file}/*'"
            elif os.path.exists(file):
                what = "is a pipe or a device, and is read twice; write it into a file first"
            raise DataError(f"{file}: {what}")


def _states(source: Source) -> dict[Path, tuple[int, int]]:
    return {file: (file.stat().st_size, file.stat().st_mtime_ns) for files in source.files.values() for file in files}


def describe_files(files: list[Path]) -> dict[str, Any]:
    """Name, size and sha256 of an input; of many files together, the sha256 of the list of theirs."""
    digests = [(file.name, sha256_of(file)) for file in files]
    total = sum(file.stat().st_size for file in files)
    if len(files) == 1:
        return {"name": files[0].name, "bytes": total, "sha256": digests[0][1]}
    combined = hashlib.sha256(canonical_json(sorted(digests))).hexdigest()
    return {"name": files[0].parent.name if files else "", "files": len(files), "bytes": total, "sha256": combined}
