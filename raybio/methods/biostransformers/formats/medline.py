"""Streaming reader of MEDLINE / PubMed XML, plain or gzip: baseline, daily updates, search results.

It reads both roots, ``MedlineCitationSet`` (before 2017) and ``PubmedArticleSet``. The rules follow
NLM's "MEDLINE PubMed XML Element Descriptions".
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from lxml import etree

from raybio.methods.biostransformers.formats.columns import ArticleColumns
from raybio.store.quarantine import Quarantine
from raybio.store.xml import stream_elements

ROOTS = ("PubmedArticleSet", "MedlineCitationSet")
TAGS = ("MedlineCitation", "PubmedArticle", "PubmedBookArticle", "DeleteCitation")
CHILDREN = ("PMID", "DateCreated", "DateCompleted", "Article", "MeshHeadingList")

CITATION = "citation"
"""Kind of record in the quarantine."""

REASONS = {
    "no PMID": (CITATION, True),
    "no legal PMID": (CITATION, True),
    "neither title nor abstract": (CITATION, True),
    "text with an entity that is not declared": (CITATION, True),
    "PubmedArticle without a MedlineCitation": (CITATION, True),
    "unknown element": (CITATION, True),
    "not an article": (CITATION, False),
    "heading without a name": ("heading", False),
    "deletion without a legal PMID": ("deletion", False),
}
"""Reasons to skip a record: its kind, and whether it counts as bad."""

PLACEHOLDERS = {"not available", "in process citation"}
"""Bracketed titles of articles whose English title is unknown."""

YEAR = re.compile(r"(?<![0-9])[0-9]{4}(?![0-9])")

LAST_SURE_LINE = 65_534
"""libxml2 keeps an element's line in 16 bits; beyond it, only text nodes have correct lines."""


class MedlineBatch(NamedTuple):
    """Articles in the order of the file, and PMIDs (int64) that the file deletes."""

    articles: pa.RecordBatch
    deleted: np.ndarray


class _SkipError(Exception):
    """A citation is skipped. Arguments: reason and detail."""


def read_medline(
    path: str | Path, quarantine: Quarantine, *, articles_per_batch: int = 1000
) -> Iterator[MedlineBatch]:
    """Yield the articles of a file of citations.

    - title: brackets around a whole title ("[Rats and men].", a translated title) are removed;
      "[Not Available]." is no title. ``vernacular_title`` is in the article's own language.
    - abstract: sections joined by a blank, each with its label ("METHODS: ..."). Other abstracts
      (plain language, other languages) and the copyright are omitted.
    - texts: inline markup and formulas keep their text; any white space becomes one blank.
    - mesh: a heading is major if its descriptor or any of its qualifiers is.
    - year: of publication (``Year``, or the first in ``MedlineDate``), else of completion, else of
      creation, else 0.

    Args:
        path: the file; gzip is recognized by its content.
        quarantine: collects skipped records by one of ``REASONS``; books do not count as bad.
        articles_per_batch: rows of a batch.

    Yields:
        Articles in ``ARTICLE_SCHEMA`` and deletions. If the file turns out to be broken at its end,
        the batches before must not be used, so write them to a temporary file.

    Raises:
        DataError: with file and line, if the file is broken or of another kind (see
            ``stream_elements``).
    """
    name = Path(path).name
    columns = ArticleColumns()
    deleted: list[int] = []
    for element in stream_elements(path, roots=ROOTS, tags=TAGS):
        if element.tag == "MedlineCitation":
            _add_citation(element, columns, quarantine, name)
        elif element.tag == "DeleteCitation":
            deleted += _deleted_pmids(element, quarantine, name)
        elif element.tag != "PubmedArticle" or element.find("MedlineCitation") is None:
            _skip_element(element, quarantine, name)
        if len(columns) >= articles_per_batch or len(deleted) >= articles_per_batch:
            yield MedlineBatch(columns.finish(), np.asarray(deleted, np.int64))
            columns = ArticleColumns()
            deleted = []
    if columns or deleted:
        yield MedlineBatch(columns.finish(), np.asarray(deleted, np.int64))


def _add_citation(
    citation: Any, columns: ArticleColumns, quarantine: Quarantine, name: str
) -> None:
    quarantine.saw(CITATION, 1)
    child_by_tag = {child.tag: child for child in citation.iterchildren(*CHILDREN)}
    pmid_element = child_by_tag.get("PMID")
    line = _line(citation, pmid_element)
    try:
        pmid, version = _pmid_and_version(pmid_element)
        title, vernacular_title, abstract = _texts(child_by_tag.get("Article"), pmid)
        headings = _headings(child_by_tag.get("MeshHeadingList"))
    except _SkipError as skipped:
        _skip(quarantine, name, line, *skipped.args)
        return
    columns.add_article(pmid, version, line, title, vernacular_title, abstract, _year(child_by_tag))
    for heading in headings:
        if heading[0]:
            columns.add_heading(*heading)
        else:
            _skip(quarantine, name, line, "heading without a name", f"PMID {pmid}")


def _texts(article: Any, pmid: int) -> tuple[str, str, str]:
    """Return title, vernacular title and abstract."""
    title = ""
    vernacular_title = ""
    sections: list[str] = []
    if article is not None:
        for child in article.iterchildren("ArticleTitle", "VernacularTitle", "Abstract"):
            if child.tag == "ArticleTitle":
                title = _without_brackets(_text(child))
            elif child.tag == "VernacularTitle":
                vernacular_title = _text(child)
            else:
                sections += [_section(section) for section in child.iterchildren("AbstractText")]
    abstract = " ".join(filter(None, sections))
    if not (title or vernacular_title or abstract):
        raise _SkipError("neither title nor abstract", f"PMID {pmid}")
    return title, vernacular_title, abstract


def _text(element: Any) -> str:
    """Return all text in the element, with collapsed white space."""
    if not len(element):
        return " ".join((element.text or "").split())
    entity = next(element.iter(etree.Entity), None)
    if entity is not None:
        raise _SkipError("text with an entity that is not declared", entity.text)
    return " ".join("".join(element.itertext()).split())


def _section(section: Any) -> str:
    text = _text(section)
    label = " ".join(section.get("Label", "").split()).rstrip(": ")
    return f"{label}: {text}" if text and label else text


def _without_brackets(title: str) -> str:
    """Return a translated title without its brackets.

    "[Rats]." has such brackets; "[18F]FDG in rats." and "[Rats] and [men]." do not.
    """
    core = title.removesuffix(".").rstrip()
    if not (core.startswith("[") and core.endswith("]")):
        return title
    depth = 0
    for position, letter in enumerate(core):
        depth += (letter == "[") - (letter == "]")
        if depth == 0 and position < len(core) - 1:
            return title  # the first bracket closes before the end
    if depth:
        return title
    inner = core[1:-1].strip()
    if inner.rstrip(".").lower() in PLACEHOLDERS:
        return ""
    if title.endswith(".") and inner[-1:] not in ("", ".", "?", "!", "…"):
        return inner + "."
    return inner


def _headings(element: Any) -> list[tuple[str, str, bool, list[tuple[str, str, bool]]]]:
    """Return name, UI, whether it is major, and qualifiers of each MeSH heading."""
    if element is None:
        return []
    headings = []
    for heading in element.iterchildren("MeshHeading"):
        name = ""
        ui = ""
        is_major = False
        qualifiers = []
        for part in heading.iterchildren("DescriptorName", "QualifierName"):
            part_name = _text(part)
            part_ui = part.get("UI", "")
            is_part_major = part.get("MajorTopicYN") == "Y"
            is_major = is_major or is_part_major
            if part.tag == "DescriptorName":
                name = part_name
                ui = part_ui
            else:
                qualifiers.append((part_name, part_ui, is_part_major))
        headings.append((name, ui, is_major, qualifiers))
    return headings


def _year(child_by_tag: dict[str, Any]) -> int:
    article = child_by_tag.get("Article")
    published = None if article is None else next(article.iter("PubDate"), None)
    for date in (published, child_by_tag.get("DateCompleted"), child_by_tag.get("DateCreated")):
        if date is None:
            continue
        text_by_tag = {
            part.tag: part.text or "" for part in date.iterchildren("Year", "MedlineDate")
        }
        for tag in ("Year", "MedlineDate"):
            year = YEAR.search(text_by_tag.get(tag, ""))
            if year:
                return int(year[0])
    return 0


def _pmid_and_version(element: Any) -> tuple[int, int]:
    if element is None:
        raise _SkipError("no PMID", "")
    pmid = (element.text or "").strip()
    version = element.get("Version", "1").strip()
    if len(element) or not (_is_whole(pmid, 15) and int(pmid)) or not _is_whole(version, 9):
        raise _SkipError("no legal PMID", f"PMID {pmid!r}, version {version!r}")
    return int(pmid), int(version)


def _is_whole(text: str, max_digits: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= max_digits


def _deleted_pmids(element: Any, quarantine: Quarantine, name: str) -> list[int]:
    pmids = []
    for child in element.iterchildren("PMID"):
        try:
            pmids.append(_pmid_and_version(child)[0])
        except _SkipError as skipped:
            reason = "deletion without a legal PMID"
            _skip(quarantine, name, child.sourceline, reason, skipped.args[1])
    return pmids


def _skip_element(element: Any, quarantine: Quarantine, name: str) -> None:
    """Skip an element that is no citation."""
    quarantine.saw(CITATION, 1)
    if element.tag == "PubmedBookArticle":
        reason = "not an article"
        pmid = next(element.iter("PMID"), None)
        detail = "" if pmid is None else f"PMID {pmid.text}"
    elif element.tag == "PubmedArticle":
        reason = "PubmedArticle without a MedlineCitation"
        detail = ""
    else:
        reason = "unknown element"
        detail = element.tag if isinstance(element.tag, str) else element.text
    _skip(quarantine, name, element.sourceline, reason, detail)


def _skip(quarantine: Quarantine, name: str, line: int, reason: str, detail: str) -> None:
    kind, is_bad = REASONS[reason]
    quarantine.add(kind, reason, name, line or 1, detail, is_bad=is_bad)


def _line(citation: Any, pmid: Any) -> int:
    """Return the first line of the citation.

    Far into a file, it is counted back from the PMID, whose text has a correct line.
    """
    line: int = citation.sourceline or 0
    if line > LAST_SURE_LINE and pmid is not None:
        line = pmid.sourceline - (citation.text or "").count("\n")
    return line
