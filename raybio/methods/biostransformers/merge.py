"""Newest revision of each article among the parts of all files, in bounded memory.

The keys of a part are sorted by PMID and appended to a file. Then the keys of one range of PMIDs
are read at a time, from all parts. A byte a citation stays in memory.

Shape letters: F files, C citations of all files, A articles of a range of PMIDs, D deletions, S
sampled keys, K buckets, L limits of ranges.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from raybio.methods.biostransformers.formats.medline_parts import FileReport, read_keys
from raybio.ops.segments import indptr_from_lengths

KEYS_PER_RANGE = 1 << 22
"""Keys that are sorted at once, in about 200 MB."""

SAMPLES_PER_RANGE = 1 << 18

KEY = np.dtype([("pmid", "<i8"), ("row", "<i4")])


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
    articles_per_bucket: int,
    keys_per_range: int = KEYS_PER_RANGE,
) -> Merged:
    """Return the remaining citation of each PMID.

    A later file takes precedence over an earlier one. Within a file the higher version takes
    precedence, then the later position. A deletion removes a PMID of its own and earlier files; a
    later file may add it again.

    Args:
        reports: reports of sound files, oldest first. For PubMed: in order of name, the baseline
            before the updates.
        folder: takes a temporary file of 12 bytes a citation.
        articles_per_bucket: remaining articles of a bucket; the last one has fewer.
        keys_per_range: keys that are sorted at once.

    Raises:
        StoreError: if a part is missing or damaged.
    """
    start_F1 = indptr_from_lengths([report.num_articles for report in reports])
    num_citations = int(start_F1[-1])
    remains_C = np.zeros(num_citations, bool)
    buckets = _BucketLimits(articles_per_bucket)
    num_distinct = 0
    with tempfile.TemporaryFile(dir=folder) as file:
        runs = _write_runs(reports, file, max(1, keys_per_range // SAMPLES_PER_RANGE))
        for pmid_A, file_A, row_A in _newest(file, runs, keys_per_range):
            is_kept_A = ~_is_deleted(pmid_A, file_A, runs.deleted_pmid_D, runs.deleting_file_D)
            remains_C[start_F1[file_A[is_kept_A]] + row_A[is_kept_A]] = True
            buckets.add(pmid_A[is_kept_A])
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

    def __init__(self, articles_per_bucket: int) -> None:
        self.first_pmids: list[int] = []
        self.num_articles = 0
        self._size = articles_per_bucket

    def add(self, pmid_A: np.ndarray) -> None:
        next_first = len(self.first_pmids) * self._size - self.num_articles
        self.first_pmids += pmid_A[next_first :: self._size].tolist()
        self.num_articles += len(pmid_A)


class _Runs(NamedTuple):
    """Sorted keys of all files, in a file one after the other; a sample of them; deletions.

    Attributes:
        start_F1: file f has the keys ``start_F1[f]`` to ``start_F1[f + 1] - 1``.
        sampled_S: evenly spaced PMIDs of all files, ascending.
        deleted_pmid_D: deleted PMIDs, ascending.
        deleting_file_D: the last file that deletes each.
    """

    start_F1: np.ndarray
    sampled_S: np.ndarray
    deleted_pmid_D: np.ndarray
    deleting_file_D: np.ndarray


def _write_runs(reports: Sequence[FileReport], file: IO[bytes], sample_step: int) -> _Runs:
    """Append each part's newest revisions to a file, sorted by PMID."""
    sizes = []
    samples = [np.empty(0, np.int64)]
    deleted = [np.empty(0, np.int64)]
    for report in reports:
        pmid_C, version_C, deleted_D = read_keys(report)
        # A stable sort, so that among equal versions the later row comes last.
        by_version = np.argsort(version_C, kind="stable")
        row_A = by_version[last_occurrences(pmid_C[by_version])]
        keys = np.empty(len(row_A), KEY)
        keys["pmid"] = pmid_C[row_A]
        keys["row"] = row_A
        file.write(keys.data)
        sizes.append(len(keys))
        samples.append(keys["pmid"][::sample_step].copy())
        deleted.append(np.unique(deleted_D))
    file.flush()
    deleted_pmid = np.concatenate(deleted)
    deleting_file = np.repeat(np.arange(-1, len(reports)), [len(pmid) for pmid in deleted])
    last = last_occurrences(deleted_pmid)
    return _Runs(
        indptr_from_lengths(sizes),
        np.sort(np.concatenate(samples)),
        deleted_pmid[last],
        deleting_file[last],
    )


def _newest(
    file: IO[bytes], runs: _Runs, keys_per_range: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield PMID, file and row of the newest citations, a range of PMIDs at a time, ascending."""
    num_files = len(runs.start_F1) - 1
    num_ranges = max(1, -(-int(runs.start_F1[-1]) // keys_per_range))
    cuts = np.arange(1, num_ranges) * len(runs.sampled_S) // num_ranges
    limit_L = np.unique(runs.sampled_S[cuts])
    start_FL = np.empty((num_files, len(limit_L) + 2), np.int64)
    for number in range(num_files):
        first, end = runs.start_F1[number : number + 2].tolist()
        start_FL[number, 0] = first
        start_FL[number, 1:-1] = first + np.searchsorted(_read(file, first, end)["pmid"], limit_L)
        start_FL[number, -1] = end
    for column in range(len(limit_L) + 1):
        blocks = [np.empty(0, KEY)]
        for first, end in start_FL[:, column : column + 2].tolist():
            blocks.append(_read(file, first, end))
        file_C = np.repeat(np.arange(-1, num_files), [len(block) for block in blocks])
        key_C = np.concatenate(blocks)
        last = last_occurrences(key_C["pmid"])
        yield key_C["pmid"][last], file_C[last], key_C["row"][last]


def _read(file: IO[bytes], first: int, end: int) -> np.ndarray:
    file.seek(first * KEY.itemsize)
    return np.frombuffer(file.read((end - first) * KEY.itemsize), KEY)


def last_occurrences(value_C: np.ndarray) -> np.ndarray:
    """Return the index of each value's last occurrence, ascending by value."""
    order = np.argsort(value_C, kind="stable")
    ordered = value_C[order]
    is_last = np.ones(len(ordered), bool)
    is_last[:-1] = ordered[1:] != ordered[:-1]
    return order[is_last]


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
