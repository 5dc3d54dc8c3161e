"""Prepare a store of linked proteins or texts: reader, quarantine, distinct and held-out links."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from raybio.core.errors import DataError
from raybio.methods.sppt.articles.store import LinkedTextStore, commit_linked_texts
from raybio.methods.sppt.config import LinkedTextConfig, PrepareConfig
from raybio.methods.sppt.corpus import Commit, Corpus, G, assemble
from raybio.methods.sppt.proteins.store import ProteinStore, commit_proteins
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Spool
from raybio.store.sources import check_readable_files, describe_files
from raybio.store.writer import Draft


class Source(Protocol):
    """Raw files in one layout."""

    @property
    def files(self) -> dict[str, list[Path]]:
        """The files of each input, by the input's name."""
        ...


class ProteinSource(Source, Protocol):
    """Files of proteins and their links."""

    def read(
        self, spool: Spool, quarantine: Quarantine, *, strip_stop: bool, max_length: int
    ) -> Corpus:
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
            records or no links.
        StoreError: if the store cannot be written.
    """
    config = config or PrepareConfig()
    read = partial(source.read, strip_stop=config.strip_stop, max_length=config.max_length)
    return _prepare(Draft(out, force=force), source, read, commit_proteins, config)


def prepare_linked_texts(
    out: str | Path,
    source: TextSource,
    config: LinkedTextConfig | None = None,
    *,
    force: bool = False,
) -> LinkedTextStore:
    """Prepare a store of texts and their links; as ``prepare_proteins``.

    Args:
        out: folder of the store.
        source: a reader of ``articles/formats/``.
        config: settings; their defaults if None.
        force: replace an existing store.
    """
    return _prepare(
        Draft(out, force=force),
        source,
        source.read,
        commit_linked_texts,
        config or LinkedTextConfig(),
    )


def _prepare(
    new: Draft,
    source: Source,
    read: Callable[[Spool, Quarantine], Corpus],
    commit: Commit[G],
    config: LinkedTextConfig | PrepareConfig,
) -> G:
    quarantine = Quarantine(config.max_bad_share)
    for files in source.files.values():
        check_readable_files(files)
    with new as draft, Spool(draft.folder / "spool") as spool:
        before = _states(source)
        sources = {name: describe_files(files) for name, files in source.files.items()}
        corpus = read(spool, quarantine)
        for file, state in _states(source).items():
            if before.get(file) != state:
                raise DataError(
                    f"{file}: changed while it was being read. Prepare again when nothing writes "
                    "to it."
                )
        provenance = {
            "sources": sources,
            "parameters": config.to_mapping(),
            "quarantine": quarantine.summary(),
        }
        return assemble(
            corpus,
            spool,
            draft,
            commit=commit,
            heldout_share=config.heldout_share,
            seed=config.seed,
            provenance=provenance,
        )


def _states(source: Source) -> dict[Path, tuple[int, int]]:
    return {
        file: (file.stat().st_size, file.stat().st_mtime_ns)
        for files in source.files.values()
        for file in files
    }
