"""Collector of article records: from record batches of tables to a store.

Records go to a single part on disk, and their texts are sorted in buckets. The keys of that part
are sorted in memory, with tens of bytes per record. Only for MEDLINE files, of 30,000 citations
each, does the memory of the merge not grow with the corpus.
"""

from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from raybio.methods.biostransformers.article_sort import write_articles
from raybio.methods.biostransformers.config import ArticleConfig
from raybio.methods.biostransformers.formats.medline_parts import FileReport, PartWriter
from raybio.methods.biostransformers.merge import merge_parts
from raybio.methods.biostransformers.store import ArticleStore
from raybio.store.quarantine import Quarantine
from raybio.store.writer import Draft


class ArticleCollector:
    """Collects articles in a part; of several records of one PMID and version, the last counts.

    Use it as a context manager, which closes its file.
    """

    def __init__(self, folder: Path) -> None:
        """Keep records in ``folder`` until they are written into the store."""
        self.path = folder / "records.part"
        self._part = PartWriter(self.path, {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._part.__exit__(*error)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add records in ``ARTICLE_SCHEMA``."""
        self._part.add(batch)

    def commit(
        self, draft: Draft, config: ArticleConfig, provenance: dict[str, Any]
    ) -> ArticleStore:
        """Sort by PMID, number the terms by name, write the store, and return it open.

        Raises:
            DataError: if there is no article, or none has a term.
            StoreError: if the store cannot be written.
        """
        with self._part:
            self._part.finish(Quarantine())
        num_articles = self._part.num_articles
        path = str(self.path)
        reports = [FileReport(path, path, num_articles, num_articles, 0, {}, "")]
        merged = merge_parts(reports, draft.folder)
        provenance = {**provenance, "replaced_records": merged.num_revised}
        return write_articles(draft, reports, merged, config, provenance)
