"""Reader of article tables, one article a line, in four layouts.

Tables with named columns, in any form of ``table_rows``:

- ``text`` and ``label``: labels joined by ``;`` or on separate lines. A hash of the text replaces
  the PMID.
- ``pmid``, ``title``, ``abstract`` and ``terms``: terms joined by ``;``, or a list. A tab-separated
  table has the next layout.

Else the first line decides:

- tab-separated, as the authors train on: PMID, title, abstract, and one column for each MeSH term.
  A header that begins with PMID or id is skipped.
- comma-separated without header, as the authors released: PMID, title, terms joined by ``;``, and
  as many random other terms (ignored). A table of abstracts is refused by its first row: the third
  and the fourth column have different numbers of terms, or the third has a single term that ends
  with a full stop, or a term that is longer than any MeSH term. Later rows like that are skipped.
"""

import csv
import hashlib
import io
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from raybio.core.errors import DataError
from raybio.methods.biostransformers.formats.columns import ArticleColumns
from raybio.store.quarantine import Quarantine
from raybio.store.sources import MAX_LINE_LENGTH, bounded_lines, open_source
from raybio.store.table_rows import choose_columns, is_typed_table, read_columns

LABELED = ("text", ("label", "labels"))
NAMED = (("pmid", "id"), "title", "abstract", ("terms", "mesh", "label", "labels"))
ARTICLES_PER_BATCH = 10_000

FIRST_TEXT_ID = 1 << 55
"""First id of texts without a PMID; larger than all PMIDs."""

_NO_TERMS = ("year", "date", "journal", "author", "doi", "pmcid", "language", "source")
"""Prefixes of names of columns that hold no terms, such as those in exports of articles."""

WIDTH = "line with too many or too few columns"
NO_PAIRS = "line whose third column is no list of terms, as many as in the fourth"

_MAX_TERM_LENGTH = 150
"""Characters; the longest MeSH term has about 100."""


class Article(NamedTuple):
    """One article of a table; year 0 if unknown."""

    pmid: int
    title: str
    abstract: str
    terms: list[str]
    year: int = 0


def read_pair_table(
    path: str | Path,
    quarantine: Quarantine,
    labels_by_text: dict[str, list[str]] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the articles of a table, plain or gzip, in ``ARTICLE_SCHEMA``.

    Args:
        path: the file.
        quarantine: collects skipped lines by file, line and reason.
        labels_by_text: text -> its labels in earlier tables; labels of this table are added.

    Raises:
        DataError: if the file is missing, torn, not UTF-8, of another layout, or without articles.
    """
    path = Path(path)
    num_before = quarantine.num_seen("article")
    waiting: list[Article] = []
    for article in _articles(path, quarantine, {} if labels_by_text is None else labels_by_text):
        waiting.append(article)
        if len(waiting) == ARTICLES_PER_BATCH:
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


def _articles(
    path: Path, quarantine: Quarantine, labels_by_text: dict[str, list[str]]
) -> Iterator[Article]:
    if is_typed_table(path):
        yield from _named(path, quarantine, labels_by_text)
        return
    try:
        with open_source(path, "a table of articles") as file:
            # A lone carriage return is part of a text, not a line end.
            lines = io.TextIOWrapper(file, encoding="utf-8", newline="\n")
            yield from _parse(bounded_lines(lines, path), path, quarantine, labels_by_text)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is not UTF-8 text ({error.reason}). Convert it first, as by iconv."
        ) from None


def _parse(
    lines: Iterator[str],
    path: Path,
    quarantine: Quarantine,
    labels_by_text: dict[str, list[str]],
) -> Iterator[Article]:
    first = next(lines, "")
    if not first:
        raise DataError(f"{path}: is empty, want a table of articles")
    csv.field_size_limit(MAX_LINE_LENGTH)
    rest = chain([first], lines)
    delimiter = max(",;\t", key=first.count)
    row = first.replace("\r", " ")
    header = next(csv.reader([row], delimiter=delimiter), [])
    names = {name.strip().lower() for name in header}
    is_labeled = LABELED[0] in names and not names.isdisjoint(LABELED[1])
    if is_labeled or ("\t" not in first and not names.isdisjoint(NAMED[0])):
        yield from _named(path, quarantine, labels_by_text)
        return
    if "\t" in first:
        yield from _tab_separated(rest, path, quarantine)
        return
    # A row of many terms has more semicolons than commas.
    cells = next(csv.reader([row]), [])
    rows = csv.reader(rest, strict=True)
    try:
        if len(cells) == 4 and cells[0].strip().isdigit():
            yield from _released(rows, path, quarantine)
        else:
            raise DataError(
                f"{path}: the first line has {len(header)} columns ({first[:60]!r}); want PMID, "
                "title, abstract and terms separated by tabs, PMID, title, terms and other terms "
                "separated by commas and without header, or a header with text and label"
            )
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num}: is no table ({error})") from None


def _tab_separated(lines: Iterator[str], path: Path, quarantine: Quarantine) -> Iterator[Article]:
    for number, line in enumerate(lines, start=1):
        pmid, *columns = line.rstrip("\r\n").split("\t")
        title = columns[0] if columns else ""
        abstract = columns[1] if len(columns) > 1 else ""
        terms = columns[2:]
        if number == 1 and pmid.strip().lower() in NAMED[0]:
            _check_header(line, path)
            quarantine.add(
                "article", "header (no article)", path.name, number, line.strip(), is_bad=False
            )
        elif len(terms) == 1 and ";" in terms[0]:
            reason = "terms joined by ';' (want a column each)"
            _skip(reason, terms[0], path, number, quarantine)
        elif any("\r" in term for term in terms):
            # As in files whose lines end so.
            _skip("terms with a carriage return", line, path, number, quarantine)
        elif line.strip():
            yield from _checked(pmid, title, abstract, terms, path, number, quarantine)


def _check_header(line: str, path: Path) -> None:
    """Check that title and abstract are columns two and three, and that others can hold terms.

    Raises:
        DataError: for another order, or a column that would be read as terms.
    """
    names = [name.strip().lower() for name in line.split("\t")]
    strange = [name for name in names[3:] if name.startswith(_NO_TERMS)]
    if strange:
        raise DataError(
            f"{path}: column {strange[0]!r} would be read as terms; want PMID, title, abstract and "
            "then a column a term, or the table as .csv or .jsonl with the columns "
            "pmid, title, abstract and terms, where others may be there"
        )
    for position, name in enumerate(("title", "abstract"), start=1):
        if name in names and names.index(name) != position:
            raise DataError(
                f"{path}: has the columns {names[:5]}, want PMID, title, abstract and then a "
                "column a term"
            )
    # PubMed names abstracts AB, its XML AbstractText.
    if len(names) > 2 and names[2] and not names[2].startswith("ab"):
        raise DataError(
            f"{path}: column {names[2]!r} would be read as abstracts; want PMID, title, abstract "
            "(empty fields if there are none) and then a column a term"
        )


def _released(rows: Any, path: Path, quarantine: Quarantine) -> Iterator[Article]:
    for number, row in enumerate(rows):
        if len(row) == 4:
            pmid, title, terms, other_terms = row
            line = rows.line_num
            if not _are_terms(terms, other_terms):
                if number > 0:
                    _skip(NO_PAIRS, ",".join(row), path, line, quarantine)
                    continue
                # Probably PMID, title, abstract and terms.
                raise DataError(
                    f"{path}, line {line}: has columns of {terms.count(';') + 1} and "
                    f"{other_terms.count(';') + 1} terms ({terms[:60]!r}); without a header, want "
                    "PMID, title, terms and equally many other terms, as the authors released. Or "
                    "write the first line pmid,title,abstract,terms"
                )
            yield from _checked(pmid, title, "", terms.split(";"), path, line, quarantine)
        elif row:
            detail = f"{len(row)} columns, want 4: {','.join(row)}"
            _skip(WIDTH, detail, path, rows.line_num, quarantine)


def _are_terms(terms: str, other_terms: str) -> bool:
    """Return whether the third column holds terms, as many as the fourth, and not an abstract."""
    names = terms.split(";")
    is_sentence = len(names) == 1 and terms.rstrip().endswith(".")
    return (
        len(names) == len(other_terms.split(";"))
        and max(map(len, names)) <= _MAX_TERM_LENGTH
        and not is_sentence
    )


def _named(
    path: Path, quarantine: Quarantine, labels_by_text: dict[str, list[str]]
) -> Iterator[Article]:
    """Yield the articles of a table with named columns; for ``text``, one article per text.

    The labels of a text may be on several lines anywhere, so such a file is read to its end first.
    """

    def select(names: Sequence[str]) -> list[str]:
        # Tables of articles may have other columns, also one called text.
        is_labeled = LABELED[0] in names and not _are_named(names)
        return choose_columns(path, names, LABELED if is_labeled else NAMED)

    def skip(line: int, detail: str) -> None:
        _skip(WIDTH, detail, path, line, quarantine)

    line_by_text: dict[str, int] = {}
    wanted = "columns text and label, or pmid, title, abstract and terms"
    for rows in read_columns(path, wanted, select, separator=";", skip=skip):
        for line, *columns in zip(rows.lines, *rows.columns, strict=True):
            terms = columns.pop().split(";")
            if len(columns) > 1:
                pmid, title, abstract = columns
                yield from _checked(pmid, title, abstract, terms, path, line, quarantine)
                continue
            text = " ".join(columns[0].split())
            labels_by_text.setdefault(text, []).extend(terms)
            line_by_text.setdefault(text, line)
    for text, line in line_by_text.items():
        labels = labels_by_text[text]
        yield from _checked(str(_text_id(text)), text, "", labels, path, line, quarantine)


def _are_named(names: Sequence[str]) -> bool:
    """Return whether a table has each column of ``NAMED``."""
    return all(
        any(name in names for name in ((each,) if isinstance(each, str) else each))
        for each in NAMED
    )


def _skip(reason: str, detail: str, path: Path, line: int, quarantine: Quarantine) -> None:
    quarantine.saw("article", 1)
    quarantine.add("article", reason, path.name, line, detail)


def _text_id(text: str) -> int:
    """Return a hash of the text, at least ``FIRST_TEXT_ID``."""
    digest = hashlib.blake2b(text.encode(), digest_size=6).digest()
    return FIRST_TEXT_ID + int.from_bytes(digest, "little")


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
