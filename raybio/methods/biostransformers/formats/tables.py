"""Reader of article tables, one article a line, in three layouts.

The first line decides:

- tab-separated, as the authors train on: PMID, title, abstract, and one column for each MeSH term.
  A header that begins with PMID is skipped.
- comma-separated without header, as the authors released: PMID, title, terms joined by ``;``,
  random other terms (ignored).
- comma-separated with the header ``text,label``: labels joined by ``;`` or on separate lines. A
  hash of the text replaces the PMID.
"""

import csv
import hashlib
import io
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from raybio.core.errors import DataError
from raybio.methods.biostransformers.formats.columns import ArticleColumns
from raybio.store.quarantine import Quarantine
from raybio.store.sources import bounded_lines, open_source

MAX_FIELD_BYTES = 1 << 22


class Article(NamedTuple):
    """One article of a table; year 0 if unknown."""

    pmid: int
    title: str
    abstract: str
    terms: list[str]
    year: int = 0


def read_pair_table(
    path: str | Path, quarantine: Quarantine, *, articles_per_batch: int = 10_000
) -> Iterator[pa.RecordBatch]:
    """Yield the articles of a table, plain or gzip, in ``ARTICLE_SCHEMA``.

    Args:
        path: the file.
        quarantine: collects skipped lines by file, line and reason.
        articles_per_batch: articles of a record batch.

    Raises:
        DataError: if the file is missing, torn, not UTF-8, of another layout, or without articles.
    """
    path = Path(path)
    num_before = quarantine.num_seen("article")
    waiting: list[Article] = []
    for article in _articles(path, quarantine):
        waiting.append(article)
        if len(waiting) == articles_per_batch:
            yield to_batch(waiting)
            waiting = []
    if waiting:
        yield to_batch(waiting)
    if quarantine.num_seen("article") == num_before:
        raise DataError(
            f"{path}: holds no article, want one a line. Was it cut short? Or leave it out."
        )


def to_batch(articles: list[Article]) -> pa.RecordBatch:
    """Return articles in ``ARTICLE_SCHEMA``. No term is a major topic or has qualifiers."""
    columns = ArticleColumns()
    for article in articles:
        columns.add_article(article.pmid, 1, 0, article.title, "", article.abstract, article.year)
        for term in article.terms:
            columns.add_heading(term, "", False, [])
    return columns.finish()


def _articles(path: Path, quarantine: Quarantine) -> Iterator[Article]:
    try:
        with open_source(path, "a table of articles") as file:
            lines = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
            yield from _parse(bounded_lines(lines, path), path, quarantine)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is not UTF-8 text ({error.reason}). Convert it first, as by iconv."
        ) from None


def _parse(lines: Iterator[str], path: Path, quarantine: Quarantine) -> Iterator[Article]:
    first = next(lines, "")
    if not first:
        raise DataError(f"{path}: is empty, want a table of articles")
    rest = chain([first], lines)
    if "\t" in first:
        yield from _tab_separated(rest, path, quarantine)
        return
    csv.field_size_limit(MAX_FIELD_BYTES)
    rows = csv.reader(rest, strict=True)
    try:
        header = next(csv.reader([first]), [])
        if [name.strip().lower() for name in header] == ["text", "label"]:
            next(rows)
            yield from _labeled(rows, path, quarantine)
        elif len(header) == 4 and header[0].strip().isdigit():
            yield from _released(rows, path, quarantine)
        else:
            raise DataError(
                f"{path}: the first line has {len(header)} columns ({first[:60]!r}); want PMID, "
                "title, abstract and terms separated by tabs, PMID, title, terms and other terms "
                "separated by commas and without header, or the header text,label"
            )
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num}: is no table ({error})") from None


def _tab_separated(lines: Iterator[str], path: Path, quarantine: Quarantine) -> Iterator[Article]:
    for number, line in enumerate(lines, start=1):
        pmid, *columns = line.rstrip("\r\n").split("\t")
        title = columns[0] if columns else ""
        abstract = columns[1] if len(columns) > 1 else ""
        terms = columns[2:]
        if number == 1 and pmid.strip().lower() == "pmid":
            _check_header(line, path)
            quarantine.add(
                "article", "header (no article)", path.name, number, line.strip(), is_bad=False
            )
        elif len(terms) == 1 and ";" in terms[0]:
            reason = "terms joined by ';' (want a column each)"
            _skip(reason, terms[0], path, number, quarantine)
        elif line.strip():
            yield from _checked(pmid, title, abstract, terms, path, number, quarantine)


def _check_header(line: str, path: Path) -> None:
    """Check that title and abstract are the second and third column.

    Raises:
        DataError: for another order.
    """
    names = [name.strip().lower() for name in line.split("\t")]
    for position, name in enumerate(("title", "abstract"), start=1):
        if name in names and names.index(name) != position:
            raise DataError(
                f"{path}: has the columns {names[:5]}, want PMID, title, abstract and then a "
                "column a term"
            )


def _released(rows: Any, path: Path, quarantine: Quarantine) -> Iterator[Article]:
    for line, (pmid, title, terms, _) in _of_width(4, rows, path, quarantine):
        yield from _checked(pmid, title, "", terms.split(";"), path, line, quarantine)


def _labeled(rows: Any, path: Path, quarantine: Quarantine) -> Iterator[Article]:
    """Yield one article for each distinct text.

    The labels of a text may be on several lines anywhere, so the whole file is read first.
    """
    labels_by_text: dict[str, list[str]] = {}
    line_by_text: dict[str, int] = {}
    for line, (text, labels) in _of_width(2, rows, path, quarantine):
        text = " ".join(text.split())
        labels_by_text.setdefault(text, []).extend(labels.split(";"))
        line_by_text.setdefault(text, line)
    for text, labels_of_text in labels_by_text.items():
        line = line_by_text[text]
        yield from _checked(str(_text_id(text)), text, "", labels_of_text, path, line, quarantine)


def _of_width(
    num_columns: int, rows: Any, path: Path, quarantine: Quarantine
) -> Iterator[tuple[int, list[str]]]:
    """Yield line and columns of each row; skip rows of another width (an unquoted comma)."""
    for row in rows:
        if len(row) == num_columns:
            yield rows.line_num, row
        elif row:
            detail = f"{len(row)} columns, want {num_columns}: {','.join(row)}"
            reason = "line with too many or too few columns"
            _skip(reason, detail, path, rows.line_num, quarantine)


def _skip(reason: str, detail: str, path: Path, line: int, quarantine: Quarantine) -> None:
    quarantine.saw("article", 1)
    quarantine.add("article", reason, path.name, line, detail)


def _text_id(text: str) -> int:
    """Return a hash of the text that is larger than all PMIDs."""
    digest = hashlib.blake2b(text.encode(), digest_size=6).digest()
    return (1 << 55) + int.from_bytes(digest, "little")


def _checked(
    pmid: str,
    title: str,
    abstract: str,
    terms: list[str],
    path: Path,
    line: int,
    quarantine: Quarantine,
) -> Iterator[Article]:
    """Yield the article if it is valid, else skip it."""
    quarantine.saw("article", 1)
    distinct_terms = list(dict.fromkeys(term.strip() for term in terms if term.strip()))
    pmid = pmid.strip()
    title = " ".join(title.split())
    abstract = " ".join(abstract.split())
    if not (pmid.isascii() and pmid.isdigit() and len(pmid) < 18):
        quarantine.add("article", "article without PMID", path.name, line, pmid)
    elif not (title or abstract):
        quarantine.add("article", "article without title and abstract", path.name, line, pmid)
    else:
        if not distinct_terms:
            quarantine.add(
                "article", "article without MeSH term (kept)", path.name, line, pmid, is_bad=False
            )
        yield Article(int(pmid), title, abstract, distinct_terms)
