"""Preparing a store of articles: MEDLINE files or tables in, a committed store out."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from raybio.core.errors import DataError, StoreError
from raybio.methods.biostransformers.config import ArticleConfig
from raybio.methods.biostransformers.formats.medline_parts import (
    FileReport,
    add_to_quarantine,
    merge_parts,
    parse_file,
    read_part,
)
from raybio.methods.biostransformers.formats.tables import Article, read_pair_table, to_batch
from raybio.methods.biostransformers.store import ARTICLE_COLUMNS, ArticleCollector, ArticleStore
from raybio.methods.biostransformers.zero_shot.datasets import read_pubmedqa
from raybio.store.quarantine import Quarantine
from raybio.store.sources import check_readable_files, describe_files
from raybio.store.writer import Draft

ARTICLES_AT_ONCE = 10_000


BROKEN_FILE = "broken file (set aside whole)"


ParseAll = Callable[[Sequence[Path], Path], Sequence[FileReport]]
"""(files, folder of parts) -> their reports, in the order of the files."""


def parse_here(files: Sequence[Path], parts: Path) -> list[FileReport]:
    """Parse files one after the other in this process."""
    return [parse_file(path, parts) for path in files]


def prepare_medline(
    out: str | Path,
    files: Sequence[Path],
    config: ArticleConfig | None = None,
    *,
    force: bool = False,
    parse_all: ParseAll = parse_here,
    parts: Path | None = None,
) -> ArticleStore:
    """Make a store of MEDLINE files; of several revisions of an article the newest counts.

    A broken file is set aside whole, named in the manifest's ``broken_files``, and the others go on: what it would have
    revised or deleted then stays as it is. Files are parsed into parts beside the store, which go when it is committed;
    prepared again after an interruption, the finished ones are not parsed anew.

    Args:
        out: folder of the store.
        files: oldest first: the baseline in order of name, then the update files in order of name.
        config: settings.
        force: replace a store that is there already.
        parse_all: parses the files; the result does not depend on how.
        parts: another folder for the parts, which stays.

    Raises:
        DataError: if a file is missing, all are broken, too many records are bad, or there is nothing to pair.
        StoreError: if the store or the parts cannot be written.
    """
    config, quarantine = (
        config or ArticleConfig(),
        Quarantine((config or ArticleConfig()).max_bad_share),
    )
    check_readable_files(files)
    with Draft(out, force=force) as draft, ArticleCollector(draft.folder) as collector:
        folder = parts or draft.path.with_name(f".{draft.path.name}.parts")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"{folder}: cannot be made ({error.strerror}). Choose another --parts."
            ) from None
        reports = parse_all(files, folder)
        sound, broken = _without_broken(reports, quarantine)
        add_to_quarantine(sound, quarantine)
        quarantine.check("citation")
        merged = merge_parts(sound)
        by_file = np.lexsort([merged.row_A, merged.file_A])
        bounds = np.searchsorted(merged.file_A[by_file], np.arange(len(sound) + 1))
        for number, report in enumerate(sound):
            table, rows = (
                read_part(report.part),
                merged.row_A[by_file[bounds[number] : bounds[number + 1]]],
            )
            for start in range(0, len(rows), ARTICLES_AT_ONCE):
                part = table.select(list(ARTICLE_COLUMNS)).take(
                    pa.array(rows[start : start + ARTICLES_AT_ONCE])
                )
                for batch in part.combine_chunks().to_batches():
                    collector.add(batch)
        provenance = {
            "sources": {"medline": describe_files(list(files))},
            "parameters": config.to_mapping(),
            "quarantine": quarantine.summary(),
            "revised_citations": merged.num_revised,
            "deleted_citations": merged.num_deleted,
            "broken_files": broken,
        }
        store = collector.commit(draft, config, provenance)
    if parts is None:
        shutil.rmtree(folder, ignore_errors=True)
    return store


def prepare_pairs(
    out: str | Path,
    files: Sequence[Path],
    config: ArticleConfig | None = None,
    *,
    force: bool = False,
) -> ArticleStore:
    """Make a store of article tables (see ``pair_tables``) and of PubMedQA's JSON; the last line of a PMID counts.

    Of PubMedQA the question stands for the title and the contexts for the abstract; the answers are not read.

    Raises:
        DataError: if a file is missing, damaged or of another layout, too many lines are bad, or nothing can be paired.
        StoreError: if the store cannot be written.
    """
    config, quarantine = (
        config or ArticleConfig(),
        Quarantine((config or ArticleConfig()).max_bad_share),
    )
    check_readable_files(files)
    with Draft(out, force=force) as draft, ArticleCollector(draft.folder) as collector:
        for path in files:
            for batch in _read(path, quarantine):
                collector.add(batch)
        quarantine.check("article")
        provenance = {
            "sources": {"tables": describe_files(list(files))},
            "parameters": config.to_mapping(),
            "quarantine": quarantine.summary(),
        }
        return collector.commit(draft, config, provenance)


def _read(path: Path, quarantine: Quarantine) -> Iterator[pa.RecordBatch]:
    if ".json" not in path.suffixes:
        yield from read_pair_table(path, quarantine)
        return
    questions = read_pubmedqa(path)
    quarantine.saw("article", len(questions))
    yield to_batch(
        [
            Article(int(one.pmid), one.question, one.context, list(one.mesh_terms), one.year or 0)
            for one in questions
        ]
    )


def _without_broken(
    reports: Sequence[FileReport], quarantine: Quarantine
) -> tuple[list[FileReport], list[dict[str, str]]]:
    """The sound files, and all the others with the reason.

    Raises:
        DataError: if none is sound, or more are broken than may be bad.
    """
    broken = [
        {
            "file": Path(report.path).name,
            "reason": report.problem.removeprefix(report.path).lstrip(":, "),
        }
        for report in reports
        if report.problem
    ]
    for one in broken:
        quarantine.add("file", BROKEN_FILE, one["file"], 0, one["reason"])
    sound = [report for report in reports if not report.problem]
    if not sound:
        raise DataError(
            f"none of {len(reports)} files can be read; the first: {reports[0].problem}"
        )
    quarantine.saw("file", len(reports))
    quarantine.check("file")
    return sound, broken
