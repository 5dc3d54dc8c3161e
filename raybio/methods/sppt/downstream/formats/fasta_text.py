"""FASTA files as text, for several layouts."""

import re

from raybio.core.errors import DataError


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
