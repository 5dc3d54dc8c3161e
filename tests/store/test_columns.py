"""Declared columns: what a store class declares is what is written and read."""

import numpy as np
import pyarrow as pa
import pytest

from raybio.core.errors import StoreError
from raybio.store.columns import (
    ArrowColumn,
    NumberColumn,
    TextColumn,
    column_tables,
    compact_int,
)
from raybio.store.store import Store, open_store
from raybio.store.word_counts import WordCounts
from raybio.store.writer import Draft


class BaseStore(Store):
    key_N = NumberColumn("rows.arrow", "key", np.int64)


class TestedStore(BaseStore):
    __test__ = False
    kind = "tested"
    flag_N = NumberColumn("rows.arrow", "flag", np.bool_)
    text = ArrowColumn("rows.arrow", "text", pa.large_string())
    names = TextColumn("names.arrow", "name")
    link_E2 = NumberColumn("links.arrow", "link", width=2)
    count_by_word = WordCounts("words.arrow")


class LaterStore(TestedStore):
    year_N = NumberColumn("rows.arrow", "year", np.int16)


VALUES = {
    "key_N": np.array([7, 3, 5], np.int32),
    "flag_N": np.array([True, False, True]),
    "text": ["a", "", "ü"],
    "names": ["first", "second"],
    "link_E2": np.array([[0, 1], [1, 2]]),
    "count_by_word": {"the": 3, "a": 1},
}


@pytest.fixture
def store(tmp_path):
    with Draft(tmp_path / "store") as draft:
        tables = column_tables(TestedStore, VALUES)
        return draft.commit(TestedStore, tables, {"rows": 3}, {})


def test_declared_columns_are_read_as_they_were_written(store):
    assert store.key_N.tolist() == [7, 3, 5]
    assert store.key_N.dtype == np.int64
    assert store.flag_N.tolist() == [True, False, True]
    assert store.flag_N.dtype == bool
    assert store.text.to_pylist() == ["a", "", "ü"]
    assert store.names == ("first", "second")
    assert store.link_E2.tolist() == [[0, 1], [1, 2]]
    assert store.link_E2.dtype == np.int32
    assert store.count_by_word == {"the": 3, "a": 1}


def test_a_file_holds_inherited_columns_first_and_then_those_of_the_class_in_order():
    tables = column_tables(TestedStore, VALUES)
    assert list(tables["rows.arrow"]) == ["key", "flag", "text"]
    assert list(tables["words.arrow"]) == ["word", "count"]


def test_a_column_is_read_once_and_mapped(store):
    assert store.key_N is store.key_N
    assert not store.key_N.flags.writeable
    assert isinstance(TestedStore.key_N, NumberColumn)


@pytest.mark.parametrize("change", [{"extra": 1}, {"names": None}])
def test_missing_and_undeclared_columns_are_refused(change):
    values = {name: value for name, value in (VALUES | change).items() if value is not None}
    (name,) = change
    with pytest.raises(TypeError, match=f"TestedStore: missing or undeclared columns {name}"):
        column_tables(TestedStore, values)


def test_a_store_from_before_a_column_was_introduced_asks_to_be_prepared_again(store):
    later = open_store(store.path, LaterStore)
    with pytest.raises(StoreError, match="prepared when stores did not keep year. Prepare it"):
        _ = later.year_N


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [([], np.int32), ([2**31 - 1, -(2**31)], np.int32), ([2**31], np.int64)],
)
def test_integers_are_compact_where_they_fit(numbers, dtype):
    assert compact_int(np.array(numbers, np.int64)).dtype == dtype
