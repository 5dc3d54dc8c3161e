import numpy as np
import pytest
import torch

from raybio.ops.grouped import lists_contain


@pytest.mark.parametrize("seed", range(5))
def test_lists_contain_equals_a_loop_also_for_repeated_keys_and_columns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lists = [rng.integers(-9, 9, int(rng.integers(0, 6))).tolist() for _ in range(7)]
    column = torch.from_numpy(rng.integers(-9, 9, 11))
    row = torch.tensor([number for number, keys in enumerate(lists) for _ in keys])
    key = torch.tensor([key for keys in lists for key in keys])
    expected = [[one in keys for one in column.tolist()] for keys in lists]
    assert lists_contain(row, key, column, len(lists)).tolist() == expected
    # Columns of a matrix, which torch.searchsorted warns about.
    (row, key), (column, _) = (
        torch.stack(pair, dim=1).unbind(1) for pair in ((row, key), (column, column))
    )
    assert lists_contain(row, key, column, len(lists)).tolist() == expected


def test_lists_without_entries_contain_nothing() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    assert lists_contain(nothing, nothing, torch.tensor([4, 4]), 3).tolist() == [[False] * 2] * 3
    assert lists_contain(nothing, nothing, nothing, 0).shape == (0, 0)


def test_lists_of_other_workers_have_no_column_on_a_worker_without_rows() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    found = lists_contain(torch.tensor([0, 1]), torch.tensor([1, 2]), nothing, 2)
    assert found.shape == (2, 0)
    assert found.dtype == torch.bool
