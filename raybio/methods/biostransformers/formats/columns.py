"""Articles as Arrow columns.

Columns are filled value by value, because nested Arrow arrays made of dictionaries are slow.
"""

import numpy as np
import pyarrow as pa

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
        ("line", pa.int64()),  # first line of the citation in its file, from 1
        ("title", pa.string()),
        ("vernacular_title", pa.string()),
        ("abstract", pa.string()),
        ("year", pa.int16()),  # 0 if unknown
        ("mesh", pa.list_(_HEADING)),
    ]
)

NUM_SCALARS = 7
"""Columns of ``ARTICLE_SCHEMA`` before ``mesh``."""


class ArticleColumns:
    """Builder of one record batch: ``add_article``, then ``add_heading`` for each MeSH heading."""

    def __init__(self) -> None:
        """Start empty."""
        self._scalars: list[list[int | str]] = [[] for _ in range(NUM_SCALARS)]
        self._heading_offsets = [0]
        self._qualifier_offsets = [0]
        self._headings: tuple[list[str], list[str], list[bool]] = ([], [], [])
        self._qualifiers: tuple[list[str], list[str], list[bool]] = ([], [], [])

    def __len__(self) -> int:
        """Return the number of articles."""
        return len(self._scalars[0])

    def add_article(self, *values: int | str) -> None:
        """Add an article: pmid, version, line, title, vernacular title, abstract, year."""
        for column, value in zip(self._scalars, values, strict=True):
            column.append(value)
        self._heading_offsets.append(self._heading_offsets[-1])

    def add_heading(
        self, name: str, ui: str, is_major: bool, qualifiers: list[tuple[str, str, bool]]
    ) -> None:
        """Add a MeSH heading to the last article."""
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
        """Return all articles in ``ARTICLE_SCHEMA``."""
        scalars = _arrays(self._scalars, list(ARTICLE_SCHEMA)[:NUM_SCALARS])
        qualifier_arrays = _arrays(self._qualifiers, list(_QUALIFIER))
        qualifiers = pa.StructArray.from_arrays(qualifier_arrays, fields=list(_QUALIFIER))
        qualifier_lists = _lists(self._qualifier_offsets, qualifiers, _QUALIFIER)
        heading_arrays = [*_arrays(self._headings, list(_HEADING)[:3]), qualifier_lists]
        headings = pa.StructArray.from_arrays(heading_arrays, fields=list(_HEADING))
        mesh = _lists(self._heading_offsets, headings, _HEADING)
        return pa.record_batch([*scalars, mesh], schema=ARTICLE_SCHEMA)


def _arrays(columns: list | tuple, fields: list[pa.Field]) -> list[pa.Array]:
    return [pa.array(values, field.type) for values, field in zip(columns, fields, strict=True)]


def _lists(offsets: list[int], values: pa.Array, value_type: pa.DataType) -> pa.Array:
    offset_array = pa.array(np.asarray(offsets, np.int32))
    return pa.ListArray.from_arrays(offset_array, values, type=pa.list_(value_type))
