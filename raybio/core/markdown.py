"""Tables in Markdown, for reports."""

from collections.abc import Sequence


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, num_left: int = 1
) -> str:
    """Return a GitHub table without a final newline; bars and line ends in cells are escaped.

    Args:
        header: one heading per column.
        rows: one cell per column.
        num_left: number of left-aligned columns, from the first on; the others align right.

    Raises:
        ValueError: for a row of another length than the header.
    """
    if any(len(row) != len(header) for row in rows):
        lengths = sorted({len(row) for row in rows})
        raise ValueError(f"rows of {lengths} cells, want {len(header)} as the header")
    align = [":--" if number < num_left else "--:" for number in range(len(header))]
    lines = [_line(header), _line(align), *map(_line, rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
    return f"| {' | '.join(escaped)} |"
