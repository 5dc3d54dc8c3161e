"""Tables and FASTA files as text, for several layouts."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from raybio.core.errors import DataError
from raybio.store.sources import read_lines


def read_table(path: Path, wanted: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and fields by column name, of a table with a header; commas or tabs.

    Raises:
        DataError: for a line with another number of columns than the header.
    """
    lines = list(read_lines(path, wanted))
    rows = csv.reader(lines, delimiter="\t" if "\t" in lines[0] else ",")
    names = [name.strip() for name in next(rows)]
    for row in rows:
        if not row:
            continue
        if len(row) != len(names):
            raise DataError(
                f"{path}, line {rows.line_num}: has {len(row)} columns, want {len(names)}, as the "
                "header"
            )
        yield rows.line_num, dict(zip(names, (field.strip() for field in row), strict=True))


def parse_fasta(text: str) -> dict[str, str]:
    """Return the content of each record by its header.

    Records may hold labels or masks instead of residues, so no letter is refused.

    Raises:
        DataError: if two records have the same header.
    """
    records = re.split("^>", text.replace("\r", ""), flags=re.MULTILINE)[1:]
    content_by_header: dict[str, str] = {}
    for number, record in enumerate(records, start=1):
        header, _, content = record.partition("\n")
        header = header.strip()
        if header in content_by_header:
            raise DataError(
                f"FASTA, record {number}: header {header!r} is there twice, want each once"
            )
        content_by_header[header] = content.replace("\n", "").strip()
    return content_by_header
