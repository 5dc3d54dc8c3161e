"""Archives of arrays."""

import io
import zipfile

import numpy as np
import pytest

from raybio.core.arrays import distinct, read_npz


def test_arrays_are_read_back_also_from_an_archive_of_more_than_two_gibibytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # From this size on, an archive has other records at its end.
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    file = io.BytesIO()
    np.savez(file, first=np.arange(1000), second=np.eye(3))
    file.seek(0)
    arrays = read_npz(file)
    assert arrays.keys() == {"first", "second"}
    assert np.array_equal(arrays["first"], np.arange(1000))
    assert np.array_equal(arrays["second"], np.eye(3))


def test_a_cut_archive_is_damaged() -> None:
    file = io.BytesIO()
    np.savez(file, first=np.arange(1000))
    cut = io.BytesIO(file.getvalue()[:-10])
    with pytest.raises(ValueError, match="damaged"):
        read_npz(cut)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float64])
def test_distinct_values_are_those_of_numpy(dtype: type[np.number]) -> None:
    rng = np.random.default_rng(0)
    for length in (0, 1, 2, 1000):
        values = rng.integers(-50, 50, length).astype(dtype)
        found = distinct(values)
        assert found.dtype == dtype
        assert found.tolist() == np.unique(values).tolist()
