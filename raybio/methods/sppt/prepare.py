"""Prepare a store of linked proteins or texts: reader, quarantine, distinct and held-out links."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from raybio.methods.sppt.articles.store import LinkedTextStore, commit_linked_texts, text_copies
from raybio.methods.sppt.config import (
    HeldOut,
    LinkedRowsConfig,
    LinkedTextConfig,
    PrepareConfig,
)
from raybio.methods.sppt.corpus import Cluster, Commit, Corpus, G, assemble
from raybio.methods.sppt.proteins.clusters import identity_clusters
from raybio.methods.sppt.proteins.mmseqs import check_mmseqs, mmseqs_clusters
from raybio.methods.sppt.proteins.store import ProteinStore, commit_proteins
from raybio.store.preparation import preparing
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Ragged, Spool


class Source(Protocol):
    """Raw files in one layout."""

    @property
    def files(self) -> dict[str, list[Path]]:
        """The files of each input, by the input's name."""
        ...


class ProteinSource(Source, Protocol):
    """Files of proteins and their links."""

    def read(self, spool: Spool, quarantine: Quarantine, config: PrepareConfig) -> Corpus:
        """Read all files: sequences into the spool, the rest into the corpus."""
        ...


class TextSource(Source, Protocol):
    """Files of texts and their links."""

    def read(self, spool: Spool, quarantine: Quarantine) -> Corpus:
        """Read all files: texts into the spool, the rest into the corpus."""
        ...


def prepare_proteins(
    out: str | Path,
    source: ProteinSource,
    config: PrepareConfig | None = None,
    *,
    force: bool = False,
) -> ProteinStore:
    """Prepare a store of protein sequences and their links.

    Args:
        out: folder of the store.
        source: a reader of ``proteins/formats/``: ``Tables`` or ``TreeOfLife``.
        config: settings; their defaults if None.
        force: replace an existing store.

    Returns:
        The store, open. The same files and settings give the same bytes.

    Raises:
        DataError: if the input is missing, torn, changed while it was read, has too many bad
            records or no links, or MMseqs2 fails.
        ConfigError: if MMseqs2 is wanted and not installed.
        StoreError: if the store cannot be written.
    """
    config = config or PrepareConfig()
    read = partial(source.read, config=config)
    cluster = partial(identity_clusters, identity=config.identity)
    facts = {}
    if config.relatives == "mmseqs2":
        facts["mmseqs2_version"] = check_mmseqs()
        cluster = partial(mmseqs_clusters, identity=config.identity)
    return _prepare(
        out,
        source,
        read,
        commit_proteins,
        config,
        force=force,
        held_out=config.held_out,
        cluster=cluster,
        facts=facts,
    )


def prepare_linked_texts(
    out: str | Path,
    source: TextSource,
    config: LinkedTextConfig | None = None,
    *,
    force: bool = False,
) -> LinkedTextStore:
    """Prepare a store of texts and their links; as ``prepare_proteins``.

    Copies of a text, which differ in case, spaces and punctuation only, are relatives.

    Args:
        out: folder of the store.
        source: a reader of ``articles/formats/``.
        config: settings; their defaults if None.
        force: replace an existing store.
    """
    config = config or LinkedTextConfig()
    return _prepare(
        out,
        source,
        source.read,
        commit_linked_texts,
        config,
        force=force,
        held_out="date" if config.split_by_date else "random",
        cluster=_copies,
    )


def _copies(content: Ragged, _: Path) -> np.ndarray:
    return text_copies(content.to_arrow())


def _prepare(
    out: str | Path,
    source: Source,
    read: Callable[[Spool, Quarantine], Corpus],
    commit: Commit[G],
    config: LinkedRowsConfig,
    *,
    force: bool,
    held_out: HeldOut,
    cluster: Cluster,
    facts: dict[str, str] | None = None,
) -> G:
    prepared = preparing(
        out,
        source.files,
        config.to_mapping(),
        max_bad_share=config.max_bad_share,
        force=force,
    )
    with prepared as new, Spool(new.draft.folder / "spool") as spool:
        corpus = read(spool, new.quarantine)
        read_as = {"read_as": list(corpus.read_as)} if corpus.read_as else {}
        return assemble(
            corpus,
            spool,
            new.draft,
            commit=commit,
            heldout_share=config.heldout_share,
            seed=config.seed,
            provenance=new.provenance(**read_as, **(facts or {})),
            held_out=held_out,
            cluster=cluster,
        )
