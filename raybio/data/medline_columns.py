"""Articles as Arrow columns: filled value by value, because nested Arrow arrays made of dictionaries are slow."""

import numpy as np
import pyarrow as pa

_QUALIFIER = pa.struct([("name", pa.string()), ("ui", pa.string()), ("is_major", pa.bool_())])
_HEADING = pa.struct(
    [("name", pa.string()), ("ui", pa.string()), ("is_major", pa.bool_()), ("qualifiers", pa.list_(_QUALIFIER))]
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

    def add_heading(self, name: str, ui: str, is_major: bool, qualifiers: list[tuple[str, str, bool]]) -> None:
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
            pa.array(values, field.type) for values, field in zip(self._scalars, list(ARTICLE_SCHEMA)[:7], strict=True)
        ]
        qualifiers = pa.StructArray.from_arrays(
            [pa.array(values, field.type) for values, field in zip(self._qualifiers, list(_QUALIFIER), strict=True)],
            fields=list(_QUALIFIER),
        )
        offsets = pa.array(np.asarray(self._qualifier_offsets, np.int32))
        nested = pa.ListArray.from_arrays(offsets, qualifiers, type=pa.list_(_QUALIFIER))
        flat = [pa.array(values, field.type) for values, field in zip(self._headings, list(_HEADING)[:3], strict=True)]
        headings = pa.StructArray.from_arrays([*flat, nested], fields=list(_HEADING))
        offsets = pa.array(np.asarray(self._heading_offsets, np.int32))
        mesh = pa.ListArray.from_arrays(offsets, headings, type=pa.list_(_HEADING))
        return pa.record_batch([*scalars, mesh], schema=ARTICLE_SCHEMA)
