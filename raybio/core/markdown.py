"""Tables in Markdown, for reports."""

from collections.abc import Sequence


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, num_left: int = 1
) -> str:
    """A GitHub table without a newline at its end; a bar or a line's end in a cell cannot tear it.

    Args:
        header: a heading a column.
        rows: a cell a column.
        num_left: columns that stand to the left, from the first on; the others stand to the right.

    Raises:
        ValueError: for a row of another length than the header.
    """
    if any(len(row) != len(header) for row in rows):
        raise ValueError(
            f"rows of {sorted({len(row) for row in rows})} cells, want {len(header)} as the header"
        )
    align = [":--" if number < num_left else "--:" for number in range(len(header))]
    whole = [
        [cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (header, *rows)
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (whole[0], align, *whole[1:]))
