"""Newest revision of each article, against a loop over all files, with ranges and buckets of any size."""

import numpy as np
import pytest

from raybio.methods.biostransformers.formats.medline_parts import parse_file, read_keys
from raybio.methods.biostransformers.merge import merge_parts
from tests.methods.biostransformers.formats.medline_files import (
    citation,
    deletion,
    read_articles,
    write_medline,
)

SIZES = {"bucket_bytes": 200, "keys_per_range": 3}


@pytest.fixture
def parts(tmp_path):
    (tmp_path / "parts").mkdir()
    return tmp_path / "parts"


def merged(folder, parts, files, **sizes):
    """Return (file, row, PMID) of remaining articles; a file is ((PMID, version), deletions)."""
    reports = []
    for number, (citations, deletions) in enumerate(files):
        texts = [citation(pmid, version=version) for pmid, version in citations]
        path = write_medline(folder / f"n{number:04d}.xml", *texts, others=deletion(*deletions))
        reports.append(parse_file(path, parts))
    sizes = SIZES | sizes
    found = merge_parts(reports, folder, **sizes)
    num_citations = sum(len(citations) for citations, _ in files)
    assert num_citations == found.num_articles + found.num_revised + found.num_deleted
    remaining = []
    for number, report in enumerate(reports):
        rows = np.flatnonzero(found.remains(number))
        pmids = read_articles(report.part)["pmid"].to_numpy()[rows]
        remaining += [(number, int(row), int(pmid)) for row, pmid in zip(rows, pmids, strict=True)]
    remaining.sort(key=lambda one: one[2])
    pmids = [pmid for _, _, pmid in remaining]
    assert found.num_articles == len(remaining)
    sizes_by_file = [read_keys(report)[2] for report in reports]
    num_bytes = 0
    first_pmid_by_bucket = {}
    for number, row, pmid in remaining:
        first_pmid_by_bucket.setdefault(num_bytes // sizes["bucket_bytes"], pmid)
        num_bytes += int(sizes_by_file[number][row])
    assert found.first_pmid_K.tolist() == list(first_pmid_by_bucket.values())
    return remaining, found


def merged_slowly(files):
    """The same by a loop over all files in their order."""
    place_by_pmid = {}
    for number, (citations, deletions) in enumerate(files):
        version_by_pmid = {}
        for row, (pmid, version) in enumerate(citations):
            if version >= version_by_pmid.get(pmid, version):
                version_by_pmid[pmid] = version
                place_by_pmid[pmid] = (number, row, pmid)
        for pmid in deletions:
            place_by_pmid.pop(pmid, None)
    return [place_by_pmid[pmid] for pmid in sorted(place_by_pmid)]


def test_a_later_file_revises_whatever_its_version(tmp_path, parts):
    found, counts = merged(tmp_path, parts, [([(1, 3), (2, 1)], []), ([(1, 1)], [])])
    assert found == [(1, 0, 1), (0, 1, 2)]
    assert (counts.num_revised, counts.num_deleted) == (1, 0)


def test_within_a_file_the_higher_version_wins_then_the_later_place(tmp_path, parts):
    found, _ = merged(tmp_path, parts, [([(1, 2), (1, 3), (1, 1), (2, 1), (2, 1)], [])])
    assert found == [(0, 1, 1), (0, 4, 2)]


def test_a_deletion_takes_its_own_and_earlier_files_articles_and_later_files_bring_them_again(
    tmp_path, parts
):
    files = [([(1, 1), (2, 1), (3, 1)], []), ([(1, 2), (4, 1)], [1, 2, 4, 99]), ([(2, 1)], [])]
    found, counts = merged(tmp_path, parts, files)
    assert found == [(2, 0, 2), (0, 2, 3)]
    assert (counts.num_revised, counts.num_deleted) == (2, 2)


def test_the_order_of_the_reports_is_the_order_of_the_files(tmp_path, parts):
    reports = [
        parse_file(write_medline(tmp_path / f"{n}.xml", citation(1), others=deletion(*gone)), parts)
        for n, gone in enumerate([[], [1]])
    ]
    assert not merge_parts(reports, tmp_path, **SIZES).remains_C.any()
    assert merge_parts(reports[::-1], tmp_path, **SIZES).remains(1).tolist() == [True]


@pytest.mark.parametrize("files", [[], [([], [])], [([], [5])], [([(1, 1)], [1]), ([], [])]])
def test_nothing_may_remain(tmp_path, parts, files):
    assert merged(tmp_path, parts, files)[0] == []


@pytest.mark.parametrize("seed", range(12))
def test_merging_equals_a_loop_over_all_files(tmp_path, parts, seed):
    rng = np.random.default_rng(seed)
    files = [
        (
            [
                (int(pmid), int(rng.integers(1, 4)))
                for pmid in rng.integers(1, 12, int(rng.integers(0, 15)))
            ],
            rng.integers(1, 14, int(rng.integers(0, 4))).tolist(),
        )
        for _ in range(int(rng.integers(1, 7)))
    ]
    expected = merged_slowly(files)
    for keys_per_range in (1, 4, 1000):
        for bucket_bytes in (1, 300, 100_000):
            sizes = {"keys_per_range": keys_per_range, "bucket_bytes": bucket_bytes}
            assert merged(tmp_path, parts, files, **sizes)[0] == expected
