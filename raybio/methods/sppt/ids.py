"""Columns of ids, as Arrow arrays of strings.

Shape letters: N values.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def find_ids(values: pa.Array, keys: pa.Array) -> np.ndarray:
    """Return the index of each value among ``keys`` (N,), -1 for missing values."""
    index_N = pc.index_in(values.cast(keys.type), value_set=keys)
    return np.asarray(pc.fill_null(index_N, -1)).astype(np.int64)


def is_first_occurrence(values: pa.Array) -> np.ndarray:
    """Return whether each value occurs for the first time, bool (N,)."""
    # Arrow numbers the values in order of appearance: a new one is larger than all before it.
    code_N = np.asarray(values.dictionary_encode().indices, dtype=np.int64)
    before_N = np.maximum.accumulate(np.concatenate([[-1], code_N]))[:-1]
    return code_N > before_N


def concatenate(batches: list[pa.Array], kind: pa.DataType) -> pa.Array:
    """Return one array of all values, of a type that holds their total size."""
    if not batches:
        return pa.array([], type=kind)
    return pa.concat_arrays([batch.cast(kind) for batch in batches])
