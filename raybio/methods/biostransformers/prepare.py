"""Preparation of articles: MEDLINE files or tables -> quarantine -> newest revisions -> store.

Memory does not grow with the corpus, except a few bytes a citation: parts are sorted on disk
(``merge.py``, ``article_sort.py``). ``disk.py`` computes the disk that this takes.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from raybio.core.errors import DataError, StoreError
from raybio.methods.biostransformers.article_sort import write_articles
from raybio.methods.biostransformers.collector import ArticleCollector
from raybio.methods.biostransformers.config import ArticleConfig
from raybio.methods.biostransformers.disk import (
    check_disk_of_files,
    check_disk_of_parts,
    check_disk_of_tables,
)
from raybio.methods.biostransformers.formats.medline_parts import (
    FileReport,
    add_to_quarantine,
    parse_file,
)
from raybio.methods.biostransformers.formats.tables import (
    ARTICLES_PER_BATCH,
    Article,
    read_pair_table,
    to_batch,
)
from raybio.methods.biostransformers.merge import merge_parts
from raybio.methods.biostransformers.store import ArticleStore
from raybio.methods.biostransformers.zero_shot.datasets.pubmedqa import stream_articles
from raybio.store.preparation import preparing
from raybio.store.quarantine import Quarantine

PUBMED_FILE = re.compile(r"pubmed([0-9]{2})n([0-9]+)\.xml(?:\.gz)?")
"""Year and number of a file. The update files count on from the baseline of their year."""

BROKEN_FILE = "broken file (skipped as a whole)"

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
    """Prepare a store from MEDLINE files. The newest of several revisions of an article counts.

    A broken file is skipped as a whole and named in the manifest's ``broken_files``; articles that
    it revises or deletes stay as they are. Files are parsed into parts next to the store, which are
    removed when the store is committed. After an interruption, finished parts are reused.

    Args:
        out: folder of the store.
        files: the baseline and the update files in any order, if all have PubMed's names; else
            oldest first.
        config: settings; None for the defaults.
        force: replace an existing store.
        parse_all: parses the files; the result does not depend on how.
        parts: another folder for the parts, which is kept.

    Raises:
        DataError: if a file is missing, all are broken, too many records are bad, or there is
            nothing to pair.
        StoreError: if the store or the parts cannot be written, or there is too little disk for
            them.
    """
    config = config or ArticleConfig()
    files = oldest_first(files)
    store_path = Path(out).resolve()
    folder = parts or store_path.parent / f".{store_path.name}.parts"
    check_disk_of_files(files, parts=folder, out=store_path.parent)
    prepared = preparing(
        out,
        {"medline": files},
        config.to_mapping(),
        max_bad_share=config.max_bad_share,
        force=force,
    )
    with prepared as new:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"{folder}: cannot be made ({error.strerror}). Choose another --parts."
            ) from None
        reports = parse_all(files, folder)
        sound, broken = _without_broken(reports, new.quarantine)
        add_to_quarantine(sound, new.quarantine)
        new.quarantine.check("citation")
        check_disk_of_parts(sound, out=store_path.parent)
        merged = merge_parts(sound, new.draft.folder)
        provenance = new.provenance(
            revised_citations=merged.num_revised,
            deleted_citations=merged.num_deleted,
            broken_files=broken,
            replaced_records=0,
        )
        store = write_articles(new.draft, sound, merged, config, provenance)
    if parts is None:
        shutil.rmtree(folder, ignore_errors=True)
    return store


def oldest_first(files: Sequence[Path]) -> list[Path]:
    """Return files by year and number, if all have PubMed's names; else in the given order."""
    matches = [PUBMED_FILE.fullmatch(path.name) for path in files]
    numbers = [(int(match[1]), int(match[2])) for match in matches if match]
    if len(numbers) < len(files):
        return list(files)
    return [files[index] for index in sorted(range(len(files)), key=numbers.__getitem__)]


def prepare_pairs(
    out: str | Path,
    files: Sequence[Path],
    config: ArticleConfig | None = None,
    *,
    force: bool = False,
) -> ArticleStore:
    """Prepare a store from article tables (``formats.tables``) and from PubMedQA's JSON.

    The last line of a PMID counts; a text without PMID has the labels of all files. A question of
    PubMedQA becomes the title and its contexts become the abstract. Answers are not read.

    Raises:
        DataError: if a file is missing, damaged or of another layout, too many lines are bad, or
            there is nothing to pair.
        StoreError: if the store cannot be written, or there is too little disk for it.
    """
    config = config or ArticleConfig()
    check_disk_of_tables(files, out=Path(out).resolve().parent)
    prepared = preparing(
        out,
        {"tables": files},
        config.to_mapping(),
        max_bad_share=config.max_bad_share,
        force=force,
    )
    labels_by_text: dict[str, list[str]] = {}
    with prepared as new, ArticleCollector(new.draft.folder) as collector:
        for path in files:
            for batch in _read_table(path, new.quarantine, labels_by_text):
                collector.add(batch)
        new.quarantine.check("article")
        return collector.commit(new.draft, config, new.provenance())


def _read_table(
    path: Path, quarantine: Quarantine, labels_by_text: dict[str, list[str]]
) -> Iterator[pa.RecordBatch]:
    if path.is_dir() or ".json" not in path.suffixes:
        yield from read_pair_table(path, quarantine, labels_by_text)
        return
    articles = []
    for question in stream_articles(path):
        terms = list(question.mesh_terms)
        articles.append(
            Article(
                int(question.pmid), question.question, question.context, terms, question.year or 0
            )
        )
        quarantine.saw("article", 1)
        if len(articles) == ARTICLES_PER_BATCH:
            yield to_batch(articles)
            articles = []
    yield to_batch(articles)


def _without_broken(
    reports: Sequence[FileReport], quarantine: Quarantine
) -> tuple[list[FileReport], list[dict[str, str]]]:
    """Return the reports of sound files, and name and reason of each broken file.

    Raises:
        DataError: if no file is sound, or too many are broken.
    """
    sound = []
    broken = []
    for report in reports:
        if not report.problem:
            sound.append(report)
            continue
        reason = report.problem.removeprefix(report.path).lstrip(":, ")
        broken.append({"file": Path(report.path).name, "reason": reason})
        quarantine.add("file", BROKEN_FILE, Path(report.path).name, 0, reason)
    if not sound:
        raise DataError(
            f"none of {len(reports)} files can be read; the first: {reports[0].problem}"
        )
    quarantine.saw("file", len(reports))
    quarantine.check("file")
    return sound, broken
