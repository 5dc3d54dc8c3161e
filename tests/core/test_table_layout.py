"""Measures that only some stores define are shown where all rows have them."""

from raybio.core.table_layout import TableLayout

LAYOUT = TableLayout("Title", {"f1": "F1"}, {"dev": "dev"}, optional={"ign_f1": "Ign-F1"})
BOTH = {"dev": {"f1": {}, "ign_f1": {}}}
ONE = {"dev": {"f1": {}}}


def test_an_optional_measure_is_shown_if_all_rows_have_it() -> None:
    assert LAYOUT.shown([BOTH, BOTH]).measures == {"f1": "F1", "ign_f1": "Ign-F1"}


def test_an_optional_measure_is_hidden_if_a_row_or_a_split_lacks_it() -> None:
    for rows in ([BOTH, ONE], [BOTH | {"test": {"f1": {}}}], [], [{}]):
        assert LAYOUT.shown(rows).measures == {"f1": "F1"}
