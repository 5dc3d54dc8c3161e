"""Runs on disk, against sorting everything in memory."""

import numpy as np
import pytest

from raybio.store.sorted_runs import SortedRuns

RECORD = np.dtype([("run", "<i4"), ("number", "<i8")])


@pytest.mark.parametrize("sample_step", [1, 3, 1000])
@pytest.mark.parametrize("records_per_range", [1, 7, 1000])
@pytest.mark.parametrize("lengths", [[0], [5], [0, 40, 1, 0, 60]])
def test_ranges_together_are_all_records_in_order_and_each_key_is_in_one(
    lengths, records_per_range, sample_step, tmp_path
):
    path = tmp_path / "runs"
    path.write_bytes(b"left behind")
    runs = SortedRuns(path, RECORD, key="number", sample_step=sample_step)
    rng = np.random.default_rng(0)
    expected = []
    for run, length in enumerate(lengths):
        record_E = np.empty(length, RECORD)
        record_E["run"] = run
        record_E["number"] = np.sort(rng.integers(-20, 20, length))
        runs.add(record_E)
        expected += record_E.tolist()
    assert runs.num_runs == len(lengths)
    found = []
    length_R = np.zeros(len(lengths), np.int64)
    last_key = -1000
    for record_E, own_R in runs.ranges(records_per_range):
        assert record_E["run"].tolist() == np.repeat(np.arange(len(lengths)), own_R).tolist()
        if len(record_E):
            assert record_E["number"].min() > last_key
            last_key = record_E["number"].max()
        found += record_E.tolist()
        length_R += own_R
    assert sorted(found, key=lambda record: (record[1], record[0])) == sorted(
        expected, key=lambda record: (record[1], record[0])
    )
    assert length_R.tolist() == lengths
    assert not path.exists()


def test_samples_divide_the_keys_into_ranges_of_about_the_wanted_size(tmp_path):
    runs = SortedRuns(tmp_path / "runs", RECORD, key="number", sample_step=10)
    for run in range(4):
        record_E = np.zeros(1000, RECORD)
        record_E["number"] = np.arange(run, 4000, 4)
        runs.add(record_E)
    sizes = [len(record_E) for record_E, _ in runs.ranges(500)]
    assert sum(sizes) == 4000
    assert len(sizes) == 8 and max(sizes) < 600


def test_without_runs_there_are_no_ranges(tmp_path):
    runs = SortedRuns(tmp_path / "runs", RECORD, key="number", sample_step=1)
    assert list(runs.ranges(10)) == []
