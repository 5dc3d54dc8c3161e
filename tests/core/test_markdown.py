import pytest

from raybio.core.markdown import markdown_table


def test_first_columns_align_left_and_cells_are_escaped() -> None:
    rows = [["random", "a|b", "0.01"], ["this run", "one\ntwo", "0.12"]]
    assert markdown_table(["model", "answers", "MRR"], rows, num_left=2).splitlines() == [
        "| model | answers | MRR |",
        "| :-- | :-- | --: |",
        "| random | a\\|b | 0.01 |",
        "| this run | one two | 0.12 |",
    ]


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rows of \[1, 2\] cells, want 2"):
        markdown_table(["model", "MRR"], [["random", "0.01"], ["this run"]])
