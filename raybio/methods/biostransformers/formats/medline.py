"""MEDLINE / PubMed XML: streaming, plain or gzip, the files of the baseline, of the daily updates and of a search.

Both roots are read: ``MedlineCitationSet`` (before 2017) and ``PubmedArticleSet``. The rules follow NLM's "MEDLINE
PubMed XML Element Descriptions".

Articles as Arrow columns: filled value by value, because nested Arrow arrays made of dictionaries are slow.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from lxml import etree

from raybio.store.quarantine import Quarantine
from raybio.store.xml import stream_elements

__all__ = ["ARTICLE_SCHEMA", "CITATION", "REASONS", "MedlineBatch", "read_medline"]


ROOTS = ("PubmedArticleSet", "MedlineCitationSet")


TAGS = ("MedlineCitation", "PubmedArticle", "PubmedBookArticle", "DeleteCitation")


CHILDREN = ("PMID", "DateCreated", "DateCompleted", "Article", "MeshHeadingList")


CITATION = "citation"


# Why something is set aside: what kind of record it is, and whether that is held against the file.
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


# What stands in brackets where no English title is known.
PLACEHOLDERS = {"not available", "in process citation"}


YEAR = re.compile(r"(?<![0-9])[0-9]{4}(?![0-9])")


# libxml2 keeps the line of an element in 16 bits; beyond, only texts know theirs.
LAST_SURE_LINE = 65_534


class MedlineBatch(NamedTuple):
    """Articles in the file's order, and the PMIDs (int64) that the file's DeleteCitation names."""

    articles: pa.RecordBatch
    deleted: np.ndarray


class _UnfitError(Exception):
    """A citation is set aside: the reason and what was found."""


def read_medline(
    path: str | Path, quarantine: Quarantine, *, articles_per_batch: int = 1000
) -> Iterator[MedlineBatch]:
    """The articles of a file of citations.

    - title: brackets around the whole of it ("[Rats and men].", a translated title) are taken off; "[Not Available]."
      is no title. ``vernacular_title`` is the one in the article's own language.
    - abstract: sections joined by a blank, each with its label ("METHODS: ..."); other abstracts (plain language,
      other languages) and the copyright are left out.
    - texts: inline markup and formulas keep their text; white space of any kind becomes one blank.
    - mesh: a heading is major if its descriptor or any of its qualifiers is.
    - year: of publication (``Year``, or the first of ``MedlineDate``), else of completion, else of creation, else 0.

    Args:
        path: the file; gzip is recognised by its content.
        quarantine: takes what is left out, for one of ``REASONS``; books and the like are not held against the file.
        articles_per_batch: rows of a batch.

    Yields:
        Articles in ``ARTICLE_SCHEMA`` and deletions. Write them where they can be thrown away: if the file turns out
        to be broken at its end, what came before must not be used.

    Raises:
        DataError: with file and line, if the file is broken or not of this kind (see ``stream_elements``).
    """
    name = Path(path).name
    columns, deleted = ArticleColumns(), []
    for element in stream_elements(path, roots=ROOTS, tags=TAGS):
        if element.tag == "MedlineCitation":
            _take(element, columns, quarantine, name)
        elif element.tag == "DeleteCitation":
            deleted += _deleted(element, quarantine, name)
        elif (
            element.tag != "PubmedArticle"
            or next(element.iterchildren("MedlineCitation"), None) is None
        ):
            _leave_out(element, quarantine, name)
        if len(columns) >= articles_per_batch or len(deleted) >= articles_per_batch:
            yield MedlineBatch(columns.finish(), np.asarray(deleted, np.int64))
            columns, deleted = ArticleColumns(), []
    if columns or deleted:
        yield MedlineBatch(columns.finish(), np.asarray(deleted, np.int64))


class ArticleColumns:
    """Articles on their way into one record batch: ``add_article``, then its headings, each with its qualifiers."""

    def __init__(self) -> None:
        """Start empty."""
        self._scalars: list[list[int | str]] = [[] for _ in range(7)]
        self._heading_offsets, self._qualifier_offsets = [0], [0]
        self._headings: tuple[list[str], list[str], list[bool]] = ([], [], [])
        self._qualifiers: tuple[list[str], list[str], list[bool]] = ([], [], [])

    def __len__(self) -> int:
        return len(self._scalars[0])

    def add_article(self, *values: int | str) -> None:
        """One article: pmid, version, line, title, vernacular title, abstract, year."""
        for column, value in zip(self._scalars, values, strict=True):
            column.append(value)
        self._heading_offsets.append(self._heading_offsets[-1])

    def add_heading(
        self, name: str, ui: str, is_major: bool, qualifiers: list[tuple[str, str, bool]]
    ) -> None:
        """A MeSH heading of the article that was added last."""
        names, uis, majors = self._headings
        names.append(name)
        uis.append(ui)
        majors.append(is_major)
        names, uis, majors = self._qualifiers
        for name, ui, is_major in qualifiers:
            names.append(name)
            uis.append(ui)
            majors.append(is_major)
        self._qualifier_offsets.append(len(self._qualifiers[0]))
        self._heading_offsets[-1] += 1

    def finish(self) -> pa.RecordBatch:
        """All articles in ``ARTICLE_SCHEMA``."""
        scalars = [
            pa.array(values, field.type)
            for values, field in zip(self._scalars, list(ARTICLE_SCHEMA)[:7], strict=True)
        ]
        qualifiers = pa.StructArray.from_arrays(
            [
                pa.array(values, field.type)
                for values, field in zip(self._qualifiers, list(_QUALIFIER), strict=True)
            ],
            fields=list(_QUALIFIER),
        )
        offsets = pa.array(np.asarray(self._qualifier_offsets, np.int32))
        nested = pa.ListArray.from_arrays(offsets, qualifiers, type=pa.list_(_QUALIFIER))
        flat = [
            pa.array(values, field.type)
            for values, field in zip(self._headings, list(_HEADING)[:3], strict=True)
        ]
        headings = pa.StructArray.from_arrays([*flat, nested], fields=list(_HEADING))
        offsets = pa.array(np.asarray(self._heading_offsets, np.int32))
        mesh = pa.ListArray.from_arrays(offsets, headings, type=pa.list_(_HEADING))
        return pa.record_batch([*scalars, mesh], schema=ARTICLE_SCHEMA)


def _take(citation: Any, columns: ArticleColumns, quarantine: Quarantine, name: str) -> None:
    quarantine.saw(CITATION, 1)
    child_by_tag = {child.tag: child for child in citation.iterchildren(*CHILDREN)}
    pmid_element = child_by_tag.get("PMID")
    line = _line(citation, pmid_element)
    try:
        pmid, version = _pmid(pmid_element)
        title, vernacular_title, abstract = _texts(child_by_tag.get("Article"), pmid)
        headings = _headings(child_by_tag.get("MeshHeadingList"))
    except _UnfitError as unfit:
        _set_aside(quarantine, name, line, *unfit.args)
        return
    columns.add_article(pmid, version, line, title, vernacular_title, abstract, _year(child_by_tag))
    for heading in headings:
        if heading[0]:
            columns.add_heading(*heading)
        else:
            _set_aside(quarantine, name, line, "heading without a name", f"PMID {pmid}")


def _texts(article: Any, pmid: int) -> tuple[str, str, str]:
    title, vernacular_title, sections = "", "", []
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
        raise _UnfitError("neither title nor abstract", f"PMID {pmid}")
    return title, vernacular_title, abstract


def _text(element: Any) -> str:
    """All text in the element, white space collapsed."""
    if not len(element):
        return " ".join((element.text or "").split())
    if (entity := next(element.iter(etree.Entity), None)) is not None:
        raise _UnfitError("text with an entity that is not declared", entity.text)
    return " ".join("".join(element.itertext()).split())


def _section(section: Any) -> str:
    text, label = _text(section), " ".join(section.get("Label", "").split()).rstrip(": ")
    return f"{label}: {text}" if text and label else text


def _without_brackets(title: str) -> str:
    """A translated title without its brackets: "[Rats].", but not "[18F]FDG in rats." or "[Rats] and [men]."."""
    core = title.removesuffix(".").rstrip()
    if not (core.startswith("[") and core.endswith("]")):
        return title
    depth = 0
    for at, letter in enumerate(core):
        depth += (letter == "[") - (letter == "]")
        if depth == 0 and at < len(core) - 1:
            return title
    if depth:
        return title
    inner = core[1:-1].strip()
    if inner.rstrip(".").lower() in PLACEHOLDERS:
        return ""
    return (
        inner + "." if title.endswith(".") and inner[-1:] not in ("", ".", "?", "!", "…") else inner
    )


def _headings(element: Any) -> list[tuple[str, str, bool, list[tuple[str, str, bool]]]]:
    """Name, UI, is it major, and the qualifiers of each MeSH heading."""
    found = []
    for heading in () if element is None else element.iterchildren("MeshHeading"):
        name, ui, is_major, qualifiers = "", "", False, []
        for part in heading.iterchildren("DescriptorName", "QualifierName"):
            text, code, is_own_major = (
                _text(part),
                part.get("UI", ""),
                part.get("MajorTopicYN") == "Y",
            )
            is_major = is_major or is_own_major
            if part.tag == "DescriptorName":
                name, ui = text, code
            else:
                qualifiers.append((text, code, is_own_major))
        found.append((name, ui, is_major, qualifiers))
    return found


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
            if found := YEAR.search(text_by_tag.get(tag, "")):
                return int(found[0])
    return 0


def _pmid(element: Any) -> tuple[int, int]:
    """PMID and version."""
    if element is None:
        raise _UnfitError("no PMID", "")
    pmid, version = (element.text or "").strip(), element.get("Version", "1").strip()
    if len(element) or not (_is_whole(pmid, 15) and int(pmid)) or not _is_whole(version, 9):
        raise _UnfitError("no legal PMID", f"PMID {pmid!r}, version {version!r}")
    return int(pmid), int(version)


def _is_whole(text: str, max_digits: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= max_digits


def _deleted(element: Any, quarantine: Quarantine, name: str) -> list[int]:
    pmids = []
    for child in element.iterchildren("PMID"):
        try:
            pmids.append(_pmid(child)[0])
        except _UnfitError as unfit:
            _set_aside(
                quarantine, name, child.sourceline, "deletion without a legal PMID", unfit.args[1]
            )
    return pmids


def _leave_out(element: Any, quarantine: Quarantine, name: str) -> None:
    quarantine.saw(CITATION, 1)
    reason, detail = (
        "unknown element",
        element.tag if isinstance(element.tag, str) else element.text,
    )
    if element.tag == "PubmedBookArticle":
        pmid = next(element.iter("PMID"), None)
        reason, detail = "not an article", "" if pmid is None else f"PMID {pmid.text}"
    elif element.tag == "PubmedArticle":
        reason, detail = "PubmedArticle without a MedlineCitation", ""
    _set_aside(quarantine, name, element.sourceline, reason, detail)


def _set_aside(quarantine: Quarantine, name: str, line: int, reason: str, detail: str) -> None:
    kind, is_bad = REASONS[reason]
    quarantine.add(kind, reason, name, line or 1, detail, is_bad=is_bad)


def _line(citation: Any, pmid: Any) -> int:
    """Where the citation begins; far into a file, counted back from its PMID, which stands on one line."""
    line: int = citation.sourceline or 0
    if line > LAST_SURE_LINE and pmid is not None:
        line = pmid.sourceline - (citation.text or "").count("\n")
    return line


_QUALIFIER = pa.struct([("name", pa.string()), ("ui", pa.string()), ("is_major", pa.bool_())])


_HEADING = pa.struct(
    [
        ("name", pa.string()),
        ("ui", pa.string()),
        ("is_major", pa.bool_()),
        ("qualifiers", pa.list_(_QUALIFIER)),
    ]
)


ARTICLE_SCHEMA = pa.schema(
    [
        ("pmid", pa.int64()),
        ("version", pa.int32()),
        # Where the citation begins in its file, from 1.
        ("line", pa.int64()),
        ("title", pa.string()),
        ("vernacular_title", pa.string()),
        ("abstract", pa.string()),
        # 0: unknown.
        ("year", pa.int16()),
        ("mesh", pa.list_(_HEADING)),
    ]
)
