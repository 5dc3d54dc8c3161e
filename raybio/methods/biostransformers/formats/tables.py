"""Article tables that others use for training pairs: no XML, one article a line.

Three layouts, told apart by their first line: the authors' tab-separated one (PMID, title, abstract, MeSH terms in as
many columns as there are; a header that begins with PMID is known as one), their released comma-separated one without
header (PMID, title, terms joined by ``;``, random other terms joined by ``;``, which are not read), and a
comma-separated one with the header ``text,label`` (labels joined by ``;`` or on lines of their own; a hash of the text
stands for the PMID).
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
from raybio.methods.biostransformers.formats.medline import ArticleColumns
from raybio.store.quarantine import Quarantine
from raybio.store.sources import bounded_lines, open_source

MAX_FIELD_BYTES = 1 << 22


class Article(NamedTuple):
    """One article of a table; year 0 where it does not say."""

    pmid: int
    title: str
    abstract: str
    terms: list[str]
    year: int = 0


def read_pair_table(
    path: str | Path, quarantine: Quarantine, *, articles_per_batch: int = 10_000
) -> Iterator[pa.RecordBatch]:
    """The articles of a table, plain or gzip, in ``ARTICLE_SCHEMA``.

    Args:
        path: the file.
        quarantine: takes the header and lines that are none of the layout's, by file, line and reason.
        articles_per_batch: articles of a record batch.

    Raises:
        DataError: if the file is missing, torn, not UTF-8, of none of the layouts, or holds no article.
    """
    path, num_before = Path(path), quarantine.num_seen("article")
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
    """Articles as a record batch in ``ARTICLE_SCHEMA``; their terms are major topics of none and have no qualifiers."""
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
            yield from _labelled(rows, path, quarantine)
        elif len(header) == 4 and header[0].strip().isdigit():
            yield from _released(rows, path, quarantine)
        else:
            raise DataError(
                f"{path}: the first line has {len(header)} columns ({first[:60]!r}); want PMID, title, abstract and "
                "terms separated by tabs, PMID, title, terms and other terms separated by commas and without header, "
                "or the header text,label"
            )
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num}: is no table ({error})") from None


def _tab_separated(lines: Iterator[str], path: Path, quarantine: Quarantine) -> Iterator[Article]:
    for number, line in enumerate(lines, start=1):
        pmid, *columns = line.rstrip("\r\n").split("\t")
        title, abstract, terms = [*columns, "", ""][0], [*columns, "", ""][1], columns[2:]
        if number == 1 and pmid.strip().lower() == "pmid":
            _check_header(line, path)
            quarantine.add(
                "article", "header (no article)", path.name, number, line.strip(), is_bad=False
            )
        elif len(terms) == 1 and ";" in terms[0]:
            _set_aside(
                "terms joined by ';' (want a column each)", terms[0], path, number, quarantine
            )
        elif line.strip():
            yield from _checked(pmid, title, abstract, terms, path, number, quarantine)


def _check_header(line: str, path: Path) -> None:
    """Refuse a header by which titles and abstracts stand elsewhere."""
    names = [name.strip().lower() for name in line.split("\t")]
    for place, name in enumerate(("title", "abstract"), start=1):
        if name in names and names.index(name) != place:
            raise DataError(
                f"{path}: has the columns {names[:5]}, want PMID, title, abstract and then a column a term"
            )


def _released(rows: Any, path: Path, quarantine: Quarantine) -> Iterator[Article]:
    for line, (pmid, title, terms, _) in _of_width(4, rows, path, quarantine):
        yield from _checked(pmid, title, "", terms.split(";"), path, line, quarantine)


def _labelled(rows: Any, path: Path, quarantine: Quarantine) -> Iterator[Article]:
    """The labels of one text may stand on several lines, wherever they are: the file is read whole."""
    labels_by_text: dict[str, list[str]] = {}
    line_by_text: dict[str, int] = {}
    for line, (text, labels) in _of_width(2, rows, path, quarantine):
        text = " ".join(text.split())
        labels_by_text.setdefault(text, []).extend(labels.split(";"))
        line_by_text.setdefault(text, line)
    for text, named in labels_by_text.items():
        yield from _checked(
            str(_id_of(text)), text, "", named, path, line_by_text[text], quarantine
        )


def _of_width(
    num_columns: int, rows: Any, path: Path, quarantine: Quarantine
) -> Iterator[tuple[int, list[str]]]:
    """Line and columns of each row; a comma that is not quoted gives a row of another width."""
    for row in rows:
        if len(row) == num_columns:
            yield rows.line_num, row
        elif row:
            found = f"{len(row)} columns, want {num_columns}: {','.join(row)}"
            _set_aside(
                "line with too many or too few columns", found, path, rows.line_num, quarantine
            )


def _set_aside(reason: str, detail: str, path: Path, line: int, quarantine: Quarantine) -> None:
    quarantine.saw("article", 1)
    quarantine.add("article", reason, path.name, line, detail)


def _id_of(text: str) -> int:
    """A number far above all PMIDs."""
    return (1 << 55) + int.from_bytes(
        hashlib.blake2b(text.encode(), digest_size=6).digest(), "little"
    )


def _checked(
    pmid: str,
    title: str,
    abstract: str,
    terms: list[str],
    path: Path,
    line: int,
    quarantine: Quarantine,
) -> Iterator[Article]:
    """The article, or nothing and a note of why."""
    quarantine.saw("article", 1)
    named = list(dict.fromkeys(term.strip() for term in terms if term.strip()))
    pmid, title, abstract = pmid.strip(), " ".join(title.split()), " ".join(abstract.split())
    if not (pmid.isascii() and pmid.isdigit() and len(pmid) < 18):
        quarantine.add("article", "article without PMID", path.name, line, pmid)
    elif not (title or abstract):
        quarantine.add("article", "article without title and abstract", path.name, line, pmid)
    else:
        if not named:
            quarantine.add(
                "article", "article without MeSH term (kept)", path.name, line, pmid, is_bad=False
            )
        yield Article(int(pmid), title, abstract, named)
