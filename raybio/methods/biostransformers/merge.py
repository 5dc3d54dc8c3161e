"""Newest revision of each article among the parts of all files, in bounded memory.

The keys of each part are sorted by PMID and appended to a file. Then the keys of one range of PMIDs
at a time are read from all parts. One byte per citation and a sample of the keys stay in memory.

Shape letters: F files, C citations of all files, A articles of a range of PMIDs, D deletions, K
buckets.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raybio.core.arrays import distinct
from raybio.methods.biostransformers.formats.medline_parts import FileReport, read_keys
from raybio.ops.segments import indptr_from_lengths
from raybio.store.sorted_runs import SortedRuns

KEYS_PER_RANGE = 1 << 22
"""Keys that are sorted at once, in about 200 MB."""

SAMPLES_PER_RANGE = 1 << 18

BUCKET_BYTES = 64 << 20
"""Bytes of a bucket. Sorting it takes up to eight times as much."""

KEY = np.dtype([("pmid", "<i8"), ("row", "<i4"), ("num_bytes", "<i4")])


class Merged(NamedTuple):
    """Which citations remain, and PMIDs that divide them into buckets.

    Attributes:
        remains_C: whether each row of all parts remains, bool; parts in the order of the reports.
        start_F1: rows of file f are ``remains_C[start_F1[f] : start_F1[f + 1]]``.
        first_pmid_K: bucket k holds the remaining articles from this PMID to the next bucket's.
        num_articles: remaining articles.
        num_revised: citations replaced by a newer one of the same PMID.
        num_deleted: PMIDs whose newest citation was deleted.
    """

    remains_C: np.ndarray
    start_F1: np.ndarray
    first_pmid_K: np.ndarray
    num_articles: int
    num_revised: int
    num_deleted: int

    def remains(self, number: int) -> np.ndarray:
        """Return whether each row of a file's part remains, bool."""
        return self.remains_C[self.start_F1[number] : self.start_F1[number + 1]]


def merge_parts(
    reports: Sequence[FileReport],
    folder: Path,
    *,
    bucket_bytes: int = BUCKET_BYTES,
    keys_per_range: int = KEYS_PER_RANGE,
) -> Merged:
    """Return the remaining citation of each PMID.

    A later file takes precedence over an earlier one. Within a file the higher version takes
    precedence, then the later position. A deletion removes a PMID of its own and earlier files; a
    later file may add it again.

    Args:
        reports: reports of sound files, oldest first. For PubMed: in order of name, the baseline
            before the updates.
        folder: takes a temporary file of 16 bytes a citation.
        bucket_bytes: bytes of the articles of a bucket, which its last article may exceed.
        keys_per_range: keys that are sorted at once.

    Raises:
        StoreError: if a part is missing or damaged.
    """
    start_F1 = indptr_from_lengths([report.num_articles for report in reports])
    num_citations = int(start_F1[-1])
    remains_C = np.zeros(num_citations, bool)
    buckets = _BucketLimits(bucket_bytes)
    num_distinct = 0
    sample_step = max(1, keys_per_range // SAMPLES_PER_RANGE)
    runs = SortedRuns(folder / "key_runs", KEY, key="pmid", sample_step=sample_step)
    deleted_pmid_D, deleting_file_D = _add_runs(reports, runs)
    for key_A, file_A in _newest(runs, keys_per_range):
        pmid_A = key_A["pmid"]
        is_kept_A = ~_is_deleted(pmid_A, file_A, deleted_pmid_D, deleting_file_D)
        remains_C[start_F1[file_A[is_kept_A]] + key_A["row"][is_kept_A]] = True
        buckets.add(key_A[is_kept_A])
        num_distinct += len(pmid_A)
    return Merged(
        remains_C,
        start_F1,
        np.array(buckets.first_pmids, np.int64),
        num_articles=buckets.num_articles,
        num_revised=num_citations - num_distinct,
        num_deleted=num_distinct - buckets.num_articles,
    )


class _BucketLimits:
    """The first PMIDs of buckets of remaining articles, which come ascending by PMID."""

    def __init__(self, bucket_bytes: int) -> None:
        self.first_pmids: list[int] = []
        self.num_articles = 0
        self._bucket_bytes = bucket_bytes
        self._num_bytes = 0
        self._last_bucket = -1

    def add(self, key_A: np.ndarray) -> None:
        """Count articles; their keys have the type ``KEY``."""
        end_A = self._num_bytes + np.cumsum(key_A["num_bytes"], dtype=np.int64)
        # An article is in the bucket of its first byte, so a bucket exceeds its limit by less than
        # one article.
        bucket_A = (end_A - key_A["num_bytes"]) // self._bucket_bytes
        is_first_A = np.diff(bucket_A, prepend=self._last_bucket) > 0
        self.first_pmids += key_A["pmid"][is_first_A].tolist()
        self.num_articles += len(key_A)
        if len(key_A):
            self._num_bytes = int(end_A[-1])
            self._last_bucket = bucket_A[-1]


def _add_runs(reports: Sequence[FileReport], runs: SortedRuns) -> tuple[np.ndarray, np.ndarray]:
    """Add each part's newest revisions; return PMIDs (D,) and last files (D,) of deletions."""
    deleted = [np.empty(0, np.int64)]
    for report in reports:
        pmid_C, version_C, num_bytes_C, deleted_D = read_keys(report)
        # A stable sort, so that among equal versions the later row comes last.
        by_version = np.argsort(version_C, kind="stable")
        row_A = by_version[last_occurrences(pmid_C[by_version])]
        keys = np.empty(len(row_A), KEY)
        keys["pmid"] = pmid_C[row_A]
        keys["row"] = row_A
        keys["num_bytes"] = num_bytes_C[row_A]
        runs.add(keys)
        deleted.append(distinct(deleted_D))
    deleted_pmid = np.concatenate(deleted)
    deleting_file = np.repeat(np.arange(-1, len(reports)), [len(pmid) for pmid in deleted])
    last = last_occurrences(deleted_pmid)
    return deleted_pmid[last], deleting_file[last]


def _newest(runs: SortedRuns, keys_per_range: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield key and file of the newest citations, a range of PMIDs at a time, ascending."""
    for key_C, length_F in runs.ranges(keys_per_range):
        file_C = np.repeat(np.arange(len(length_F)), length_F)
        last = last_occurrences(key_C["pmid"])
        yield key_C[last], file_C[last]


def last_occurrences(value_C: np.ndarray) -> np.ndarray:
    """Return the index of each value's last occurrence, ascending by value."""
    _, from_end = np.unique(value_C[::-1], return_index=True)
    return len(value_C) - 1 - from_end


def _is_deleted(
    pmid_A: np.ndarray, file_A: np.ndarray, pmid_D: np.ndarray, file_D: np.ndarray
) -> np.ndarray:
    """Return whether the same or a later file deletes each PMID; ``pmid_A`` ascends."""
    is_deleted_A = np.zeros(len(pmid_A), bool)
    position_D = np.searchsorted(pmid_A, pmid_D)
    is_match_D = position_D < len(pmid_A)
    is_match_D[is_match_D] = pmid_A[position_D[is_match_D]] == pmid_D[is_match_D]
    matches = position_D[is_match_D]
    is_deleted_A[matches] = file_A[matches] <= file_D[is_match_D]
    return is_deleted_A
